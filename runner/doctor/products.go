package doctor

import (
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// product is a service, or an addition to PostgreSQL, of which a user of locks
// should know something.
type product struct {
	sign          string // a row of signsQuery
	name          string
	advice        string
	manyPrimaries bool
}

// products are in the order in which they are looked for: Aurora has RDS's
// roles too.
func products() []product {
	const nodes = "locks are each node's own: give all pgleads the same one node, and fail over by hand"
	return []product{
		{"extension bdr", "several primaries (BDR)", nodes, true},
		{"extension spock", "several primaries (Spock)", nodes, true},
		{"function aurora_version", "Amazon Aurora", "connect to the cluster's writer endpoint; an RDS Proxy is a pooler", false},
		{"role rds_superuser", "Amazon RDS", "connect to the instance's own endpoint; an RDS Proxy is a pooler", false},
		{"role alloydbsuperuser", "AlloyDB", "the Auth Proxy is no pooler; managed connection pooling is one", false},
		{"role cloudsqlsuperuser", "Google Cloud SQL", "the Auth Proxy is no pooler; managed connection pooling is one", false},
		{"role azure_pg_admin", "Azure Database for PostgreSQL", "port 5432 is the server, port 6432 its pooler", false},
		{"role supabase_admin", "Supabase", "db.PROJECT.supabase.co is the server (by IPv6, or with the IPv4 add-on), pooler.supabase.com a pooler on either port", false},
		{"role neon_superuser", "Neon", "a held lock's heartbeat keeps the compute from being suspended; waiters and candidates do so too", false},
		{"application Patroni", "under Patroni", "give all hosts (host=a,b,c), or HAProxy's port of the primary; with synchronous_mode and synchronous_mode_strict, --quorum covers a primary that Patroni fails to demote", false},
	}
}

// signsQuery has one column; everybody may see all of it.
const signsQuery = `SELECT 'extension ' || extname FROM pg_catalog.pg_extension
UNION ALL SELECT 'function ' || proname FROM pg_catalog.pg_proc WHERE proname = 'aurora_version'
UNION ALL SELECT 'role ' || rolname FROM pg_catalog.pg_roles
	WHERE rolname IN ('rds_superuser', 'alloydbsuperuser', 'cloudsqlsuperuser', 'azure_pg_admin', 'supabase_admin', 'neon_superuser')
UNION ALL SELECT 'application ' || pg_catalog.split_part(application_name, ' ', 1) FROM pg_catalog.pg_stat_activity WHERE application_name LIKE 'Patroni%'`

// directHost says how to go round a pooler that is known by its address.
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
