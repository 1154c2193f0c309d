package lock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// Listen begins to collect the words about the locks, and then looks for their holders. In
// the other order a holder could begin unseen and unheard.
func (b *Bid) Listen(ctx context.Context) error {
	listen := b.beginListening()
	if len(listen) == 0 && !b.unknownHolder {
		return nil
	}
	_, err := b.look(ctx, listen...)
	return err
}

// beginListening begins to listen by queries, which the caller has to send. LISTEN comes
// before the mark by which holders know of it, so that it misses no clean end that is meant
// for it.
//
// That a holder names the session is evidence only if it can have seen no mark but the one that
// is taken now, for this lock. A session with common marks may have those of several locks, and of
// earlier bids. It takes them before it looks, and so can do without.
func (b *Bid) beginListening() (queries []string) {
	var listen, marks []string
	common := b.cfg.Claim.Gate == nil && (b.line == nil || len(b.cfg.Claim.Locks) > 1) // it has no ticket for some of the locks
	pid := b.s.BackendPID()
	if b.unmarked || common {
		pid = 0
	}
	for _, l := range b.cfg.Claim.Locks {
		if b.heard[l.ID] != nil {
			continue
		}
		h := evidence.New(pid, b.cfg.LockDelay, b.cfg.Session.Lease, l.Shared)
		b.heard[l.ID] = h
		b.s.OnNotify(evidence.Channel(l.ID), func(pid uint32, payload string) {
			if a, ok := h.Hear(pid, payload); ok {
				b.mailbox.put(l.ID, a)
				nudge(b.news)
			}
		})
		listen = append(listen, fmt.Sprintf(`LISTEN "%s"`, evidence.Channel(l.ID)))
		if common {
			marks = append(marks, commonMark(l.ID).sql("try_advisory_lock"))
			b.marking = append(b.marking, l.ID)
		}
	}
	if len(listen) > 0 {
		queries = append(queries, strings.Join(listen, ";"))
	}
	if len(marks) > 0 {
		queries = append(queries, "SELECT "+strings.Join(marks, ", "))
	}
	return queries
}

// tookMarks notes which of the common marks the session got, by the answers to beginListening's
// queries. Nobody who listens keeps another from a mark, but a stranger can.
func (b *Bid) tookMarks(answers []session.Rows) {
	const listened = 1 // by one query, before that for the marks
	if len(b.marking) == 0 || len(answers) <= listened {
		return
	}
	row, err := answers[listened].Only(len(b.marking))
	for i, id := range b.marking {
		if err == nil && row[i] == "t" {
			b.marks = append(b.marks, id)
		}
	}
	b.marking = nil
}

// leave gives back the ticket, the gate and the marks by queries, which the caller has to
// send.
func (b *Bid) leave() []string {
	return append(b.line.leave(), b.dropMarks()...)
}

// dropMarks gives the common marks back by a query, if the bid has any. The caller has to
// send it.
func (b *Bid) dropMarks() (query []string) {
	var marks []string
	for _, id := range b.marks {
		marks = append(marks, commonMark(id).sql("advisory_unlock"))
	}
	b.marks = nil
	if len(marks) > 0 {
		query = []string{"SELECT " + strings.Join(marks, ", ")}
	}
	return query
}

// Listens says whether the bid collects what happens to the locks.
func (b *Bid) Listens() bool { return len(b.heard) > 0 }

// Unlisten stops listening.
func (b *Bid) Unlisten(ctx context.Context) error {
	var queries []string
	for id := range b.heard {
		b.s.OnNotify(evidence.Channel(id), nil)
		queries = append(queries, fmt.Sprintf(`UNLISTEN "%s"`, evidence.Channel(id)))
	}
	queries = append(queries, b.dropMarks()...)
	clear(b.heard)
	err := b.send(ctx, queries...)
	b.mailbox.empty() // now that nothing more is heard
	return err
}

// mailbox is the announcements of each lock that the line has not decided on yet. The
// session's reader puts them there.
type mailbox struct {
	mu   sync.Mutex
	mail map[lockkey.ID][]evidence.Announcement
}

// mostMail bounds the announcements of one lock.
const mostMail = 64

// put adds an announcement, or drops it if there are too many.
func (m *mailbox) put(of lockkey.ID, a evidence.Announcement) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mail == nil {
		m.mail = map[lockkey.ID][]evidence.Announcement{}
	}
	if len(m.mail[of]) < mostMail {
		m.mail[of] = append(m.mail[of], a)
	}
}

// empty takes out what is there.
func (m *mailbox) empty() map[lockkey.ID][]evidence.Announcement {
	m.mu.Lock()
	defer m.mu.Unlock()
	mail := m.mail
	m.mail = nil
	return mail
}

// verify asks for the roles of sessions whose words may count.
func (b *Bid) verify(ctx context.Context) error {
	for _, h := range b.heard {
		for _, pid := range h.Unverified() {
			rows, err := b.s.Query(ctx, fmt.Sprintf("SELECT usesysid FROM pg_catalog.pg_stat_get_activity(%d)", pid))
			if err != nil {
				return b.error(err)
			}
			role := uint64(0)
			if row, err := rows.Only(1); err == nil {
				role, _ = strconv.ParseUint(row[0], 10, 32)
			}
			h.NoteRole(pid, uint32(role))
		}
	}
	return nil
}
