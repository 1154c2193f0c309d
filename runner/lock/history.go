package lock

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/session"
)

// history is what a waiter knows of a lock since it began to listen: whose
// commands may be alive. It is in one of three states:
//
//	quiet    nobody is known to have held the lock
//	running  somebody is, and has not been discharged: his command may be alive
//	ended    all of them have been discharged by a word that counts
//
//	         started T, or      a word that         a word that      many tries
//	         seen to hold it    discharges all      discharges some  refused
//	quiet    running            –                   –                running
//	running  running            ended               running          running
//	ended    running            ended               –                running
//
// A waiter that is granted the lock starts at once if the lock's history is
// ended, and else holds it for the delay before it starts.
//
// A stranger's words can only make it wait, and no longer than its own settings do. A
// word counts if its session was seen to hold the lock, or has that session's role or
// the waiter's own.
type history struct {
	lockDelay time.Duration // the waiter's own
	lease     time.Duration // likewise
	shared    bool          // it is a reader, which other readers don't keep out
	news      chan<- struct{}

	mu      sync.Mutex
	seq     int                 // counts what was noted: a clock for the order of things
	starts  []start             // not discharged
	ends    []endNotice         // the latest ones
	seen    map[uint32]sighting // sessions that hold the lock or wait for it
	own     uint32              // the role of this session; 0 until it is known
	spoken  bool                // a word has counted
	latest  int64               // the highest token of a word that counted
	ownOnly bool                // that word speaks for its own token alone
	heardAt time.Time           // when the last such word was heard
	buried  seat                // a silent holder, for as long as its session has the lock
	asked   int                 // seq at the last unverified: the roles behind starts noted by then were asked for
	events  []Announcement      // not taken by the waiter yet
}

// state is one of the three states of a history.
type state int

const (
	quiet state = iota
	running
	ended
)

func (h *history) state() state {
	switch {
	case len(h.starts) > 0:
		return running
	case h.spoken:
		return ended
	}
	return quiet
}

// start is a tenure whose command may be alive.
type start struct {
	pid   uint32        // of the session; 0: not known
	token int64         // 0: not known
	after int64         // a token that isn't known is later than this one
	delay time.Duration // how long its command may outlive the lock
	need  time.Duration // the same by the holder's own settings alone
	noted int           // history.now at that time
}

// sighting is what is known of another session.
type sighting struct {
	role uint32
	held bool // the lock
}

// Bounds of the memory for what others say.
const (
	mostStarts = 64
	mostWords  = 32
	mostEvents = 64
)

func newHistory(lockDelay, lease time.Duration, shared bool, news chan<- struct{}) *history {
	return &history{lockDelay: lockDelay, lease: lease, shared: shared, news: news, seen: map[uint32]sighting{}}
}

// hear notes what another session said on the lock's channel. The session's reader
// calls it.
func (h *history) hear(pid uint32, payload string) {
	a, ok := parseAnnouncement(payload)
	if !ok || h.shared && a.Shared && a.Word == wordStarted {
		return
	}
	a.PID = pid
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	switch a.Word {
	case wordStarted:
		h.begin(start{pid: pid, token: a.Token, delay: h.bounded(a), need: deadAfter(a)})
	case wordClean, wordDead:
		h.note(a)
		h.judge()
	case wordLeft:
	}
	if len(h.events) < mostEvents {
		h.events = append(h.events, a)
	}
	nudge(h.news)
}

// note notes the end of a tenure, which judge then goes by.
func (h *history) note(a Announcement) {
	if len(h.ends) == mostWords {
		h.ends = slices.Delete(h.ends, 0, 1)
	}
	h.ends = append(h.ends, endNotice{Announcement: a, noted: h.seq, at: boottime.Now(), role: h.seen[a.PID].role})
}

// bounded is how long a command may outlive its lock, by its holder's announcement, but
// no longer than is credible. For a session that was never seen to hold the lock that is
// the waiter's own delay. For a holder it is the lease, which is the same on all nodes: no
// command outlives nine tenths of it, whatever its lost-grace is.
func (h *history) bounded(a Announcement) time.Duration {
	if !h.seen[a.PID].held {
		return h.lockDelay
	}
	return max(h.lockDelay, min(deadAfter(a), h.lease))
}

// deadAfter is when a holder's command is dead at the latest, by its own settings.
func deadAfter(a Announcement) time.Duration { return session.DeadAfter(a.Lease, a.LostGrace) }

// crowd is the pid of a start that stands for all tenures that are too many to
// remember. No word discharges it.
const crowd = math.MaxUint32

// begin notes a tenure. A session holds a lock at most once, so a later start of the
// same session replaces the earlier one. A start of an unknown session counts as that of
// the first session that becomes known, but a stranger could say anything.
func (h *history) begin(s start) {
	s.noted = h.seq
	hearsay := h.isHearsay(s)
	h.starts = slices.DeleteFunc(h.starts, func(known start) bool {
		if known.pid != s.pid && (known.pid != 0 || hearsay) {
			return false
		}
		s.token, s.delay, s.need = max(s.token, known.token), max(s.delay, known.delay), max(s.need, known.need)
		return true
	})
	if s.token == 0 {
		s.after = h.latest
		for _, known := range h.starts {
			s.after = max(s.after, known.token)
		}
	}
	if len(h.starts) >= mostStarts {
		for _, known := range h.starts {
			s.delay = max(s.delay, known.delay)
		}
		s = start{pid: crowd, token: math.MaxInt64, delay: s.delay, need: math.MaxInt64}
		h.starts = slices.DeleteFunc(h.starts[1:], func(known start) bool { return known.pid == crowd })
	}
	h.starts = append(h.starts, s)
}

// isHearsay says whether nothing is known of a tenure but what its own session said, which
// may be a stranger.
func (h *history) isHearsay(s start) bool {
	return s.pid != 0 && s.pid != crowd && !h.trusts(s.pid)
}

// freeAfterClean is how long after the announcement of a clean end, which precedes the
// unlock, the lock is free for certain.
const freeAfterClean = 150 * time.Millisecond

// noteRefusal notes that a try was refused. If all known holders are dead, there has to be
// another one, unless a stranger told the truth. It says whether that is news.
func (h *history) noteRefusal(at time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := func(s start) bool { return !h.isHearsay(s) }
	if !h.spoken || slices.ContainsFunc(h.starts, known) || at.Sub(h.heardAt) < freeAfterClean || h.buried.pid != 0 {
		return false
	}
	h.seq++
	h.begin(start{delay: h.lockDelay})
	return true
}

// looking is called before a look is sent, or the end of a silent session. Its result is
// for saw, or bury.
func (h *history) looking() (asOf int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seq
}

// saw notes what a look has shown; asOf is what looking returned before it was sent.
// The session's reader calls it, in the order of all that the server says.
//
// A word may have overtaken the look, or the look may have come between a holder's word
// and its unlock, when that session may be gone from all but the list of locks. The tenure
// that the word ended doesn't begin again. That of a later one is noted by its own start.
// If the holder shows the token that it has ended, however late its unlock is, it has had
// the lock ever since, and is who refused the tries.
func (h *history) saw(l *look, id lockkey.ID, asOf int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	h.own = cmp.Or(l.role, h.own)
	for pid := range h.seen { // numbers of processes come back
		if !slices.ContainsFunc(h.starts, func(s start) bool { return s.pid == pid }) {
			delete(h.seen, pid)
		}
	}
	for _, w := range l.line {
		h.seen[w.pid] = sighting{role: cmp.Or(w.role, h.seen[w.pid].role), held: h.seen[w.pid].held}
	}
	buried := h.buried
	h.buried = seat{}
	for _, s := range l.holders {
		if s.id != id {
			continue
		}
		if s.pid == buried.pid && s.opened == buried.opened {
			h.buried = buried
			continue
		}
		h.seen[s.pid] = sighting{role: cmp.Or(s.role, h.seen[s.pid].role), held: true} // it may be going just now
		isOver := func(w endNotice) bool {
			return w.PID == s.pid && s.token <= w.Token && (w.noted > asOf || l.sent.Sub(w.at) < freeAfterClean)
		}
		lateUnlock := func(w endNotice) bool {
			return w.Word == wordClean && w.PID == s.pid && w.counted && s.token != 0 && s.token == w.Token
		}
		if i := slices.IndexFunc(h.ends, lateUnlock); i >= 0 {
			said := h.ends[i].noted
			h.starts = slices.DeleteFunc(h.starts, func(known start) bool { return known.pid == 0 && known.noted > said })
			continue
		}
		if h.shared && s.shared || slices.ContainsFunc(h.ends, isOver) {
			continue
		}
		if s.ended && s.token != 0 {
			h.note(Announcement{Word: wordClean, Token: s.token, OwnOnly: true, PID: s.pid})
			continue
		}
		h.begin(start{pid: s.pid, token: s.token, delay: max(h.lockDelay, min(s.delay, h.lease)), need: s.delay})
	}
	h.judge()
}

// bury notes that a holder was silent for as long as its command can live: no command
// is alive that had started when looking returned asOf.
//
// The holder's session may have the lock for a while longer: if this role may not end
// it, the server will.
func (h *history) bury(asOf int, s seat) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buried = s
	h.starts = slices.DeleteFunc(h.starts, func(s start) bool {
		if s.noted <= asOf {
			h.latest = max(h.latest, s.token)
		}
		return s.noted <= asOf
	})
	h.spoken, h.ownOnly = true, false
}

// drainEvents returns the events since its last call.
func (h *history) drainEvents() []Announcement {
	h.mu.Lock()
	defer h.mu.Unlock()
	events := h.events
	h.events = nil
	return events
}

// verdict is what the history means for a waiter that is granted the lock.
type verdict struct {
	// delay is how long the lock is to be held before the command may start.
	delay time.Duration
	// coversEarlier: when its own command is dead, the holder may say that those of all
	// holders before it are, too.
	coversEarlier bool
}

func (h *history) verdict() verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.state() == ended:
		return verdict{coversEarlier: !h.ownOnly}
	case h.lockDelay == 0:
		return verdict{}
	}
	v := verdict{delay: h.lockDelay, coversEarlier: true}
	for _, s := range h.starts {
		v.delay = max(v.delay, s.delay)
		// Its session may have become known only after it said its settings (bounded).
		if s.pid != 0 && s.pid != crowd && h.trusts(s.pid) {
			v.delay = max(v.delay, min(s.need, h.lease))
		}
	}
	return v
}

// undischarged are the tokens of the tenures whose commands may be alive; blind says
// that some of the tokens aren't known.
func (h *history) undischarged() (tokens []int64, blind bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.starts {
		if s.token == 0 || s.pid == crowd {
			blind = true
			continue
		}
		tokens = append(tokens, s.token)
	}
	return tokens, blind
}

// knowsDead says whether a word has said that nothing of a token is alive.
func (h *history) knowsDead(token int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.starts) == 0 && h.spoken && (token == h.latest || token < h.latest && !h.ownOnly)
}

// heard says whether anything is known at all.
func (h *history) heard() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state() != quiet
}
