package lock

import (
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

	// WasHolder says that the run had the lock until a moment ago.
	WasHolder bool

	// Prepare (of package runner: the start of the guard) is called once for each
	// session, beside the questions to the server or the wait: there the caller makes
	// ready what the command will need. The function that it returns undoes that, if the
	// session is given up.
	Prepare func(*session.Session) (abandon func(), err error)

	// Ledger is what remembers the run, if the database has one.
	Ledger ledger.Use

	Observer Observer
	Log      *slog.Logger
}

// Forever is a wait without end.
const Forever = time.Duration(math.MaxInt64)

// Acquire opens a session, takes the lock on it, and returns when a command may be
// started under it. It waits for obstacles to pass that do so by themselves, for as
// long as Wait allows. Errors are
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
	err = cfg.Persist(ctx, func(left func() time.Duration) (rank int, err error) {
		held, err = a.attempt(ctx, left)
		a.cfg.Session.Database = session.Elsewhere(a.cfg.Session.Database, err)
		a.crowded = a.crowded || isFull(err)
		return a.rank, err
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
	rank     int    // and its place in line then
	said     bool   // the log says that a ledger is not used
	crowded  bool   // the server had no room for it at some time
}

// attempt is what Acquire does with one session.
func (a *acquisition) attempt(ctx context.Context, left func() time.Duration) (*Held, error) {
	cfg := a.cfg
	returning := a.reopened
	if !returning { // else it has a place in line, and must not pass those before it
		cfg.Session.FirstQuestion = cfg.FirstTrySQL()
	}
	s, err := cfg.OpenSession(ctx, left())
	if err != nil {
		return nil, err
	}
	if !a.said {
		a.said = cfg.SayWithoutLedger(s)
	}
	b := NewBid(s, a.cfg, returning)
	b.ticket, a.reopened = a.ticket, true
	b.preparation = newPreparation(s, cfg.Prepare)
	held, err := b.takeAndSettle(ctx, left)
	for paused := (*ledger.PausedError)(nil); errors.As(err, &paused) && left() > 0; {
		if err = b.waitForResume(ctx, paused, left); err == nil {
			b.resumed(returning || b.Listens())
			held, err = b.takeAndSettle(ctx, left)
		}
	}
	if err != nil {
		if b.line != nil && b.line.ticket != 0 {
			a.ticket, a.rank = b.line.ticket, b.line.rank
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

func (b *Bid) takeAndSettle(ctx context.Context, left func() time.Duration) (*Held, error) {
	if err := b.take(ctx, left); err != nil {
		return nil, err
	}
	b.cfg.Observer.away(nil)
	return b.Settle(ctx)
}

// take takes the lock: it tries first, and then waits for as long as it may.
func (b *Bid) take(ctx context.Context, left func() time.Duration) error {
	// One that comes back has a place in line, and must not pass those before it.
	tries := len(b.contested) == 0 || b.cfg.Session.Transaction
	if tries {
		if _, err := b.Try(ctx); err != nil || b.Complete() {
			return err
		}
	}
	switch {
	case left() > 0:
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
	wait := b.wait
	if b.cfg.Session.Transaction {
		wait = b.poll
	}
	for left() > 0 {
		granted, err := wait(ctx, left)
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

// poll is wait for a transaction, which has no line.
func (b *Bid) poll(ctx context.Context, left func() time.Duration) (granted bool, err error) {
	if _, err := b.s.Second(ctx); err != nil { // see session.Open
		return false, err
	}
	for polls := PollBackoff(); left() > 0; {
		if err := b.cfg.Observer.reportWait(ctx, b); err != nil {
			return false, err
		}
		if !pace.Sleep(ctx, min(pace.Between(PollBounds(polls)), left())) {
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
