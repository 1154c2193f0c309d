package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
)

// Lock is an advisory lock in one of its two modes.
type Lock struct {
	lockkey.ID
	Shared bool // many may have it so at once; exclusively, one alone
}

// call is the SQL that calls one of the lock functions for this lock.
func (l Lock) call(function string) string {
	if l.Shared {
		function += "_shared"
	}
	return fmt.Sprintf("pg_catalog.pg_%s(%s)", function, l.ID)
}

// Claim is what somebody has to hold: all of Locks or, with a Gate, any one.
type Claim struct {
	// Locks are in the order of lockkey.ID's Compare, none of them twice, so
	// that no two sessions ever wait for each other.
	Locks []Lock
	// Gate is the lock in whose queue those stand who wait for any of Locks.
	// The first in line tries them over and over; newcomers who find somebody
	// in line try none.
	Gate *lockkey.ID
	// Polled says that others who want the locks may not stand in the server's
	// line for them, so that a clean end is announced whether or not anyone does.
	Polled bool
}

// IDs are the numbers of all locks that a claim has to do with.
func (c Claim) IDs() []lockkey.ID {
	var ids []lockkey.ID
	for _, l := range c.Locks {
		ids = append(ids, l.ID)
	}
	if c.Gate != nil {
		ids = append(ids, *c.Gate)
	}
	return ids
}

// lines are the locks in whose queues those stand who wait for the claim.
func (c Claim) lines() []Lock {
	if c.Gate != nil {
		return []Lock{{ID: *c.Gate}}
	}
	return c.Locks
}

// withSideLines are the claim's locks and the side lines of its lines.
func (c Claim) withSideLines() []lockkey.ID {
	ids := c.IDs()
	for _, line := range c.lines() {
		for i := range sideLines {
			ids = append(ids, lockkey.SideLine(line.ID, i))
		}
	}
	return ids
}

// Hold is a claim as far as a session has been granted it.
type Hold struct {
	s        *Session
	claim    Claim
	held     []Lock
	slot     int
	token    int64 // from Confirm
	prepared bool  // Confirm's query is
	followed bool  // by the next of a side line

	aside     *Lock // the side line that it is the first of, or nil
	asideFrom Lock  // whose that is
}

// Claim returns a hold that holds nothing yet.
func (s *Session) Claim(c Claim) *Hold { return &Hold{s: s, claim: c} }

// Held are the locks that have been granted.
func (h *Hold) Held() []Lock { return h.held }

// Gated says whether the claim has a gate.
func (h *Hold) Gated() bool { return h.claim.Gate != nil }

// Slot says, of a claim with a gate, which of its locks is held, from 1.
func (h *Hold) Slot() int { return h.slot }

// Complete says whether all is held that the claim asks for.
func (h *Hold) Complete() bool {
	if h.claim.Gate != nil {
		return len(h.held) == 1
	}
	return len(h.held) == len(h.claim.Locks)
}

// missing are the locks that a claim still asks for.
func (h *Hold) missing() []Lock {
	if h.claim.Gate != nil {
		return h.claim.Locks
	}
	return h.claim.Locks[len(h.held):]
}

// Refused are the locks that the last Try may not have been granted because
// somebody has them; what is after them was not tried.
func (h *Hold) Refused() []Lock {
	if h.claim.Gate != nil || h.s.cfg.Transaction {
		return h.missing()
	}
	return h.missing()[:1]
}

// grant notes the lock at this place of missing.
func (h *Hold) grant(i int) {
	h.held = append(h.held, h.missing()[i])
	h.slot = i + 1
}

// Grant is what the server says of locks that the session now holds.
type Grant struct {
	// Token grows with every grant in this cluster: the timeline in the upper
	// 16 bits, the transaction number that this grant used up in the lower 48.
	Token int64
	// SystemID names the cluster that the token belongs to.
	SystemID string
}

// Try takes what is missing, one lock after the other, up to the first that
// someone else has, and says whether the claim is complete. It doesn't wait.
// Locks before that one stay held, so that whoever waits for it has them, but
// in a transaction: there it is all or nothing.
func (h *Hold) Try(ctx context.Context) (bool, error) {
	if tried := h.s.tried; tried != nil {
		h.s.tried = nil
		h.grantTried(*tried)
		return h.Complete(), nil
	}
	sql, queries := "SELECT "+h.claim.trial(h.missing()), []string(nil)
	if h.s.cfg.Transaction {
		sql, queries = "SELECT "+h.claim.trialInTransaction(), h.s.cfg.begin()
		// By itself the same statement gives back what it is granted. One that is
		// refused, as nearly all of many waiters' are, then costs the pooler no
		// connection for as long as this process takes to say ROLLBACK.
		n, err := h.number(ctx, sql)
		if err != nil || h.claim.Gate == nil && n < len(h.claim.Locks) || n < 0 {
			return false, err
		}
	}
	n, err := h.number(ctx, append(queries, sql)...)
	var pgErr *pgconn.PgError
	if h.s.cfg.Transaction && errors.As(err, &pgErr) && strings.Contains(pgErr.Message, "statement pooling") {
		return false, unsafe("pool_mode has to be transaction or session", "the pooler allows no transaction: %s", serverSays(pgErr))
	}
	if err != nil {
		return false, err
	}
	h.grantTried(n)
	switch {
	case !h.s.cfg.Transaction:
	case h.Complete():
		h.s.setHolding(true)
	default:
		h.held = nil
		_, err = h.s.query(ctx, "ROLLBACK")
	}
	return h.Complete(), h.error(err)
}

// trial is an SQL expression that takes what is missing, in the way of Try. Its
// value is for grantTried.
func (c Claim) trial(missing []Lock) string {
	const function = "try_advisory_lock"
	if c.Gate == nil {
		return tryAll(missing, function)
	}
	// Shared, since newcomers are not in each other's way.
	gate := Lock{ID: *c.Gate, Shared: true}
	return fmt.Sprintf("CASE WHEN NOT %s THEN -1%s END", gate.call("try_advisory_xact_lock"), tryEach(missing, function))
}

// trialInTransaction is trial with a transaction's locks. There is no line
// before a pooler: see Wait.
func (c Claim) trialInTransaction() string {
	const function = "try_advisory_xact_lock"
	if c.Gate == nil {
		return tryAll(c.Locks, function)
	}
	return "CASE" + tryEach(c.Locks, function) + " END"
}

// grantTried notes what a trial has taken: so many locks or, with a gate, the
// one at that place.
func (h *Hold) grantTried(n int) {
	switch {
	case h.claim.Gate == nil:
		for range n {
			h.grant(0)
		}
	case n >= 0:
		h.grant(n)
	}
}

// number sends queries, of which the last has a number for an answer.
func (h *Hold) number(ctx context.Context, queries ...string) (int, error) {
	rows, err := h.s.query(ctx, queries...)
	if err != nil {
		return 0, h.error(err)
	}
	return lastNumber(rows)
}

// tryAll is an SQL expression that takes the locks up to the first that is not
// free, and counts them.
func tryAll(locks []Lock, function string) string {
	var cases strings.Builder
	for i, l := range locks {
		fmt.Fprintf(&cases, " WHEN NOT %s THEN %d", l.call(function), i)
	}
	return fmt.Sprintf("CASE%s ELSE %d END", cases.String(), len(locks))
}

// tryEach is the part of a CASE that takes one of the locks and is its place
// in the list, or -1.
func tryEach(locks []Lock, function string) string {
	var cases strings.Builder
	for i, l := range locks {
		fmt.Fprintf(&cases, " WHEN %s THEN %d", l.call(function), i)
	}
	return cases.String() + " ELSE -1"
}

// lastNumber reads the last row of an answer.
func lastNumber(rows [][]string) (int, error) {
	if len(rows) > 0 && len(rows[len(rows)-1]) == 1 {
		if n, err := strconv.Atoi(rows[len(rows)-1][0]); err == nil {
			return n, nil
		}
	}
	return 0, unsafe("", "the server does not answer as PostgreSQL does")
}

// gatePoll is how often the first in line tries the locks behind its gate. A
// try takes the server some microseconds, and only one session does it.
const gatePoll = 20 * time.Millisecond

// mostInLine is how many stand in the server's queue for one lock without having
// stood aside before. Each in line is woken by what is announced of it; and
// whoever has stood there for deadlock_timeout has the server search for a
// deadlock, with all of the lock table held and in a time that grows with the cube
// of the queue: with 500 to 750 a server came to a standstill
// (testdata/bench/README.md).
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/backend/storage/lmgr/deadlock.c (FindLockCycleRecurse)
//
// Who finds so many there stands in one of so many side lines, which are locks of
// their own: the first of each stands in line too. The others are woken by
// nothing, and their searches find a short queue.
const (
	mostInLine = 20
	sideLines  = 16
)

const crowded = "crowded"

// ErrCrowded says that as many stand in line as may.
var ErrCrowded = errors.New("too many wait for the lock to stand in line for it")

// line is the lock in whose queue those stand who wait for what is missing.
func (h *Hold) line() Lock {
	if h.claim.Gate != nil {
		return Lock{ID: *h.claim.Gate}
	}
	return h.missing()[0]
}

// Wait stands in the server's queue for what is missing, for at most the given
// time, and says whether anything was granted. Of several locks that is the
// next one: Try takes the rest. Where too many are in line already it is
// ErrCrowded, at once, but for the first of a side line.
func (h *Hold) Wait(ctx context.Context, atMost time.Duration) (bool, error) {
	if h.aside != nil && h.asideFrom != h.line() { // which has been granted
		if err := h.LetFollow(ctx); err != nil {
			return false, err
		}
	}
	missing := h.missing()
	w := wait{full: "false", stand: "PERFORM " + missing[0].call("advisory_lock") + ";", granted: "0"}
	if h.aside == nil {
		w.full = h.lineIsFull()
	}
	if h.claim.Gate != nil {
		w.declare = fmt.Sprintf("DECLARE got int; ends timestamptz := pg_catalog.clock_timestamp() + interval '%d ms';", max(1, atMost.Milliseconds()))
		w.stand = fmt.Sprintf(`PERFORM %s;
	LOOP
		got := CASE%s END;
		EXIT WHEN got >= 0 OR pg_catalog.clock_timestamp() > ends;
		PERFORM pg_catalog.pg_sleep(%g);
	END LOOP;`, h.line().call("advisory_xact_lock"), tryEach(missing, "try_advisory_lock"), gatePoll.Seconds())
		w.granted = "got"
	}
	got, err := h.stand(ctx, atMost, w)
	switch {
	case err != nil:
		return false, err
	case got == "":
		if h.claim.Gate == nil {
			missing = missing[:1]
		}
		got, err = h.look(ctx, missing)
		if err != nil || got == "" {
			return false, err
		}
	case got == crowded:
		return false, ErrCrowded
	}
	i, err := strconv.Atoi(got)
	if err != nil || i >= len(missing) {
		return false, unsafe("", "the server does not answer as PostgreSQL does")
	}
	if i < 0 {
		return false, nil
	}
	h.grant(i)
	return true, nil
}

// StandAside stands in a side line for at most the given time, and listens from
// then on. If it is the first there, Wait has room for it until it lets the next
// follow: by LetFollow, Confirm or Unlock.
func (h *Hold) StandAside(ctx context.Context, atMost time.Duration) error {
	side := Lock{ID: lockkey.SideLine(h.line().ID, rand.N(sideLines))}
	// It listens as soon as it is the first, since a command of milliseconds may
	// be all that is left of the time to hear of.
	got, err := h.stand(ctx, atMost, wait{full: "false", stand: "PERFORM " + side.call("advisory_lock") + ";", granted: "0", then: h.listen()})
	if Retryable(err) || err == nil && got == "" { // it may have been granted before that
		var lookErr error
		got, lookErr = h.look(ctx, []Lock{side})
		err = cmp.Or(err, lookErr)
	}
	if got != "" {
		h.aside, h.asideFrom = &side, h.line()
	}
	return err
}

// LetFollow lets the next of the side line, if this hold is the first, stand in
// line.
func (h *Hold) LetFollow(ctx context.Context) error {
	queries := h.letFollow()
	if queries == nil {
		return nil
	}
	_, err := h.s.query(ctx, queries...)
	return h.error(err)
}

// letFollow are the queries, if any, that let the next of the side line stand in
// line.
func (h *Hold) letFollow() []string {
	if h.aside == nil {
		return nil
	}
	query := "SELECT " + h.aside.call("advisory_unlock")
	h.aside, h.followed = nil, true
	return []string{query}
}

// wait is what somebody waits for, in SQL, if it isn't full, and what is done then,
// whatever was granted.
type wait struct{ full, declare, stand, granted, then string }

// stand waits, and returns what was granted, or crowded, or nothing: then it has
// to be looked.
//
// The time is a lock_timeout inside of a statement that traps it: it ends the
// wait without an error line in the server's log, and the statement's snapshot,
// which holds back vacuum and CREATE INDEX CONCURRENTLY, never gets older than
// it. The trap may also be sprung after the grant.
func (h *Hold) stand(ctx context.Context, atMost time.Duration, w wait) (string, error) {
	row, err := h.s.rowWithin(ctx, atMost, 1, fmt.Sprintf(`DO $pglead$ %s BEGIN
	IF %s THEN
		PERFORM pg_catalog.set_config('pglead.granted', '%s', true);
	ELSE
		PERFORM pg_catalog.set_config('lock_timeout', '%d', true);
		%s
		PERFORM pg_catalog.set_config('pglead.granted', (%s)::text, true);
	END IF;
EXCEPTION WHEN lock_not_available THEN NULL; END $pglead$;
%s
SELECT pg_catalog.current_setting('pglead.granted', true)`, w.declare, w.full, crowded, max(1, atMost.Milliseconds()), w.stand, w.granted, w.then))
	if err != nil {
		return "", h.error(err)
	}
	return row[0], nil
}

// lineIsFull is an SQL expression: whether as many stand in line as may.
func (h *Hold) lineIsFull() string {
	return fmt.Sprintf("(SELECT count(*) >= %d FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND NOT granted AND %s)", mostInLine, among([]Lock{h.line()}))
}

// look finds out which of these locks a wait whose time was up has been granted:
// its place, or nothing.
func (h *Hold) look(ctx context.Context, locks []Lock) (string, error) {
	rows, err := h.s.query(ctx, "SELECT true"+ofOwnLocks)
	if err != nil {
		return "", h.error(err)
	}
	i := slices.IndexFunc(locks, func(l Lock) bool { return slices.ContainsFunc(rows, l.isListed) })
	if i < 0 {
		return "", nil
	}
	return strconv.Itoa(i), nil
}

// CanQueue says whether an error of Wait leaves the queue as a way to wait. It
// is none where the role may not use plpgsql.
func CanQueue(err error) bool {
	var pgErr *pgconn.PgError
	return !errors.As(err, &pgErr) || pgErr.Code != "42501" && pgErr.Code != "42704"
}

// Retryable says that the server withdrew a waiting request for reasons that
// have nothing to do with this lock: a deadlock among others, in which it
// picked this session, or an administrator's pg_cancel_backend.
func Retryable(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "40P01" || pgErr.Code == "57014")
}

// The session's own locks are looked up in the function that the view pg_locks
// is made of, and picked out here: the view, and the comparisons, take a backend
// in its first moments three times as long as the whole of this. That they are
// this database's goes without saying.
//
// This goes behind the columns of a query.
const ofOwnLocks = `, classid, objid, objsubid
FROM pg_catalog.pg_lock_status()
WHERE locktype = 'advisory' AND granted AND pid = pg_catalog.pg_backend_pid()`

// isListed says whether a row that ofOwnLocks gave is this lock's.
func (l Lock) isListed(row []string) bool {
	columns := fmt.Sprint(l.ClassID(), l.ObjID(), l.ObjSubID())
	return len(row) >= 3 && strings.Join(row[len(row)-3:], " ") == columns
}

// among is a condition on pg_locks: one of these locks. Advisory locks are each
// database's own.
func among(locks []Lock) string {
	return inAnyDatabase(locks) + `
	AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`
}

// inAnyDatabase is a condition on pg_locks: a lock of one of these numbers. That
// of a bigint has the halves in classid and objid, and objsubid 1; a pair has
// objsubid 2. Numbers in quotes are of the columns' types at once.
// https://www.postgresql.org/docs/current/view-pg-locks.html
func inAnyDatabase(locks []Lock) string {
	var list []string
	for _, l := range locks {
		list = append(list, fmt.Sprintf("('%d', '%d', '%d')", l.ClassID(), l.ObjID(), l.ObjSubID()))
	}
	return "(classid, objid, objsubid) IN (" + strings.Join(list, ", ") + ")"
}

// Confirm makes sure that the granted locks are ones that the server knows of
// (there are servers that grant everything and lock nothing), draws the
// fencing token and announces that the command starts. Its last round trip on
// the session's own connection is what the first Deadline counts from.
func (h *Hold) Confirm(ctx context.Context) (Grant, error) {
	s := h.s
	var row []string
	var err error
	switch {
	case s.cfg.Quorum || s.cfg.Transaction:
		row, err = h.confirmBeside(ctx)
	case h.prepared:
		row, err = h.confirm(ctx, "EXECUTE pglead_confirm")
	case h.claim.Polled: // the session may have many others
		row, err = h.confirm(ctx, s.confirmation(h.held)+ofOwnLocks+" AND "+inAnyDatabase(h.held))
	default:
		row, err = h.confirm(ctx, s.confirmation(h.held)+ofOwnLocks)
	}
	if err != nil {
		return Grant{}, h.error(err)
	}
	if s.clock.now() >= s.Deadline() { // the disk took longer than the lease has
		s.fail(ErrSilent)
		return Grant{}, s.Err()
	}
	number, err := strconv.ParseInt(row[0], 10, 64)
	if err != nil {
		return Grant{}, unsafe("", "the server's token %q is no number", row[0])
	}
	h.token = number
	d := s.cfg.Description
	d.Token, d.Since = number, time.Now()
	if h.claim.Gate != nil {
		d.Slot = h.slot
	}
	s.Describe(d)
	return Grant{Token: number, SystemID: row[1]}, nil
}

// confirm asks a question ofOwnLocks, and makes sure that what is held is among
// them. It returns a row.
func (h *Hold) confirm(ctx context.Context, sql string) ([]string, error) {
	rows, err := h.s.query(ctx, append([]string{sql}, h.letFollow()...)...)
	if err != nil {
		return nil, err
	}
	for _, l := range h.held {
		if !slices.ContainsFunc(rows, l.isListed) { // in no rows either
			return nil, unsafe("only PostgreSQL's own advisory locks exclude anyone",
				"the server granted lock %s but does not list it in pg_locks", h.numbers())
		}
	}
	return rows[0], nil
}

// confirmBeside draws the token on a second connection: with a quorum since
// the lock's own must never hang in a commit, and with a transaction since a
// number drawn in it would hold back vacuum for as long as the command runs.
func (h *Hold) confirmBeside(ctx context.Context) ([]string, error) {
	s := h.s
	second, identity, err := s.beside(ctx)
	if err != nil {
		return nil, err
	}
	// The pooler's number for the session is not the backend's.
	row, err := h.confirm(ctx, "SELECT pg_catalog.pg_backend_pid(), "+serverIdentity+ofOwnLocks)
	if err == nil && row[1] != identity {
		err = &Error{Kind: Unreachable, err: errors.New("the second connection reached another server than the first")}
	}
	if err == nil {
		pid, _ := strconv.ParseUint(row[0], 10, 32)
		s.mu.Lock()
		s.pid = uint32(pid)
		s.mu.Unlock()
		bounded, cancel := ctx, context.CancelFunc(func() {})
		if s.cfg.Quorum {
			bounded, cancel = context.WithTimeoutCause(ctx, s.lease*2/heartbeatsPerLease, errNoQuorum)
		}
		row, err = second.row(bounded, 0, s.confirmation(h.held))
		cancel()
	}
	if err == nil && s.cfg.Quorum {
		var queries []string
		for _, l := range h.held {
			queries = append(queries, tell(channel(l.ID), s.started(l, row[0])))
		}
		_, err = s.query(ctx, queries...)
	}
	if !s.cfg.Quorum {
		second.Close()
	}
	return row, err
}

// confirmation is Confirm's query, which has one row; ofOwnLocks it has one for
// each lock that the session has, and does nothing where there is none.
//
// A transaction number is only used up for good once the WAL that tells of it
// is on disk. That takes something to log, the message, and a commit that waits
// for the disk but for no standby, whatever the role's default is: 'local';
// with a quorum, one that waits for them too: 'on'. Such a commit announces
// nothing, since while one with a NOTIFY waits, every other NOTIFY on the
// server does.
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/backend/commands/async.c (PreCommit_Notify)
func (s *Session) confirmation(locks []Lock) string {
	commit := "local"
	if s.cfg.Quorum {
		commit = "on"
	}
	var sql strings.Builder
	fmt.Fprintf(&sql, `SELECT %s,
	(pg_catalog.pg_control_system()).system_identifier,
	pg_catalog.set_config('synchronous_commit', '%s', true),
	pg_catalog.pg_logical_emit_message(true, 'pglead', '')`, token, commit)
	for _, l := range locks {
		if s.cfg.Quorum {
			break
		}
		fmt.Fprintf(&sql, ",\n\tpg_catalog.pg_notify('%s', '%s')", channel(l.ID), s.started(l, "' || "+token+" || '"))
	}
	return sql.String()
}

// started is what is announced of a lock, with this token, before its command
// is started.
func (s *Session) started(l Lock, token string) string {
	mode := ""
	if l.Shared {
		mode = " " + sharedMode
	}
	return fmt.Sprintf("started %s %d %d%s", token, s.lease.Milliseconds(), s.cfg.LostGrace.Milliseconds(), mode)
}

// token is an SQL expression. It is the same number wherever it stands in a
// transaction.
const token = "(" + timeline + " << 48 | pg_catalog.pg_current_xact_id()::text::bigint)"

// Unlock gives all back that is held; when it returns nil another session can
// have it. With clean it is the word of a holder that its command is dead. That
// precedes the locks' release, in a transaction of its own, so that a waiter
// hears it with its grant; where nobody waits nothing is said, since NOTIFY has
// a cost for the whole server. Nor is it said of a shared lock, since others
// may be alive, or by who holds the lock in a transaction, where nothing can be
// said before the end.
func (h *Hold) Unlock(ctx context.Context, clean bool) error {
	if len(h.held) == 0 {
		return nil
	}
	if h.s.cfg.Transaction {
		h.s.setHolding(false)
		_, err := h.s.query(ctx, "COMMIT")
		h.held = nil
		return h.error(err)
	}
	var queries, unlocks []string
	for _, l := range h.held {
		if clean && !l.Shared {
			queries = append(queries, h.farewell(l))
		}
		unlocks = append(unlocks, l.call("advisory_unlock")+"::int")
	}
	if h.aside != nil {
		unlocks = append(unlocks, h.aside.call("advisory_unlock")+"::int")
	}
	// Both are calls, and neither is left out for the other's sake.
	rows, err := h.s.query(ctx, append(queries, "SELECT "+strings.Join(unlocks, " + "))...)
	if err != nil {
		return h.error(err)
	}
	n, err := lastNumber(rows)
	if err == nil && n != len(unlocks) {
		err = fmt.Errorf("release lock %s: the server says that the session did not hold it", h.numbers())
	}
	h.held, h.aside, h.followed = nil, nil, false
	return err
}

// farewell tells those who wait of a lock's clean end. Who waits for another of
// the locks, or for any behind the gate, may want this one next; one who waits
// for that number in another database is told for nothing, and which database
// this is would take as long to find out as all the rest. Who follows from a side
// line may be on its way. The commit waits for nothing: after a crash nobody would
// listen.
func (h *Hold) farewell(l Lock) string {
	waiting := "NOT granted AND " + inAnyDatabase(h.held)
	if h.claim.Gate != nil { // whose first in line has been granted it
		waiting = "(mode = 'ExclusiveLock' OR NOT granted) AND " + inAnyDatabase([]Lock{{ID: *h.claim.Gate}})
	}
	where := fmt.Sprintf("\nFROM pg_catalog.pg_lock_status() WHERE locktype = 'advisory' AND %s LIMIT 1", waiting)
	if h.claim.Polled || h.followed {
		where = ""
	}
	return tell(channel(l.ID), fmt.Sprintf("clean %d %d %d", h.token, h.s.lease.Milliseconds(), h.s.cfg.LostGrace.Milliseconds())) + where
}

// Ping asks the server for a sign of life, which the Deadline counts from.
func (s *Session) Ping(ctx context.Context) error {
	_, err := s.query(ctx, heartbeat)
	return err
}

// row asks a question that has one row for an answer, of so many columns or,
// for 0, of any number.
func (s *Session) row(ctx context.Context, columns int, sql string) ([]string, error) {
	return s.rowWithin(ctx, 0, columns, sql)
}

// rowWithin is row for a question that the server may take longer over.
func (s *Session) rowWithin(ctx context.Context, longer time.Duration, columns int, sql string) ([]string, error) {
	ex, err := s.send(ctx, sql)
	if err != nil {
		return nil, err
	}
	rows, err := s.answer(ctx, ex, longer)
	if err != nil {
		return nil, err
	}
	if ex.unconfirmed != "" {
		return nil, &Error{Kind: Unreachable, err: fmt.Errorf("the commit was not confirmed: %s", ex.unconfirmed)}
	}
	if len(rows) != 1 || len(rows[0]) == 0 || columns > 0 && len(rows[0]) != columns {
		return nil, unsafe("", "the server does not answer as PostgreSQL does")
	}
	return rows[0], nil
}

// numbers names the claim's locks for a message.
func (h *Hold) numbers() string {
	const most = 3
	var list []string
	for i, l := range h.claim.Locks {
		if i == most {
			return fmt.Sprintf("%s and %d more", strings.Join(list, ", "), len(h.claim.Locks)-most)
		}
		list = append(list, l.String())
	}
	return strings.Join(list, ", ")
}

// error makes a refusal of the server's one of a lock.
func (h *Hold) error(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && !isLost(err) {
		kind := Denied
		if passes(pgErr) { // a pooler without a free connection, for one
			kind = Unreachable
		}
		return &Error{Kind: kind, err: fmt.Errorf("lock %s: %w", h.numbers(), serverRefused{pgErr})}
	}
	return err
}

func isLost(err error) bool {
	var lost *LostError
	return errors.As(err, &lost)
}

type serverRefused struct{ pg *pgconn.PgError }

func (e serverRefused) Error() string { return serverSays(e.pg) }
func (e serverRefused) Unwrap() error { return e.pg }
