package lock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// A session learns what others announce about a lock from the moment at which it listens to the
// lock's channel. The session's reader takes each announcement, for the evidence and for the line.

// listen starts to collect the announcements about the locks.
func (b *bid) listen(ctx context.Context) error {
	if b.listens && !b.unknownHolder {
		return nil
	}
	_, err := b.listenAndLook(ctx)
	return err
}

// listenAndLook starts to collect the announcements about all of the locks, unless the bid listens
// already, and then looks for their holders. In the other order a holder could begin unseen and
// unheard. Other queries are sent in between.
func (b *bid) listenAndLook(ctx context.Context, between ...string) (*evidence.Look, error) {
	var queries []string
	if !b.listens {
		b.listens = true
		var listen []string
		for _, l := range b.cfg.Claim.locks() {
			b.collect(l)
			listen = append(listen, fmt.Sprintf(`LISTEN "%s"`, evidence.Channel(l.ID)))
		}
		queries = []string{strings.Join(listen, ";")}
	}
	return b.look(ctx, append(queries, between...)...)
}

// look asks the server, after other statements if there are any, and passes the answer to the
// evidence.
func (b *bid) look(ctx context.Context, before ...string) (*evidence.Look, error) {
	found, ok := &evidence.Look{Sent: boottime.Now()}, false
	b.unknownHolder = false
	for _, e := range b.evidence {
		e.LookSent()
	}
	marks, noteMarks := b.marksQuery()
	query := evidence.LookQuery(b.cfg.Claim.Sought().Locks, b.nextLine(), crowd.MostListeners)
	queries := slices.Concat(before, marks, []string{query}, b.arrivedQuery())
	_, err := b.s.Ask(ctx, session.Request{SQL: queries, Then: func(answers []session.Rows) {
		found.Received = boottime.Now()
		if ok = found.Parse(answers[len(before)+len(marks)], b.s.BackendPID()); !ok || !b.listens {
			return // what the look shows is no evidence to a bid that would not hear of its end
		}
		noteMarks(answers[len(before)])
		for id, e := range b.evidence {
			e.Saw(found, id)
		}
	}})
	if err != nil {
		return nil, b.cfg.rejected(err)
	}
	b.place.arriving = false
	if !ok {
		return nil, session.NotPostgreSQL()
	}
	return found, nil
}

// collect makes the session collect announcements about a lock from now on.
func (b *bid) collect(l advisory.Lock) {
	e := b.evidence[l.ID]
	b.s.OnNotify(evidence.Channel(l.ID), func(pid uint32, payload string) {
		if a, ok := e.Hear(pid, payload); ok {
			a.Lock = l.ID
			select {
			case b.heard <- a:
			default: // there are too many, or the bid stands in no line
			}
			nudge(b.news)
		}
	})
}

// trusts says whether a session's words count.
func (b *bid) trusts(pid uint32) bool {
	for _, e := range b.evidence {
		if e.Trusts(pid) {
			return true
		}
	}
	return false
}

// askRoles asks for the roles of sessions whose words may count.
func (b *bid) askRoles(ctx context.Context) error {
	for _, e := range b.evidence {
		for _, pid := range e.RolesWanted() {
			rows, err := b.s.Query(ctx, fmt.Sprintf("SELECT usesysid FROM pg_catalog.pg_stat_get_activity(%d)", pid))
			if err != nil {
				return b.cfg.rejected(err)
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

// unlisten stops listening, and forgets what was heard.
func (b *bid) unlisten(ctx context.Context) error {
	var queries []string
	if b.listens {
		for id := range b.evidence {
			b.s.OnNotify(evidence.Channel(id), nil)
			queries = append(queries, fmt.Sprintf(`UNLISTEN "%s"`, evidence.Channel(id)))
		}
	}
	// An UNLISTEN has no comment. While it was the session's last statement, others could see neither
	// that the session is alive nor how long its commands outlive a lock.
	queries = append(queries, selectQuery(b.freeCommonSQL())...)
	err := insistOn(func() error { return b.send(ctx, append(queries, session.PlainBeatQuery)...) })
	for _, e := range b.evidence {
		e.Forget()
	}
	b.listens, b.commonMarks = false, nil
	for range len(b.heard) { // now that nothing more is heard
		<-b.heard
	}
	return err
}

// nudge tells a goroutine that there is something to do, unless it has been told already.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
