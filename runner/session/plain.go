package session

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// plainAgain keeps the connections whose servers have said that they have no TLS, for the attempts
// without TLS that follow with sslmode=prefer. So does libpq. pgconn would open others, and each
// costs the server a process.
type plainAgain struct {
	dial pgconn.DialFunc
	kept map[string]net.Conn // by address
}

// install has a configuration's connections kept. The caller closes those that are left.
func (p *plainAgain) install(database *pgconn.Config) {
	p.dial, p.kept = database.DialFunc, map[string]net.Conn{}
	database.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if kept, ok := p.kept[address]; ok {
			delete(p.kept, address)
			return kept, kept.SetDeadline(time.Time{}) // instead of the former attempt's
		}
		conn, err := p.dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &askingTLS{Conn: conn, keep: func() { p.kept[address] = conn }}, nil
	}
	database.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
		if plain, ok := conn.(*askingTLS); ok {
			return plain.Conn, nil
		}
		return conn, nil
	}
}

func (p *plainAgain) close() {
	for _, conn := range p.kept {
		_ = conn.Close()
	}
}

// askingTLS is a connection on which the server's first byte answers whether it has TLS: S or N.
// https://www.postgresql.org/docs/current/protocol-flow.html (SSL Session Encryption)
type askingTLS struct {
	net.Conn
	answered, refused bool
	keep              func() // called instead of Close if the server has refused
}

// NetConn is as that of tls.Conn: see belowTLS.
func (c *askingTLS) NetConn() net.Conn { return c.Conn }

func (c *askingTLS) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.answered {
		c.answered, c.refused = true, p[0] == 'N'
	}
	return n, err
}

func (c *askingTLS) Close() error {
	if !c.refused {
		return c.Conn.Close()
	}
	c.keep()
	return nil
}
