package session

import (
	"context"
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// FirstTryDelay is how long a run that got the lock at its first try has to wait
// before the start. On a server that came up, or was promoted, less than lockDelay ago
// that is the rest of lockDelay, since the lock may have had a holder before. A server
// without TCP is no exception: a pooler, ssh or a proxy may have brought the holder to
// its socket.
//
// With a quorum, on a server that was promoted, the former primary may still have
// holders for as long as standbys follow it. A standby that has followed this one for
// lockDelay left the former one before that.
func (s *Session) FirstTryDelay(lockDelay time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.now()
	switch {
	case s.cfg.Private:
		return 0
	case s.cfg.Quorum && s.facts.promoted && now.Sub(s.facts.followed) < lockDelay:
		return lockDelay
	}
	return max(0, lockDelay-now.Sub(s.facts.began))
}

// SetServerAge takes the value of ServerAge that was asked where a lock was granted:
// behind a pooler that may be another server than at the login, or one that has been
// restarted since.
func (s *Session) SetServerAge(seconds string) error {
	age, err := parseAge(seconds)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.facts.began = s.clock.now().Add(-age)
	return nil
}

// serverAge are SQL expressions, of which ageOf makes the age of the server's memory of
// locks: for that long, a lock was lost only by the end of its session. It counts from
// the latest of
//   - the postmaster's start,
//   - the reset of the statistics: it shows a restart after the crash of a backend,
//     which leaves the postmaster's start as it is,
//   - for a server that was a standby, its last checkpoint: if the timeline is the
//     present one, that is not older than the promotion.
//
// All of these go by the server's wall clock, since an ordinary role can see no other:
// see sinceThen.
//
// A backend in its first moments has to read from the catalogs whatever a statement
// names. So the expressions name no more than most servers need. The view
// pg_stat_bgwriter, in place of the function in it, would cost as much as all the rest.
const serverAge = `pg_catalog.pg_last_wal_replay_lsn() IS NOT NULL,
	pg_catalog.clock_timestamp(), pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_stat_get_bgwriter_stat_reset_time()`

// promotedAge is for a server that was a standby.
const promotedAge = `SELECT CASE WHEN timeline_id <> ` + Timeline + ` THEN 0
	ELSE extract(epoch FROM pg_catalog.clock_timestamp() - checkpoint_time) END FROM pg_catalog.pg_control_checkpoint()`

// ServerAge is an SQL expression for the same age, in seconds.
const ServerAge = `least(extract(epoch FROM pg_catalog.clock_timestamp()
	- greatest(pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_stat_get_bgwriter_stat_reset_time())),
	CASE WHEN pg_catalog.pg_last_wal_replay_lsn() IS NOT NULL THEN (` + promotedAge + `) END)`

// ageOf reads the values of serverAge, of which the instants are in binary.
func ageOf(ctx context.Context, pg *pgconn.PgConn, values [][]byte) (time.Duration, error) {
	replayed := values[0]
	var instants [3]int64 // in microseconds
	for i, value := range values[1:] {
		switch {
		case len(value) == 8:
			instants[i] = int64(binary.BigEndian.Uint64(value))
		case i == 2 && value == nil: // the statistics were never reset
			instants[i] = math.MinInt64
		default:
			return 0, ErrNotPostgreSQL()
		}
	}
	now, started, reset := instants[0], instants[1], instants[2]
	age := sinceThen(float64(now-max(started, reset)) / 1e6)
	if string(replayed) == "f" {
		return age, nil
	}
	results, err := pg.Exec(ctx, promotedAge).ReadAll()
	if err != nil {
		return 0, err
	}
	row, err := rowsOf(results).Only(1)
	if err != nil {
		return 0, err
	}
	promoted, err := parseAge(row[0])
	return min(age, promoted), err
}

func parseAge(seconds string) (time.Duration, error) {
	age, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return 0, unsafe("", "the server's age %q is no number", seconds)
	}
	return sinceThen(age), nil
}

// sinceThen is a length of time by the server's clock, which may have been set
// since. An instant in the future counts as just now, which costs a first try the whole
// lock-delay. A young server whose clock was stepped forward in its first moments can't
// be told from an old one.
func sinceThen(seconds float64) time.Duration {
	const oldEnough = 1e9
	if !(seconds > 0) { // NaN, too
		return 0
	}
	return time.Duration(min(seconds, oldEnough) * float64(time.Second))
}

// Timeline is an SQL expression: the first eight hex digits of a WAL file's
// name are its timeline.
const Timeline = `('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint`
