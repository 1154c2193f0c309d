package lock

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// Config says what is to be held, and how it is waited for.
type Config struct {
	Claim   Claim
	Session session.Config
	Wait    time.Duration // 0 tries once, Forever has no end

	// SharedSession says that other commands of a list use the session, too, at the same time
	// or later. So its name shows no token, and no release ends it. Other workers on the list
	// come back for a lock without standing in line: starts and clean ends are announced even
	// if nobody stands there.
	SharedSession bool

	// Description is what sessions say of themselves, to which a grant adds.
	Description inspect.Description

	// LostGrace is what the command gets between SIGTERM and SIGKILL when the lock is lost.
	// Holders announce it.
	LostGrace time.Duration

	// LockDelay is how long a former holder's command may live on after the loss of its
	// lock. Without evidence that the command is dead, a grant is held for that long
	// before the start. 0 means never.
	LockDelay time.Duration

	// Explain makes a refusal name the holders of the lock, which takes one more
	// question to the server.
	Explain bool

	// Reached is set once the server has answered for the lock. From then on the run
	// rides out every error. If it is nil, the run rides out passing errors only.
	Reached *bool

	// Rank is the place in line that the run had in its last session: 1 if it had the lock,
	// 0 if it had no place. The first in line come back sooner after an outage.
	Rank int

	// Prepare (of package runner: the start of the guard) is called once for each
	// session, beside the questions to the server or the wait: there the caller makes
	// ready what the command will need. The function that it returns undoes that, if the
	// session is given up.
	Prepare func(*session.Session) (abandon func(), err error)

	// Ledger is what remembers the run, if the database has one.
	Ledger ledger.Use

	Observer Observer
	Log      *slog.Logger

	until time.Time // when the wait is over, unless Wait is Forever; Persist sets it
}

// Forever is a wait without end.
const Forever = time.Duration(math.MaxInt64)

// Acquire opens a session, takes the lock on it, and returns when a command may be
// started under it. It waits while an obstacle stands that passes by itself, for as long
// as Wait allows. Errors are
//
//	*ConflictError                            somebody else has it
//	*ledger.PausedError, *ledger.DoneError    the ledger says that nobody should start
//	*LedgerError                              the ledger can't be written
//	*session.Error, *session.LostError        the server can't be reached, or used, or is gone
//
// and otherwise ctx's cause, or an error of Config.Prepare.
func Acquire(ctx context.Context, cfg Config) (held *Held, err error) {
	began := time.Now()
	a := acquisition{cfg: cfg}
	err = a.cfg.Persist(ctx, func() (err error) {
		held, err = a.attempt(ctx)
		a.cfg.Session.Database = session.Elsewhere(a.cfg.Session.Database, err)
		a.crowded = a.crowded || isFull(err)
		return err
	})
	if err == nil {
		held.Took = time.Since(began)
	}
	return held, err
}

// acquisition is one call of Acquire, which may take several sessions.
type acquisition struct {
	cfg      Config
	reopened bool   // this is not its first session
	ticket   uint32 // the ticket that it had in an earlier one, or 0
	said     bool   // the log says that a ledger is not used
	crowded  bool   // the server had no room for it at some time
}

// attempt is what Acquire does with one session.
func (a *acquisition) attempt(ctx context.Context) (*Held, error) {
	cfg := a.cfg
	returning := a.reopened
	if !returning { // else it has a place in line, and must not pass those before it
		cfg.Session.FirstQuestion = cfg.FirstTrySQL()
	}
	s, err := cfg.OpenSession(ctx)
	if err != nil {
		return nil, err
	}
	if !a.said {
		a.said = cfg.SayWithoutLedger(s)
	}
	b := NewBid(s, a.cfg, returning)
	b.ticket, a.reopened = a.ticket, true
	b.preparation = newPreparation(s, cfg.Prepare)
	held, err := b.takeAndSettle(ctx)
	for paused := (*ledger.PausedError)(nil); errors.As(err, &paused) && cfg.left() > 0; {
		returning = returning || b.Listens()
		if err = b.waitForResume(ctx, paused); err == nil {
			b.resumed(returning)
			held, err = b.takeAndSettle(ctx)
		}
	}
	if err != nil {
		if b.line != nil && b.line.ticket != 0 {
			a.ticket, a.cfg.Rank = b.line.ticket, cmp.Or(b.line.rank, a.cfg.Rank)
		}
		b.preparation.abandon()
		if errors.As(err, new(*LedgerError)) { // or the next run of a script would find them held
			_ = b.GiveBack(ctx)
		}
		s.Close()
		return nil, err
	}
	held.next = a.succession(b)
	held.watchRequests()
	cfg.answered()
	return held, nil
}

func (b *Bid) takeAndSettle(ctx context.Context) (*Held, error) {
	if err := b.take(ctx); err != nil {
		return nil, err
	}
	b.cfg.Observer.away(nil)
	return b.Settle(ctx)
}

// take takes the lock: it tries first, and then waits for as long as it may.
func (b *Bid) take(ctx context.Context) error {
	// A bid that comes back has a place in line, and must not pass those before it.
	tries := len(b.contested) == 0 || b.cfg.Session.Transaction
	if tries {
		if _, err := b.Try(ctx); err != nil || b.Complete() {
			return err
		}
	}
	switch {
	case b.cfg.left() > 0:
	case tries:
		return b.refuse(ctx)
	default:
		return b.lastTry(ctx)
	}
	b.cfg.answered()
	if err := b.beginWait(); err != nil {
		return err
	}
	defer b.cfg.Observer.beside(ctx, b.s)()
	for b.cfg.left() > 0 {
		granted, err := b.wait(ctx)
		if err == nil && granted && !b.Complete() {
			_, err = b.Try(ctx) // the rest of several locks
		}
		if err != nil || b.Complete() {
			return err
		}
		b.cfg.answered()
	}
	return b.lastTry(ctx)
}

// lastTry tries once more when the time is up, then gives up.
func (b *Bid) lastTry(ctx context.Context) error {
	if _, err := b.Try(ctx); err != nil || b.Complete() {
		return err
	}
	return b.refuse(ctx)
}

// beginWait prepares for a wait.
func (b *Bid) beginWait() error {
	b.cfg.Log.Info("waiting for the lock", "event", "waiting")
	if !b.cfg.Session.Transaction {
		b.beatPlainly()
		b.s.StartHeartbeat()
	}
	return b.preparation.done()
}

// wait waits until something is granted or the time is up. Of several locks that is the next
// one: Try takes the rest.
func (b *Bid) wait(ctx context.Context) (granted bool, err error) {
	if b.cfg.Session.Transaction {
		return b.poll(ctx)
	}
	if b.line == nil {
		b.line = &line{b: b, ticket: b.ticket}
	}
	return b.line.wait(ctx)
}

// poll is wait for a transaction, which has no line.
func (b *Bid) poll(ctx context.Context) (granted bool, err error) {
	if _, err := b.s.Second(ctx); err != nil { // see session.Open
		return false, err
	}
	for polls := PollBackoff(); b.cfg.left() > 0; {
		if err := b.cfg.Observer.reportWait(ctx, b); err != nil {
			return false, err
		}
		if !pace.Sleep(ctx, min(pace.Between(PollBounds(polls)), b.cfg.left())) {
			return false, context.Cause(ctx)
		}
		if granted, err := b.Try(ctx); err != nil || granted {
			return granted, err
		}
	}
	return false, nil
}

// refuse gives up. Its error names the holders of the locks that are missing.
func (b *Bid) refuse(ctx context.Context) error {
	if err := b.withdraw(ctx); err != nil {
		return err
	}
	held := &ConflictError{Database: session.Target(b.cfg.Session.Database), Waited: b.cfg.Wait}
	if !b.cfg.Explain {
		return held
	}
	sought := b.cfg.Claim.Sought()
	views, err := inspect.Holders(ctx, lastQuery{b.s}, sought.Locks...)
	if err != nil {
		return held // without their names
	}
	for _, view := range views {
		if view.Backend != b.s.BackendPID() && (b.cfg.Claim.Gate == nil || view.ID != *b.cfg.Claim.Gate) {
			held.Holders = append(held.Holders, view)
		}
	}
	return held
}

// lastQuery is a session that ends with the answer to one more query.
type lastQuery struct{ *session.Session }

func (l lastQuery) Query(ctx context.Context, queries ...string) (session.Rows, error) {
	answers, err := l.Ask(ctx, session.Request{SQL: queries, Last: true})
	return slices.Concat(answers...), err
}
