package lock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock/evidence"
)

// ears are what a bid hears of its locks. The session's reader writes to heard, to the mailbox and
// to news.
type ears struct {
	heard   map[lockkey.ID]*evidence.Evidence // from the time at which it listens
	mailbox mailbox                           // for the line
	news    chan struct{}                     // there is something in it
	marks   []lockkey.ID                      // the locks whose common marks it holds
	marking []lockkey.ID                      // those whose common marks it is about to try for
}

func newEars() ears {
	return ears{heard: map[lockkey.ID]*evidence.Evidence{}, news: make(chan struct{}, 1)}
}

// Listen begins to collect the words about the locks, and then looks for their holders. In
// the other order a holder could begin unseen and unheard.
func (b *Bid) Listen(ctx context.Context) error {
	listen := b.listenQuery()
	if len(listen) == 0 && !b.unknownHolder {
		return nil
	}
	_, err := b.look(ctx, listen...)
	return err
}

// listenQuery begins to listen by a query, which the caller has to send with a look. The look
// takes the marks.
func (b *Bid) listenQuery() (query []string) {
	var listen []string
	for _, l := range b.cfg.Claim.Locks {
		if b.heard[l.ID] != nil {
			continue
		}
		h := evidence.New(b.cfg.LockDelay, b.cfg.Session.Lease, l.Shared)
		b.heard[l.ID] = h
		b.s.OnNotify(evidence.Channel(l.ID), func(pid uint32, payload string) {
			if a, ok := h.Hear(pid, payload); ok {
				b.mailbox.put(l.ID, a)
				nudge(b.news)
			}
		})
		listen = append(listen, fmt.Sprintf(`LISTEN "%s"`, evidence.Channel(l.ID)))
		if b.cfg.Claim.Gate == nil && (b.line == nil || len(b.cfg.Claim.Locks) > 1) { // it has no ticket for some of the locks
			b.marking = append(b.marking, l.ID)
		}
	}
	if len(listen) > 0 {
		query = []string{strings.Join(listen, ";")}
	}
	return query
}

// leaveQueries gives back the ticket, the gate and the marks by queries, which the caller
// has to send.
func (b *Bid) leaveQueries() []string {
	return append(b.line.leaveQueries(), b.dropMarksQuery()...)
}

// listens says whether the bid collects what happens to the locks.
func (e *ears) listens() bool { return len(e.heard) > 0 }

// trusts says whether a session's words count.
func (e *ears) trusts(pid uint32) bool {
	for _, h := range e.heard {
		if h.Trusts(pid) {
			return true
		}
	}
	return false
}

// Unlisten stops listening.
func (b *Bid) Unlisten(ctx context.Context) error {
	var queries []string
	for id := range b.heard {
		b.s.OnNotify(evidence.Channel(id), nil)
		queries = append(queries, fmt.Sprintf(`UNLISTEN "%s"`, evidence.Channel(id)))
	}
	queries = append(queries, b.dropMarksQuery()...)
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
