package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/session"
)

// path examines what stands between here and the server.
func (x *examination) path(ctx context.Context) checkup.Check {
	row, err := x.row(ctx, 3, `SELECT pg_catalog.pg_backend_pid(), coalesce(pg_catalog.host(pg_catalog.inet_client_addr()), ''),
	coalesce(pg_catalog.inet_client_port(), -1)`)
	if err != nil {
		return failed(err)
	}
	pooled := row[0] != strconv.FormatUint(uint64(x.client.BackendPID()), 10)
	switch {
	case pooled && !x.cfg.Transaction:
		c := failed(session.PooledError(x.client.BackendPID(), row[0]))
		if own := directHost(x.cfg.Database); own != "" {
			c.Advice = own + "; or use --transaction"
		}
		return c
	case pooled:
		return checkup.Okf("a connection pooler in between: what --transaction is for; " +
			"a running command takes one connection of its pool, and its start a second one for a moment")
	case x.cfg.Transaction:
		const advice = "leave out --transaction here, unless other nodes come through a pooler: " +
			"without it waiters stand in line, and a clean handover takes no lock-delay"
		return checkup.Notef(advice, "no pooler in between")
	}
	local, remote := x.client.Socket().LocalAddr(), x.client.Socket().RemoteAddr()
	tcp, ok := local.(*net.TCPAddr)
	if !ok {
		return checkup.Okf("a unix socket, no pooler in between")
	}
	seen := "this machine's socket directory"
	if row[1] != "" {
		seen = net.JoinHostPort(row[1], row[2])
	}
	if ip := net.ParseIP(row[1]); ip != nil && ip.Equal(tcp.IP) && row[2] == strconv.Itoa(tcp.Port) {
		return checkup.Okf("from %s to %s, no pooler or proxy in between", local, remote)
	}
	const advice = "it must not end a connection that is silent for the lease, %v, " +
		"or the lock of a holder that is cut off comes free too early (pglead doctor --idle tries it)"
	return checkup.Notef(fmt.Sprintf(advice, x.cfg.Lease),
		"no pooler, but a proxy, tunnel or address translation in between: this end is %s, and the server sees %s", local, seen)
}

func (x *examination) tls(context.Context) checkup.Check {
	if conn, ok := x.client.Conn().(*tls.Conn); ok {
		state := conn.ConnectionState()
		seen := tls.VersionName(state.Version) + ", " + tls.CipherSuiteName(state.CipherSuite)
		for _, f := range session.Hosts(x.cfg.Database) { // all have the same sslmode
			if c := f.TLSConfig; c != nil && c.InsecureSkipVerify && c.VerifyPeerCertificate == nil {
				const unverified = "the server's certificate is not verified: whoever can redirect the connection can pose as the server"
				return checkup.Notef("sslmode=verify-full, and sslrootcert if the authority is a private one", "%s; "+unverified, seen)
			}
		}
		if list := session.IgnoredCRL(); list != "" {
			return checkup.Notef("certificates that expire soon need no such list",
				"%s, certificate verified, but not against %q: psql looks there for revoked certificates, and pglead does not", seen, list)
		}
		return checkup.Okf("%s, certificate verified", seen)
	}
	tcp, ok := x.client.Socket().RemoteAddr().(*net.TCPAddr)
	switch {
	case !ok:
		return checkup.Okf("not needed on a unix socket")
	case tcp.IP.IsLoopback():
		return checkup.Okf("none, on the loopback interface")
	}
	return checkup.Warningf("sslmode=require or, better, verify-full", "none: whoever is on the path can read and change everything, the lock included")
}

// hosts examines each of several hosts: after a failover another one counts.
func (x *examination) hosts(ctx context.Context) {
	list := session.EachHost(x.cfg.Database)
	if len(list) < 2 {
		return
	}
	var roles, primaries []string
	unreachable := false
	for _, database := range list {
		role, identity, err := x.roleOf(ctx, database)
		switch {
		case err != nil:
			unreachable = true
			role = strings.TrimPrefix(err.Error(), "connect to "+session.Target(database)+": ")
		case role == "primary" && !slices.Contains(primaries, identity): // one server may have two names
			primaries = append(primaries, identity)
		}
		roles = append(roles, net.JoinHostPort(database.Host, strconv.Itoa(int(database.Port)))+" "+role)
	}
	seen := strings.Join(roles, ", ")
	switch {
	case len(primaries) > 1:
		x.add("hosts", checkup.Failf("name the hosts of one cluster only, and stop the one that a failover has left behind",
			"%s: the locks of one primary exclude nobody on another", seen))
	case unreachable:
		x.add("hosts", checkup.Warningf("after a failover to a host that can't be reached from here, this node has no lock", "%s", seen))
	default:
		x.add("hosts", checkup.Okf("%s", seen))
	}
}

// roleOf asks a server whether it is "primary" or "standby", and for its identity.
func (x *examination) roleOf(ctx context.Context, database *pgconn.Config) (role, identity string, err error) {
	cfg := x.cfg
	cfg.Database = database
	client, err := session.OpenAnyClient(ctx, cfg)
	if err != nil {
		return "", "", err
	}
	defer client.Close()
	rows, err := client.Query(ctx, "SELECT pg_catalog.pg_is_in_recovery(), "+session.ServerIdentitySQL)
	if err != nil {
		return "", "", err
	}
	row, err := rows.Only(2)
	if err != nil {
		return "", "", err
	}
	if row[0] == "t" {
		return "standby", row[1], nil
	}
	return "primary", row[1], nil
}
