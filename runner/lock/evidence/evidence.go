// Package evidence keeps what a waiter has heard and seen of a lock's holders, and judges whose
// commands may still be alive when the lock is granted. The promise rests on it. The package sends
// nothing: others tell it what was announced (Hear) and what a look at the server has shown (Saw),
// and ask it for a Verdict.
//
// Read it in this order: announcement.go (what holders say), look.go (what the server shows), the
// table of states below, starts.go (whose commands may be alive), peers.go (which session is
// which), closing.go (whose word ends what).
package evidence

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/leasetime"
)

// state is what the evidence amounts to.
type state int

// Whoever is granted the lock starts at once if the state is ended, or if it is untouched and the
// server is not young. Otherwise the lock is first held for the lock-delay, if there is one (Verdict).
const (
	untouched state = iota // nobody else is known to have the lock, or to have had it
	contested              // others have it, or may have had it; no start of theirs is known to be open
	running                // a start is open: its command may be alive
	ended                  // all starts that were known have been closed, and there is a mark
)

// Evidence is what a waiter knows of a lock. While it listens, the evidence has these states:
//
//	           started, or      a word that  a word that  a refused  silent for   the mark
//	           seen to hold it  closes all   closes some  try        long enough  is taken
//	untouched  running          ended        –            contested  ended        untouched
//	contested  running          ended        –            contested  ended        contested
//	running    running          ended        running      running    ended        running
//	ended      running          ended        –            running    ended        –
//
// The exceptions are said at state (no mark yet), NoteMark, NoteRefusal, NoteSilence, apply (no
// start is open) and dropStarts (a start goes, and nothing has ended).
type Evidence struct {
	waiter Waiter

	mu        sync.Mutex
	contested bool // by Contest, by a refusal, or by what was forgotten
	findings
}

// findings is the evidence since the waiter began to listen.
type findings struct {
	mark     mark            // shows holders that the waiter listens
	seq      int             // the number of what was noted last, which shows the order
	asOf     int             // seq when the latest look was sent
	starts   []knownStart    // those that are open
	words    []heardWord     // the latest that said how a run ended
	peers    map[uint32]peer // sessions that hold the lock, wait for it or have spoken
	ownRole  uint32          // the role of this session; 0 until it is known
	last     *lastEnd        // nil: none is known
	silenced Seat            // the holder that was silent last, for as long as its session has the lock
}

// mark is the waiter's mark. Holders that see it announce their starts and clean ends.
type mark struct {
	taken bool
	at    LSN // the position of the write-ahead log just after it was taken
	noted int // seq when the mark was noted
}

// lastEnd is the end of the latest run that is known to have ended, by a word or by silence.
type lastEnd struct {
	token         int64
	coversEarlier bool             // all earlier runs have ended, too
	ownToken      int64            // this run has ended, by the latest word of the waiter's own role; 0: there was none
	ownDeadUpTo   int64            // all runs up to this token have ended, by a word or the silence of the waiter's own role
	at            boottime.Instant // when the last word that changed anything was applied
}

// Other sessions can't make the evidence remember more than this, besides a peer for each session
// that has spoken since the last look.
const (
	mostStarts = 64
	mostWords  = 32
)

// Waiter has the settings of a waiter.
type Waiter struct {
	LockDelay time.Duration
	Lease     time.Duration
	LostGrace time.Duration
	Shared    bool // it is a reader: other readers don't keep it out
}

// New is the evidence of a waiter that knows nothing yet.
func New(w Waiter) *Evidence {
	e := &Evidence{waiter: w}
	e.Forget()
	return e
}

// Contest notes that another session may have had the lock while the waiter did not listen. From
// then on, to start at once takes evidence.
func (e *Evidence) Contest() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.contested = true
}

// Untouched says whether nobody else is known to have, or to have had, the lock.
func (e *Evidence) Untouched() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state() == untouched
}

// Ended says whether the runs that were known have ended, and all others that may have begun since.
func (e *Evidence) Ended() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state() == ended
}

// Forget forgets what was heard and seen, except that others had the lock, or may have had it: from
// then on the waiter hears nothing of their ends.
func (e *Evidence) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.contested = e.state() != untouched
	e.findings = findings{peers: map[uint32]peer{}}
}

// Hear notes what another session said on the lock's channel, and returns it if it is an
// announcement that concerns this waiter. The session's reader calls it.
func (e *Evidence) Hear(pid uint32, payload string) (a Announcement, ok bool) {
	a, ok = parse(payload)
	if !ok || e.waiter.Shared && a.Shared && a.Word == Started {
		return a, false
	}
	a.PID = pid
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	// A peer that is empty means that the session was gone when its role was asked for, or that a
	// look showed none. It said this earlier, or another session has its number now, so the role
	// has to be asked for again.
	if e.peers[pid] == (peer{}) {
		delete(e.peers, pid)
	}
	e.retireMissed(pid)
	switch a.Word {
	case Started:
		e.noteStart(knownStart{pid: pid, token: a.Token, outlives: a.outlives()})
	case Clean, Dead:
		e.noteWord(a)
		e.applyWords()
	case Left:
	}
	return a, true
}

// noteWord adds the word of a run's end, which applyWords will apply. If there are too many, the
// oldest counts as that of a session that is gone (NoteRole).
func (e *Evidence) noteWord(a Announcement) {
	if len(e.words) == mostWords {
		e.cancelOwn(e.words[0])
		e.words = slices.Delete(e.words, 0, 1)
	}
	e.words = append(e.words, heardWord{Announcement: a, noted: e.seq, at: boottime.Now(), role: e.peers[a.PID].role})
}

// NoteMark notes that the waiter's mark was taken, and the position of the write-ahead log then.
// The session's reader calls it, after the LISTEN and before Saw.
//
// Before the mark was taken, a holder that found no other mark announced nothing. So after what was
// heard and seen so far, other holders may have come and gone, and it is no longer evidence of an
// end. The starts still count. If none is open, the state is what it was in the beginning,
// contested or untouched, unless a clean end shows that it came after the mark (fromHolder).
func (e *Evidence) NoteMark(at LSN) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mark.taken {
		return
	}
	e.mark, e.last = mark{taken: true, at: at, noted: e.seq}, nil
	for i, w := range e.words { // a word that was said after the mark may have arrived before the answer
		e.words[i].applied = w.applied && w.LSN <= at
	}
	e.applyWords()
}

// freeAfterClean is how long after the announcement of a clean end, which precedes the
// unlock, the lock is certainly free.
const freeAfterClean = 150 * time.Millisecond

// NoteRefusal notes that a try was refused, since another session has the lock. If an end is known,
// with a mark or without, and no confirmed start is open, there must be a holder that says nothing,
// such as another program: NoteRefusal adds it, and returns true if it did so. But the last known
// holder may still have the lock for freeAfterClean after its last word, and while the server ends
// its silent session. (If another program takes the lock and frees it between two looks, nobody
// notices.)
func (e *Evidence) NoteRefusal(at boottime.Instant) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.contested = true
	if e.last == nil || slices.ContainsFunc(e.starts, e.isConfirmed) || at.Sub(e.last.at) < freeAfterClean || e.silenced.PID != 0 {
		return false
	}
	e.seq++
	e.noteStart(knownStart{kind: ofUnknown})
	return true
}

// LookSent notes that a look is about to be sent.
func (e *Evidence) LookSent() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asOf = e.seq
}

// Saw notes what the look that was sent last has shown. The session's reader calls it, in the order
// of the server's messages.
func (e *Evidence) Saw(l *Look, id lockkey.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	e.ownRole = cmp.Or(l.Role, e.ownRole)
	for pid := range e.peers { // the server reuses the numbers of sessions
		switch {
		case !slices.ContainsFunc(e.starts, func(s knownStart) bool { return s.pid == pid }):
			delete(e.peers, pid)
		case l.showsAll() && pid != e.silenced.PID:
			e.miss(pid, l.Received) // unless it is met below
		}
	}
	for _, w := range l.Line {
		e.meet(w.PID, w.Role)
	}
	silenced := e.silenced
	e.silenced = Seat{}
	for _, s := range l.Holders {
		switch {
		case s.ID != id:
		case s.PID == silenced.PID && s.Opened == silenced.Opened:
			e.silenced = silenced
		default:
			e.sawHolder(s, l.Sent)
		}
	}
	e.applyWords()
}

// sawHolder notes a holder that a look has shown.
//
// The holder's word may have arrived before the look's answer, or the look may have come between
// the word and the unlock, when the session may be gone from all but the list of locks. In both
// cases the look shows a run that the word has ended, which doesn't begin again. (A later run
// of that session is noted by its own start.) If the holder still shows the token of that run,
// it has had the lock ever since, however late it unlocks: the tries were refused because of this
// holder, and not of an unknown one.
func (e *Evidence) sawHolder(s Seat, sent boottime.Instant) {
	p := e.meet(s.PID, s.Role)
	p.heldAt = e.seq
	e.peers[s.PID] = p
	isOver := func(w heardWord) bool {
		return w.PID == s.PID && s.Token <= w.Token && (w.noted > e.asOf || sent.Sub(w.at) < freeAfterClean)
	}
	unlocksLate := func(w heardWord) bool {
		return w.Word == Clean && w.PID == s.PID && w.applied && s.Token != 0 && s.Token == w.Token
	}
	late := slices.IndexFunc(e.words, unlocksLate)
	switch {
	case late >= 0:
		said := e.words[late].noted
		e.starts = slices.DeleteFunc(e.starts, func(known knownStart) bool { return known.kind == ofUnknown && known.noted > said })
	case e.waiter.Shared && s.Shared, slices.ContainsFunc(e.words, isOver):
	case s.Ended && s.Token != 0:
		e.noteWord(Announcement{Word: Clean, Token: s.Token, PID: s.PID})
	default:
		seen := knownStart{pid: s.PID, token: s.Token, outlives: s.Outlives}
		if s.PID == 0 { // it holds the lock by a prepared transaction
			seen.kind = ofUnknown
		}
		e.noteStart(seen)
	}
}

// NoteSilence notes that a holder was silent for as long as its command can live, up to the latest
// look: its command is dead, and so is every command that had started before that look was sent.
// (For KnowsDead that holds up to the latest token of the waiter's own role.)
//
// The holder's session may have the lock for a while longer: if this role may not end that
// session, the server will. If a start is heard meanwhile, the state stays running.
func (e *Evidence) NoteSilence(of Seat) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.silenced = of
	if e.last == nil {
		e.last = &lastEnd{}
	}
	e.last.coversEarlier = true
	over := func(s knownStart) bool {
		return s.noted <= e.asOf || s.kind == ofSession && s.pid == e.silenced.PID
	}
	for _, s := range e.starts {
		if !over(s) || s.kind == ofTooMany || !e.isConfirmed(s) {
			continue
		}
		e.last.token = max(e.last.token, s.token)
		if e.trustIn(s.pid) == asOwn {
			e.last.ownDeadUpTo = max(e.last.ownDeadUpTo, s.token)
		}
	}
	e.starts = slices.DeleteFunc(e.starts, over)
}

// Verdict is what the evidence means for a waiter that is granted the lock.
type Verdict struct {
	// Delay is how long the lock is to be held before the command may start.
	Delay time.Duration
	// CoversEarlier: this holder's word of its end may also speak for all earlier holders.
	CoversEarlier bool
}

// state is the state at this moment, which the session's reader may change. Before the mark is
// taken, what would be ended is contested: other holders may have come and gone unheard. The caller
// holds mu.
func (e *Evidence) state() state {
	switch {
	case len(e.starts) > 0:
		return running
	case e.last != nil && e.mark.taken:
		return ended
	case e.last != nil, e.contested:
		return contested
	}
	return untouched
}

// Verdict is the current verdict. firstTry is the delay for a lock that is untouched, which depends
// on how long the server has been up.
func (e *Evidence) Verdict(firstTry time.Duration) Verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch e.state() {
	case untouched:
		return Verdict{Delay: firstTry}
	case ended:
		return Verdict{CoversEarlier: e.last.coversEarlier}
	}
	// A lock-delay that is shorter than a command may live by the waiter's own settings covers no
	// earlier one (speaksOf).
	v := Verdict{Delay: e.waiter.LockDelay, CoversEarlier: e.waiter.LockDelay >= leasetime.DeadAfter(e.waiter.Lease, e.waiter.LostGrace)}
	for _, s := range e.starts {
		if e.waiter.LockDelay > 0 {
			v.Delay = max(v.Delay, e.delayFor(s))
		}
	}
	return v
}

// OpenStarts are the tokens of the starts that are open; incomplete says that some aren't known.
func (e *Evidence) OpenStarts() (tokens []int64, incomplete bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.starts {
		if s.token == 0 || s.kind == ofTooMany {
			incomplete = true
			continue
		}
		tokens = append(tokens, s.token)
	}
	return tokens, incomplete
}

// KnowsDead says whether the command of a token is known to be dead, although the ledger has no end
// of it. Only the waiter's own role can say so, by a word or by its silence: any role can take the
// lock, name any token as its own, and say that it has ended.
func (e *Evidence) KnowsDead(token int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state() == ended && (token <= e.last.ownDeadUpTo || token == e.last.ownToken)
}
