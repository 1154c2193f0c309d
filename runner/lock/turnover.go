package lock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pglead/pglead/runner/session"
)

// Turnover is what one session that works on a list does in one round trip: it gives
// back the locks of commands that have ended, tries for those of the next ones, and
// draws a token for these, which is one and the same, since it is one commit.
//
// Nobody is told less than by Release, Try and Settle: the ends are said in a
// transaction before that which frees the locks, and a token is drawn, and a start
// said, of such locks only as the session has by then.
type Turnover struct {
	Ended []*Held // which Join
	Said  []Said  // beside their ends
	Next  []*Bid  // which Join
}

// Said is something that is said on a channel. Neither may have quotes.
type Said struct{ Channel, Payload string }

// Joins says whether the locks can be given back in a Turnover: there is nothing to
// note anywhere else, and what there is to say is for all who listen.
func (h *Held) Joins() bool {
	return h.cfg.joins() && !h.recorded
}

// Joins says whether the bid's first trial can be part of a Turnover: a grant is all
// that it takes for a start. So it is for one lock, of which nothing has been heard.
func (b *Bid) Joins() bool {
	return b.cfg.joins() && !b.usesLedger() && len(b.histories) == 0 && len(b.grant.locks) == 0 && b.verdict(b.cfg.Claim.Locks[0].ID).delay == 0
}

func (cfg *Config) joins() bool {
	c := cfg.Claim
	return c.Polled && len(c.Locks) == 1 && !c.Locks[0].Shared && !cfg.Session.UsesSecondSession()
}

// Do does it. After an error nothing is known of any of these locks but that the end
// of the session frees them. Next that are Complete are ready to be settled.
func (t Turnover) Do(ctx context.Context, s *session.Session) error {
	var queries []string
	if words := t.words(); words != "" {
		queries = append(queries, words)
	}
	queries = append(queries, t.exchange())
	if len(t.Next) > 0 {
		queries = append(queries, t.drawing(s))
	}
	answers, err := s.Ask(ctx, session.Request{SQL: queries})
	if err != nil {
		return session.Refused(err, "locks "+t.claim().String())
	}
	var drawn session.Rows
	if len(t.Next) > 0 {
		drawn, answers = answers[len(answers)-1], answers[:len(answers)-1]
	}
	row, err := answers[len(answers)-1].Only(1 + len(t.Next))
	if err != nil {
		return err
	}
	if row[0] != strconv.Itoa(len(t.Ended)) {
		return session.Errorf(session.Unsafe, "", "release locks: the server says that the session did not hold all of them")
	}
	for i, b := range t.Next {
		if err := b.turned(row[1+i], drawn); err != nil {
			return err
		}
	}
	return nil
}

// words is the query that says how the commands ended. Its commit waits for nothing,
// as that of tell.
func (t Turnover) words() string {
	if len(t.Ended) == 0 {
		return ""
	}
	columns := []string{"pg_catalog.set_config('synchronous_commit', 'off', true)"}
	for _, said := range t.Said {
		columns = append(columns, fmt.Sprintf("pg_catalog.pg_notify('%s', '%s')", said.Channel, said.Payload))
	}
	for _, h := range t.Ended {
		columns = append(columns, fmt.Sprintf("pg_catalog.pg_notify('%s', %s)", channel(h.Locks[0].ID), h.endPayload(wordClean)))
	}
	return "SELECT " + strings.Join(columns, ", ")
}

// exchange is the query that frees and tries. Columns are evaluated in their order.
func (t Turnover) exchange() string {
	freed := []string{"0"}
	for _, h := range t.Ended {
		freed = append(freed, h.unlocking())
	}
	columns := []string{strings.Join(freed, " + ")}
	for _, b := range t.Next {
		columns = append(columns, b.trySQL())
	}
	return "SELECT " + strings.Join(columns, ", ")
}

// drawing is that of all bids, as if they were one.
func (t Turnover) drawing(s *session.Session) string {
	joint := NewBid(s, t.Next[0].cfg, false)
	joint.cfg.Claim.Locks = nil
	for _, b := range t.Next {
		joint.cfg.Claim.Locks = append(joint.cfg.Claim.Locks, b.cfg.Claim.Locks...)
	}
	return joint.drawing(joint.cfg.Claim.Locks)
}

func (t Turnover) claim() (all Claim) {
	for _, h := range t.Ended {
		all.Locks = append(all.Locks, h.Locks...)
	}
	for _, b := range t.Next {
		all.Locks = append(all.Locks, b.cfg.Claim.Locks...)
	}
	return all
}

// turned takes note of a trial's answer, and of what was drawn.
func (b *Bid) turned(number string, drawn session.Rows) error {
	n, err := strconv.Atoi(number)
	if err != nil {
		return session.ErrNotPostgreSQL()
	}
	if _, err := b.granted(n); err != nil || !b.complete() {
		return err
	}
	return b.drew(slices.DeleteFunc(slices.Clone(drawn), func(row []string) bool { return !b.grant.locks[0].isListed(row) }))
}

// Complete says whether all is held that was claimed.
func (b *Bid) Complete() bool { return b.complete() }
