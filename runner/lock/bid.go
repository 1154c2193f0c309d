package lock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

// Bid is a claim on a session, as far as it has been granted.
type Bid struct {
	s   *session.Session
	cfg Config

	held  []Lock
	slot  int // with a gate: which of the claim's locks it is, from 1
	delay time.Duration
	// vouches: a clean end of this run says that the commands of all earlier holders
	// are dead, too (see verdict).
	vouches bool

	awaited   map[lockkey.ID]bool     // others had them since the bid began
	histories map[lockkey.ID]*history // of the locks, from the time at which it listens
	news      chan struct{}           // something was heard
	line      *line                   // where it waits, or nil
	token     *Grant                  // from the draw on
	started   bool                    // in the ledger

	ears []lockkey.ID // that it has

	puzzled     bool         // a lock is held, and it isn't known by whom
	prepareOnce func() error // Config.Prepare, until it has been called
	parted      bool         // the session has said goodbye
	told        time.Time    // when the observer was told last who has the locks
}

// NewBid is a bid on a session that others may use, too.
func NewBid(s *session.Session, cfg Config) *Bid {
	return &Bid{s: s, cfg: cfg, vouches: true, awaited: map[lockkey.ID]bool{}, histories: map[lockkey.ID]*history{}, news: make(chan struct{}, 1)}
}

// complete says whether all is held that the claim asks for.
func (b *Bid) complete() bool {
	if b.cfg.Claim.Gate != nil {
		return len(b.held) == 1
	}
	return len(b.held) == len(b.cfg.Claim.Locks)
}

// missing are the locks that the claim still asks for.
func (b *Bid) missing() []Lock {
	if b.cfg.Claim.Gate != nil {
		return b.cfg.Claim.Locks
	}
	return b.cfg.Claim.Locks[len(b.held):]
}

// Try takes what is missing, one lock after the other, up to the first that
// somebody else has, and says whether the claim is complete. It doesn't wait.
// Locks before that one stay held, so that whoever waits for it has them, but in
// a transaction, or without a wait: there it is all or nothing.
func (b *Bid) Try(ctx context.Context) (bool, error) {
	if value, known := b.s.TakeLoginAnswer(); known {
		n, err := strconv.Atoi(value)
		if err != nil {
			return false, session.ErrNotPostgreSQL()
		}
		return b.granted(n)
	}
	if b.cfg.Session.Transaction {
		return b.tryInTransaction(ctx)
	}
	n, err := b.number(ctx, "SELECT "+b.trial())
	if err != nil {
		return false, err
	}
	return b.granted(n)
}

// trial is an SQL expression that takes what is missing, in the way of Try. Its
// value is for granted.
func (b *Bid) trial() string {
	claim := b.cfg.Claim
	switch {
	case claim.Gate != nil && b.line == nil:
		return passes(*claim.Gate, tryEach(claim.Locks, Lock.try), "0")
	case claim.Gate != nil:
		return tryEach(claim.Locks, Lock.try)
	case b.cfg.Wait == 0 && len(b.held) == 0:
		return tryAllOrNone(claim.Locks)
	}
	return tryAll(b.missing(), Lock.try)
}

// LoginTrial is the first trial, which is made in the login's round trip: its value is
// what the session's TakeLoginAnswer returns, and Try goes by that.
func (cfg Config) LoginTrial() string {
	if len(cfg.Claim.Locks) == 0 {
		return ""
	}
	return NewBid(nil, cfg).trial()
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
func (b *Bid) granted(n int) (complete bool, err error) {
	missing := b.missing()
	if n < 0 || n > len(missing) {
		return false, session.ErrNotPostgreSQL()
	}
	won := missing[:n]
	if b.cfg.Claim.Gate != nil && n > 0 {
		won, b.slot = missing[n-1:n], n
	}
	for _, l := range won {
		b.held = append(b.held, l)
		v := b.verdict(l.ID)
		b.delay = max(b.delay, v.delay)
		b.vouches = b.vouches && v.vouches
	}
	if !b.complete() {
		b.await()
		b.refused()
	}
	return b.complete(), nil
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
	case b.awaited[id] || b.cfg.Returns:
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
	if b.cfg.Session.Transaction {
		b.s.SetHolding(false)
		_, err := b.s.Query(ctx, "ROLLBACK")
		b.forget()
		return b.error(err)
	}
	if len(b.held) == 0 {
		return nil
	}
	h := Held{Locks: b.held, cfg: b.cfg}
	var words []string
	if b.token != nil { // a start has been said
		h.Grant = *b.token
		words, _ = h.releasing()
	}
	_, err := b.s.Query(ctx, append(words, "SELECT "+h.unlocking())...)
	b.forget()
	return b.error(err)
}

// forget is for what was held and isn't any more: others may have it now.
func (b *Bid) forget() {
	for _, l := range b.held {
		b.awaited[l.ID] = true
	}
	b.held, b.slot, b.delay, b.vouches, b.token, b.started = nil, 0, 0, true, nil, false
}

// tryInTransaction begins the transaction that holds the locks.
//
// First the same trial is made in a statement by itself, which gives back what it
// is granted. One that is refused, as nearly all of many waiters' are, then costs
// the pooler no connection for as long as this process takes to say ROLLBACK.
func (b *Bid) tryInTransaction(ctx context.Context) (bool, error) {
	locks := b.cfg.Claim.Locks
	trial := tryAll(locks, Lock.tryInTransaction)
	if b.cfg.Claim.Gate != nil { // there is no line before a pooler
		trial = tryEach(locks, Lock.tryInTransaction)
	}
	enough := func(n int) bool { return n == len(locks) || b.cfg.Claim.Gate != nil && n > 0 }
	n, err := b.number(ctx, "SELECT "+trial)
	if err != nil {
		return false, err
	}
	if !enough(n) {
		b.await()
		return false, nil
	}
	n, err = b.number(ctx, append(b.s.Begin(), "SELECT "+trial)...)
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && strings.Contains(pgErr.Message, "statement pooling"):
		return false, session.Errorf(session.Unsafe, "pool_mode has to be transaction or session", "the pooler allows no transaction: %s", session.ServerSays(pgErr))
	case err != nil:
		return false, err
	case enough(n):
		b.s.SetHolding(true)
		return b.granted(n)
	}
	b.await()
	_, err = b.s.Query(ctx, "ROLLBACK")
	return false, b.error(err)
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

// Listen begins to collect what is said of the locks, and then looks who has them:
// in the other order a holder could begin unseen and unheard.
func (b *Bid) Listen(ctx context.Context) error {
	listen := b.listening()
	if len(listen) == 0 && !b.puzzled {
		return nil
	}
	_, err := b.look(ctx, listen...)
	return err
}

// listening are the queries by which the session begins to listen, before it takes
// the ticket or the ear by which holders know of it: so no clean end that is meant
// for it is missed. They are about to be asked.
func (b *Bid) listening() (queries []string) {
	var listen, ears []string
	for _, l := range b.cfg.Claim.Locks {
		if b.histories[l.ID] != nil {
			continue
		}
		h := newHistory(b.cfg.LockDelay, b.cfg.Session.Lease, l.Shared, b.news)
		b.histories[l.ID] = h
		b.s.OnNotify(channel(l.ID), h.hear)
		listen = append(listen, fmt.Sprintf(`LISTEN "%s"`, channel(l.ID)))
		if b.cfg.Claim.Gate == nil && (b.line == nil || len(b.cfg.Claim.Locks) > 1) { // it has no ticket for this one
			ears = append(ears, earOf(l.ID).call("try_advisory_lock"))
			b.ears = append(b.ears, l.ID)
		}
	}
	if len(listen) > 0 {
		queries = append(queries, strings.Join(listen, ";"))
	}
	if len(ears) > 0 {
		queries = append(queries, "SELECT "+strings.Join(ears, ", "))
	}
	return queries
}

// leaving are the queries that give back all by which it waited. They are about to
// be asked.
func (b *Bid) leaving() []string {
	queries := b.line.leaving()
	var ears []string
	for _, id := range b.ears {
		ears = append(ears, earOf(id).call("advisory_unlock"))
	}
	b.ears = nil
	if len(ears) > 0 {
		queries = append(queries, "SELECT "+strings.Join(ears, ", "))
	}
	return queries
}

// Listens says whether what happens to the locks is being collected.
func (b *Bid) Listens() bool { return len(b.histories) > 0 }

// Forget stops listening.
func (b *Bid) Forget(ctx context.Context) error {
	var queries, ears []string
	for id := range b.histories {
		b.s.OnNotify(channel(id), nil)
		queries = append(queries, fmt.Sprintf(`UNLISTEN "%s"`, channel(id)))
	}
	for _, id := range b.ears {
		ears = append(ears, earOf(id).call("advisory_unlock"))
	}
	if len(ears) > 0 {
		queries = append(queries, "SELECT "+strings.Join(ears, ", "))
	}
	clear(b.histories)
	b.ears = nil
	if len(queries) == 0 {
		return nil
	}
	_, err := b.s.Query(ctx, queries...)
	return b.error(err)
}

// verify asks for the roles of sessions whose words may count.
func (b *Bid) verify(ctx context.Context) error {
	for _, h := range b.histories {
		for _, pid := range h.unverified() {
			rows, err := b.s.Query(ctx, fmt.Sprintf("SELECT usesysid FROM pg_catalog.pg_stat_get_activity(%d)", pid))
			if err != nil {
				return b.error(err)
			}
			found := len(rows) == 1 && len(rows[0]) == 1
			role := uint64(0)
			if found {
				role, _ = strconv.ParseUint(rows[0][0], 10, 32)
			}
			h.verified(pid, uint32(role), found && role != 0)
		}
	}
	return nil
}
