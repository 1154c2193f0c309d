package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/checkup"
)

// Examine connects as Open does, looks at everything on which the lock of such
// a session depends, and takes a lock for a trial. What Open refuses, it looks
// at all the same. The error is the one that Open or the lock ended with: it
// is among the checks too. With idle, silence is tried, too.
func Examine(ctx context.Context, cfg Config, lockDelay time.Duration, idle bool, try Trial) ([]checkup.Check, error) {
	x := &examination{cfg: cfg, lockDelay: lockDelay, try: try}
	x.cfg.Database = cfg.Database.Copy()
	x.cfg.Database.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { x.heard = n.Channel }
	err := x.connect(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if x.pg != nil {
		x.look(ctx)
		(&Viewer{x.pg}).Close()
	}
	x.hosts(ctx)
	if err == nil {
		err = x.trial(ctx)
	}
	if idle && x.pg != nil && x.refused == nil && ctx.Err() == nil {
		x.add("silence", x.silence(ctx))
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return x.checks, err
}

// Trial takes a lock for a trial.
type Trial func(ctx context.Context, cfg Config) (checkup.Check, error)

type examination struct {
	cfg       Config
	lockDelay time.Duration
	try       Trial
	checks    []checkup.Check

	pg      *pgconn.PgConn
	age     time.Duration // from prepare
	refused error         // by prepare: the session's settings are not made
	heard   string        // the channel of the last notification
}

func (x *examination) add(name string, c checkup.Check) {
	c.Name = name
	x.checks = append(x.checks, c)
}

// failed is a check that failed with an error.
func failed(err error) checkup.Check {
	var e *Error
	if errors.As(err, &e) {
		return checkup.Failf(e.Hint, "%s", err)
	}
	return checkup.Failf("", "%s", err)
}

func unknown(err error) checkup.Check { return checkup.Notef("", "not known: %s", err) }

// connect opens the connection to look at. A server that prepare refuses is
// connected to again, without it.
func (x *examination) connect(ctx context.Context) (err error) {
	began := time.Now()
	x.pg, err = connect(ctx, x.cfg, func(ctx context.Context, pg *pgconn.PgConn) (err error) {
		ready, err := prepare(ctx, pg, x.cfg)
		x.age = ready.age
		return err
	})
	took := time.Since(began)
	var e *Error
	if errors.As(err, &e) && (e.Kind == Unsafe || e.Kind == Standby) {
		x.refused = err
		x.pg, _ = connect(ctx, x.cfg, nil)
	}
	if x.pg == nil {
		x.add("connection", failed(err))
		return err
	}
	x.add("connection", checkup.Okf("as %s in %v", x.cfg.Database.User, coarse(took)))
	return err
}

// look examines the server over the connection, for as long as that lasts: if
// it doesn't, the trial of a lock says what that means.
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
		{"privilege", x.privilege("pg_read_all_stats", "see what other roles' pgleads run (pglead ls, who)")},
		{"privilege", x.privilege("pg_signal_backend", "end other roles' sessions (pglead stepdown --force)")},
	} {
		if x.pg.IsClosed() {
			break
		}
		// Of what was refused, the session was not made fit for these.
		if x.refused == nil || part.name != "settings" && part.name != "notify" {
			x.add(part.name, part.look(ctx))
		}
	}
	if x.refused != nil && !slices.ContainsFunc(x.checks[before:], func(c checkup.Check) bool { return c.Status == checkup.Fail }) {
		x.add("session", failed(x.refused))
	}
}

// rows asks on the connection.
func (x *examination) rows(ctx context.Context, sql string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, x.cfg.ConnectTimeout)
	defer cancel()
	return (&Viewer{x.pg}).Rows(ctx, sql)
}

// row asks for one row of so many columns: the last, of several queries.
func (x *examination) row(ctx context.Context, columns int, sql string) ([]string, error) {
	rows, err := x.rows(ctx, sql)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 || len(rows[len(rows)-1]) != columns {
		return nil, ErrNotPostgreSQL()
	}
	return rows[len(rows)-1], nil
}

// numbers is row for whole numbers.
func (x *examination) numbers(ctx context.Context, columns int, sql string) ([]int, error) {
	row, err := x.row(ctx, columns, sql)
	if err != nil {
		return nil, err
	}
	list := make([]int, columns)
	for i, value := range row {
		if list[i], err = strconv.Atoi(value); err != nil {
			return nil, fmt.Errorf("%q is no number", value)
		}
	}
	return list, nil
}

func (x *examination) server(ctx context.Context) checkup.Check {
	row, err := x.row(ctx, 3, `SELECT pg_catalog.version(), pg_catalog.current_setting('server_version_num'), pg_catalog.current_setting('fsync')`)
	if err != nil {
		return failed(err)
	}
	version, _, _ := strings.Cut(row[0], " on ") // and for what machine, by which compiler
	switch number, _ := strconv.Atoi(row[1]); {
	case number/1_00_00 < oldestMajor:
		return failed(errTooOld(row[0]))
	case row[2] == "off":
		return checkup.Warningf("fsync = on in postgresql.conf", "%s, with fsync off: after a crash of its machine a fencing token may be given twice", version)
	}
	signs, err := x.rows(ctx, signsQuery)
	if err != nil {
		return checkup.Okf("%s", version)
	}
	for _, p := range products() {
		switch {
		case !slices.ContainsFunc(signs, func(row []string) bool { return slices.Contains(row, p.sign) }):
		case p.manyPrimaries:
			return checkup.Warningf(p.advice, "%s with %s", version, p.name)
		default:
			return checkup.Check{Status: checkup.OK, Seen: version + ", " + p.name, Advice: p.advice}
		}
	}
	return checkup.Okf("%s", version)
}

func (x *examination) primary(ctx context.Context) checkup.Check {
	row, err := x.row(ctx, 3, `SELECT pg_catalog.pg_is_in_recovery(),
	extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.pg_postmaster_start_time())::bigint,
	CASE WHEN pg_catalog.pg_is_in_recovery() THEN 0 ELSE `+Timeline+` END`)
	if err != nil {
		return failed(err)
	}
	if row[0] == "t" {
		return failed(errStandby())
	}
	up, _ := strconv.Atoi(row[1])
	seen := fmt.Sprintf("yes, up for %v, timeline %s", time.Duration(up)*time.Second, row[2])
	if x.refused == nil && x.age < x.lockDelay {
		return checkup.Notef("", "%s; restarted, recovered or promoted %v ago: until that is %v, a first try that succeeds waits for the rest", seen, coarse(x.age), x.lockDelay)
	}
	return checkup.Okf("%s", seen)
}

// path is about what stands between here and the server.
func (x *examination) path(ctx context.Context) checkup.Check {
	row, err := x.row(ctx, 3, `SELECT pg_catalog.pg_backend_pid(), coalesce(pg_catalog.host(pg_catalog.inet_client_addr()), ''), coalesce(pg_catalog.inet_client_port(), -1)`)
	if err != nil {
		return failed(err)
	}
	pooled := row[0] != strconv.FormatUint(uint64(x.pg.PID()), 10)
	switch {
	case pooled && !x.cfg.Transaction:
		c := failed(errPooled(x.pg.PID(), row[0]))
		if own := directHost(x.cfg.Database); own != "" {
			c.Advice = own + "; or use --transaction"
		}
		return c
	case pooled:
		return checkup.Okf("a connection pooler in between: what --transaction is for; a running command takes one connection of its pool, and its start a second one for a moment")
	case x.cfg.Transaction:
		return checkup.Notef("leave --transaction away here, unless other nodes come through a pooler: without it waiters stand in line, and a clean handover takes no lock-delay",
			"no pooler in between")
	}
	local, remote := socket(x.pg.Conn()).LocalAddr(), socket(x.pg.Conn()).RemoteAddr()
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
	return checkup.Notef(fmt.Sprintf("it must not end a connection that is silent for the lease, %v, or the lock of a holder that is cut off comes free too early (pglead doctor --idle tries it)", x.cfg.Lease),
		"no pooler, but a proxy, tunnel or address translation in between: this end is %s, and the server sees %s", local, seen)
}

// socket is a connection below any TLS.
func socket(conn net.Conn) net.Conn {
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return wrapped.NetConn()
	}
	return conn
}

func (x *examination) tls(context.Context) checkup.Check {
	if conn, ok := x.pg.Conn().(*tls.Conn); ok {
		state := conn.ConnectionState()
		seen := tls.VersionName(state.Version) + ", " + tls.CipherSuiteName(state.CipherSuite)
		configs := []*tls.Config{x.cfg.Database.TLSConfig}
		for _, f := range x.cfg.Database.Fallbacks {
			configs = append(configs, f.TLSConfig)
		}
		for _, c := range configs { // all hosts have the same sslmode
			if c != nil && c.InsecureSkipVerify && c.VerifyPeerCertificate == nil {
				return checkup.Notef("sslmode=verify-full, and sslrootcert if the authority is a private one", "%s; the server's certificate is not verified: who can redirect the connection can pose as the server", seen)
			}
		}
		return checkup.Okf("%s, certificate verified", seen)
	}
	tcp, ok := socket(x.pg.Conn()).RemoteAddr().(*net.TCPAddr)
	switch {
	case !ok:
		return checkup.Okf("not needed on a unix socket")
	case tcp.IP.IsLoopback():
		return checkup.Okf("none, on the loopback interface")
	}
	return checkup.Warningf("sslmode=require or, better, verify-full", "none: who is on the path can read and change everything, the lock included")
}

// timeouts are those that a role, a database or the server has for every
// session. Unseen they would end a holder's or a waiter's session.
func (x *examination) timeouts(ctx context.Context) checkup.Check {
	rows, err := x.rows(ctx, `SELECT s.name, s.reset_val, coalesce((
	SELECT CASE WHEN r.rolname IS NOT NULL AND d.datname IS NOT NULL THEN 'role ' || r.rolname || ' in database ' || d.datname
		WHEN r.rolname IS NOT NULL THEN 'role ' || r.rolname
		WHEN d.datname IS NOT NULL THEN 'database ' || d.datname ELSE 'all roles' END
	FROM pg_catalog.pg_db_role_setting AS o
		LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = o.setrole LEFT JOIN pg_catalog.pg_database AS d ON d.oid = o.setdatabase
	WHERE (o.setrole = 0 OR r.rolname = session_user) AND (o.setdatabase = 0 OR d.datname = pg_catalog.current_database())
		AND EXISTS (SELECT FROM pg_catalog.unnest(o.setconfig) AS c WHERE pg_catalog.split_part(c, '=', 1) = s.name)
	ORDER BY o.setrole = 0, o.setdatabase = 0 LIMIT 1), 'server')
FROM pg_catalog.pg_settings AS s
WHERE s.name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout')
	AND s.reset_val <> '0'
ORDER BY s.name`)
	if err != nil {
		return unknown(err)
	}
	if len(rows) == 0 {
		return checkup.Okf("none by role, database or server")
	}
	var list []string
	for _, row := range rows {
		if len(row) != 3 {
			continue
		}
		ms, _ := strconv.ParseInt(row[1], 10, 64)
		list = append(list, fmt.Sprintf("%s %v (%s)", row[0], time.Duration(ms)*time.Millisecond, row[2]))
	}
	return checkup.Okf("%s; overridden for the lock's session, not for the command's own", strings.Join(list, ", "))
}

// settings are those that have the server end a dead session, as it took them.
func (x *examination) settings(ctx context.Context) checkup.Check {
	ms := milliseconds(x.cfg.Lease)
	if x.cfg.Transaction {
		const setting = "idle_in_transaction_session_timeout"
		row, err := x.row(ctx, 1, strings.Join(x.cfg.begin(), "; ")+"; SELECT setting FROM pg_catalog.pg_settings WHERE name = '"+setting+"'")
		_, _ = x.rows(ctx, "ROLLBACK")
		switch {
		case err != nil:
			return failed(err)
		case row[0] != ms:
			return checkup.Failf(staleAdvice, "the server has %s at %s ms, where %s ms were set", setting, row[0], ms)
		}
		return checkup.Okf("%s %v", setting, x.cfg.Lease)
	}
	rows, err := x.rows(ctx, `SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ('idle_session_timeout', 'tcp_keepalives_idle',
	'tcp_keepalives_interval', 'tcp_keepalives_count', 'tcp_user_timeout', 'client_connection_check_interval')`)
	if err != nil {
		return unknown(err)
	}
	has := map[string]string{}
	for _, row := range rows {
		if len(row) == 2 {
			has[row[0]] = row[1]
		}
	}
	if has["idle_session_timeout"] != ms {
		return checkup.Failf(staleAdvice, "the server has idle_session_timeout at %q ms, where %s ms were set", has["idle_session_timeout"], ms)
	}
	seen := fmt.Sprintf("idle_session_timeout %v, client_connection_check_interval %s ms", x.cfg.Lease, has["client_connection_check_interval"])
	if _, ok := socket(x.pg.Conn()).RemoteAddr().(*net.TCPAddr); !ok {
		return checkup.Okf("%s", seen)
	}
	seen += fmt.Sprintf(", keepalives after %s s, every %s s, %s times, tcp_user_timeout %s ms",
		has["tcp_keepalives_idle"], has["tcp_keepalives_interval"], has["tcp_keepalives_count"], has["tcp_user_timeout"])
	if has["tcp_keepalives_idle"] == "0" || has["tcp_user_timeout"] == "0" {
		return checkup.Notef("", "%s; where these are 0 the server's system has or takes no such setting, and a waiter whose host vanishes stays in line until its slice of 30 to 60 s is over", seen)
	}
	return checkup.Okf("%s", seen)
}

const staleAdvice = "without it a lock whose holder's host has vanished stays held: does something in between make settings of its own?"

// lease holds the round trip against the lease.
func (x *examination) lease(ctx context.Context) checkup.Check {
	const trips = 10
	var took []time.Duration
	for range trips {
		began := time.Now()
		if _, err := x.rows(ctx, PlainBeat); err != nil {
			return failed(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	every := x.cfg.Lease / heartbeatsPerLease
	margin := HolderShare(x.cfg.Lease) - every
	seen := fmt.Sprintf("%v: a heartbeat every %v, answered after %v (the slowest of %d after %v), may take up to %v",
		x.cfg.Lease, every, coarse(took[trips/2]), trips, coarse(took[trips-1]), margin)
	const advice = "a longer --lease, the same on all nodes, rides out slower answers"
	switch slowest := took[trips-1]; {
	case slowest >= margin:
		return checkup.Failf(advice, "%s", seen)
	case slowest >= margin/4:
		return checkup.Warningf(advice, "%s", seen)
	}
	return checkup.Okf("%s", seen)
}

func (x *examination) delay(context.Context) checkup.Check {
	dead := TakeoverDelay(x.cfg.Lease)
	if x.lockDelay < dead {
		return checkup.Warningf(fmt.Sprintf("a former holder that knows nothing of its loss is dead after 2/3 of the lease: --lock-delay %v", dead),
			"%v: a takeover may overlap with the command of the former holder", x.lockDelay)
	}
	return checkup.Okf("%v: as long as a former holder may live on without knowing of its loss, or longer", x.lockDelay)
}

// fewSlots is when the server's slots are few: each holder and each waiter
// takes one.
const fewSlots = 10

func (x *examination) slots(ctx context.Context) checkup.Check {
	// pg_stat_database counts what pg_stat_activity hides from some.
	n, err := x.numbers(ctx, 6, `SELECT pg_catalog.current_setting('max_connections')::int - pg_catalog.current_setting('superuser_reserved_connections')::int
		- coalesce(pg_catalog.current_setting('reserved_connections', true)::int, 0),
	(SELECT sum(numbackends) FROM pg_catalog.pg_stat_database),
	(SELECT rolconnlimit FROM pg_catalog.pg_roles WHERE rolname = session_user),
	(SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE usename = session_user),
	(SELECT datconnlimit FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()),
	(SELECT numbackends FROM pg_catalog.pg_stat_database WHERE datname = pg_catalog.current_database())`)
	if err != nil {
		return unknown(err)
	}
	left, of, whose := n[0]-n[1], n[0], "the server's"
	if n[2] >= 0 && n[2]-n[3] < left {
		left, of, whose = n[2]-n[3], n[2], "role "+x.cfg.Database.User+"'s"
	}
	if n[4] >= 0 && n[4]-n[5] < left {
		left, of, whose = n[4]-n[5], n[4], "the database's"
	}
	seen := fmt.Sprintf("%d of %s %d connections are free", max(left, 0), whose, of)
	if left < fewSlots {
		return checkup.Warningf("every holder and every waiter takes one: raise the limit, or let fewer wait", "%s", seen)
	}
	return checkup.Okf("%s", seen)
}

func (x *examination) standbys(ctx context.Context) checkup.Check {
	row, err := x.row(ctx, 3, `SELECT pg_catalog.current_setting('synchronous_standby_names'), count(*), pg_catalog.current_setting('cluster_name') FROM pg_catalog.pg_stat_replication`)
	if err != nil {
		return unknown(err)
	}
	names, connected := row[0], row[1]+" connected"
	switch {
	case names == "" && x.cfg.Quorum:
		return checkup.Failf("set it, for instance to 'ANY 1 (a, b)' with two standbys, or leave --quorum away",
			"--quorum needs synchronous standbys, but synchronous_standby_names is empty (%s)", connected)
	case names == "" && row[1] == "0":
		return checkup.Okf("none, and none synchronous")
	case names == "":
		return checkup.Notef("if a standby is promoted while this server may still run, synchronous_standby_names and --quorum keep it from going on granting its locks",
			"%s, none synchronous", connected)
	case row[1] == "0":
		return checkup.Warningf("pg_stat_replication shows those that are connected", "synchronous_standby_names is %q, but none is connected: commits hang, with --quorum also a command's start, and without it if any session's NOTIFY hangs", names)
	case x.cfg.Quorum:
		there, _ := strconv.Atoi(row[1])
		return countStandbys(names, row[2], there)
	}
	return checkup.Notef("with --quorum a primary that is cut off from them loses its holders", "synchronous_standby_names is %q, %s", names, connected)
}

// notify tries what waiters and holders tell each other by.
func (x *examination) notify(ctx context.Context) checkup.Check {
	if x.cfg.Transaction {
		return checkup.Notef("", "not heard with --transaction: a takeover after a wait always waits out the lock-delay")
	}
	const name = "pglead.1.doctor"
	// A commit that waits for a standby would keep everybody's notifications waiting.
	_, err := x.rows(ctx, `LISTEN "`+name+`"; SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('`+name+`', '')`)
	if err == nil {
		_, err = x.rows(ctx, PlainBeat) // by its answer, a notification has arrived
	}
	if err != nil {
		return failed(err)
	}
	if x.heard != name {
		return checkup.Warningf("does something in between swallow notifications? Without them a takeover after a wait always waits out the lock-delay", "a notification was sent, and did not arrive")
	}
	full, err := x.row(ctx, 1, "SELECT pg_catalog.round(pg_catalog.pg_notification_queue_usage()::numeric * 100)")
	if err == nil && full[0] != "0" {
		return checkup.Warningf("some session listens and stays in a transaction; when the queue is full, no lock's holder can start", "a notification arrived; the server's queue of them is %s%% full", full[0])
	}
	return checkup.Okf("a notification was sent, and arrived")
}

// privilege is about one that no lock needs.
func (x *examination) privilege(role, does string) func(context.Context) checkup.Check {
	return func(ctx context.Context) checkup.Check {
		row, err := x.row(ctx, 1, "SELECT pg_catalog.pg_has_role('"+role+"', 'USAGE')")
		switch {
		case err != nil:
			return unknown(err)
		case row[0] != "t":
			return checkup.Notef("if it should: GRANT "+role+" TO "+x.cfg.Database.User, "not %s: may not %s", role, does)
		}
		return checkup.Okf("%s: may %s", role, does)
	}
}

// hosts looks at each of several hosts: at a failover another of them counts.
func (x *examination) hosts(ctx context.Context) {
	type found struct{ name, role, identity string }
	var all []found
	var texts, primaries []string
	unreachable := false
	for _, database := range apart(x.cfg.Database) {
		f := found{name: net.JoinHostPort(database.Host, strconv.Itoa(int(database.Port)))}
		cfg := x.cfg
		cfg.Database = database
		pg, err := connect(ctx, cfg, nil)
		if err == nil {
			var rows [][]string
			rows, err = (&Viewer{pg}).Rows(ctx, "SELECT pg_catalog.pg_is_in_recovery(), "+ServerIdentity)
			(&Viewer{pg}).Close()
			if err == nil && len(rows) == 1 && len(rows[0]) == 2 {
				f.role, f.identity = "primary", rows[0][1]
				if rows[0][0] == "t" {
					f.role = "standby"
				} else if !slices.Contains(primaries, f.identity) { // one server may have two names
					primaries = append(primaries, f.identity)
				}
			}
		}
		if err != nil {
			unreachable = true
			f.role = strings.TrimPrefix(err.Error(), "connect to "+Target(database)+": ")
		}
		all = append(all, f)
		texts = append(texts, f.name+" "+f.role)
	}
	seen := strings.Join(texts, ", ")
	switch {
	case len(all) < 2:
	case len(primaries) > 1:
		x.add("hosts", checkup.Failf("name the hosts of one cluster only, and stop the one that a failover has left behind", "%s: the locks of one primary exclude nobody on another", seen))
	case unreachable:
		x.add("hosts", checkup.Warningf("after a failover to a host that can't be reached from here, this node has no lock", "%s", seen))
	default:
		x.add("hosts", checkup.Okf("%s", seen))
	}
}

// apart are the configurations of cfg's hosts, one of each.
func apart(cfg *pgconn.Config) []*pgconn.Config {
	var list []*pgconn.Config
	for _, f := range append([]*pgconn.FallbackConfig{{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}}, cfg.Fallbacks...) {
		i := slices.IndexFunc(list, func(c *pgconn.Config) bool { return c.Host == f.Host && c.Port == f.Port })
		if i >= 0 { // with another sslmode
			list[i].Fallbacks = append(list[i].Fallbacks, f)
			continue
		}
		c := cfg.Copy()
		c.Host, c.Port, c.TLSConfig, c.Fallbacks = f.Host, f.Port, f.TLSConfig, nil
		list = append(list, c)
	}
	return list
}

// trial takes a lock that nobody else has, and sees whether a second session is
// refused it.
func (x *examination) trial(ctx context.Context) error {
	began := time.Now()
	check, err := x.try(ctx, x.cfg)
	if err != nil {
		check = failed(err)
	}
	check.Seen += fmt.Sprintf(" (%v)", coarse(time.Since(began)))
	x.add("lock", check)
	return err
}

// coarse rounds to what a reader cares about.
func coarse(d time.Duration) time.Duration {
	switch {
	case d < time.Millisecond:
		return d.Round(10 * time.Microsecond)
	case d < time.Second:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(100 * time.Millisecond)
}
