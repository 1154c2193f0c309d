package lock

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/pglead/pglead/lockkey"
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
// What a stranger says only ever makes it wait, and not for longer than its own
// settings do: a word counts from the session that was seen to hold the lock, or
// from one of that one's role or of the waiter's own.
type history struct {
	lockDelay time.Duration // the waiter's own
	lease     time.Duration // likewise
	shared    bool          // it wants to read, which other readers don't bar
	news      chan<- struct{}

	mu      sync.Mutex
	now     int                 // counts what has been noted
	starts  []start             // that nobody has discharged
	words   []endNotice         // the latest
	seen    map[uint32]sighting // sessions that hold the lock or wait for it
	own     uint32              // the role of this session; 0 until it is known
	spoken  bool                // a word has counted
	latest  int64               // the highest token of one that did,
	ownOnly bool                // which speaks for that token alone
	since   time.Time           // when the last word of all was heard
	buried  seat                // a silent holder, for as long as its session has the lock
	asked   int                 // up to here the roles of those that started have been asked for
	events  []Announcement      // for the one that waits
}

// state is one of the three.
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

// start is a tenure of the lock whose command may be alive.
type start struct {
	pid   uint32 // of the session; 0: not known
	token int64  // 0: not known
	after int64  // then it is a later one than this
	delay time.Duration
	need  time.Duration // what of it comes from the holder's own settings
	noted int
}

// sighting is what is known of another session.
type sighting struct {
	role uint32
	held bool // the lock
}

// Most that is remembered of what others say.
const (
	mostStarts = 64
	mostWords  = 32
	mostEvents = 64
)

func newHistory(lockDelay, lease time.Duration, shared bool, news chan<- struct{}) *history {
	return &history{lockDelay: lockDelay, lease: lease, shared: shared, news: news, seen: map[uint32]sighting{}}
}

// hear takes note of what another session said on the lock's channel. It is
// called by the session's reader.
func (h *history) hear(pid uint32, payload string) {
	a, ok := parseAnnouncement(payload)
	if !ok || h.shared && a.Shared && a.Event == wordStarted {
		return
	}
	a.PID = pid
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now++
	switch a.Event {
	case wordStarted:
		h.begin(start{pid: pid, token: a.Token, delay: h.bounded(a), need: deadAfter(a)})
	case wordClean, wordDead:
		if len(h.words) == mostWords {
			h.words = slices.Delete(h.words, 0, 1)
		}
		h.words = append(h.words, endNotice{Announcement: a, noted: h.now})
		h.judge()
	case wordLeft:
	}
	if len(h.events) < mostEvents {
		h.events = append(h.events, a)
	}
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// bounded is how long a command may outlive its lock, by what its holder announced
// and no longer than is credible. What a session says that was never seen to hold the lock costs no
// more than the waiter's own delay, and what a holder says no more than the lease,
// which is the same on all nodes: no command outlives nine tenths of that, whatever
// its lost-grace is.
func (h *history) bounded(a Announcement) time.Duration {
	if !h.seen[a.PID].held {
		return h.lockDelay
	}
	return max(h.lockDelay, min(deadAfter(a), h.lease))
}

// deadAfter is when a holder's command is dead at the latest, by its own settings.
func deadAfter(a Announcement) time.Duration { return session.DeadAfter(a.Lease, a.LostGrace) }

// crowd stands for the tenures that are too many to remember: no word
// discharges it.
const crowd = math.MaxUint32

// begin notes a tenure. A session holds a lock at most once, so a later start of the
// same session replaces the earlier one. A start whose session isn't known is taken
// for that of the first session that becomes known.
func (h *history) begin(s start) {
	s.noted = h.now
	h.starts = slices.DeleteFunc(h.starts, func(known start) bool {
		if known.pid != s.pid && known.pid != 0 {
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
		s = start{pid: crowd, token: math.MaxInt64, delay: max(s.delay, h.starts[0].delay), need: math.MaxInt64}
		h.starts = slices.DeleteFunc(h.starts[1:], func(known start) bool { return known.pid == crowd })
	}
	h.starts = append(h.starts, s)
}

// freeAfterClean is how long after a clean end, which is said before, a lock is free for
// certain.
const freeAfterClean = 150 * time.Millisecond

// refused takes note of a try that was refused: if all were known to be dead, then
// there is somebody else by now. It says whether that is news.
func (h *history) refused(at time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state() != ended || at.Sub(h.since) < freeAfterClean || h.buried.pid != 0 {
		return false
	}
	h.now++
	h.begin(start{delay: h.lockDelay})
	return true
}

// looking is to be called before a look is sent, or the end of a silent session; its
// result is for saw, or silent.
func (h *history) looking() (since int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

// saw takes note of what a look has shown that was sent when so much had been
// noted. It is called by the session's reader, in the order of all that the server
// says. A word may have overtaken the look: the tenure that it has ended doesn't
// begin again.
func (h *history) saw(l *look, id lockkey.ID, since int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now++
	h.own = cmp.Or(l.role, h.own)
	for pid := range h.seen { // numbers of processes come back
		if !slices.ContainsFunc(h.starts, func(s start) bool { return s.pid == pid }) {
			delete(h.seen, pid)
		}
	}
	for _, w := range l.line {
		h.seen[w.pid] = sighting{role: w.role, held: h.seen[w.pid].held}
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
		h.seen[s.pid] = sighting{role: s.role, held: true}
		overtaken := func(w endNotice) bool { return w.PID == s.pid && w.noted > since && s.token <= w.Token }
		if h.shared && s.shared || slices.ContainsFunc(h.words, overtaken) {
			continue
		}
		h.begin(start{pid: s.pid, token: s.token, delay: max(h.lockDelay, min(s.delay, h.lease)), need: s.delay})
	}
	h.judge()
}

// bury takes note that the holder's silence has been waited out: no command
// that had started by then, when so much had been noted, is alive.
//
// Its session may hold the lock for a while yet: where this role may not end it, the
// server will.
func (h *history) bury(since int, s seat) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buried = s
	h.starts = slices.DeleteFunc(h.starts, func(s start) bool {
		if s.noted <= since {
			h.latest = max(h.latest, s.token)
		}
		return s.noted <= since
	})
	h.spoken, h.ownOnly = true, false
}

// take returns what has happened since it was called last.
func (h *history) take() []Announcement {
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
	// coversEarlier: the holder may say, when its own command is dead, that those of
	// all before it are, too.
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
	}
	return v
}

// undischarged are the tokens of the tenures whose commands may be alive; blind says
// that there are some whose tokens aren't known.
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

// buries says whether there was a word that nothing of a token is alive.
func (h *history) buries(token int64) bool {
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
