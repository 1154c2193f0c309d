package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

func newStepdownCmd(v *voice, stdout io.Writer) *cobra.Command {
	f := newViewFlags()
	var force bool
	var to string
	cmd := &cobra.Command{
		Use:   "stepdown KEY [flags]",
		Short: "Ask the holder to stop and hand over",
		Long: `Ask the pglead that holds the key to stop its command, as by SIGTERM, and to
give the lock back; whoever waits gets it next. Any role that may log in may ask.
A pglead listens from a second after its command's start on; with --wait it is
asked again until it has heard.

With --wait this returns when the lock is another's, or free: exit status 0, or 75
if it is still held when the time is over. The exit status is 1 if nobody holds
the lock.`,
		Example: `  pglead stepdown scheduler --wait 1m
  pglead stepdown scheduler --to web2`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.fromEnvironment(cmd); err != nil {
				return err
			}
			claim, err := f.claimOf(args[0])
			if err != nil {
				return err
			}
			return f.look(v, cmd, func(ctx context.Context, viewer *session.Viewer, target string) error {
				return f.stepDown(ctx, stdout, viewer, target, claim, force, to)
			})
		},
	}
	f.register(cmd, "")
	cmd.Flags().Lookup("output").Hidden = true
	f.keyFlags(cmd)
	flags := cmd.Flags()
	flags.VarP(&f.wait, "wait", "w", "how long to wait for the lock to be another's or free, or forever")
	flags.StringVar(&to, "to", "", "the waiter on `HOST` is to have the lock next")
	flags.BoolVar(&force, "force", false, "end the holder's session instead: its command is killed. Needs pg_signal_backend")
	return cmd
}

func (f *viewFlags) stepDown(ctx context.Context, stdout io.Writer, viewer *session.Viewer, target string, claim lock.Claim, force bool, to string) error {
	key := f.keys[0]
	claim, locks, err := f.seek(ctx, viewer, claim)
	if err != nil {
		return err
	}
	var holders, waiters []inspect.View
	for _, l := range locks {
		holders = append(holders, l.Holders...)
		waiters = append(waiters, l.Waiters...)
	}
	if len(holders) == 0 {
		fmt.Fprintf(stdout, "%s is free in %s\n", printable(key), visible.Text(target))
		return &listError{exitFree}
	}
	if to != "" && !slices.ContainsFunc(waiters, func(w inspect.View) bool { return w.Where() == to }) {
		return noSuchWaiter(key, to, waiters)
	}
	if force {
		for _, h := range holders {
			if err := inspect.Terminate(ctx, viewer, h.Backend); err != nil {
				return err
			}
			fmt.Fprintf(stdout, "ended the session of %s\n", h)
		}
		return f.awaitSuccessor(ctx, stdout, viewer, claim, holders, f.wait.value)
	}
	request, patience, err := f.ask(ctx, stdout, holders, to)
	if err != nil {
		return err
	}
	defer request.Close()
	return f.awaitSuccessor(ctx, stdout, viewer, claim, holders, max(patience, f.wait.value))
}

// noSuchWaiter says who does wait, among whom to choose.
func noSuchWaiter(key, to string, waiters []inspect.View) error {
	const most = 5
	var hosts []string
	for _, w := range waiters {
		if host := visible.Text(w.Where()); w.Pglead() && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	hint := "nobody waits"
	if len(hosts) > most {
		hosts = append(hosts[:most], fmt.Sprintf("%d more", len(hosts)-most))
	}
	if len(hosts) > 0 {
		hint = "pglead waits on " + strings.Join(hosts, ", ")
	}
	return &usageError{err: fmt.Errorf("--to %s: no pglead on that host waits for %s", printable(to), printable(key)), hint: hint}
}

// ask asks the holders, and says for how long that has to last: each looks every
// fifth of its lease.
func (f *viewFlags) ask(ctx context.Context, stdout io.Writer, holders []inspect.View, to string) (request *lock.Request, patience time.Duration, err error) {
	var ids []lockkey.ID
	for _, h := range holders {
		if !h.Pglead() {
			return nil, 0, &usageError{err: errors.New("the lock is held by " + h.String()), hint: "only --force ends it, which asks nothing"}
		}
		lease := f.lease.value // where it doesn't say its own
		if h.Lease > 0 {
			lease = h.Lease
		}
		patience = max(patience, lease/3+askMargin) // the first heartbeat after a wait may be so late
		ids = append(ids, h.ID)
	}
	request, err = lock.Ask(ctx, f.viewing, ids, f.asker(), to)
	if err != nil {
		return nil, 0, err
	}
	for _, h := range holders {
		fmt.Fprintf(stdout, "asked %s\n", h)
	}
	return request, patience, nil
}

// askMargin is for a heartbeat that is late.
const askMargin = 2 * time.Second

// asker is who a holder is told to have asked it.
func (f *viewFlags) asker() string {
	d := f.description("")
	return d.User + " on " + d.Host
}

// successorPoll is how often somebody who waits for a successor looks.
const successorPoll = 200 * time.Millisecond

// awaitSuccessor waits until the former holders have gone. What comes of it is only
// said if it was asked for.
func (f *viewFlags) awaitSuccessor(ctx context.Context, stdout io.Writer, viewer *session.Viewer, claim lock.Claim, former []inspect.View, patience time.Duration) error {
	for began := time.Now(); ; {
		views, err := inspect.Views(ctx, viewer, claim.Sought())
		if err != nil {
			return err
		}
		var now []string
		var still []inspect.View
		for _, l := range inspect.Locks(views) {
			for _, h := range l.Holders {
				now = append(now, h.String())
				if slices.ContainsFunc(former, func(v inspect.View) bool { return v.Backend == h.Backend }) {
					still = append(still, h)
				}
			}
		}
		switch {
		case f.wait.value == 0 && (len(still) == 0 || time.Since(began) >= patience):
			return nil
		case len(still) == 0:
			if len(now) == 0 {
				now = []string{"free"}
			}
			fmt.Fprintf(stdout, "now: %s\n", strings.Join(now, "; "))
			return nil
		case time.Since(began) >= patience:
			fmt.Fprintf(stdout, "still: %s\n", strings.Join(now, "; "))
			return &listError{exitHeld}
		}
		select {
		case <-time.After(successorPoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
