package lock

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// Config says what is to be held, and how it is waited for.
type Config struct {
	Claim   Claim
	Session session.Config // LostGrace included
	Wait    time.Duration  // 0 tries once, Forever has no end

	// Description is what sessions say of themselves, to which a grant adds.
	Description inspect.Description

	// LockDelay is how long a former holder may live on without knowing that it
	// has lost: so long is waited, with the lock held, where there is no evidence
	// that its command is dead. With 0 it never is.
	LockDelay time.Duration

	// Explain has a refusal say who holds the lock, which is one more question to
	// the server; with Parting the session ends with that.
	Explain, Parting bool

	// Reached is set once the server has answered for the lock. A run that has it
	// set rides out every error from then on. Nil: it does so for passing ones only.
	Reached *bool

	// Prepare is called once for each session, while the server is asked or the lock
	// waited for: the caller makes ready there what the command will need. What it
	// returns undoes that, when the session is given up.
	Prepare func(*session.Session) (abandon func(), err error)

	// Ledger is what remembers the run, if the database has one.
	Ledger ledger.Use

	Observer Observer
	Log      *slog.Logger
}

// Forever is a wait without end.
const Forever = time.Duration(math.MaxInt64)

// Acquire opens a session, takes the lock on it, and returns when a command may be
// started under it. Obstacles that pass by themselves are waited out, for as long
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
	err = cfg.Persist(ctx, func(left func() time.Duration) (err error) {
		held, err = a.attempt(ctx, left)
		a.cfg.Session.Database = session.Elsewhere(a.cfg.Session.Database, err)
		return err
	})
	if err == nil {
		held.Waited = time.Since(began)
	}
	return held, err
}

// acquisition is one call of Acquire, which may take several sessions.
type acquisition struct {
	cfg     Config
	returns bool   // this is not its first session
	ticket  uint32 // that it had in an earlier one, or 0
	said    bool   // that a ledger is not used
}

// attempt is one session's.
func (a *acquisition) attempt(ctx context.Context, left func() time.Duration) (*Held, error) {
	cfg := a.cfg
	if !a.returns { // one who returns has a place in line: a try at the login would pass those before it
		cfg.Session.AtLogin = cfg.LoginTrySQL()
	}
	s, err := cfg.Open(ctx, left())
	if err != nil {
		return nil, err
	}
	if !a.said {
		a.said = cfg.SayWithoutLedger(s)
	}
	b := NewBid(s, a.cfg, a.returns)
	b.ticket, a.returns = a.ticket, true
	b.preparation = newPreparation(s, cfg.Prepare)
	held, err := b.takeAndSettle(ctx, left)
	for paused := (*ledger.PausedError)(nil); errors.As(err, &paused) && left() > 0; {
		if err = b.waitForResume(ctx, paused, left); err == nil {
			b.resumed()
			held, err = b.takeAndSettle(ctx, left)
		}
	}
	if err != nil {
		if b.line != nil && b.line.ticket != 0 {
			a.ticket = b.line.ticket
		}
		b.preparation.abandon()
		if errors.As(err, new(*LedgerError)) { // or the next run of a script would find them held
			_ = b.GiveBack(ctx)
		}
		if !b.parted {
			s.Close()
		}
		return nil, err
	}
	held.ownsSession = true
	held.watchRequests()
	cfg.answered()
	return held, nil
}

func (b *Bid) takeAndSettle(ctx context.Context, left func() time.Duration) (*Held, error) {
	if err := b.take(ctx, left); err != nil {
		return nil, err
	}
	b.cfg.Observer.away(nil)
	return b.Settle(ctx)
}

// take takes the lock: it tries first, and then waits for as long as it may.
func (b *Bid) take(ctx context.Context, left func() time.Duration) error {
	if !b.returns || b.cfg.Session.Transaction {
		if complete, err := b.Try(ctx); err != nil || complete {
			return err
		}
	}
	b.await()
	for first := true; !b.complete(); first = false {
		if left() <= 0 {
			return b.lastTry(ctx)
		}
		b.cfg.answered()
		if first {
			if err := b.beginWait(); err != nil {
				return err
			}
			defer b.cfg.Observer.beside(ctx, b.s)()
		}
		wait := b.wait
		if b.cfg.Session.Transaction {
			wait = b.poll
		}
		granted, err := wait(ctx, left)
		if err == nil && granted && !b.complete() {
			_, err = b.Try(ctx) // the rest of several locks
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lastTry is made when the time is up: the last moment is as good as any.
func (b *Bid) lastTry(ctx context.Context) error {
	if b.line != nil || b.returns {
		if complete, err := b.Try(ctx); err != nil || complete {
			return err
		}
	}
	return b.refuse(ctx)
}

// beginWait makes ready for a wait.
func (b *Bid) beginWait() error {
	b.cfg.Log.Info("waiting for the lock", "event", "waiting")
	if !b.cfg.Session.Transaction {
		b.s.Beat(session.Heartbeat{Every: WaiterBeat(b.cfg.Session.Lease), SQL: []string{session.PlainBeat}})
		b.s.Keep()
	}
	return b.preparation.done()
}

// poll is wait for a transaction, before which there is no line.
func (b *Bid) poll(ctx context.Context, left func() time.Duration) (granted bool, err error) {
	if _, err := b.s.Second(ctx); err != nil { // see session.Open
		return false, err
	}
	for polls := Polls(); left() > 0; {
		if err := b.cfg.Observer.look(ctx, b); err != nil {
			return false, err
		}
		if !pace.Sleep(ctx, min(pace.Between(Poll(polls)), left())) {
			return false, context.Cause(ctx)
		}
		if granted, err := b.Try(ctx); err != nil || granted {
			return granted, err
		}
	}
	return false, nil
}

// refuse gives up, and names the holders of what could not be had.
func (b *Bid) refuse(ctx context.Context) error {
	// The end of the session would free them a moment too late for the next run
	// of a script.
	if err := b.GiveBack(ctx); err != nil {
		return err
	}
	if queries := b.leaving(); len(queries) > 0 { // the gate, too, keeps others out
		if _, err := b.s.Query(ctx, queries...); err != nil {
			return b.error(err)
		}
	}
	held := &ConflictError{Database: session.Target(b.cfg.Session.Database), Waited: b.cfg.Wait}
	if !b.cfg.Explain {
		return held
	}
	parting := b.cfg.Parting && b.line == nil && b.s.Part()
	sought := b.cfg.Claim.Sought()
	views, err := inspect.Holders(ctx, b.s, sought.Locks...)
	if err != nil {
		return held // which is what matters
	}
	b.parted = parting
	for _, view := range views {
		if view.Backend != b.s.BackendPID() && (b.cfg.Claim.Gate == nil || view.ID != *b.cfg.Claim.Gate) {
			held.Holders = append(held.Holders, view)
		}
	}
	return held
}
