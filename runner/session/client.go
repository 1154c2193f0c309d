package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/visible"
)

// Client is a connection for questions and brief changes, with no heartbeat. It works through a
// pooler, too.
type Client struct {
	pg     *pgconn.PgConn
	cfg    Config
	writes bool
	holds  bool // it has a holder's settings
}

// answerTimeout is how long a client waits for an answer. A query may wait for a table's lock, and
// then read much from a busy disk.
const answerTimeout = 30 * time.Second

// OpenClient connects to a primary: to the first of several hosts that is one. A standby has none
// of the primary's advisory locks, so there every lock would look free. Errors are of type *Error,
// or ctx's.
func OpenClient(ctx context.Context, cfg Config) (*Client, error) {
	return openClient(ctx, cfg, refuseStandby)
}

// OpenReader connects as OpenClient does, but to a standby if no primary lets it in and a standby
// does. It is for questions about tables, which are replicated.
func OpenReader(ctx context.Context, cfg Config) (client *Client, standby bool, err error) {
	client, err = openClient(ctx, cfg, func(ctx context.Context, pg *pgconn.PgConn) error {
		err := refuseStandby(ctx, pg)
		if e, ok := errors.AsType[*Error](err); ok && e.Kind == Standby {
			standby = true
		}
		return err
	})
	if err == nil || !standby {
		return client, false, err
	}
	client, err = openClient(ctx, cfg, nil)
	return client, true, err
}

// OpenAnyClient connects to the first host that answers, primary or standby.
func OpenAnyClient(ctx context.Context, cfg Config) (*Client, error) {
	return openClient(ctx, cfg, cfg.Database.ValidateConnect)
}

func openClient(ctx context.Context, cfg Config, check pgconn.ValidateConnectFunc) (*Client, error) {
	database := cfg.Database.Copy()
	database.ConnectTimeout = cfg.ConnectTimeout
	database.RuntimeParams["application_name"] = cfg.ApplicationName
	database.ValidateConnect = check
	pg, err := connect(ctx, database, &route{}, nil)
	if err != nil {
		return nil, err
	}
	return &Client{pg: pg, cfg: cfg}, nil
}

// refuseStandby is a pgconn.ValidateConnectFunc. The parameter in_hot_standby, which the
// server gives at the login, would save the query, but a pooler's may be outdated.
func refuseStandby(ctx context.Context, pg *pgconn.PgConn) error {
	results, err := pg.Exec(ctx, readCommitted+"; SELECT pg_catalog.pg_is_in_recovery()").ReadAll()
	if err != nil {
		return err
	}
	if rowsOf(results).Is("t") {
		goodbye(pg)
		return StandbyError()
	}
	return nil
}

// OpenCheckedClient connects as Open does, with the same checks and the same settings.
func OpenCheckedClient(ctx context.Context, cfg Config) (*Client, error) {
	pg, err := connectToHold(ctx, cfg, &route{}, new(loginAnswers).check(cfg))
	if err != nil {
		return nil, err
	}
	return &Client{pg: pg, cfg: cfg, holds: !cfg.Transaction}, nil
}

// Close ends the connection.
func (c *Client) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = c.pg.Close(ctx)
}

// MayWrite lets all further queries write, whatever the role's default is for its transactions.
// They don't wait for synchronous standbys, which may be away.
func (c *Client) MayWrite() { c.writes = true }

// Query returns the rows of all queries in one list. The queries are one transaction, unless they
// say otherwise. Unqualified names in them find only PostgreSQL's own operators and functions. Each
// transaction sets that anew, since a pooler may give each transaction another connection.
func (c *Client) Query(ctx context.Context, queries ...string) (Rows, error) {
	limit := max(answerTimeout, c.cfg.ConnectTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, Errorf(Unreachable, "the server hangs, or something on the way to it; a longer --connect-timeout waits longer",
		"ask %s: no answer within %v", c.Target(), limit))
	defer cancel()
	allow(c.pg, mostAnswer)
	before, settings := []string{readCommitted}, [][2]string{{"datestyle", "ISO"}}
	if c.writes {
		settings = append(settings, [2]string{"synchronous_commit", "local"})
		before = append(before, "SET TRANSACTION READ WRITE") // the server accepts it only before a SELECT
	}
	before = append(before, OwnNames, "SELECT "+setSQL(true, settings)+", "+asIsSQL(c.pg, true)+", "+c.stayOpenSQL())
	sql := strings.Join(append(before, queries...), "; ")
	results, err := c.pg.Exec(ctx, sql).ReadAll()
	for char := lacking(err, sql); char != ""; char = lacking(err, sql) {
		sql = spelled(sql, char)
		results, err = c.pg.Exec(ctx, sql).ReadAll()
	}
	switch {
	case err != nil && c.pg.IsClosed() && ctx.Err() == nil:
		return nil, c.Ended(explain(ctx, err))
	case err != nil:
		return nil, explain(ctx, err)
	case len(results) < len(before):
		return nil, NotPostgreSQL()
	}
	return rowsOf(results[len(before):]), nil
}

// explain turns pgconn's error into an *Error, or into ctx's.
func explain(ctx context.Context, err error) error {
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr):
		return rejection(pgErr)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return &Error{Kind: Unreachable, err: networkCause(err)}
}

// Ended is the error of a connection that has ended for this reason. It names the database.
func (c *Client) Ended(reason error) error {
	return fmt.Errorf("the connection to %s ended: %w", visible.Text(c.Target()), reason)
}

// Target names the server and the database.
func (c *Client) Target() string { return Target(c.cfg.Database) }

// stayOpenSQL is an SQL expression by which the connection stays open between two queries, whatever
// the role's idle_session_timeout is. A pooler's connection keeps its own setting, and so does one
// with the settings of a holder.
func (c *Client) stayOpenSQL() string {
	const setting = "idle_session_timeout"
	if c.holds {
		return "NULL"
	}
	return fmt.Sprintf("CASE WHEN pg_catalog.pg_backend_pid() = %d AND pg_catalog.current_setting('%s', true) <> '0' THEN %s END",
		c.pg.PID(), setting, setSQL(false, [][2]string{{setting, "0"}}))
}

// AwaitEnd returns when the connection ends, with the reason, or when ctx ends.
func (c *Client) AwaitEnd(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := c.pg.WaitForNotification(ctx); err != nil && ctx.Err() == nil {
			return explain(ctx, err)
		}
	}
	return nil
}

// Closed says whether the connection has ended.
func (c *Client) Closed() bool { return c.pg.IsClosed() }

// BackendPID is the server's process number for the connection, or a pooler's.
func (c *Client) BackendPID() uint32 { return c.pg.PID() }

// Conn is the connection, TLS included. The caller must not read or write it.
func (c *Client) Conn() net.Conn { return c.pg.Conn() }

// Socket is the connection's network socket, below any TLS.
func (c *Client) Socket() net.Conn { return belowTLS(c.pg.Conn()) }
