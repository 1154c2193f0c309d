package lock

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// The line is a number of sessions that block nowhere. Each has a ticket, an advisory
// lock of its own whose number says when it came, and is idle between two looks. The
// order is only for fairness; the lock itself keeps the promise.
//
//	rank 1    named by the clean end of the holder, it tries many times in one
//	          statement, the first at once. It watches the holder (silence.go),
//	          and finds out by itself if the lock is free (watch.go).
//	up to 3   also watch it, in case those before them are frozen.
//	rank r    tries when the lock has come free, r-1 times turnPatience later, since
//	          those before it may be dead. It doesn't if it hears of a start.
//	up to 3   also tries if two looks in a row have shown the lock to be free.
//	up to 24  listens, and is marked as one that does.
//	others    are dormant (dormant.go), and look: often while the line moves, and more
//	          and more seldom, the further behind they are, while it stands.
const (
	turnPatience   = 300 * time.Millisecond
	triesWhatsFree = 3
	mostWatchers   = 3
)

// line is a bid's place among the waiters.
type line struct {
	b        *Bid
	ticketed bool
	ticket   uint32     // the lower half of the ticket's number
	marked   bool       // as one that listens
	of       lockkey.ID // the lock in whose line it stands
	gated    bool       // holds the gate

	rank     int
	looks    time.Duration // how far apart they are
	ahead    []uint32      // the sessions before this one, the next first
	free     int           // how many looks in a row have shown no holder
	lookAt   time.Time
	tryAt    time.Time
	burst    bool            // the next try is of many
	watched  watch           // what the heartbeat sees of the holder (watch.go)
	unnamed  uint32          // a holder that showed no token
	prepared string          // the name of the prepared statement that watches the holder
	limits   *inspect.Limits // the server's, once they are known
	warm     bool            // a start without a token was made (warmUp)
	calling  bool            // those who are dormant
	called   atomic.Bool     // somebody has called this one
}

// lineOf is the lock in whose line the bid waits for what is missing.
func (b *Bid) lineOf() lockkey.ID {
	if b.cfg.Claim.Gate != nil {
		return *b.cfg.Claim.Gate
	}
	if missing := b.missing(); len(missing) > 0 {
		return missing[0].ID
	}
	return b.cfg.Claim.Locks[len(b.cfg.Claim.Locks)-1].ID
}

func (b *Bid) lineClass() uint32 { return lockkey.Ticket(b.lineOf()) }

// ticketTime is the current time in units of 10 ms, modulo 2³²; it wraps every 497 days.
func ticketTime() uint32 { return uint32(time.Now().UnixMilli() / 10) }

// mostTickets is how many numbers are tried. No more waiters can come in 10 ms.
const mostTickets = 4000

// ticketSQL takes the first number from now on, by the server's clock, that nobody
// else has. Readers may share one.
func (l *line) ticketSQL() string {
	from := "(extract(epoch FROM pg_catalog.clock_timestamp()) * 100)::bigint"
	if l.ticket != 0 { // it has been there before
		from = strconv.FormatUint(uint64(l.ticket), 10) + "::bigint"
	}
	return fmt.Sprintf(`SELECT t & 4294967295 FROM pg_catalog.generate_series(%[1]s, %[1]s + %[2]d) AS t
WHERE CASE WHEN t & 4294967295 <> %[3]d THEN %[4]s((%[5]d)::bigint << 32 | (t & 4294967295)) END LIMIT 1`,
		from, mostTickets, uint32(earNumber), l.tryFunction(), int32(lockkey.Ticket(l.of)))
}

// tryFunction takes a ticket, or its mark.
func (l *line) tryFunction() string {
	if l.b.shared() {
		return "pg_catalog.pg_try_advisory_lock_shared"
	}
	return "pg_catalog.pg_try_advisory_lock"
}

// shared says whether the bid is a reader's.
func (b *Bid) shared() bool { return b.cfg.Claim.Locks[0].Shared }

// earNumber is the ticket that nobody draws. All sessions that listen to what happens to
// a lock, without standing in its line, hold it together. So holders know that somebody
// hears them.
const earNumber = math.MaxUint32

func earOf(id lockkey.ID) Lock {
	ear := ticketID(id, earNumber)
	ear.Pair = true
	return Lock{ID: ear, Shared: true}
}

// ticketLock is the ticket as a lock.
func (l *line) ticketLock() Lock {
	return Lock{ID: ticketID(l.of, l.ticket), Shared: l.b.shared()}
}

// mark is the lock by which a holder sees that the ticket's owner listens: the ticket's
// number as a pair.
func (l *line) mark() Lock {
	m := l.ticketLock()
	m.Pair = true
	return m
}

// ticketID is the number of a ticket in a lock's line.
func ticketID(of lockkey.ID, ticket uint32) lockkey.ID {
	return lockkey.ID{Number: int64(lockkey.Ticket(of))<<32 | int64(ticket)}
}

// join takes a ticket, and then listens if it is one of the first.
func (l *line) join(ctx context.Context) error {
	if l.ticketed && l.of != l.b.lineOf() { // the next of several locks
		if err := l.leave(ctx); err != nil {
			return err
		}
		l.ticket = 0
	}
	l.of = l.b.lineOf()
	if l.ticketed {
		return l.look(ctx)
	}
	found, err := l.ask(ctx, append(l.b.beginListening(), l.ticketSQL())...)
	if err != nil {
		return err
	}
	if found.ticket == 0 {
		return session.ErrNotPostgreSQL()
	}
	l.ticket, l.ticketed = found.ticket, true
	return l.digest(ctx, found)
}

// leave gives the ticket back, and the gate.
func (l *line) leave(ctx context.Context) error {
	if queries := l.takeLeave(); len(queries) > 0 {
		_, err := l.b.s.Query(ctx, queries...)
		return l.b.error(err)
	}
	return nil
}

// takeLeave gives both back by queries, which the caller has to send.
func (l *line) takeLeave() (queries []string) {
	if columns := l.leaveSQL(); len(columns) > 0 {
		queries = []string{"SELECT " + strings.Join(columns, ", ")}
		l.noteLeft()
	}
	return queries
}

func (l *line) leaveSQL() (columns []string) {
	if l == nil {
		return nil
	}
	if l.ticketed {
		columns = append(columns, l.ticketLock().sql("advisory_unlock"))
	}
	if l.marked {
		columns = append(columns, l.mark().sql("advisory_unlock"))
	}
	// The lock of a call is not among them: a waiter that calls goes on as a holder.
	if l.gated {
		columns = append(columns, Lock{ID: l.gate()}.sql("advisory_unlock"))
	}
	return columns
}

// noteLeft notes that the ticket and the gate are given back.
func (l *line) noteLeft() { l.ticketed, l.marked, l.gated = false, false, false }

// gate is the lock that the first in line holds against newcomers: the claim's gate or,
// against readers, the gate of the lock itself.
func (l *line) gate() lockkey.ID {
	if l.b.cfg.Claim.Gate != nil {
		return *l.b.cfg.Claim.Gate
	}
	return lockkey.GateOf(l.of)
}

// look finds out the place in line, and acts on it.
func (l *line) look(ctx context.Context) error {
	found, err := l.ask(ctx)
	if err != nil {
		return err
	}
	return l.digest(ctx, found)
}

// ask is Bid.look, and notes whether that took the mark.
func (l *line) ask(ctx context.Context, before ...string) (*look, error) {
	found, err := l.b.look(ctx, before...)
	l.marked = l.marked || err == nil && found.mark
	return found, err
}

// digest draws the conclusions from a look, in this order: whether to listen; the place in
// line, and when to look again; whether to try now; whether to make room for others, or keep
// newcomers out; whether to call those who are dormant; and, for the first few, how to watch
// the holder.
func (l *line) digest(ctx context.Context, found *look) (err error) {
	switch {
	case found.rank <= MostListeners && !l.b.Listens():
		err = l.wake(ctx)
	case found.rank > MostListeners && l.b.Listens():
		err = l.goDormant(ctx)
	}
	if err != nil {
		return err
	}
	own := l.b.s.BackendPID()
	moved := found.rank < l.rank || l.rank == 0
	l.rank, l.ahead = found.rank, nil
	for _, s := range found.Line {
		if s.PID == own {
			break
		}
		l.ahead = append(l.ahead, s.PID)
	}
	l.free++
	if len(found.Holders) > 0 {
		l.free = 0
	}
	now := time.Now()
	l.looks = NextLook(found.rank, moved, l.looks, l.b.cfg.Session.Lease)
	l.lookAt = now.Add(l.looks)
	if l.rank <= triesWhatsFree && l.free >= 2 {
		l.tryAt = now
	}
	if l.rank > 1 {
		if err := l.makeRoom(ctx, found); err != nil {
			return err
		}
	} else {
		if err := l.takeGate(ctx, found); err != nil {
			return err
		}
		if l.tryAt.IsZero() && l.b.cfg.Claim.Gate == nil && !found.holds(l.of) {
			l.tryAt = now
			if l.knowsLess(found) {
				l.tryAt = now.Add(turnPatience)
			}
		}
	}
	if err := l.callIfFew(ctx, found); err != nil {
		return err
	}
	if l.rank > mostWatchers {
		l.unwatch()
		return nil
	}
	if err := l.warmUp(ctx); err != nil {
		return err
	}
	if err := l.followHolder(ctx, found); err != nil {
		return err
	}
	l.tryLater()
	return nil
}

// knowsLess says whether others in line know more of the last holder than this waiter, which
// has come back to its place and heard nothing. It would have to hold the lock for the
// lock-delay, and one of them, whom the holder may have named, can start at once.
func (l *line) knowsLess(found *look) bool {
	listening := found.marked
	if l.marked {
		listening--
	}
	h := l.b.heard[l.of]
	return listening > 0 && (h == nil || !h.Any())
}

// tryLater has the first in line try in a while anyway, unless the heartbeat watches.
func (l *line) tryLater() {
	if l.rank == 1 && l.tryAt.IsZero() && l.watched.state() == off {
		l.tryAt = time.Now().Add(TryEvery)
	}
}

// takeGate takes the gate for the first in line. It keeps newcomers from taking one of
// several locks before it, and readers, of which there might always be another.
func (l *line) takeGate(ctx context.Context, found *look) error {
	readers := slices.ContainsFunc(found.Holders, func(s evidence.Seat) bool { return s.Shared })
	if l.gated || l.b.cfg.Claim.Gate == nil && (l.b.shared() || !readers) {
		return nil
	}
	n, err := l.b.number(ctx, "SELECT "+Lock{ID: l.gate()}.sql("try_advisory_lock")+"::int")
	l.gated = err == nil && n == 1
	return err
}

// decide acts on what was heard: it decides when to try next.
func (l *line) decide(events []evidence.Announcement) {
	now := time.Now()
	for _, e := range events {
		switch e.Word {
		case evidence.Started:
			l.burst, l.free = false, 0
			// A stranger's word doesn't cancel the try of those that look at once.
			if l.rank > triesWhatsFree || l.b.trusts(e.PID) {
				l.tryAt = time.Time{}
			}
			if i := slices.Index(l.ahead, e.PID); i >= 0 {
				l.ahead = slices.Delete(l.ahead, i, i+1)
				l.rank = max(1, l.rank-1)
			}
			if l.rank <= triesWhatsFree && !l.b.trusts(e.PID) && now.Add(lookAtOnce).Before(l.lookAt) {
				l.lookAt = now.Add(rand.N(lookAtOnce))
			}
			if soon := now.Add(lookAtNew); l.rank <= mostWatchers && soon.Before(l.lookAt) {
				l.lookAt = soon
			}
			l.tryLater()
		case evidence.Clean, evidence.Dead, evidence.Left:
			// A repeated word must not put off a turn that is near.
			if at := now.Add(l.turnDelay(e)); l.tryAt.IsZero() || at.Before(l.tryAt) {
				l.tryAt = at
			}
			l.burst = l.burst || l.rank == 1 || e.To == l.b.s.BackendPID()
		}
	}
}

// lookAtOnce is how soon the first in line look at a holder that they have not seen
// before. A stranger's word of a start makes them do no more than that.
const lookAtOnce = 2 * time.Millisecond

// lookAtNew is how soon those who are to watch a new holder look at it: just after its first
// heartbeat. Its silence counts from then. Brief commands are over before.
const lookAtNew = firstBeat + lookAfter

// turnDelay is how long the lock is left to those before this session.
func (l *line) turnDelay(e evidence.Announcement) time.Duration {
	switch {
	case e.To == l.b.s.BackendPID():
		return 0
	case e.To == 0 || len(l.ahead) > 0:
	case l.rank == 1: // the holder has named another session
		return turnPatience
	}
	return turnPatience * time.Duration(max(0, l.rank-1))
}

// trusts says whether a session's words count.
func (b *Bid) trusts(pid uint32) bool {
	for _, h := range b.heard {
		if h.Trusts(pid) {
			return true
		}
	}
	return false
}

// listenersSQL is a condition for the sessions that listen to what is said of these locks:
// a waiter for one of them may want another one next. They are the sessions with marks
// and ears, and those of older versions, which stand in the server's own queue. A session
// that waits for that number in another database is told in vain: to find out which
// database this is would take as long as all the rest.
func (c Claim) listenersSQL(locks []Lock) string {
	classes, ids := c.classes(locks)
	return fmt.Sprintf("locktype = 'advisory' AND pid <> pg_catalog.pg_backend_pid() AND (classid IN (%s) AND objsubid = 2 OR NOT granted AND %s)", classes, inspect.Among(ids))
}

// audienceSQL says whether anybody listens to what is said of these locks, and how many
// in line don't.
func (c Claim) audienceSQL(locks []Lock) string {
	classes, ids := c.classes(locks)
	return fmt.Sprintf(`SELECT count(*) FILTER (WHERE objsubid = 2 OR NOT granted) > 0 AS listens,
		count(*) FILTER (WHERE objsubid = 1 AND granted) - count(*) FILTER (WHERE objsubid = 2 AND objid <> '%d') AS dormant
	FROM pg_catalog.pg_lock_status() WHERE locktype = 'advisory' AND pid <> pg_catalog.pg_backend_pid() AND (classid IN (%s) OR NOT granted AND %s)`,
		uint32(earNumber), classes, inspect.Among(ids))
}

// classes are the upper halves of the tickets for these locks, and the numbers of the
// locks for which older versions wait.
func (c Claim) classes(locks []Lock) (list string, ids []lockkey.ID) {
	ids = idsOf(locks)
	lines := ids
	if c.Gate != nil {
		lines = []lockkey.ID{*c.Gate}
		ids = append(ids, *c.Gate)
	}
	var classes []string
	for _, line := range lines {
		classes = append(classes, fmt.Sprintf("'%d'", lockkey.Ticket(line)))
	}
	return strings.Join(classes, ", "), ids
}
