package cmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

func newStepdownCmd(u *ui) *cobra.Command {
	h := handover{lookFlags: lookFlags{options: newOptions(u)}}
	cmd := &cobra.Command{
		Use:        "stepdown KEY [flags]",
		SuggestFor: []string{"unlock", "release", "kill", "stop"},
		Short:      "Ask the holder to stop and hand over",
		Long: `Ask the pglead that holds the key to stop its command, as by SIGTERM, and to
release the lock; whoever waits gets it next. Any role that may log in may
ask. A pglead looks for requests half a second after its command's start, and
then every fifth of its lease. The request lasts until then, but at most 20 s,
or for as long as --wait. If the asking process is stopped, or its host is
dead, the server ends the request after 5 s. Of pglead each it ends the command
of the item that has the key.

With --wait this returns when the lock is another's, or free: exit status 0, or
75 if it is still held when the time is over, and the holder has looked for the
request or 20 s have passed. The exit status is 1 if nobody holds the lock.`,
		Example: `  pglead stepdown scheduler --wait 1m
  pglead stepdown scheduler --to web2`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			return h.withLocksOf(cmd, args[0], func(ctx context.Context, client *session.Client, claim lock.Claim, locks []*inspect.Lock) error {
				h.out, h.client, h.claim = cmd.OutOrStdout(), client, claim
				return h.carryOut(ctx, locks)
			})
		},
	}
	flags := cmd.Flags()
	h.lockFlags(cmd)
	h.register(cmd, "wait")
	flags.Lookup("wait").Usage = "how long to wait until the lock is another's or free, or forever"
	flags.StringVar(&h.to, "to", "", "prefer the waiter on `HOST` as the next holder")
	flags.BoolVar(&h.force, "force", false, "end the holder's session instead: its command is killed. Needs pg_signal_backend if the session is another role's")
	return cmd
}

// handover is a handover that the user asks for.
type handover struct {
	lookFlags
	force bool
	to    string

	out    io.Writer
	client *session.Client
	claim  lock.Claim
	former []inspect.View // the holders that should step down

	request *lock.StepDownRequest // or nil
}

// carryOut requests the handover and waits for it.
func (h *handover) carryOut(ctx context.Context, locks []*inspect.Lock) error {
	var waiters []inspect.View
	for _, l := range locks {
		h.former = append(h.former, l.Holders...)
		waiters = append(waiters, l.Waiters...)
	}
	prepared := slices.IndexFunc(h.former, inspect.View.Prepared)
	unable := slices.IndexFunc(h.former, func(v inspect.View) bool { return v.Transaction }) // it announces nothing
	switch {
	case len(h.former) == 0:
		fmt.Fprintln(h.out, h.freeText())
		return &silentExit{code: exitNo}
	case prepared >= 0:
		return usagef("", "there is no session to ask or to end: the lock is held by %s", h.former[prepared])
	case h.to != "" && !slices.ContainsFunc(waiters, func(w inspect.View) bool { return w.Where() == h.to }):
		return noSuchWaiter(h.keys[0], h.to, waiters)
	case h.to != "" && unable >= 0:
		return usagef("without --to it steps down, and any waiter may be next", "--to %s: with --transaction a holder can't choose who is next: %s", printable(h.to), h.former[unable])
	case h.force:
		for _, holder := range h.former {
			if err := inspect.Terminate(ctx, h.client, holder.Backend); err != nil {
				return err
			}
			fmt.Fprintf(h.out, "ended the session of %s\n", holder)
		}
		return h.awaitSuccessor(ctx, h.wait.value)
	}
	patience, err := h.ask(ctx)
	if err != nil {
		return err
	}
	defer h.request.Close() // awaitSuccessor may close it before
	return h.awaitSuccessor(ctx, max(patience, h.wait.value))
}

// noSuchWaiter names the hosts that --to can choose.
func noSuchWaiter(key, to string, waiters []inspect.View) error {
	const most = 5
	var hosts []string
	for _, w := range waiters {
		if host := visible.Text(w.Where()); w.Pglead() && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	hint := "nobody waits"
	if len(hosts) > 0 {
		hint = "pglead waits on " + few(hosts, most)
	}
	return usagef(hint, "--to %s: no pglead on that host waits for %s", printable(to), printable(key))
}

// ask asks the holders to step down, and returns how long the request has to last: each holder
// looks for requests with each heartbeat, once its lock-delay is over.
func (h *handover) ask(ctx context.Context) (patience time.Duration, err error) {
	var ids []lockkey.ID
	for _, holder := range h.former {
		if !holder.Pglead() {
			return 0, usagef("it can't be asked; --force ends its session", "the lock is held by %s", holder)
		}
		lease := cmp.Or(holder.Lease, defaultLease) // a holder may not show its lease
		patience = max(patience, holder.Delay+leasetime.BeatEvery(lease)+askMargin)
		ids = append(ids, holder.ID)
	}
	says := h.description("")
	h.request, err = lock.AskToStepDown(ctx, h.server, ids, says.User+" on "+says.Host, h.to)
	if err != nil {
		return 0, err
	}
	for _, holder := range h.former {
		fmt.Fprintf(h.out, "asked %s\n", holder)
	}
	return min(patience, askMost), nil
}

const (
	askMargin = 2 * time.Second // for a late heartbeat
	// askMost limits how long a request lasts, since that depends on what the holders' sessions
	// show, which may be anything. A holder whose lease is longer than 90 s may not have looked by
	// then, nor one in its lock-delay whose lease is longer than 20 s. The user can set a longer
	// time by --wait.
	askMost = 20 * time.Second
)

// successorPoll is how often awaitSuccessor looks.
const successorPoll = 200 * time.Millisecond

// awaitSuccessor waits until the former holders have gone. It reports the result only with
// --wait.
func (h *handover) awaitSuccessor(ctx context.Context, patience time.Duration) error {
	seenFree := false
	for began := time.Now(); ; {
		now, still, err := h.holders(ctx)
		if err != nil {
			return err
		}
		if still && h.request != nil {
			if err := h.request.Check(); err != nil {
				return err
			}
		}
		over := time.Since(began) >= patience
		switch {
		case h.wait.value == 0 && (!still || over):
			return nil
		case !still && (now != "" || seenFree):
			fmt.Fprintf(h.out, "now: %s\n", cmp.Or(now, "free"))
			return nil
		case !still: // it may be free only until the next waiter gets it: look again
			seenFree = true
			if h.request != nil {
				h.request.Close() // otherwise the next holder would be asked, too
				h.request = nil
			}
		case over:
			fmt.Fprintf(h.out, "still: %s\n", now)
			return &silentExit{code: exitConflict}
		}
		select {
		case <-time.After(successorPoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// holders names the present holders of the lock, and says whether a former holder is among
// them.
func (h *handover) holders(ctx context.Context) (now string, still bool, err error) {
	views, err := inspect.Views(ctx, h.client, h.claim.Sought())
	if err != nil {
		return "", false, err
	}
	var names []string
	for _, l := range inspect.Locks(views) {
		for _, holder := range l.Holders {
			names = append(names, holder.String())
			still = still || slices.ContainsFunc(h.former, holder.SameTenure)
		}
	}
	return strings.Join(names, "; "), still, nil
}
