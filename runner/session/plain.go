package session

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// plainAttempts are the attempts without TLS that follow those with TLS, with sslmode=prefer. If the
// server has said that it has no TLS, such an attempt goes on with that connection, as libpq does.
// pgconn would open another one, for which the server needs another process.
//
// A server that has TLS is not tried without if it had no room, was starting or ending, or failed
// our checks: it would say the same, and a password would go to it in the clear.
type plainAttempts struct {
	dial    pgconn.DialFunc
	kept    map[string]net.Conn // by address
	refused map[string]error    // by address: what came of the attempt with TLS
	latest  *askingTLS
}

// install has a configuration's attempts made so, until end is called.
func (p *plainAttempts) install(database *pgconn.Config) (end func()) {
	before := *database
	p.dial, p.kept, p.refused = database.DialFunc, map[string]net.Conn{}, map[string]error{}
	database.DialFunc = p.open
	database.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
		if asking, ok := conn.(*askingTLS); ok {
			return asking.Conn, nil
		}
		return conn, nil
	}
	database.OnPgError = func(pg *pgconn.PgConn, err *pgconn.PgError) bool {
		if strings.HasPrefix(err.Code, classResources) || strings.HasPrefix(err.Code, classOperatorShutdown) {
			p.refuse(err)
		}
		return before.OnPgError(pg, err)
	}
	if before.ValidateConnect != nil {
		database.ValidateConnect = func(ctx context.Context, pg *pgconn.PgConn) error {
			err := before.ValidateConnect(ctx, pg)
			if err != nil && !errors.As(err, new(*pgconn.NotPreferredError)) { // pgconn may come back to one that is only not preferred
				p.refuse(err)
			}
			return err
		}
	}
	return func() {
		for _, conn := range p.kept {
			_ = conn.Close()
		}
		database.DialFunc, database.AfterNetConnect = before.DialFunc, before.AfterNetConnect
		database.OnPgError, database.ValidateConnect = before.OnPgError, before.ValidateConnect
	}
}

// refuse notes that an attempt without TLS would be in vain, if the latest was one with TLS.
func (p *plainAttempts) refuse(err error) {
	if p.latest != nil && p.latest.answer == 'S' {
		p.refused[p.latest.address] = err
	}
}

func (p *plainAttempts) open(ctx context.Context, network, address string) (net.Conn, error) {
	if err := p.refused[address]; err != nil {
		return nil, err
	}
	if kept := p.kept[address]; kept != nil {
		delete(p.kept, address)
		return kept, kept.SetDeadline(time.Time{}) // the attempt with TLS may have set one
	}
	conn, err := p.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	p.latest = &askingTLS{Conn: conn, address: address, keep: p.kept}
	return p.latest, nil
}

// askingTLS is a connection on which TLS may be asked for. The server's first byte is then its answer:
// S or N. (Without TLS nothing is read before AfterNetConnect unwraps it.)
// https://www.postgresql.org/docs/current/protocol-flow.html (SSL Session Encryption)
type askingTLS struct {
	net.Conn
	address string
	answer  byte                // or 0
	keep    map[string]net.Conn // takes the connection instead of Close, after an N
}

// NetConn makes belowTLS find the socket, as it does in a tls.Conn.
func (c *askingTLS) NetConn() net.Conn { return c.Conn }

func (c *askingTLS) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.answer == 0 {
		c.answer = p[0]
	}
	return n, err
}

func (c *askingTLS) Close() error {
	if c.answer != 'N' {
		return c.Conn.Close()
	}
	c.keep[c.address] = c.Conn
	return nil
}
