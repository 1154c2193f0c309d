package session

import (
	"context"
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// ServerAge is how long the server has kept its lock table, as far as is known: see ageInstantsSQL.
func (s *Session) ServerAge() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.now().Sub(s.server.began)
}

// FollowedFor is how long as many standbys as a quorum's commit needs have followed this server, if
// that was ever promoted. They have left the former primary at least that long ago. Without a
// quorum nobody has asked, and promoted is false.
func (s *Session) FollowedFor() (d time.Duration, promoted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.now().Sub(s.server.attached), s.server.promoted
}

// LearnAge asks for evidence that the server is older than it seemed before: see AskAge. If the
// server rejects the question, that tells nothing.
func (s *Session) LearnAge(ctx context.Context) error {
	age, err := AskAge(ctx, s)
	switch {
	case AnsweredError(err) != nil:
		return nil
	case err != nil:
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server.began = min(s.server.began, s.clock.now().Add(-age))
	return nil
}

// ageInstantsSQL are SQL expressions from which readServerAge computes how long the server has kept
// its lock table. In that time a lock was freed only if its session gave it back or ended. It
// begins with the latest of
//   - the postmaster's start,
//   - the reset of the statistics: it shows a restart after the crash of a backend,
//     which leaves the postmaster's start as it is,
//   - for a server that was a standby, its last checkpoint: if that belongs to the current
//     timeline, it is not older than the promotion.
//
// All of these are by the server's wall clock, since an ordinary role can see no other: see
// sinceThen.
//
// A new backend has to read from the catalogs everything that a statement names. So the expressions
// name only what most servers need. The view pg_stat_bgwriter, instead of the function in it, would
// cost as much as all the rest.
const ageInstantsSQL = `pg_catalog.pg_last_wal_replay_lsn() IS NOT NULL,
	pg_catalog.clock_timestamp(), pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_stat_get_bgwriter_stat_reset_time()`

// promotedAgeQuery is a query for that age by the last checkpoint, whose time is in whole seconds. It
// is for a server that has replayed its log: it was a standby, or has only recovered from a crash.
// Each promotion begins a timeline, so in the first one none has happened.
const promotedAgeQuery = `SELECT CASE WHEN ` + TimelineSQL + ` = 1 THEN 1e9 WHEN timeline_id <> ` + TimelineSQL + ` THEN 0
	ELSE extract(epoch FROM pg_catalog.clock_timestamp() - checkpoint_time) - 1 END FROM pg_catalog.pg_control_checkpoint()`

// serverAgeSQL is an SQL expression for the age that ageInstantsSQL describes, in seconds.
const serverAgeSQL = undisturbedSQL + `(` + promotedAgeQuery + `) END)`

// undisturbedSQL begins an SQL expression for that age. For a server that has replayed its log there
// follows the time since its promotion, and for all "END)".
const undisturbedSQL = `least(extract(epoch FROM pg_catalog.clock_timestamp()
	- greatest(pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_stat_get_bgwriter_stat_reset_time())),
	CASE WHEN pg_catalog.pg_last_wal_replay_lsn() IS NOT NULL THEN `

// AskAge asks for the age that ageInstantsSQL describes, by all evidence that there is. For a login
// it would take too long.
func AskAge(ctx context.Context, on Connection) (time.Duration, error) {
	rows, err := on.Query(ctx, ageQuery)
	if err != nil {
		return 0, err
	}
	row, err := rows.Only(1)
	if err != nil {
		return 0, err
	}
	return parseAge(row[0])
}

// ageQuery is AskAge's query, for the age in seconds.
//
// The last checkpoint of a server that was a standby may be of just now, though the promotion was
// long ago. But a standby runs neither launcher, and vacuums and analyzes nothing. So the promotion
// was before the earliest of these, of those after the postmaster's start: since PostgreSQL 15 a
// standby that was shut down cleanly as a primary still has the statistics of that time. Only roles
// with pg_read_all_stats see the launchers. A database may have a hundred thousand tables, hence
// the limit.
const ageQuery = "SELECT " + undisturbedSQL + `greatest((` + promotedAgeQuery + `),
	(SELECT extract(epoch FROM pg_catalog.clock_timestamp() - min(at)) FROM (
		SELECT backend_start FROM pg_catalog.pg_stat_get_activity(NULL) WHERE backend_type IN ('autovacuum launcher', 'logical replication launcher')
		UNION ALL
		SELECT t.at FROM (SELECT oid FROM pg_catalog.pg_class WHERE relkind IN ('r', 't', 'm') LIMIT 5000) AS c, LATERAL (VALUES
			(pg_catalog.pg_stat_get_last_vacuum_time(c.oid)), (pg_catalog.pg_stat_get_last_autovacuum_time(c.oid)),
			(pg_catalog.pg_stat_get_last_analyze_time(c.oid)), (pg_catalog.pg_stat_get_last_autoanalyze_time(c.oid))) AS t(at)
		WHERE t.at > pg_catalog.pg_postmaster_start_time()) AS known(at))) END)`

// readServerAge reads the values of ageInstantsSQL. The instants are in binary. It also returns the
// value of ServerIdentitySQL.
func readServerAge(ctx context.Context, pg *pgconn.PgConn, values [][]byte) (age time.Duration, identity string, err error) {
	replayed := values[0]
	var instants [3]int64 // in microseconds since 2000
	for i, value := range values[1:] {
		switch {
		case len(value) == 8:
			instants[i] = int64(binary.BigEndian.Uint64(value))
		case i == 2 && value == nil: // the statistics were never reset
			instants[i] = math.MinInt64
		default:
			return 0, "", NotPostgreSQL()
		}
	}
	now, started, reset := instants[0], instants[1], instants[2]
	const year2000 = 946_684_800e6 // as ServerIdentitySQL counts
	identity = strconv.FormatInt(started+year2000, 10)
	age = sinceThen(float64(now-max(started, reset)) / 1e6)
	if string(replayed) == "f" {
		return age, identity, nil
	}
	results, err := pg.Exec(ctx, readCommitted+"; "+OwnNames+"; "+promotedAgeQuery).ReadAll()
	if err != nil {
		return 0, "", err
	}
	row, err := rowsOf(results).Only(1)
	if err != nil {
		return 0, "", err
	}
	promoted, err := parseAge(row[0])
	return min(age, promoted), identity, err
}

// parseAge reads the value of serverAgeSQL, promotedAgeQuery or ageQuery.
func parseAge(seconds string) (time.Duration, error) {
	age, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return 0, unfit("", "the server's age %q is no number", seconds)
	}
	return sinceThen(age), nil
}

// sinceThen is the time since an instant by the server's clock, which somebody may have set since
// then. An instant in the future counts as just now. If the clock is set forward just after a
// server's start, that server can't be told from an old one.
func sinceThen(seconds float64) time.Duration {
	const oldEnough = 1e9
	if !(seconds > 0) { // NaN, too
		return 0
	}
	return time.Duration(min(seconds, oldEnough) * float64(time.Second))
}

// TimelineSQL is an SQL expression: the first eight hex digits of a WAL file's
// name are its timeline.
const TimelineSQL = `('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint`
