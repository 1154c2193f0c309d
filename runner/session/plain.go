package session

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
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
	dial pgconn.DialFunc

	mu      sync.Mutex          // pgconn cancels what a failed attempt asked in a goroutine, which dials, too
	ended   bool                // no attempt follows
	kept    map[string]net.Conn // by address
	refused map[string]error    // by address: what came of the attempt with TLS
	latest  *askingTLS
}

// install has a configuration's attempts made so. The caller calls end after them.
func (p *plainAttempts) install(database *pgconn.Config) {
	heard, validate := database.OnPgError, database.ValidateConnect
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
		return heard(pg, err)
	}
	if validate != nil {
		database.ValidateConnect = func(ctx context.Context, pg *pgconn.PgConn) error {
			err := validate(ctx, pg)
			if err != nil && !errors.As(err, new(*pgconn.NotPreferredError)) { // pgconn may come back to one that is only not preferred
				p.refuse(err)
			}
			return err
		}
	}
}

// end closes the connections that no attempt has used, and keeps no more.
func (p *plainAttempts) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for _, conn := range p.kept {
		_ = conn.Close()
	}
	clear(p.kept)
	clear(p.refused)
}

// refuse notes that an attempt without TLS would be in vain, if the latest was one with TLS.
func (p *plainAttempts) refuse(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended && p.latest != nil && p.latest.answer == 'S' {
		p.refused[p.latest.address] = err
	}
}

func (p *plainAttempts) open(ctx context.Context, network, address string) (net.Conn, error) {
	p.mu.Lock()
	kept, refused, ended := p.kept[address], p.refused[address], p.ended
	delete(p.kept, address)
	p.mu.Unlock()
	switch {
	case ended: // to cancel a query
		return p.dial(ctx, network, address)
	case refused != nil:
		return nil, refused
	case kept != nil:
		return kept, kept.SetDeadline(time.Time{}) // the attempt with TLS may have set one
	}
	conn, err := p.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	asking := &askingTLS{Conn: conn, keep: func() { p.keep(address, conn) }, address: address}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest = asking
	return asking, nil
}

// keep keeps a connection on which the server has said that it has no TLS.
func (p *plainAttempts) keep(address string, conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.kept[address] != nil {
		_ = conn.Close()
		return
	}
	p.kept[address] = conn
}

// askingTLS is a connection on which TLS may be asked for. The server's first byte is then its answer:
// S or N. (Without TLS nothing is read before AfterNetConnect unwraps it.)
// https://www.postgresql.org/docs/current/protocol-flow.html (SSL Session Encryption)
type askingTLS struct {
	net.Conn
	address string
	answer  byte   // or 0
	keep    func() // takes the connection instead of Close, after an N
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
	c.keep()
	return nil
}
