package evidence

import (
	"maps"
	"math"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/boottime"
)

// These are limits of what the fuzzer's bytes stand for.
const (
	fuzzSessions  = 8 // the last two have a role that nobody trusts
	fuzzTrusted   = 6
	fuzzMostSteps = 500
	fuzzLSN       = 1 // of the mark
)

func fuzzRole(pid uint32) uint32 {
	switch {
	case pid <= 2:
		return ours
	case pid <= fuzzTrusted:
		return theirs
	}
	return nobody
}

// fuzzStep lets something happen: an announcement, a look, the answer about a speaker's role, a
// mark, or a refused try, perhaps some time after what was before. Words of strangers can be left
// out. What a look shows comes from the bytes, too, except that no stranger holds the lock unless
// strangersHold says so.
func fuzzStep(h *Evidence, step []byte, withStrangers, strangersHold bool) {
	op, who, what := step[0], step[1], step[2]
	if op&0x08 != 0 {
		letPass(h, 2*freeAfterClean)
	}
	pid := uint32(who)%fuzzSessions + 1
	trusted := pid <= fuzzTrusted
	token := int64(what >> 3)
	switch op % 8 {
	case 0:
		if !trusted && !withStrangers {
			return
		}
		a := Announcement{Word: Started, Token: token, CoversEarlier: true, Lease: time.Duration(what) * time.Minute, Shared: what&1 != 0}
		h.Hear(pid, payloadOf(a))
	case 1, 2:
		if !trusted && !withStrangers {
			return
		}
		a := Announcement{Word: Clean, Token: token, CoversEarlier: what&1 == 0, LSN: LSN(what & 2)}
		if op%8 == 2 {
			a.Word = Dead
		}
		h.Hear(pid, payloadOf(a))
	case 3:
		h.Hear(pid, payloadOf(Announcement{Word: Left, Token: token, CoversEarlier: true}))
		h.NoteMark(fuzzLSN)
	case 4, 5: // a look, at an earlier state; one kind is sent just after all words
		l := &Look{Role: ours, Sent: boottime.Instant(math.MaxInt64 * int64(op%2)), Received: boottime.Now(), Line: []Seat{{PID: uint32(what)%fuzzSessions + 1, Role: fuzzRole(uint32(what)%fuzzSessions + 1)}}}
		if (trusted || strangersHold) && what&4 != 0 {
			l.Holders = []Seat{{ID: lockkey.ID{Number: 7}, PID: pid, Role: fuzzRole(pid), Token: token, Outlives: time.Duration(what) * time.Minute, Shared: what&1 != 0}}
		}
		h.Saw(l, lockkey.ID{Number: 7})
	case 6:
		for _, pid := range h.RolesWanted() {
			role := uint32(0) // the session is gone
			if what&1 != 0 {
				role = fuzzRole(pid)
			}
			h.NoteRole(pid, role)
		}
	case 7:
		h.NoteRefusal(boottime.Now().Add(freeAfterClean))
	}
}

// letPass lets time pass: all that has a time is that much older.
func letPass(h *Evidence, d time.Duration) {
	for pid, p := range h.peers {
		if p.missed != 0 {
			p.missed = p.missed.Add(-d)
			h.peers[pid] = p
		}
	}
	for i := range h.words {
		h.words[i].at = h.words[i].at.Add(-d)
	}
	if h.last != nil {
		h.last.at = h.last.at.Add(-d)
	}
}

// trustedStarts are the open starts of sessions whose role is that of no stranger.
func trustedStarts(h *Evidence) map[knownStart]bool {
	open := map[knownStart]bool{}
	for _, s := range h.starts {
		if p := h.peers[s.pid]; s.kind == ofSession && (p.role == ours || p.role == theirs) {
			s.pid = 0 // which may be given up
			open[s] = true
		}
	}
	return open
}

// FuzzEvidence: whatever happens in whatever order, nothing panics, memory is bounded, only sessions
// that there may be are asked about, and no waiter starts earlier because of what a stranger says. A
// stranger that is seen to hold the lock says something of itself, but ends nobody else's run.
func FuzzEvidence(f *testing.F) {
	f.Add(false, true, false, []byte{4, 3, 0x2c, 1, 3, 0x28})          // seen, clean
	f.Add(false, true, false, []byte{4, 3, 0x2c, 1, 7, 0xf8, 6, 0, 1}) // seen, a stranger's clean, verified
	f.Add(false, true, false, []byte{1, 7, 0xf8, 6, 0, 1, 7, 0, 0, 4, 3, 0x2c, 0, 7, 0, 2, 3, 0x29})
	f.Add(false, true, false, []byte{0, 3, 0x28, 1, 4, 0x31, 4, 3, 0x2c, 6, 0, 1, 1, 3, 0x28, 7, 0, 0, 1, 7, 0x28})
	f.Add(true, true, false, []byte{4, 3, 0x2d, 0, 4, 0x29, 1, 3, 0x28, 3, 3, 0x28})
	f.Add(false, false, false, []byte{4, 3, 0x2c, 1, 3, 0x28, 3, 0, 0, 1, 3, 0x30})
	// Strangers announce the start that another session's late word names.
	f.Add(false, true, false, []byte("07\xfe10\xfa$00000"))
	f.Add(true, true, false, []byte("1001000011&0001$10&011000&v10s"))
	// A stranger speaks, has the lock, is missed, and speaks again a while later.
	f.Add(false, true, true, []byte{4, 0, 0, 1, 6, 1, 6, 0, 1, 5, 6, 0x0c, 4, 0, 0, 9, 6, 9, 6, 0, 1, 4, 0, 0})
	f.Fuzz(func(t *testing.T, shared, marked, strangersHold bool, steps []byte) {
		with := New(Waiter{LockDelay: testDelay, Lease: testLease, Shared: shared})
		without := New(Waiter{LockDelay: testDelay, Lease: testLease, Shared: shared})
		if marked { // otherwise the mark comes later, or never
			with.NoteMark(fuzzLSN)
			without.NoteMark(fuzzLSN)
		}
		for n := 0; len(steps) >= 3 && n < fuzzMostSteps; n, steps = n+1, steps[3:] {
			if steps[0]&0x80 == 0 { // otherwise the next look was sent before this
				with.LookSent()
				without.LookSent()
			}
			before := trustedStarts(with)
			fuzzStep(with, steps, true, strangersHold)
			fuzzStep(without, steps, false, strangersHold)
			with.applyWords() // only a stranger's word or role may make the evidence go through those before
			without.applyWords()
			if a, b := with.Verdict(testDelay), without.Verdict(testDelay); a.Delay < b.Delay && !strangersHold {
				t.Fatalf("step %d: what strangers say shortens %v to %v", n, b.Delay, a.Delay)
			}
			after, op, pid := trustedStarts(with), steps[0]%8, uint32(steps[1])%fuzzSessions+1
			maps.DeleteFunc(before, func(s knownStart, _ bool) bool { return after[s] })
			if (op == 1 || op == 2) && pid > fuzzTrusted && len(before) > 0 {
				t.Fatalf("step %d: the word of a stranger ends %+v", n, before)
			}
			for _, pid := range with.RolesWanted() {
				if pid > fuzzSessions {
					t.Fatalf("step %d: the role of %d is wanted", n, pid)
				}
			}
			if len(with.starts) > mostStarts || len(with.words) > mostWords || len(with.peers) > mostStarts+2*fuzzSessions {
				t.Fatalf("step %d: %d starts, %d words, %d sessions", n, len(with.starts), len(with.words), len(with.peers))
			}
			if v := with.Verdict(testDelay); !with.mark.taken && v.Delay < testDelay {
				t.Fatalf("step %d: it isn't marked, and the delay is %v", n, v.Delay)
			}
			if v := with.Verdict(testDelay); len(with.starts) > 0 && v.Delay < testDelay || v.Delay < 0 {
				t.Fatalf("step %d: somebody has started, and the delay is %v", n, v.Delay)
			}
		}
	})
}
