package lock

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// Exchange releases the lock of the last attempt, whose command has ended, and tries for that of
// the next. Either may be nil. It tells the other workers on the list of the end. If possible, one
// round trip does all that, with what other workers ask for meanwhile.
//
// It takes no context. The session outlives the exchange, so the list has to read every answer: a
// late one may say that the session has a lock.
func (l *List) Exchange(last, next *Attempt) (releaseErr, tryErr error) {
	ctx := context.Background() // each request ends at the latest when the session does
	var ended *Held
	var wanted *bid
	switch {
	case last == nil:
	case last.held.endFits():
		ended = last.held
	default:
		releaseErr = last.held.release(ctx, l.tellQueries(last.held))
	}
	if next != nil && next.bid.tryFits() {
		wanted = next.bid
	}
	if ended != nil || wanted != nil {
		x := l.addToNext(ended, wanted)
		<-x.done
		if ended != nil {
			releaseErr = x.releaseErr
		}
		if wanted != nil {
			tryErr = x.tryErr
		}
	}
	if next != nil && wanted == nil {
		tryErr = next.bid.tryAlone(ctx)
	}
	return releaseErr, tryErr
}

// endFits says whether the locks can be released in an exchange: the ledger has nothing to
// record, and the announcement is for all listeners and prefers none of them. Others will retry an
// item that failed, so its Release waits for those that were just refused.
func (h *Held) endFits() bool {
	return h.cfg.canExchange() && h.record.end.Outcome == ledger.OK && !h.record.begun() && h.prefers == ""
}

// tryFits says whether the bid's first try can be part of an exchange: the start needs
// nothing but the grant. That is so for one lock, without a ledger, if the bid has heard nothing of
// it.
func (b *bid) tryFits() bool {
	usesLedger, err := b.ledgerApplies()
	return b.cfg.canExchange() && !usesLedger && err == nil && !b.listener.on && len(b.grants) == 0 &&
		b.startsAtOnce(b.cfg.Claim.locks())
}

// tryAlone tries outside an exchange. The session goes on after a try that the server has rejected,
// which may have taken what it tried for if it was canceled, or followed by an error.
func (b *bid) tryAlone(ctx context.Context) error {
	_, err := b.try(ctx)
	if session.AnsweredError(err) != nil {
		err = cmp.Or(b.cfg.freeUnused(ctx, b.Session, b.possiblyHeld()), err)
	}
	return err
}

// possiblyHeld are the locks that the session may have after a try that the server has rejected.
func (b *bid) possiblyHeld() []advisory.Lock {
	return append(b.cfg.Claim.locks(), advisory.ArrivalOf(b.nextLine()))
}

// exchange releases, in one round trip, the locks of commands that have ended, tries for those of
// the next ones, and draws one token for these, since that is one commit. Workers join it while the
// session waits for the answer to the one before.
//
// It announces as much as Held.Release, bid.try and bid.settle do. Ends are announced in a
// transaction before the one that frees the locks, and starts, with their token, only for locks
// that the session has by then.
type exchange struct {
	list          *List
	ended         []*Held // endFits is true for each
	next          []*bid  // tryFits is true for each
	freed, wanted Claim   // the locks of these

	releaseErr, tryErr error         // as ask says, once it is done
	done               chan struct{} // closed then
}

// mostJoined limits the locks in one exchange: a statement can have 1,664 columns.
const mostJoined = 256

// addToNext adds a lock to release, one to try for, or both to the exchange that is sent next.
func (l *List) addToNext(ended *Held, next *bid) *exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.nextExchange
	if x == nil || max(len(x.ended), len(x.next)) == mostJoined {
		x = &exchange{list: l, done: make(chan struct{})}
		l.nextExchange = x
		go x.send()
	}
	x.add(ended, next)
	return x
}

func (x *exchange) add(ended *Held, next *bid) {
	if ended != nil {
		x.ended, x.freed = append(x.ended, ended), x.freed.with(ended.cfg.Claim)
	}
	if next != nil {
		x.next, x.wanted = append(x.next, next), x.wanted.with(next.cfg.Claim)
	}
}

// send sends the exchange when the one before it is done.
func (x *exchange) send() {
	l := x.list
	l.exchanging.Lock()
	defer l.exchanging.Unlock()
	l.mu.Lock()
	if l.nextExchange == x {
		l.nextExchange = nil // nobody joins it any more
	}
	l.mu.Unlock()
	x.releaseErr, x.tryErr = x.ask(context.Background()) // it returns at the latest when the session ends
	close(x.done)
}

// ask carries out the exchange. If only the announcements fail, it warns of that. Its errors mean:
//
//	releaseErr  tryErr    the locks to release  those to try for
//	nil         nil       are free              those items that are Granted can be settled
//	nil         error     are free              are free, too, or the list has to end
//	error       error     the session may still hold any of them, until it ends
func (x *exchange) ask(ctx context.Context) (releaseErr, tryErr error) {
	queries := append(x.announceQueries(), x.freeAndTryQuery())
	if len(x.next) > 0 {
		queries = append(queries, x.drawQuery())
	}
	answers, err := x.list.Session.Ask(ctx, session.Request{SQL: queries})
	if err != nil && session.AnsweredError(err) == nil {
		return err, err
	}
	releaseErr, tryErr = x.read(answers)
	if err == nil {
		return releaseErr, tryErr
	}
	if tryErr != nil {
		if err := x.free(ctx); err != nil {
			return err, err
		}
		releaseErr = nil
	}
	if releaseErr == nil && len(x.ended) > 0 && len(answers[0]) == 0 {
		x.ended[0].warnUnannounced(err)
	}
	if releaseErr != nil {
		releaseErr = session.Rejected(err, "lock "+x.freed.String())
	}
	if tryErr != nil {
		tryErr = session.Rejected(err, "lock "+x.wanted.String())
	}
	return releaseErr, tryErr
}

// free frees what the session holds of all these locks, after the server has rejected the exchange.
func (x *exchange) free(ctx context.Context) error {
	locks := x.freed.locks()
	for _, b := range x.next {
		locks = append(locks, b.possiblyHeld()...)
	}
	if err := x.list.cfg.freeUnused(ctx, x.list.Session, locks); err != nil {
		return err
	}
	for _, b := range x.next {
		b.forgetGrants()
		b.listener.evidence.Contest(b.cfg.Claim.IDs...)
	}
	return nil
}

// read notes the answers to freeAndTryQuery and drawQuery. The server may have rejected only one of
// the two.
func (x *exchange) read(answers []session.Rows) (releaseErr, tryErr error) {
	var drawn session.Rows
	if len(x.next) > 0 {
		drawn, answers = answers[len(answers)-1], answers[:len(answers)-1]
	}
	row, err := answers[len(answers)-1].Only(1 + len(x.next))
	if err != nil {
		return err, err
	}
	if row[0] != strconv.Itoa(len(x.ended)) {
		err := session.Errorf(session.Unsafe, "", "release locks: the server says that the session did not hold all of them")
		return err, err
	}
	for i, b := range x.next {
		if err := b.readExchange(row[1+i], drawn); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// announceQueries announce how the commands ended, if any have.
func (x *exchange) announceQueries() []string {
	if len(x.ended) == 0 {
		return nil
	}
	columns := []string{asyncCommitSQL}
	for _, h := range x.ended {
		columns = append(columns, x.list.endSQL(h))
	}
	for _, h := range x.ended {
		columns = append(columns, notifySQL(evidence.Channel(h.grants[0].ID), h.endPayloadSQL(evidence.Clean, endPositionSQL)))
	}
	return selectQueries(columns)
}

// freeAndTryQuery is the query that frees and tries, in that order: columns are evaluated in order.
func (x *exchange) freeAndTryQuery() string {
	freed := []string{"0"}
	for _, h := range x.ended {
		freed = append(freed, advisory.UnlockAllSQL(h.Locks()))
	}
	columns := []string{strings.Join(freed, " + ")}
	for _, b := range x.next {
		columns = append(columns, b.trySQL())
	}
	return "SELECT " + strings.Join(columns, ", ")
}

// drawQuery is the query that draws one token for all bids. tryFits says that none uses a
// ledger.
func (x *exchange) drawQuery() string {
	return x.next[0].cfg.bareDrawQuery(x.wanted.locks(), "NULL", false)
}

// readExchange reads the answer to a try, and the token.
func (b *bid) readExchange(value string, drawn session.Rows) error {
	won, err := b.readTry(value)
	if err != nil {
		return err
	}
	if b.addGrants(won); !b.complete() {
		return nil
	}
	return b.noteDrawn(slices.DeleteFunc(slices.Clone(drawn), func(row []string) bool { return !isListed(b.grants[0].Lock, row) }))
}
