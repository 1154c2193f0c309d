package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// With a quorum, a primary that has lost its synchronous standbys, to whom a
// failover may be under way, loses its leaders too: a heartbeat is then a
// commit that waits for the standbys.
//
// Such a commit hangs where they don't answer, and a session that hangs in a
// commit is not idle: the server's idle_session_timeout could not free its
// lock. So it has a session of its own. The lock's session goes on with its
// plain heartbeat, and the deadline is the earlier of both.

// commitHeartbeat writes a few bytes of WAL, so that there is something to
// confirm.
const commitHeartbeat = "SELECT pg_catalog.pg_logical_emit_message(true, 'pglead', '')"

var errNoQuorum = &Error{
	Kind: Unreachable, Hint: "are the standbys that synchronous_standby_names asks for up? pg_stat_replication shows them",
	err: errors.New("the synchronous standbys do not confirm the commit"),
}

// joinQuorum opens the second session, to the same server, and ties this one's
// fate to it.
func (s *Session) joinQuorum(ctx context.Context) error {
	cfg := s.cfg
	cfg.Quorum = false
	second, err := Open(ctx, cfg)
	if err != nil {
		return err
	}
	second.beatSQL = commitHeartbeat
	second.onAnswer = s.renew
	row, err := second.row(ctx, 3, `SELECT pg_catalog.current_setting('synchronous_standby_names'),
	pg_catalog.set_config('synchronous_commit', 'on', false), `+serverIdentity)
	if err == nil && row[0] == "" {
		err = unsafe("set it, for instance to 'ANY 1 (a, b)' with two standbys, or leave --quorum away",
			"--quorum needs synchronous standbys, but synchronous_standby_names is empty")
	}
	var mine []string
	if err == nil {
		mine, err = s.row(ctx, 1, "SELECT "+serverIdentity)
	}
	if err == nil && mine[0] != row[2] {
		err = &Error{Kind: Unreachable, err: errors.New("the second connection reached another server than the first")}
	}
	if err != nil {
		second.Close()
		return quorumError(err)
	}
	s.mu.Lock()
	s.quorum = second
	s.mu.Unlock()
	second.Keep()
	s.beating.Go(func() {
		select {
		case <-second.Lost():
			s.fail(fmt.Errorf("%w: %w", errNoQuorum, errors.Unwrap(second.Err())))
		case <-s.lost:
		case <-s.stop:
		}
	})
	return nil
}

// serverIdentity is an SQL expression that differs between two servers, also
// of one cluster.
const serverIdentity = "pg_catalog.pg_postmaster_start_time()"

func quorumError(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return &Error{Kind: Denied, err: fmt.Errorf("open the quorum's session: %w", serverRefused{pgErr})}
	}
	return err
}
