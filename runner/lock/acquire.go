package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/pglead/pglead/runner/inspect"
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

	// Reached is set once the server has answered for the lock. Who has it rides
	// out every error from then on.
	Reached *bool

	// Opened is called for each session, while there is something else to wait
	// for. What it returns is called when the session is given up.
	Opened func(*session.Session) (abandon func(), err error)

	Observer Observer
	Log      *slog.Logger

	// Returns is set for one who has waited before, in a session that is no more
	// or in which nothing is heard.
	Returns bool

	ticket uint32 // that it had in an earlier session
}

// Forever is a wait without end.
const Forever = time.Duration(math.MaxInt64)

// Acquire opens a session, takes the lock on it, and returns when a command may be
// started under it. Obstacles that pass by themselves are waited out, for as long
// as Wait allows. Errors are *HeldError, *session.Error, *session.LostError, or
// ctx's.
func Acquire(ctx context.Context, cfg Config) (held *Held, err error) {
	began := time.Now()
	err = cfg.Persist(ctx, func(left func() time.Duration) (err error) {
		held, err = cfg.attempt(ctx, left)
		cfg.Session.Database = session.Elsewhere(cfg.Session.Database, err)
		return err
	})
	if err == nil {
		held.Waited = time.Since(began)
	}
	return held, err
}

// attempt is one session's.
func (cfg *Config) attempt(ctx context.Context, left func() time.Duration) (*Held, error) {
	opening := *cfg
	if !cfg.Returns { // who comes back goes to the end of the line
		opening.Session.First = cfg.FirstTrial()
	}
	s, err := opening.Open(ctx, left())
	if err != nil {
		return nil, err
	}
	b := NewBid(s, *cfg)
	cfg.Returns = true // if it comes to another session
	abandon := func() {}
	if cfg.Opened != nil {
		b.opened = func() (err error) {
			abandon, err = cfg.Opened(s)
			return err
		}
	}
	err = b.take(ctx, left)
	var held *Held
	if err == nil {
		cfg.Observer.away(nil)
		held, err = b.Settle(ctx)
	}
	if err != nil {
		if b.line != nil && b.line.ticket != 0 {
			cfg.ticket = b.line.ticket
		}
		abandon()
		if !b.parted {
			s.Close()
		}
		return nil, err
	}
	held.alone = true
	held.heed()
	cfg.answered()
	return held, nil
}

// take takes the lock: it tries first, and then waits for as long as it may.
func (b *Bid) take(ctx context.Context, left func() time.Duration) error {
	if !b.cfg.Returns || b.cfg.Session.Transaction {
		if complete, err := b.Try(ctx); err != nil || complete {
			return err
		}
	}
	b.await()
	for first := true; !b.complete(); first = false {
		if left() <= 0 {
			if b.line != nil || b.cfg.Returns { // the last moment is as good as any
				if complete, err := b.Try(ctx); err != nil || complete {
					return err
				}
			}
			return b.refuse(ctx)
		}
		b.cfg.answered()
		if first {
			if err := b.prepare(); err != nil {
				return err
			}
			defer b.cfg.Observer.beside(ctx, b.s)()
		}
		wait := b.wait
		if b.cfg.Session.Transaction {
			wait = b.poll
		}
		if err := wait(ctx, left); err != nil {
			return err
		}
		if len(b.held) == 0 || b.complete() {
			continue
		}
		if _, err := b.Try(ctx); err != nil { // the rest of several locks
			return err
		}
	}
	return nil
}

// prepare makes ready for a wait.
func (b *Bid) prepare() error {
	b.cfg.Log.Info("waiting for the lock", "event", "waiting")
	if !b.cfg.Session.Transaction {
		b.s.Beat(session.Heartbeat{Every: b.cfg.Session.Lease / 3, SQL: []string{session.PlainBeat}})
		b.s.Keep()
	}
	return b.open()
}

// open calls Opened, once.
func (b *Bid) open() error {
	opened := b.opened
	b.opened = nil
	if opened == nil {
		return nil
	}
	return opened()
}

// Settle makes a granted claim one that a command can be started under: it waits
// until a former holder that may not know of its loss is dead, draws the token,
// and keeps the session alive from then on.
func (b *Bid) Settle(ctx context.Context) (*Held, error) {
	// A second login may take its time.
	kept := b.delay > 0 || b.cfg.Session.Quorum || b.cfg.Session.Transaction
	if kept {
		if err := b.s.Ping(ctx); err != nil {
			return nil, err
		}
		b.s.Keep()
	}
	if err := b.waitOut(ctx); err != nil {
		return nil, err
	}
	prepared := make(chan error, 1)
	if b.opened != nil {
		go func() { prepared <- b.open() }()
	} else {
		prepared <- nil
	}
	err := b.draw(ctx)
	err = cmp.Or(err, <-prepared)
	if err == nil && b.s.Silent() { // the disk took longer than the lease has
		err = b.s.Err()
	}
	if err != nil {
		return nil, err
	}
	b.describe()
	b.s.Keep()
	if err := b.s.Err(); err != nil {
		return nil, err
	}
	return &Held{Grant: *b.token, Session: b.s, Locks: b.held, Slot: b.slot, cfg: b.cfg, entitled: b.entitled}, nil
}

// waitOut holds the lock for as long as a former holder may be alive, or until
// there is evidence that it isn't. With a quorum that counts from a commit which this
// server's standbys confirm.
func (b *Bid) waitOut(ctx context.Context) error {
	if b.delay <= 0 {
		return nil
	}
	b.token = nil // one that was drawn before is not for what starts then
	if err := b.announceDelay(ctx); err != nil {
		return err
	}
	if err := b.s.Witness(ctx); err != nil {
		return err
	}
	b.cfg.Log.Info("lock granted without evidence that its last holder is dead; waiting", "event", "delayed", "delay", b.delay)
	defer b.cfg.Observer.delayed(b.delay)()
	over := time.NewTimer(b.delay)
	defer over.Stop()
	for {
		select {
		case <-over.C:
			return nil
		case <-b.news:
			if err := b.verify(ctx); err != nil {
				return err
			}
			if v := b.verdictOf(b.held); v.delay == 0 {
				b.entitled = v.entitled
				return nil
			}
		case <-b.s.Lost():
			return b.s.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// announceDelay shows those who watch the holder that its command has not started,
// and makes room in line.
func (b *Bid) announceDelay(ctx context.Context) error {
	d := b.cfg.Description
	d.Delay = b.delay
	b.s.SetComment(d.Comment())
	_, err := b.s.Query(ctx, append(b.line.leaving(), session.PlainBeat)...)
	return b.error(err)
}

// poll is wait for a transaction, before which there is no line.
func (b *Bid) poll(ctx context.Context, left func() time.Duration) error {
	for pause := PollLeast; left() > 0; pause = min(2*pause, PollMost) {
		if err := b.cfg.Observer.look(ctx, b); err != nil {
			return err
		}
		if !Sleep(ctx, min(Jitter(pause, 3*pause), left())) {
			return context.Cause(ctx)
		}
		if complete, err := b.Try(ctx); err != nil || complete {
			return err
		}
	}
	return nil
}

// Where there is no line the lock is tried again after a random time of once to
// three times an interval that grows from PollLeast to PollMost, at which a
// thousand waiters come to five hundred tries a second.
const (
	PollLeast = 250 * time.Millisecond
	PollMost  = time.Second
)

// refuse gives up, and says who has what could not be had.
func (b *Bid) refuse(ctx context.Context) error {
	// The end of the session would free them a moment too late for the next run
	// of a script.
	if err := b.GiveBack(ctx); err != nil {
		return err
	}
	held := &HeldError{Database: session.Target(b.cfg.Session.Database), Waited: b.cfg.Wait}
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

// HeldError says that someone else has the lock.
type HeldError struct {
	Database string
	Waited   time.Duration
	Holders  []inspect.View // as far as they are known
}

func (e *HeldError) Error() string {
	text := fmt.Sprintf("the lock in %s is held elsewhere", e.Database)
	if e.Waited > 0 {
		text = fmt.Sprintf("the lock in %s was held elsewhere for all of the %v that --wait allows", e.Database, e.Waited)
	}
	const most = 3
	for i, holder := range e.Holders {
		if i == most {
			return fmt.Sprintf("%s, and %d more", text, len(e.Holders)-most)
		}
		text += map[bool]string{true: ": by ", false: "; by "}[i == 0] + holder.String()
	}
	return text
}

// answered notes that this database can be one to wait for.
func (cfg *Config) answered() {
	cfg.Observer.away(nil)
	if cfg.Reached != nil {
		*cfg.Reached = true
	}
}

// Between attempts to connect a waiter pauses for a random part of a backoff
// that doubles, so that a server that comes up again isn't run over.
const (
	backoffFirst = 200 * time.Millisecond
	backoffMost  = 5 * time.Second
)

// Persist does what may fail for reasons that pass by themselves: a server that
// restarts, has no room, or is a standby until it is promoted, and the loss of the
// own session meanwhile. Someone who waits rides these out. When the time is up
// the last obstacle is the error.
func (cfg *Config) Persist(ctx context.Context, try func(left func() time.Duration) error) error {
	began := time.Now()
	left := func() time.Duration {
		if cfg.Wait == Forever {
			return Forever
		}
		return cfg.Wait - time.Since(began)
	}
	backoff, crowded := backoffFirst, crowdedFirst
	for {
		cfg.Observer.alive(cfg.AttemptMost())
		err := try(left)
		if err == nil {
			cfg.Observer.away(nil)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pause := Jitter(backoff/2, backoff)
		if isFull(err) && cfg.Wait > 0 {
			pause = Jitter(crowded/8, crowded)
			crowded = min(2*crowded, crowdedMost)
			// The last moment is as good as any for the last try.
			pause = min(pause, max(left()-time.Second, time.Second/2))
		} else {
			backoff = min(2*backoff, backoffMost)
		}
		persists := session.Passing(err) || cfg.Reached != nil && *cfg.Reached
		if !persists || left() <= pause {
			return err
		}
		cfg.Observer.away(err)
		cfg.Log.Info("waiting for the database", "event", "waiting", "reason", err.Error(), "retry_in", pause)
		if !Sleep(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}

// AttemptMost is more than one attempt can take: the connection to each host, a
// second one, the lock-delay, and some questions, each of which has less than the lease.
func (cfg *Config) AttemptMost() time.Duration {
	hosts := 1 + len(cfg.Session.Database.Fallbacks)
	return time.Duration(hosts+1)*cfg.Session.ConnectTimeout + cfg.LockDelay + 4*cfg.Session.Lease
}

// session is how a session is opened.
func (cfg *Config) session() session.Config {
	of := cfg.Session
	of.Comment = cfg.Description.Comment()
	return of
}

// Open opens a session for someone who may wait for that long. A server without
// room, as when a thousand nodes fire at once, is asked again for as long as one
// attempt to connect may take by who doesn't wait for the lock. Who does comes
// back later.
func (cfg *Config) Open(ctx context.Context, left time.Duration) (*session.Session, error) {
	of := cfg.session()
	if cfg.Wait > 0 {
		of.ConnectTimeout = min(of.ConnectTimeout, max(left, time.Second))
	}
	began, backoff := time.Now(), fullFirst
	for {
		s, err := session.Open(ctx, of)
		if err == nil || cfg.Wait > 0 || !isFull(err) {
			return s, err
		}
		pause := Jitter(backoff/2, backoff)
		if time.Since(began)+pause > of.ConnectTimeout {
			return nil, err
		}
		if !Sleep(ctx, pause) {
			return nil, context.Cause(ctx)
		}
		backoff = min(2*backoff, fullMost)
	}
}

// A server that is full has room again when one of its hundred is done, which is
// soon. But each who is refused leaves a line in its log.
const (
	fullFirst = 50 * time.Millisecond
	fullMost  = time.Second
)

func isFull(err error) bool {
	var refused *session.Error
	return errors.As(err, &refused) && refused.Full
}

// Jitter is a random time from least to most.
func Jitter(least, most time.Duration) time.Duration {
	return least + rand.N(most-least+1)
}

// Sleep says whether the time passed before ctx ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
