package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Viewer is a connection for questions, with no lease and no heartbeat. It works
// through a pooler, too.
type Viewer struct {
	pg     *pgconn.PgConn
	cfg    Config
	writes bool
	holds  bool // it has a holder's settings
}

// OpenViewer connects to a primary: to the first of several hosts that is one. A standby has none
// of the primary's advisory locks, so there every lock would look free. Errors are of type *Error,
// or ctx's.
func OpenViewer(ctx context.Context, cfg Config) (*Viewer, error) {
	return openViewer(ctx, cfg, refuseStandby)
}

// OpenReader connects as OpenViewer does, but to a standby if no primary lets it in and a standby
// does. It is for questions about tables, which are replicated.
func OpenReader(ctx context.Context, cfg Config) (viewer *Viewer, standby bool, err error) {
	viewer, err = openViewer(ctx, cfg, func(ctx context.Context, pg *pgconn.PgConn) error {
		err := refuseStandby(ctx, pg)
		standby = standby || isStandby(err)
		return err
	})
	if err == nil || !standby {
		return viewer, false, err
	}
	viewer, err = openViewer(ctx, cfg, nil)
	return viewer, true, err
}

// OpenAnyViewer connects to the first host that answers, primary or standby.
func OpenAnyViewer(ctx context.Context, cfg Config) (*Viewer, error) {
	return openViewer(ctx, cfg, cfg.Database.ValidateConnect)
}

func openViewer(ctx context.Context, cfg Config, check pgconn.ValidateConnectFunc) (*Viewer, error) {
	database := cfg.Database.Copy()
	database.ConnectTimeout = cfg.ConnectTimeout
	database.RuntimeParams["application_name"] = cfg.ApplicationName
	database.ValidateConnect = check
	pg, err := connect(ctx, database)
	if err != nil {
		return nil, err
	}
	return &Viewer{pg: pg, cfg: cfg}, nil
}

// refuseStandby is a pgconn.ValidateConnectFunc. The parameter in_hot_standby, which the
// server gives at the login, would save the query, but a pooler's may be outdated.
func refuseStandby(ctx context.Context, pg *pgconn.PgConn) error {
	results, err := pg.Exec(ctx, readCommitted+"; SELECT pg_catalog.pg_is_in_recovery()").ReadAll()
	if err != nil {
		return err
	}
	if rowsOf(results).Is("t") {
		terminate(pg)
		return OnStandby()
	}
	return nil
}

func isStandby(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == Standby
}

// OpenCheckedViewer connects as Open does, with the same checks and the same settings. It
// also returns how long the server has kept its lock table.
func OpenCheckedViewer(ctx context.Context, cfg Config) (*Viewer, time.Duration, error) {
	var answers loginAnswers
	pg, err := connectToHold(ctx, cfg, &route{}, answers.check(cfg))
	if err != nil {
		return nil, 0, err
	}
	return &Viewer{pg: pg, cfg: cfg, holds: !cfg.Transaction}, answers.age, nil
}

// Close ends the connection.
func (v *Viewer) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = v.pg.Close(ctx)
}

// MayWrite lets all further queries write, whatever the role's default is for its transactions.
// They don't wait for synchronous standbys: a pause has to end while these are away, too.
func (v *Viewer) MayWrite() { v.writes = true }

// Query returns the rows of all queries in one list. The queries are one transaction, unless they
// say otherwise. Unqualified names in them find only PostgreSQL's own operators and functions. Each
// transaction sets that anew, since a pooler may give each transaction another connection.
func (v *Viewer) Query(ctx context.Context, queries ...string) (Rows, error) {
	if limit := v.cfg.AnswerTimeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, Errorf(Unreachable, "the server hangs, or something on the way to it; a longer --connect-timeout waits longer",
			"ask %s: no answer within %v", Target(v.cfg.Database), limit))
		defer cancel()
	}
	allow(v.pg, mostAnswer)
	settings := [][2]string{{"datestyle", "ISO"}}
	if v.writes {
		settings = append(settings, [2]string{"synchronous_commit", "local"})
	}
	before := []string{readCommitted}
	if v.writes {
		before = append(before, "SET TRANSACTION READ WRITE") // the server accepts it only before a SELECT
	}
	before = append(before, OwnNames, "SELECT "+setSQL(true, settings)+", "+asIsSQL(v.pg, true)+", "+v.stayOpenSQL())
	sql := strings.Join(append(before, queries...), "; ")
	results, err := v.pg.Exec(ctx, sql).ReadAll()
	for char := lacking(err, sql); char != ""; char = lacking(err, sql) {
		sql = spelled(sql, char)
		results, err = v.pg.Exec(ctx, sql).ReadAll()
	}
	switch {
	case err != nil:
		return nil, viewError(ctx, err)
	case len(results) < len(before):
		return nil, NotPostgreSQL()
	}
	return rowsOf(results[len(before):]), nil
}

// viewError turns pgconn's error into an *Error, or into ctx's.
func viewError(ctx context.Context, err error) error {
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr):
		return rejection(pgErr)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return &Error{Kind: Unreachable, err: networkCause(err)}
}

// stayOpenSQL is an SQL expression by which the connection stays open between two queries, whatever
// the role's idle_session_timeout is. A pooler's connection keeps its own setting, and so does one
// with the settings of a holder.
func (v *Viewer) stayOpenSQL() string {
	const setting = "idle_session_timeout"
	if v.holds {
		return "NULL"
	}
	return fmt.Sprintf("CASE WHEN pg_catalog.pg_backend_pid() = %d AND pg_catalog.current_setting('%s', true) <> '0' THEN %s END",
		v.pg.PID(), setting, setSQL(false, [][2]string{{setting, "0"}}))
}

// Wait returns when the connection ends, with the reason, or when ctx ends.
func (v *Viewer) Wait(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := v.pg.WaitForNotification(ctx); err != nil && ctx.Err() == nil {
			return viewError(ctx, err)
		}
	}
	return nil
}

// Ended says whether the connection has ended.
func (v *Viewer) Ended() bool { return v.pg.IsClosed() }

// BackendPID is the server's process number for the connection, or a pooler's.
func (v *Viewer) BackendPID() uint32 { return v.pg.PID() }

// Conn is the connection, TLS included. The caller must not read or write it.
func (v *Viewer) Conn() net.Conn { return v.pg.Conn() }

// Socket is the connection's network socket, below any TLS.
func (v *Viewer) Socket() net.Conn { return belowTLS(v.pg.Conn()) }
