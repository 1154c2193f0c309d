package lock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// listener hears what others announce about the locks of a claim, for the evidence and for the
// line, from the moment at which its session listens. A list keeps it for the next attempt at the
// item. The session's reader writes to the fields whose comments begin with *.
type listener struct {
	s        *session.Session
	claim    Claim
	on       bool                       // the session listens
	evidence evidence.ByLock            // *
	heard    chan evidence.Announcement // * a waiter's, for the line
	news     chan struct{}              // * something new may have to be acted on
	// unknownHolder: a try was refused, and the evidence names no holder. The next step is a look.
	unknownHolder bool
	unended       map[lockkey.ID][]int64 // openStarts of an earlier session

	mu     sync.Mutex   // guards marked: the reader may note a look's answer after its caller has given up
	marked []lockkey.ID // * the locks whose common marks (line_mark.go) the session has
}

// mostUnended bounds the tokens of a lock in unended: others may announce any number.
const mostUnended = 64

// openStarts are, by their locks, the tokens of the starts that are open as far as was heard, in this
// session or in an earlier one. They are unended for the next session, which can't hear of their ends
// any more. A ledger has to know these: one that was restored may lack the runs.
func (l *listener) openStarts() map[lockkey.ID][]int64 {
	open := map[lockkey.ID][]int64{}
	for id, e := range l.evidence {
		if e.Ended() {
			continue
		}
		tokens, _ := e.OpenStarts()
		tokens = append(tokens, l.unended[id]...)
		slices.Sort(tokens)
		tokens = slices.Compact(tokens)
		open[id] = tokens[max(0, len(tokens)-mostUnended):]
	}
	return open
}

// newListener returns the listener of a session that does not listen yet. contested says that
// others may have had the locks before.
func newListener(s *session.Session, cfg *Config, contested bool) *listener {
	l := &listener{s: s, claim: cfg.Claim, evidence: evidence.ByLock{}, news: make(chan struct{}, 1)}
	for _, id := range cfg.Claim.IDs {
		l.evidence[id] = evidence.New(evidence.Waiter{LockDelay: cfg.LockDelay, Lease: cfg.Session.Lease, LostGrace: cfg.LostGrace, Shared: cfg.Claim.Shared})
	}
	if contested {
		l.evidence.Contest(cfg.Claim.IDs...)
	}
	return l
}

// noteGivenBack notes that these locks are about to be given back. A lock whose common mark the
// session lacks is contested then: others may start under it without this session hearing of it.
func (l *listener) noteGivenBack(locks []advisory.Lock) {
	marked := l.commonMarks()
	for _, given := range locks {
		if !slices.Contains(marked, given.ID) {
			l.evidence.Contest(given.ID)
		}
	}
}

// noteRefused notes that a try was refused because other sessions have these locks.
func (l *listener) noteRefused(locks []advisory.Lock) {
	for _, refused := range locks {
		l.unknownHolder = l.evidence[refused.ID].NoteRefusal(boottime.Now()) || l.unknownHolder
	}
}

// startListening makes the session collect the announcements about all of the locks from now on, if
// it doesn't yet, and returns the queries to send for that.
func (l *listener) startListening() []string {
	if l.on {
		return nil
	}
	l.on = true
	var listen []string
	for _, id := range l.claim.IDs {
		l.collect(id)
		listen = append(listen, fmt.Sprintf(`LISTEN "%s"`, evidence.Channel(id)))
	}
	return []string{strings.Join(listen, ";")}
}

// collect makes the session's reader take the announcements about a lock.
func (l *listener) collect(id lockkey.ID) {
	e := l.evidence[id]
	l.s.OnNotify(evidence.Channel(id), func(pid uint32, payload string) {
		if a, ok := e.Hear(pid, payload); ok {
			a.Lock = id
			select {
			case l.heard <- a:
			default: // there are too many, or the bid stands in no line
			}
			nudge(l.news)
		}
	})
}

// askRoles asks for the roles of sessions whose words may count.
func (l *listener) askRoles(ctx context.Context) error {
	for _, e := range l.evidence {
		for _, pid := range e.RolesWanted() {
			rows, err := l.s.Query(ctx, fmt.Sprintf("SELECT usesysid FROM pg_catalog.pg_stat_get_activity(%d)", pid))
			if err != nil {
				return l.claim.rejected(err)
			}
			role := uint64(0)
			if row, err := rows.Only(1); err == nil {
				role, _ = strconv.ParseUint(row[0], 10, 32)
			}
			e.NoteRole(pid, uint32(role))
		}
	}
	return nil
}

// missingMarks are the locks whose common marks the session lacks: it listens to announcements
// about them and, if it is in line at all, has no ticket for some of the claim's locks.
func (l *listener) missingMarks(inLine bool) (ids []lockkey.ID) {
	if !l.on || inLine && l.claim.hasOneLine() {
		return nil
	}
	marked := l.commonMarks()
	for _, id := range l.claim.IDs {
		if !slices.Contains(marked, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// tookMark notes that the session got the common mark of a lock.
func (l *listener) tookMark(id lockkey.ID, at evidence.LSN) {
	l.mu.Lock()
	l.marked = append(l.marked, id)
	l.mu.Unlock()
	l.evidence[id].NoteMark(at)
}

// commonMarks are the locks whose common marks the session has.
func (l *listener) commonMarks() []lockkey.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.marked)
}

// noteUnmarked notes that the common marks are free.
func (l *listener) noteUnmarked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marked = nil
}

// freeMarksSQL are SQL expressions that free the common marks.
func (l *listener) freeMarksSQL() (columns []string) {
	for _, id := range l.commonMarks() {
		columns = append(columns, advisory.CommonMarkOf(id).UnlockSQL())
	}
	return columns
}

// unlisten stops listening, frees the common marks, and forgets what was heard.
func (l *listener) unlisten(ctx context.Context) error {
	var queries []string
	if l.on {
		for id := range l.evidence {
			l.s.OnNotify(evidence.Channel(id), nil)
			queries = append(queries, fmt.Sprintf(`UNLISTEN "%s"`, evidence.Channel(id)))
		}
	}
	// An UNLISTEN has no comment. While it was the session's last statement, others could see
	// neither that the session is alive nor how long its commands outlive a lock.
	queries = append(queries, selectQueries(l.freeMarksSQL())...)
	err := retryCanceled(ctx, l.s, append(queries, session.PlainBeatQuery)...)
	maps.DeleteFunc(l.unended, func(id lockkey.ID, _ []int64) bool { return l.evidence[id].Ended() })
	l.evidence.Forget()
	l.on = false
	l.noteUnmarked()
	for range len(l.heard) { // now that nothing more is heard
		<-l.heard
	}
	return l.claim.rejected(err)
}

// nudge tells a goroutine that there is something to do, unless it has been told already.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
