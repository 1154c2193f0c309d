package session

import (
	"context"
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// FirstTryDelay is how long someone who got the lock without waiting for it
// has to wait before the start: the rest of lockDelay on a server that came up
// or was promoted less than that ago, since before that the lock may have had
// a holder. A server without TCP is no exception: a pooler, ssh or a proxy may
// have brought the holder to its socket.
//
// With a quorum, on a server that was promoted, there is also the former primary
// to reckon with, for as long as its standbys follow it. A standby that has
// followed this one for lockDelay has left that one before.
func (s *Session) FirstTryDelay(lockDelay time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cfg.Private:
		return 0
	case s.cfg.Quorum && s.promoted && s.settled+s.clock.now()-s.opened < lockDelay:
		return lockDelay
	}
	return max(0, lockDelay-(s.clock.now()-s.began))
}

// SetServerAge takes the value of ServerAge, asked where a lock was granted: behind a
// pooler that need not be the server of the login, or that may have been restarted since.
func (s *Session) SetServerAge(seconds string) error {
	age, err := parseAge([]byte(seconds))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = s.clock.now() - age
	return nil
}

// serverAge are SQL expressions from which ageOf tells for how long a lock that
// was taken on this server can have been lost only by the end of its session.
// It counts from the latest of
//   - the postmaster's start,
//   - the reset of the statistics, by which a restart after the crash of some
//     backend shows, which leaves the postmaster's start as it is,
//   - for a server that was a standby, its last checkpoint, which is not older
//     than its promotion unless the timeline says so.
//
// All of these are by the server's wall clock; nothing that goes by another is to
// be seen by an ordinary role. See sinceThen.
//
// A backend in its first moments reads from the catalogs whatever a statement
// names, so there is no more in them than most servers need; the view
// pg_stat_bgwriter alone, for the function in it, would cost as much as all of
// them.
const serverAge = `pg_catalog.pg_last_wal_replay_lsn() IS NOT NULL,
	pg_catalog.clock_timestamp(), pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_stat_get_bgwriter_stat_reset_time()`

// promotedAge is for a server that was a standby.
const promotedAge = `SELECT CASE WHEN timeline_id <> ` + Timeline + ` THEN 0
	ELSE extract(epoch FROM pg_catalog.clock_timestamp() - checkpoint_time) END FROM pg_catalog.pg_control_checkpoint()`

// ServerAge is an SQL expression for the same age, in seconds.
const ServerAge = `least(extract(epoch FROM pg_catalog.clock_timestamp()
	- greatest(pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_stat_get_bgwriter_stat_reset_time())),
	CASE WHEN pg_catalog.pg_last_wal_replay_lsn() IS NOT NULL THEN (` + promotedAge + `) END)`

// ageFormats are those in which ageOf takes the values: what the server says of
// an instant in text goes by its settings, and its arithmetic costs more than
// all the rest.
func ageFormats() []int16 {
	const inText, inBinary = 0, 1 // of the protocol: libpq's resultFormat
	return []int16{inText, inBinary, inBinary, inBinary}
}

// ageOf reads the values of serverAge.
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
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 1 {
		return 0, ErrNotPostgreSQL()
	}
	promoted, err := parseAge(results[0].Rows[0][0])
	return min(age, promoted), err
}

func parseAge(seconds []byte) (time.Duration, error) {
	age, err := strconv.ParseFloat(string(seconds), 64)
	if err != nil {
		return 0, unsafe("", "the server's age %q is no number", seconds)
	}
	return sinceThen(age), nil
}

// sinceThen is a length of time by the server's clock, which may have been set
// since. What then lies in the future is taken for just now, and costs a first try
// the whole lock-delay; after a step forward in its first moments a young server
// can't be told from an old one.
func sinceThen(seconds float64) time.Duration {
	const oldEnough = 1e9
	if !(seconds > 0) { // nor is it NaN
		return 0
	}
	return time.Duration(min(seconds, oldEnough) * float64(time.Second))
}

// Timeline is an SQL expression: the first eight hex digits of a WAL file's
// name are its timeline.
const Timeline = `('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint`
