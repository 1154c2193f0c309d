package runner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/leasetime"
)

// commandSpec says what the guard starts, and when and how the guard ends it.
func (r *run) commandSpec() child.Spec {
	lease := r.cfg.Lock.Session.Lease
	release, endsSession := r.held.EncodedRelease()
	return child.Spec{
		Path: r.cfg.Path, Args: r.cfg.Command, Env: r.environment(),
		Deadline: r.held.Session.Deadline(), WaitForLeftovers: r.cfg.WaitForLeftovers,
		LostGrace: r.cfg.Lock.LostGrace, MostGrace: leasetime.MostGrace(lease), GuardPatience: guardPatience(lease),
		Release: release, ReleaseEndsSession: endsSession,
		SocketLinger: r.socketLinger(), SharesSocket: r.sharesSocket, KeepGuard: r.keepGuard,
		Unkillable: func(names string) { r.nameUnkillable(names, r.held.Err() != nil) },
	}
}

// socketLinger is how long the guard of a stopped pglead keeps the connection open, and so the lock
// held, when the tree is dead. Then the guard closes the connection, since a server that writes to
// a stopped pglead's full unix socket would wait for ever. Mostly the server has ended it before.
func (r *run) socketLinger() time.Duration {
	lease := r.cfg.Lock.Session.Lease
	switch {
	case r.cfg.Lock.Session.Transaction: // behind a pooler nobody sees the silence
		return 0
	case r.sharesSocket: // by then the other commands under the session are dead, too
		return lease
	}
	return leasetime.ForKill(lease) + silencePatience // the waiters in line see that the holder is silent
}

// silencePatience is how long those in line may take to see that a holder is silent: the 2 s that
// the torture allows them, and 2 s more.
const silencePatience = 4 * time.Second

// guardPatience is how long the guard may take to kill once the lock is lost: half of the
// time between the holder's share of the lease and the instant at which the command has
// to be dead. In the other half this process kills the guard and what is left.
func guardPatience(lease time.Duration) time.Duration {
	const most = 2 * time.Second
	return min(most, leasetime.ForKill(lease)/2)
}

// environment is the command's environment, with the variables that describe its lock. Several
// keys, or numbers, are one to a line.
func (r *run) environment() []string {
	var ids []string
	for _, l := range r.held.Locks() {
		ids = append(ids, l.String())
	}
	env := append(slices.Clone(r.cfg.Env),
		"PGLEAD_LOCK_KEY="+strings.Join(r.cfg.Lock.Claim.Keys, "\n"),
		"PGLEAD_LOCK_ID="+strings.Join(ids, "\n"),
		fmt.Sprintf("PGLEAD_TOKEN=%d", r.held.Token),
		"PGLEAD_SYSTEM_ID="+r.held.SystemID,
		fmt.Sprintf("PGLEAD_BACKEND_PID=%d", r.held.Session.BackendPID()),
	)
	if r.held.Slot() > 0 {
		env = append(env, fmt.Sprintf("PGLEAD_SLOT=%d", r.held.Slot()))
	}
	return env
}
