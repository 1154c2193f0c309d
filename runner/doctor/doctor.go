// Package doctor finds out whether a server, the path to it and this machine can keep the
// promise.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/session"
)

// Config says how a session would be opened.
type Config struct {
	Session     session.Config
	Description describe.Description
	LockDelay   time.Duration
	Idle        bool // test silence, too
}

// Findings are about the server, with the path to it, and about this machine.
type Findings struct{ Database, Machine []checkup.Check }

// Examine connects as session.Open does, examines everything that the lock of such a
// session depends on, and takes a trial lock. It also examines a server that Open
// refuses. The error is that of Open or of the lock, and is also among the findings.
func Examine(ctx context.Context, cfg Config) (Findings, error) {
	x := &examination{cfg: cfg.Session, lockDelay: cfg.LockDelay}
	x.cfg.Database = x.cfg.Database.Copy()
	x.cfg.Database.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { x.heard = n.Channel }
	err := x.connect(ctx)
	if ctx.Err() != nil {
		return Findings{}, context.Cause(ctx)
	}
	if x.client != nil {
		x.look(ctx)
		x.client.Close()
	}
	x.hosts(ctx)
	if err == nil {
		err = x.trial(ctx, cfg.Description)
	}
	if cfg.Idle && x.client != nil && x.refused == nil && ctx.Err() == nil {
		x.add("silence", x.silence(ctx))
	}
	if ctx.Err() != nil {
		return Findings{}, context.Cause(ctx)
	}
	return Findings{x.checks, child.Examine()}, err
}

type examination struct {
	cfg       session.Config
	lockDelay time.Duration
	checks    []checkup.Check

	client  *session.Client
	refused error  // Open's error; then the session's settings are not made
	heard   string // the channel of the last notification
}

func (x *examination) add(name string, c checkup.Check) {
	c.Name = name
	x.checks = append(x.checks, c)
}

// failed is a check that failed because of an error.
func failed(err error) checkup.Check {
	if e, ok := errors.AsType[*session.Error](err); ok {
		return checkup.Failf(e.Hint, "%s", err)
	}
	return checkup.Failf("", "%s", err)
}

func unknown(err error) checkup.Check { return checkup.Notef("", "not known: %s", err) }

// connect opens the connection to examine. If session.Open refuses the server, connect
// tries again without the checks.
func (x *examination) connect(ctx context.Context) (err error) {
	began := time.Now()
	x.client, err = session.OpenCheckedClient(ctx, x.cfg)
	took := time.Since(began)
	if e, ok := errors.AsType[*session.Error](err); ok && (e.Kind == session.Unsafe || e.Kind == session.Standby || e.Kind == session.NoStandbys) {
		x.refused = err
		x.client, _ = session.OpenAnyClient(ctx, x.cfg)
	}
	if x.client == nil {
		x.add("connection", failed(err))
		return err
	}
	x.add("connection", checkup.Okf("as %s in %v", x.cfg.Database.User, coarse(took)))
	return err
}

// look examines the server over the connection, as long as that lasts. If it breaks, the
// trial lock shows what that means. To add a check:
//
//	a method        of examination, which returns a checkup.Check
//	its row         below
//	its subject     in cmd/REFERENCE.md, which lists what pglead doctor also looks at
//	its test        an expectation in doctor_test.go (want), for each result that it can have
//
// A check of this machine goes into child.Examine instead, and its test into package child.
func (x *examination) look(ctx context.Context) {
	before := len(x.checks)
	for _, part := range []struct {
		name string
		look func(context.Context) checkup.Check
	}{
		{"server", x.server},
		{"primary", x.primary},
		{"path", x.path},
		{"TLS", x.tls},
		{"time-outs", x.timeouts},
		{"settings", x.settings},
		{"lease", x.lease},
		{"lock-delay", x.delay},
		{"slots", x.slots},
		{"standbys", x.standbys},
		{"notify", x.notify},
		{"ledger", x.ledger},
		{"see others", x.seeOthers},
		{"end others", x.privilege("pg_signal_backend", "end other roles' sessions (pglead stepdown --force)")},
	} {
		if x.client.Closed() {
			break
		}
		// These test settings that a refused session doesn't have.
		if x.refused == nil || part.name != "settings" && part.name != "notify" {
			x.add(part.name, part.look(ctx))
		}
	}
	if x.refused != nil && !slices.ContainsFunc(x.checks[before:], func(c checkup.Check) bool { return c.Status == checkup.Fail }) {
		x.add("session", failed(x.refused))
	}
}

// Query asks on the connection.
func (x *examination) Query(ctx context.Context, queries ...string) (session.Rows, error) {
	ctx, cancel := context.WithTimeout(ctx, x.cfg.ConnectTimeout)
	defer cancel()
	return x.client.Query(ctx, queries...)
}

// row asks for one row with this many columns: that of the last query, if there are several.
func (x *examination) row(ctx context.Context, columns int, sql string) ([]string, error) {
	rows, err := x.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return rows[max(0, len(rows)-1):].Only(columns)
}

// trial takes a lock that nobody else has, and checks that a second session can't have it.
func (x *examination) trial(ctx context.Context, says describe.Description) error {
	began := time.Now()
	check, err := selfTest(ctx, x.cfg, says)
	if err != nil {
		check = failed(err)
	}
	check.Seen += fmt.Sprintf(" (%v)", coarse(time.Since(began)))
	x.add("lock", check)
	return err
}

// coarse rounds to the digits that a reader cares about.
func coarse(d time.Duration) time.Duration {
	switch {
	case d < time.Millisecond:
		return d.Round(10 * time.Microsecond)
	case d < time.Second:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(100 * time.Millisecond)
}
