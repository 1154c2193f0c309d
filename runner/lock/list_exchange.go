package lock

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// Exchange releases, in one round trip, the locks of commands that have ended, tries for those of
// the next ones, and draws one token for these, since that is one commit. It is for a session that
// works on a list.
//
// It announces as much as Release, Try and Settle do. Ends are announced in a transaction before
// the one that frees the locks, and starts, with their token, only for locks that the
// session has by then.
type Exchange struct {
	Ended []*Held   // for each, MayExchange is true
	Ends  []ItemEnd // of their commands
	Next  []*Bid    // for each, MayExchange is true
}

// MayExchange says whether the locks can be released in an Exchange: the ledger has nothing to
// note, and the announcement is for all listeners and prefers none of them.
func (h *Held) MayExchange() bool {
	return h.cfg.mayExchange() && h.owed == nil && h.prefers == ""
}

// MayExchange says whether the bid's first try can be part of an Exchange: the start needs
// nothing but the grant. That is so for one lock, if the bid has heard nothing of it.
func (b *Bid) MayExchange() bool {
	return b.cfg.mayExchange() && !b.usesLedger() && !b.listens() && len(b.held.Locks) == 0 &&
		b.verdictOn(b.cfg.Claim.IDs[0]).Delay == 0
}

func (cfg *Config) mayExchange() bool {
	return cfg.OfList && cfg.drawsWithTry() && !cfg.Claim.Shared
}

// Do carries out the exchange. If only the announcements fail, it warns of that. Its errors mean:
//
//	released  started  the locks of Ended   those of Next
//	nil       nil      are free             those bids that are Complete can be settled
//	nil       error    are free             Do has tried to free them
//	error     error    the session may still hold any of them, until it ends
func (x Exchange) Do(ctx context.Context, s *session.Session) (released, started error) {
	queries := append(x.wordsQuery(), x.freeAndTryQuery())
	if len(x.Next) > 0 {
		queries = append(queries, x.drawQuery())
	}
	answers, err := s.Ask(ctx, session.Request{SQL: queries})
	if err != nil && answeredError(err) == nil {
		return err, err
	}
	released, started = x.read(answers)
	if err == nil {
		return released, started
	}
	if started != nil && x.free(ctx, s) == nil {
		released = nil
	}
	if released == nil && len(x.Ended) > 0 && len(answers[0]) == 0 {
		x.Ended[0].warnUnannounced(err)
	}
	rejected := func(unread error) error {
		if unread == nil {
			return nil
		}
		return session.Rejected(err, "locks "+x.claim().String())
	}
	return rejected(released), rejected(started)
}

// free frees what the session holds of all these locks, after the server has rejected the exchange.
func (x Exchange) free(ctx context.Context, s *session.Session) error {
	if err := freeRejected(ctx, s, x.claim().locks()); err != nil {
		return err
	}
	for _, b := range x.Next {
		b.held = b.nothingHeld()
		b.contest(b.cfg.Claim.locks())
	}
	return nil
}

// read notes the answers to freeAndTryQuery and drawQuery. The server may have rejected only one of
// the two.
func (x Exchange) read(answers []session.Rows) (released, started error) {
	var drawn session.Rows
	if len(x.Next) > 0 {
		drawn, answers = answers[len(answers)-1], answers[:len(answers)-1]
	}
	row, err := answers[len(answers)-1].Only(1 + len(x.Next))
	if err != nil {
		return err, err
	}
	if row[0] != strconv.Itoa(len(x.Ended)) {
		err := session.Errorf(session.Unsafe, "", "release locks: the server says that the session did not hold all of them")
		return err, err
	}
	for i, b := range x.Next {
		if err := b.noteExchange(row[1+i], drawn); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// wordsQuery is the query that announces how the commands ended, if any have.
func (x Exchange) wordsQuery() (query []string) {
	if len(x.Ended) == 0 {
		return nil
	}
	columns := []string{asyncCommitSQL}
	for _, end := range x.Ends {
		columns = append(columns, end.notifySQL())
	}
	for _, h := range x.Ended {
		columns = append(columns, notifySQL(evidence.Channel(h.Locks[0].ID), h.endPayloadSQL(evidence.Clean, endPositionSQL)))
	}
	return selectQuery(columns)
}

// freeAndTryQuery is the query that frees and tries, in that order: columns are evaluated in order.
func (x Exchange) freeAndTryQuery() string {
	freed := []string{"0"}
	for _, h := range x.Ended {
		freed = append(freed, advisory.UnlockAllSQL(h.Locks))
	}
	columns := []string{strings.Join(freed, " + ")}
	for _, b := range x.Next {
		columns = append(columns, b.trySQL())
	}
	return "SELECT " + strings.Join(columns, ", ")
}

// drawQuery is the query that draws one token for all bids. MayExchange says that none uses a
// ledger.
func (x Exchange) drawQuery() string {
	var locks []advisory.Lock
	for _, b := range x.Next {
		locks = append(locks, b.cfg.Claim.locks()...)
	}
	return x.Next[0].cfg.drawQueryOf(locks, "NULL")
}

func (x Exchange) claim() (all Claim) {
	for _, h := range x.Ended {
		all.IDs = append(all.IDs, idsOf(h.Locks)...)
	}
	for _, b := range x.Next {
		all.IDs = append(all.IDs, b.cfg.Claim.IDs...)
	}
	return all
}

// noteExchange notes the answer to a try, and the token.
func (b *Bid) noteExchange(value string, drawn session.Rows) error {
	result, err := b.parseTry(value)
	if err != nil {
		return err
	}
	if b.noteResult(result); !b.Complete() {
		return nil
	}
	return b.noteDrawn(slices.DeleteFunc(slices.Clone(drawn), func(row []string) bool { return !isListed(b.held.Locks[0], row) }))
}
