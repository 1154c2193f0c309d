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
// confirm, and waits for the standbys whatever the role's default is.
const commitHeartbeat = `SELECT pg_catalog.set_config('synchronous_commit', 'on', true),
	pg_catalog.pg_logical_emit_message(true, 'pglead', '')`

var errNoQuorum = &Error{
	Kind: Unreachable, Hint: "are the standbys that synchronous_standby_names asks for up? pg_stat_replication shows them",
	err: errors.New("the synchronous standbys do not confirm the commit"),
}

// beside opens a second session like this one and says which server it is on.
// With a quorum it ties this one's fate to it, and closes it with this one.
func (s *Session) beside(ctx context.Context) (second *Session, identity string, err error) {
	cfg := s.cfg
	cfg.Quorum, cfg.Claim = false, Claim{}
	second, err = Open(ctx, cfg)
	if err != nil {
		return nil, "", besideError(err, cfg.Transaction)
	}
	row, err := second.row(ctx, 2, "SELECT "+serverIdentity+", pg_catalog.current_setting('synchronous_standby_names')")
	if err == nil && s.cfg.Quorum && row[1] == "" {
		err = unsafe("set it, for instance to 'ANY 1 (a, b)' with two standbys, or leave --quorum away",
			"--quorum needs synchronous standbys, but synchronous_standby_names is empty")
	}
	if err != nil {
		second.Close()
		return nil, "", besideError(err, cfg.Transaction)
	}
	if s.cfg.Quorum {
		s.join(second)
	}
	return second, row[0], nil
}

func (s *Session) join(second *Session) {
	second.beatSQL = commitHeartbeat
	second.onAnswer = s.renew
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
}

// serverIdentity is an SQL expression that differs between two servers, also
// of one cluster.
const serverIdentity = "extract(epoch FROM pg_catalog.pg_postmaster_start_time())"

func besideError(err error, pooled bool) error {
	var pgErr *pgconn.PgError
	var e *Error
	switch {
	case errors.As(err, &pgErr):
		e = &Error{Kind: Denied, err: serverRefused{pgErr}}
		if passes(pgErr) {
			e.Kind = Unreachable
		}
	case !errors.As(err, &e):
		return err
	}
	hint := e.Hint
	if pooled && e.Kind == Unreachable {
		hint = "each grant takes a second connection for a moment: the pooler's pool has to leave one free"
	}
	return &Error{Kind: e.Kind, Hint: hint, err: fmt.Errorf("open the second session: %w", e)}
}
