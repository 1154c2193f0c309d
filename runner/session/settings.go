package session

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// settings are those that the session needs in either mode.
func (cfg Config) settings() [][2]string {
	return [][2]string{
		{"application_name", cfg.ApplicationName},
		{"client_min_messages", "warning"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
	}
}

// sessionSettings is an SQL expression. It makes the settings of a session that only
// this process uses.
func (cfg Config) sessionSettings(major int) string {
	settings := cfg.settings()
	if major >= 17 {
		settings = append(settings, [2]string{transactionTimeout, "0"})
	}
	return set(false, append(settings,
		[2]string{"idle_in_transaction_session_timeout", "0"},
		[2]string{"idle_session_timeout", milliseconds(cfg.Lease)},
		// While a request of ours waits for a lock only these tell the server
		// that we are gone. They are without effect on a unix socket.
		[2]string{"tcp_keepalives_idle", seconds(cfg.Lease / 3)},
		[2]string{"tcp_keepalives_interval", seconds(cfg.Lease / 6)},
		[2]string{"tcp_keepalives_count", strconv.Itoa(keepaliveCount)},
		[2]string{"tcp_user_timeout", milliseconds(cfg.Lease)},
		[2]string{"client_connection_check_interval", milliseconds(cfg.Lease / heartbeatsPerLease)}))
}

// set is an SQL expression that makes settings, for the session or only for
// the transaction.
func set(local bool, settings [][2]string) string {
	calls := make([]string, len(settings))
	for i, s := range settings {
		calls[i] = fmt.Sprintf("pg_catalog.set_config('%s', '%s', %t)", s[0], s[1], local)
	}
	return strings.Join(calls, " || ")
}

// Begin are the queries that begin the transaction which holds the lock. The isolation
// level is read committed: it keeps no snapshot between two heartbeats, which would
// hold back vacuum.
func (cfg Config) Begin() []string {
	return []string{
		"BEGIN ISOLATION LEVEL READ COMMITTED",
		"SELECT " + set(true, append(cfg.settings(), [2]string{"idle_in_transaction_session_timeout", milliseconds(cfg.Lease)})) +
			" || CASE WHEN pg_catalog.current_setting('" + transactionTimeout + "', true) IS NULL THEN '' ELSE pg_catalog.set_config('" + transactionTimeout + "', '0', true) END",
	}
}

// transactionTimeout is a setting that PostgreSQL has from 17 on. It would end the
// transaction that holds a lock, and a wait in the server's queue. The version that a
// pooler names at the login need not be the server's.
const transactionTimeout = "transaction_timeout"

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// seconds rounds up: 0 would stand for the server's own default.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}
