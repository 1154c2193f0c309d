package doctor

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/session"
)

func (x *examination) server(ctx context.Context) checkup.Check {
	row, err := x.row(ctx, 3, `SELECT pg_catalog.version(), pg_catalog.current_setting('server_version_num'), pg_catalog.current_setting('fsync')`)
	if err != nil {
		return failed(err)
	}
	version, _, _ := strings.Cut(row[0], " on ") // machine and compiler follow
	switch number, _ := strconv.Atoi(row[1]); {
	case number/1_00_00 < session.OldestMajor:
		return failed(session.TooOldError(row[0]))
	case row[2] == "off":
		return checkup.Warningf("fsync = on in postgresql.conf", "%s, with fsync off: after a crash of its machine a fencing token may be given twice", version)
	}
	signs, err := x.Query(ctx, signsQuery)
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
	CASE WHEN pg_catalog.pg_is_in_recovery() THEN 0 ELSE `+session.TimelineSQL+` END`)
	if err != nil {
		return failed(err)
	}
	if row[0] == "t" {
		return failed(session.StandbyError())
	}
	up, _ := strconv.Atoi(row[1])
	seen := fmt.Sprintf("yes, up for %v, timeline %s", time.Duration(up)*time.Second, row[2])
	age, err := session.AskAge(ctx, x)
	if err != nil {
		return failed(err)
	}
	if x.refused == nil && age < x.lockDelay {
		advice := ""
		if row[2] != "1" {
			advice = "pg_read_all_stats lets a role see how long ago that was; others see no more than the last checkpoint, and when tables were vacuumed since"
		}
		return checkup.Notef(advice, "%s; for all that can be seen restarted, recovered or promoted %v ago: until that is %v, a first try that succeeds waits for the rest, unless a ledger has the end of the last run",
			seen, coarse(age), x.lockDelay)
	}
	return checkup.Okf("%s", seen)
}

// timeouts finds timeouts that a role, a database or the server sets for every session,
// and that would end a holder's or a waiter's session.
func (x *examination) timeouts(ctx context.Context) checkup.Check {
	rows, err := x.Query(ctx, `SELECT s.name, s.reset_val, coalesce((
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

// settings checks that the server has accepted the settings that make it end a dead session.
func (x *examination) settings(ctx context.Context) checkup.Check {
	ms := strconv.FormatInt(x.cfg.Lease.Milliseconds(), 10)
	if x.cfg.Transaction {
		const setting = "idle_in_transaction_session_timeout"
		x.client.MayWrite() // BeginQueries ask for that, after the client's own query
		row, err := x.row(ctx, 1, strings.Join(x.cfg.BeginQueries(), "; ")+"; SELECT setting FROM pg_catalog.pg_settings WHERE name = '"+setting+"'")
		_, _ = x.Query(ctx, "ROLLBACK")
		switch {
		case err != nil:
			return failed(err)
		case row[0] != ms:
			return checkup.Failf(staleAdvice, "the server has %s at %s ms, where %s ms were set", setting, row[0], ms)
		}
		return checkup.Okf("%s %v", setting, x.cfg.Lease)
	}
	rows, err := x.Query(ctx, `SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ('idle_session_timeout', 'tcp_keepalives_idle',
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
	if _, ok := x.client.Socket().RemoteAddr().(*net.TCPAddr); !ok {
		return checkup.Okf("%s", seen)
	}
	seen += fmt.Sprintf(", keepalives after %s s, every %s s, %s times, tcp_user_timeout %s ms",
		has["tcp_keepalives_idle"], has["tcp_keepalives_interval"], has["tcp_keepalives_count"], has["tcp_user_timeout"])
	if has["tcp_keepalives_idle"] == "0" || has["tcp_user_timeout"] == "0" {
		return checkup.Notef("", "%s; where these are 0 the server's system has or takes no such setting: a session whose host vanishes while a query of it runs is noticed later", seen)
	}
	return checkup.Okf("%s", seen)
}

const staleAdvice = "without it a lock whose holder's host has vanished stays held: does something in between make settings of its own?"

// lease compares the round trip with the lease.
func (x *examination) lease(ctx context.Context) checkup.Check {
	const trips = 10
	var took []time.Duration
	for range trips {
		began := time.Now()
		if _, err := x.Query(ctx, session.PlainBeatQuery); err != nil {
			return failed(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	every := leasetime.BeatEvery(x.cfg.Lease)
	margin, each := leasetime.HolderShare(x.cfg.Lease)-every, leasetime.SteadyAnswer(x.cfg.Lease)
	seen := fmt.Sprintf("%v: a heartbeat every %v, answered after %v (the slowest of %d after %v), may take up to %v, or up to %v if each is slow",
		x.cfg.Lease, every, coarse(took[trips/2]), trips, coarse(took[trips-1]), margin, each)
	const advice = "a longer --lease, the same on all nodes, rides out slower answers"
	switch slowest := took[trips-1]; {
	case slowest >= margin, took[trips/2] >= each:
		return checkup.Failf(advice, "%s", seen)
	case slowest >= margin/4:
		return checkup.Warningf(advice, "%s", seen)
	}
	return checkup.Okf("%s", seen)
}

func (x *examination) delay(context.Context) checkup.Check {
	dead := leasetime.DeadAfter(x.cfg.Lease, 0)
	if x.lockDelay < dead {
		return checkup.Warningf(fmt.Sprintf("a former holder that knows nothing of its loss is dead after 2/3 of the lease: --lock-delay %v", dead),
			"%v: a takeover may overlap with the command of the former holder", x.lockDelay)
	}
	return checkup.Okf("%v: as long as a former holder may live on without knowing of its loss, or longer", x.lockDelay)
}

// With fewer free connections than this doctor warns: each holder and each waiter takes one.
const fewConnections = 10

func (x *examination) slots(ctx context.Context) checkup.Check {
	limits, err := inspect.ReadLimits(ctx, x)
	if err != nil {
		return unknown(err)
	}
	left, err := limits.Room(ctx, x)
	if err != nil {
		return unknown(err)
	}
	whose := "the " + left.Whose
	if left.Whose == "role" {
		whose = "role " + x.cfg.Database.User
	}
	seen := fmt.Sprintf("%d of %s's %d connections are free", max(left.Free, 0), whose, left.Of)
	if left.Free < fewConnections {
		return checkup.Warningf("every holder and every waiter takes one: raise the limit, or let fewer wait", "%s", seen)
	}
	return checkup.Okf("%s", seen)
}

// notify tests the notifications between waiters and holders.
func (x *examination) notify(ctx context.Context) checkup.Check {
	if x.cfg.Transaction {
		return checkup.Notef("", "not heard with --transaction: a takeover after a wait waits out the lock-delay, unless a ledger says that the last command is dead")
	}
	const name = "pglead.1.doctor"
	// While a commit with a NOTIFY waits for a standby, all notifications wait.
	_, err := x.Query(ctx, `LISTEN "`+name+`"; SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('`+name+`', '')`)
	if err == nil {
		_, err = x.Query(ctx, session.PlainBeatQuery) // a notification arrives before the answer
	}
	if session.QueueFull(err) {
		return x.fullQueue(ctx, err)
	}
	if err != nil {
		return failed(err)
	}
	if x.heard != name {
		const advice = "does something in between swallow notifications? " +
			"Without them a takeover after a wait waits out the lock-delay, unless a ledger says that the last command is dead"
		return checkup.Warningf(advice, "a notification was sent, and did not arrive")
	}
	full, err := x.row(ctx, 1, "SELECT pg_catalog.round("+session.QueueUsageSQL+"::numeric * 100)")
	if err == nil && full[0] != "0" {
		return checkup.Warningf("some session listens and stays in a transaction; when the queue is full, no lock's holder can start",
			"a notification arrived; the server's queue of them is %s%% full", full[0])
	}
	return checkup.Okf("a notification was sent, and arrived")
}

// fullQueue frees the queue of notifications, if the listener that kept it full is gone. Otherwise
// it names the oldest transaction that this role may see.
func (x *examination) fullQueue(ctx context.Context, err error) checkup.Check {
	row, unread := x.row(ctx, 2, "SELECT "+session.QueueUsageSQL+` > 0.5,
	(SELECT pid FROM pg_catalog.pg_stat_activity WHERE state = 'idle in transaction' ORDER BY xact_start LIMIT 1)`)
	check := failed(err)
	switch {
	case unread != nil:
	case row[0] != "t":
		return checkup.Warningf("a session that listened and stayed in a transaction had kept it full; without pglead, SELECT pg_notification_queue_usage() frees it",
			"%s; its listeners are done with it, and it is free again", err)
	case row[1] != "":
		check.Advice += "; among those idle in a transaction that is process " + row[1]
	}
	return check
}

// seeOthers says what is seen of other pgleads, and of this role's.
func (x *examination) seeOthers(ctx context.Context) checkup.Check {
	row, err := x.row(ctx, 2, `SELECT pg_catalog.current_setting('track_activities'),
	pg_catalog.pg_has_role(session_user, 'USAGE') OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')`)
	const unseen = "nor the silence of one that is cut off, whose lock the next one then gets after a lease and a lock-delay"
	switch {
	case err != nil:
		return unknown(err)
	case row[0] == "off": // of this role, since a session's setting is about itself
		return checkup.Warningf("as a superuser: ALTER ROLE "+inspect.Role(ctx, x)+" SET track_activities = on",
			"track_activities is off: nobody sees what this role's pgleads run (pglead ls, who), "+unseen)
	case row[1] != "t": // the server shows a session to those who have the role that logged in
		acting := inspect.Role(ctx, x)
		return checkup.Warningf("GRANT pg_read_all_stats, pg_signal_backend TO "+acting+"; or ALTER ROLE … RESET role, for the role that logs in",
			"the role that logs in acts as %s (SET role), which does not see what its own pgleads run (pglead ls, who), "+unseen, acting)
	}
	return x.privilege("pg_read_all_stats", "see what other roles' pgleads run (pglead ls, who)")(ctx)
}

// privilege looks for a privilege that no lock needs.
func (x *examination) privilege(role, does string) func(context.Context) checkup.Check {
	return func(ctx context.Context) checkup.Check {
		row, err := x.row(ctx, 1, "SELECT pg_catalog.pg_has_role('"+role+"', 'USAGE')")
		switch {
		case err != nil:
			return unknown(err)
		case row[0] != "t":
			return checkup.Notef("if it should: GRANT "+role+" TO "+inspect.Role(ctx, x), "not %s: may not %s", role, does)
		}
		return checkup.Okf("%s: may %s", role, does)
	}
}

// product is a service, or an extension of PostgreSQL, about which a user of locks should
// know something.
type product struct {
	sign          string // a row of signsQuery
	name          string
	advice        string
	manyPrimaries bool
}

// products are in search order: Aurora comes before RDS, whose roles it has,
// too.
func products() []product {
	const (
		nodes    = "locks are each node's own: give all pgleads the same one node, and fail over by hand"
		supabase = "db.PROJECT.supabase.co is the server (by IPv6, or with the IPv4 add-on), pooler.supabase.com a pooler on either port"
		patroni  = "give all hosts (host=a,b,c), or HAProxy's port of the primary; " +
			"with synchronous_mode and synchronous_mode_strict, --quorum covers a primary that Patroni fails to demote"
	)
	return []product{
		{"extension bdr", "several primaries (BDR)", nodes, true},
		{"extension spock", "several primaries (Spock)", nodes, true},
		{"function aurora_version", "Amazon Aurora", "connect to the cluster's writer endpoint; an RDS Proxy is a pooler", false},
		{"role rds_superuser", "Amazon RDS", "connect to the instance's own endpoint; an RDS Proxy is a pooler", false},
		{"role alloydbsuperuser", "AlloyDB", "the Auth Proxy is no pooler; managed connection pooling is one", false},
		{"role cloudsqlsuperuser", "Google Cloud SQL", "the Auth Proxy is no pooler; managed connection pooling is one", false},
		{"role azure_pg_admin", "Azure Database for PostgreSQL", "port 5432 is the server, port 6432 its pooler", false},
		{"role supabase_admin", "Supabase", supabase, false},
		{"role neon_superuser", "Neon", "a held lock's heartbeat keeps the compute from being suspended; waiters and candidates do so too", false},
		{"application Patroni", "under Patroni", patroni, false},
	}
}

// signsQuery has one column; everybody may see all of it.
const signsQuery = `SELECT 'extension ' || extname FROM pg_catalog.pg_extension
UNION ALL SELECT 'function ' || proname FROM pg_catalog.pg_proc WHERE proname = 'aurora_version'
UNION ALL SELECT 'role ' || rolname FROM pg_catalog.pg_roles
	WHERE rolname IN ('rds_superuser', 'alloydbsuperuser', 'cloudsqlsuperuser', 'azure_pg_admin', 'supabase_admin', 'neon_superuser')
UNION ALL SELECT 'application ' || pg_catalog.split_part(application_name, ' ', 1) FROM pg_catalog.pg_stat_activity WHERE application_name LIKE 'Patroni%'`

// directHost says how to get past a pooler that is known by its address.
func directHost(cfg *pgconn.Config) string {
	switch host, name, port := cfg.Host, strings.ToLower(cfg.Host), cfg.Port; {
	case strings.HasSuffix(name, ".neon.tech") && strings.Contains(name, "-pooler."):
		return "connect to Neon itself: " + strings.Replace(host, "-pooler.", ".", 1)
	case strings.HasSuffix(name, ".pooler.supabase.com"):
		return "connect to Supabase itself: db.PROJECT.supabase.co, by IPv6 or with the IPv4 add-on"
	case strings.HasSuffix(name, ".rds.amazonaws.com") && strings.Contains(name, ".proxy-"):
		return "connect to the instance's or the cluster's writer endpoint, not to the RDS Proxy"
	case port == 6432:
		return "6432 is PgBouncer's port: connect to PostgreSQL's, by default 5432"
	}
	return ""
}
