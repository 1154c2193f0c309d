package cmd

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglead/pglead/runner/leasetime"
)

// serverOptions are the flags that say which database to use, and for how long to try.
type serverOptions struct {
	dsn            string
	connectTimeout duration
}

func newServerOptions() serverOptions {
	return serverOptions{connectTimeout: duration{value: 10 * time.Second}}
}

func (s *serverOptions) dsnFlag(flags *pflag.FlagSet) {
	flags.StringVarP(&s.dsn, "dsn", "d", "", "the database's `DSN`: a URI, keywords or a name, as for psql; or embedded, a private server")
}

func (s *serverOptions) connectTimeoutFlag(flags *pflag.FlagSet) {
	flags.Var(&s.connectTimeout, "connect-timeout", "how long each attempt to connect may take, and how long a full server is asked again")
}

func (s *serverOptions) checkTimeout() error {
	if s.connectTimeout.value <= 0 {
		return usagef("--connect-timeout must be longer than 0")
	}
	return nil
}

// resolveDatabase finds out which database the flags or the environment name, and warns of
// variables that may be misspelt. The connection string may set the time for an attempt to connect;
// the flag overrides that. pass says that the command gets the connection string, too.
func (s *serverOptions) resolveDatabase(u *ui, cmd *cobra.Command, pass bool) (database, error) {
	warnOfVariables(u, cmd)
	flags := cmd.Flags()
	db, err := chooseDatabase(u, flags.Lookup("dsn"), pass)
	db.connectTimeout = s.connectTimeout.value
	if err == nil && !flags.Changed("connect-timeout") && db.config.ConnectTimeout > 0 {
		db.connectTimeout = db.config.ConnectTimeout
	}
	return db, err
}

// leaseOptions are the flags that say how a lock is held, and given up.
type leaseOptions struct {
	lease, lockDelay    duration
	transaction, quorum bool
}

const (
	defaultLease = 15 * time.Second
	leastLease   = 3 * time.Second // it leaves 0.6 s for a heartbeat
)

func newLeaseOptions() leaseOptions { return leaseOptions{lease: duration{value: defaultLease}} }

// takeoverFlags registers two flags. grace is in the default of --lock-delay, besides what the lease
// adds.
func (l *leaseOptions) takeoverFlags(flags *pflag.FlagSet, grace string) {
	flags.Var(&l.lease, "lease", "a holder that the server can't hear for this long loses the lock; from 3s to 24h")
	flags.Var(&l.lockDelay, "lock-delay", "how long a new holder waits for an old command that may still run; 0 never waits "+
		"(default 2/3 of the lease"+grace+")")
}

func (l *leaseOptions) modeFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&l.transaction, "transaction", false, "hold the lock in a transaction that stays open: for a connection pooler")
	flags.BoolVar(&l.quorum, "quorum", false, "lose the lock when the primary loses its synchronous standbys")
}

func (l *leaseOptions) checkLease() error {
	switch {
	case l.lease.value < leastLease:
		return usagef("--lease %s is too short: at least %v", &l.lease, leastLease)
	case l.lease.value > leasetime.Most:
		return usagef("--lease %s is too long: at most %s", &l.lease, &duration{value: leasetime.Most})
	}
	return nil
}

// delay is the lock-delay. Unless the flag is given, it is as long as an old holder may live on.
func (l *leaseOptions) delay(flags *pflag.FlagSet, lostGrace time.Duration) time.Duration {
	if flags.Changed("lock-delay") {
		return l.lockDelay.value
	}
	return leasetime.DeadAfter(l.lease.value, lostGrace)
}
