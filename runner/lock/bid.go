package lock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

// Bid is a claim on a session, as far as it has been granted.
type Bid struct {
	s   *session.Session
	cfg Config

	returns bool   // it has waited before, in a session that is lost or in which it hears nothing
	ticket  uint32 // that it had in an earlier session

	grant     grant
	awaited   map[lockkey.ID]bool     // others had them since the bid began
	histories map[lockkey.ID]*history // of the locks, from the time at which it listens
	news      chan struct{}           // something was heard
	line      *line                   // where it waits, or nil
	ears      []lockkey.ID            // that it has

	server      string       // with a transaction: which it is on
	puzzled     bool         // a lock is held, and it isn't known by whom
	preparation *preparation // Config.Prepare
	parted      bool         // the session has said goodbye
	told        time.Time    // when the observer was told last who has the locks
}

// grant is what a bid has been granted.
type grant struct {
	locks []Lock
	slot  int           // with a gate: which of the claim's locks it is, from 1
	delay time.Duration // for which the locks are to be held before the command may start
	// coversEarlier: a clean end of this run says that the commands of all earlier
	// holders are dead, too (see verdict).
	coversEarlier bool
	tenure        Tenure // from the draw on
	recorded      bool   // in the ledger
}

func noGrant() grant { return grant{coversEarlier: true} }

// drawn says whether the token has been drawn.
func (g *grant) drawn() bool { return g.tenure.Token != 0 }

// undraw forgets the token, and what the ledger may have noted under it.
func (g *grant) undraw() { g.tenure, g.recorded = Tenure{}, false }

// NewBid is a bid on a session that others may use, too. One that returns has waited
// before, in a session that is lost or in which it hears nothing.
func NewBid(s *session.Session, cfg Config, returns bool) *Bid {
	return &Bid{s: s, cfg: cfg, returns: returns, grant: noGrant(), awaited: map[lockkey.ID]bool{}, histories: map[lockkey.ID]*history{}, news: make(chan struct{}, 1)}
}

// complete says whether all is held that the claim asks for.
func (b *Bid) complete() bool {
	if b.cfg.Claim.Gate != nil {
		return len(b.grant.locks) == 1
	}
	return len(b.grant.locks) == len(b.cfg.Claim.Locks)
}

// missing are the locks that the claim still asks for.
func (b *Bid) missing() []Lock {
	if b.cfg.Claim.Gate != nil {
		return b.cfg.Claim.Locks
	}
	return b.cfg.Claim.Locks[len(b.grant.locks):]
}

// Try takes what is missing, one lock after the other, up to the first that
// somebody else has, and says whether the claim is complete. It doesn't wait.
// Locks before that one stay held, so that whoever waits for it has them, but in
// a transaction, or without a wait: there it is all or nothing.
func (b *Bid) Try(ctx context.Context) (complete bool, err error) {
	_, err = b.try(ctx)
	return err == nil && b.complete(), err
}

// try is Try, but says whether any lock was granted.
func (b *Bid) try(ctx context.Context) (granted bool, err error) {
	if b.cfg.Session.Transaction {
		return b.tryInTransaction(ctx)
	}
	n, err := b.trialled(ctx)
	if err != nil {
		return false, err
	}
	return b.granted(n)
}

// trialled is what a trial comes to. The first has been made at the login.
func (b *Bid) trialled(ctx context.Context) (n int, err error) {
	value, known := b.s.TakeFirstAnswer()
	if !known {
		return b.number(ctx, "SELECT "+b.trySQL())
	}
	if n, err = strconv.Atoi(value); err != nil {
		return 0, session.ErrNotPostgreSQL()
	}
	return n, nil
}

// trySQL is an SQL expression that takes what is missing, in the way of Try. Its
// value is for granted.
func (b *Bid) trySQL() string {
	claim := b.cfg.Claim
	switch {
	case b.cfg.Session.Transaction:
		return claim.trySQLInTransaction()
	case claim.Gate != nil && b.line == nil:
		return passes(*claim.Gate, tryEach(claim.Locks, Lock.try), "0")
	case claim.Gate != nil:
		return tryEach(claim.Locks, Lock.try)
	case b.cfg.Wait == 0 && len(b.grant.locks) == 0:
		return tryAllOrNone(claim.Locks)
	}
	return tryAll(b.missing(), Lock.try)
}

// FirstTrySQL is the first trial, which is made in the login's round trip: its value is
// what the session's TakeFirstAnswer returns, and Try goes by that.
func (cfg Config) FirstTrySQL() string {
	if len(cfg.Claim.Locks) == 0 {
		return ""
	}
	return NewBid(nil, cfg, false).trySQL()
}

// tryAll is an SQL expression that takes the locks up to the first that is not
// free, and counts them.
func tryAll(locks []Lock, try func(Lock) string) string {
	var cases strings.Builder
	for i, l := range locks {
		fmt.Fprintf(&cases, " WHEN NOT %s THEN %d", try(l), i)
	}
	return fmt.Sprintf("CASE%s ELSE %d END", cases.String(), len(locks))
}

// tryAllOrNone is tryAll that gives back what it has been granted if that isn't
// all: else two runs that don't wait would refuse each other, and neither would start.
func tryAllOrNone(locks []Lock) string {
	var cases, back strings.Builder
	for _, l := range locks {
		fmt.Fprintf(&cases, " WHEN NOT %s THEN 0%s", l.try(), back.String())
		fmt.Fprintf(&back, " * %s::int", l.call("advisory_unlock"))
	}
	return fmt.Sprintf("CASE%s ELSE %d END", cases.String(), len(locks))
}

// tryEach is an SQL expression that takes one of the locks and is its place in
// the list, from 1, or 0.
func tryEach(locks []Lock, try func(Lock) string) string {
	var cases strings.Builder
	for i, l := range locks {
		fmt.Fprintf(&cases, " WHEN %s THEN %d", try(l), i+1)
	}
	return "CASE" + cases.String() + " ELSE 0 END"
}

// granted notes what a trial has taken: so many locks or, with a gate, the one
// at that place. For each it asks the lock's history how long the last holder
// may be alive.
func (b *Bid) granted(n int) (some bool, err error) {
	missing := b.missing()
	if n < 0 || n > len(missing) {
		return false, session.ErrNotPostgreSQL()
	}
	won := missing[:n]
	if b.cfg.Claim.Gate != nil && n > 0 {
		won, b.grant.slot = missing[n-1:n], n
	}
	for _, l := range won {
		b.grant.locks = append(b.grant.locks, l)
		v := b.verdict(l.ID)
		b.grant.delay = max(b.grant.delay, v.delay)
		b.grant.coversEarlier = b.grant.coversEarlier && v.coversEarlier
	}
	if !b.complete() {
		b.await()
		b.refused()
	}
	return len(won) > 0, nil
}

// refused takes note that somebody else has what is missing: if the histories say
// that nobody does, he has to be looked for.
func (b *Bid) refused() {
	for _, l := range b.barred() {
		if h := b.histories[l.ID]; h != nil {
			b.puzzled = h.refused(time.Now()) || b.puzzled
		}
	}
}

// verdict is how long a granted lock has to be held before the command may
// start.
//
// Whoever finds the lock free at the first try starts at once, unless the server
// is too young to tell, or something was heard of the lock. Whoever has waited for
// it, in this session or in one that was lost, goes by what it has heard, which
// may be nothing.
func (b *Bid) verdict(id lockkey.ID) verdict {
	h := b.histories[id]
	switch {
	case h != nil && (h.heard() || b.awaited[id]):
		return h.verdict()
	case b.awaited[id] || b.returns:
		return newHistory(b.cfg.LockDelay, b.cfg.Session.Lease, false, nil).verdict()
	}
	return verdict{delay: b.s.FirstTryDelay(b.cfg.LockDelay)}
}

// await notes that others have what was refused, or may have had it: the next
// grant of it is no first try.
func (b *Bid) await() {
	for _, l := range b.barred() {
		b.awaited[l.ID] = true
	}
}

// barred is what a try was refused. What is after it was not tried, but in a
// transaction.
func (b *Bid) barred() []Lock {
	refused := b.missing()
	if b.cfg.Claim.Gate == nil && !b.cfg.Session.Transaction && len(refused) > 0 {
		return refused[:1]
	}
	return refused
}

// GiveBack frees what is held without having been used.
func (b *Bid) GiveBack(ctx context.Context) error {
	if len(b.grant.locks) == 0 {
		return nil
	}
	if b.cfg.Session.Transaction {
		b.s.SetHolding(false)
		_, err := b.s.Query(ctx, "ROLLBACK")
		b.forget()
		return b.error(err)
	}
	h := Held{Locks: b.grant.locks, cfg: b.cfg}
	var words []string
	if b.grant.drawn() { // a start has been said
		h.Tenure = b.grant.tenure
		words, _ = h.releasing()
	}
	_, err := b.s.Query(ctx, append(words, "SELECT "+h.unlocking())...)
	b.forget()
	return b.error(err)
}

// forget is for what was held and isn't any more: others may have it now.
func (b *Bid) forget() {
	for _, l := range b.grant.locks {
		b.awaited[l.ID] = true
	}
	b.grant = noGrant()
}

// number sends queries, of which the last has a number for an answer.
func (b *Bid) number(ctx context.Context, queries ...string) (int, error) {
	rows, err := b.s.Query(ctx, queries...)
	if err != nil {
		return 0, b.error(err)
	}
	return lastNumber(rows)
}

func lastNumber(rows session.Rows) (int, error) {
	if len(rows) > 0 && len(rows[len(rows)-1]) == 1 {
		if n, err := strconv.Atoi(rows[len(rows)-1][0]); err == nil {
			return n, nil
		}
	}
	return 0, session.ErrNotPostgreSQL()
}

// error makes a refusal of the server's one of the bid's locks.
func (b *Bid) error(err error) error {
	return session.Refused(err, "lock "+b.cfg.Claim.String())
}
