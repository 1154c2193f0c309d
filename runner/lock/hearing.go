package lock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// hearing is what a session knows of others that have the locks of a claim, or had them. It hears
// what they announce about a lock from the moment at which it listens to the lock's channel. A list
// keeps it for the next attempt at the item. The session's reader writes to what is marked by *.
type hearing struct {
	s        *session.Session
	claim    Claim
	evidence map[lockkey.ID]*evidence.Evidence // * of each lock of the claim
	listens  bool                              // the session collects what is announced about these locks
	heard    chan evidence.Announcement        // * a waiter's: what it has heard, for the line
	news     chan struct{}                     // * something new may have to be acted on
	marked   []lockkey.ID                      // * the locks whose common marks the session has
	// unknownHolder: a try was refused, and the evidence names no holder. The next step is a look.
	unknownHolder bool
}

// newHearing returns the hearing of a session that does not listen yet. contested says that others
// may have had the locks before.
func newHearing(s *session.Session, cfg *Config, contested bool) *hearing {
	h := &hearing{s: s, claim: cfg.Claim, evidence: map[lockkey.ID]*evidence.Evidence{}, news: make(chan struct{}, 1)}
	for _, id := range cfg.Claim.IDs {
		h.evidence[id] = evidence.New(cfg.LockDelay, cfg.Session.Lease, cfg.LostGrace, cfg.Claim.Shared)
	}
	if contested {
		h.contest(cfg.Claim.locks())
	}
	return h
}

// contest notes that others may have had these locks while the session did not listen.
func (h *hearing) contest(locks []advisory.Lock) {
	for _, l := range locks {
		h.evidence[l.ID].Contest()
	}
}

// contestUnmarked notes that these locks are given back. A lock whose common mark the session lacks
// is contested then: others may start under it without this session hearing of it.
func (h *hearing) contestUnmarked(locks []advisory.Lock) {
	h.contest(slices.DeleteFunc(locks, func(l advisory.Lock) bool { return slices.Contains(h.marked, l.ID) }))
}

// untouched says whether nobody else is known to have, or to have had, any of the claim's locks.
func (h *hearing) untouched() bool {
	return !slices.ContainsFunc(h.claim.IDs, func(id lockkey.ID) bool { return !h.evidence[id].Untouched() })
}

// noteRefused notes that a try was refused because other sessions have these locks.
func (h *hearing) noteRefused(locks []advisory.Lock) {
	for _, l := range locks {
		h.unknownHolder = h.evidence[l.ID].NoteRefusal(boottime.Now()) || h.unknownHolder
	}
}

// listenQuery makes the session collect the announcements about all of the locks from now on, and
// returns the query that the server needs for that, if the session doesn't listen yet.
func (h *hearing) listenQuery() (query []string) {
	if h.listens {
		return nil
	}
	h.listens = true
	var listen []string
	for _, l := range h.claim.locks() {
		h.collect(l)
		listen = append(listen, fmt.Sprintf(`LISTEN "%s"`, evidence.Channel(l.ID)))
	}
	return []string{strings.Join(listen, ";")}
}

// collect makes the session's reader take the announcements about a lock, for the evidence and for
// the line.
func (h *hearing) collect(l advisory.Lock) {
	e := h.evidence[l.ID]
	h.s.OnNotify(evidence.Channel(l.ID), func(pid uint32, payload string) {
		if a, ok := e.Hear(pid, payload); ok {
			a.Lock = l.ID
			select {
			case h.heard <- a:
			default: // there are too many, or the bid stands in no line
			}
			nudge(h.news)
		}
	})
}

// lookSent notes that a look is about to be sent.
func (h *hearing) lookSent() {
	h.unknownHolder = false
	for _, e := range h.evidence {
		e.LookSent()
	}
}

// saw notes what a look has shown.
func (h *hearing) saw(found *evidence.Look) {
	for id, e := range h.evidence {
		e.Saw(found, id)
	}
}

// trusts says whether a session's words count.
func (h *hearing) trusts(pid uint32) bool {
	for _, e := range h.evidence {
		if e.Trusts(pid) {
			return true
		}
	}
	return false
}

// askRoles asks for the roles of sessions whose words may count.
func (h *hearing) askRoles(ctx context.Context) error {
	for _, e := range h.evidence {
		for _, pid := range e.RolesWanted() {
			rows, err := h.s.Query(ctx, fmt.Sprintf("SELECT usesysid FROM pg_catalog.pg_stat_get_activity(%d)", pid))
			if err != nil {
				return h.claim.rejected(err)
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

// unlisten stops listening, frees the common marks, and forgets what was heard.
func (h *hearing) unlisten(ctx context.Context) error {
	var queries []string
	if h.listens {
		for id := range h.evidence {
			h.s.OnNotify(evidence.Channel(id), nil)
			queries = append(queries, fmt.Sprintf(`UNLISTEN "%s"`, evidence.Channel(id)))
		}
	}
	// An UNLISTEN has no comment. While it was the session's last statement, others could see neither
	// that the session is alive nor how long its commands outlive a lock.
	queries = append(queries, selectQuery(h.freeMarksSQL())...)
	err := insist(ctx, h.s, append(queries, session.PlainBeatQuery)...)
	for _, e := range h.evidence {
		e.Forget()
	}
	h.listens, h.marked = false, nil
	for range len(h.heard) { // now that nothing more is heard
		<-h.heard
	}
	return h.claim.rejected(err)
}

// nudge tells a goroutine that there is something to do, unless it has been told already.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
