package session

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Viewer is a connection to ask questions on, with no lease and no heartbeat. A
// pooler or a standby in between makes no difference to it.
type Viewer struct{ pg *pgconn.PgConn }

// OpenViewer connects. Errors are of type *Error, or ctx's.
func OpenViewer(ctx context.Context, cfg Config) (*Viewer, error) {
	database := cfg.Database.Copy()
	database.ConnectTimeout = cfg.ConnectTimeout
	database.RuntimeParams["application_name"] = cfg.ApplicationName
	pg, err := login(ctx, database)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, connectError(Target(cfg.Database), database, err)
	}
	return &Viewer{pg}, nil
}

// OpenChecked connects as Open does: what that refuses is refused here, and the
// session's settings are made. It returns for how long the server has had its
// present memory of locks, too.
func OpenChecked(ctx context.Context, cfg Config) (*Viewer, time.Duration, error) {
	var ready prepared
	pg, err := connect(ctx, cfg, func(ctx context.Context, pg *pgconn.PgConn) (err error) {
		ready, err = prepare(ctx, pg, cfg)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return &Viewer{pg}, ready.age, nil
}

// Close ends the connection.
func (v *Viewer) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = v.pg.Close(ctx)
}

// Query asks for the rows of all queries, one after the other. They are one
// transaction, unless they say otherwise.
func (v *Viewer) Query(ctx context.Context, queries ...string) (Rows, error) {
	allow(v.pg, mostAnswer)
	results, err := v.pg.Exec(ctx, strings.Join(queries, "; ")).ReadAll()
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && passes(pgErr):
		return nil, &Error{Kind: Unreachable, err: serverRefused{pgErr}}
	case errors.As(err, &pgErr):
		return nil, &Error{Kind: Denied, err: serverRefused{pgErr}}
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, &Error{Kind: Unreachable, err: networkCause(err)}
	}
	var rows Rows
	for _, result := range results {
		for _, row := range result.Rows {
			rows = append(rows, copyRow(row))
		}
	}
	return rows, nil
}

// Wait returns when the connection ends, with the reason, or when ctx does.
func (v *Viewer) Wait(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := v.pg.WaitForNotification(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// Ended says whether the connection has.
func (v *Viewer) Ended() bool { return v.pg.IsClosed() }

// BackendPID is the server's process number for the connection, or a pooler's.
func (v *Viewer) BackendPID() uint32 { return v.pg.PID() }

// Conn is the connection, TLS included. It is there to be looked at.
func (v *Viewer) Conn() net.Conn { return v.pg.Conn() }
