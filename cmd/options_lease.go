package cmd

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/pglead/pglead/runner/leasetime"
)

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
