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

	"github.com/pglead/pglead/runner/session"
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
			if err := fromEnvironment(cmd.Flags()); err != nil {
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

func (f *viewFlags) stepDown(ctx context.Context, stdout io.Writer, viewer *session.Viewer, target string, claim session.Claim, force bool, to string) error {
	key := f.keys[0]
	views, err := viewer.Locks(ctx, false, claim)
	if err != nil {
		return err
	}
	var holders, waiters []session.View
	for _, l := range locksOf(views) {
		for _, h := range l.Holders {
			holders = append(holders, h.view)
		}
		for _, w := range l.Waiters {
			waiters = append(waiters, w.view)
		}
	}
	if len(holders) == 0 {
		fmt.Fprintf(stdout, "%s is free in %s\n", printable(key), target)
		return &listError{exitFree}
	}
	if to != "" && !slices.ContainsFunc(waiters, func(w session.View) bool { return w.Where() == to }) {
		return fmt.Errorf("--to %s: no pglead on that host waits for %s", printable(to), printable(key))
	}
	for _, h := range holders {
		switch {
		case force:
			err = viewer.Terminate(ctx, h.Backend)
		case !h.Pglead():
			err = &usageError{err: errors.New("the lock is held by " + h.String()), hint: "only --force ends it, which asks nothing"}
		case h.Transaction:
			err = &usageError{err: errors.New("the lock is held by " + h.String() + ", in a transaction, where nothing is heard"), hint: "only --force ends it, which kills its command"}
		default:
			err = viewer.AskToStepDown(ctx, h.ID, f.asker(), to)
		}
		if err != nil {
			return err
		}
		did := "asked"
		if force {
			did = "ended the session of"
		}
		fmt.Fprintf(stdout, "%s %s\n", did, h)
	}
	if f.wait.value == 0 {
		return nil
	}
	return f.awaitSuccessor(ctx, stdout, viewer, claim, holders, !force)
}

// asker is who a holder is told to have asked it.
func (f *viewFlags) asker() string {
	d := f.description("")
	return d.User + " on " + d.Host
}

const (
	// successorPoll is how often somebody who waits for a successor looks.
	successorPoll = 200 * time.Millisecond
	// askAgain is how often a holder is asked that doesn't step down: it may
	// not have listened yet. Once it has heard, more of it changes nothing.
	askAgain = time.Second
)

func (f *viewFlags) awaitSuccessor(ctx context.Context, stdout io.Writer, viewer *session.Viewer, claim session.Claim, former []session.View, ask bool) error {
	began := time.Now()
	for asked := began; ; {
		views, err := viewer.Locks(ctx, false, claim)
		if err != nil {
			return err
		}
		var now []string
		var still []session.View
		for _, l := range locksOf(views) {
			for _, h := range l.Holders {
				now = append(now, h.view.String())
				if slices.ContainsFunc(former, func(v session.View) bool { return v.Backend == h.Backend }) {
					still = append(still, h.view)
				}
			}
		}
		if len(still) == 0 {
			if len(now) == 0 {
				now = []string{"free"}
			}
			fmt.Fprintf(stdout, "now: %s\n", strings.Join(now, "; "))
			return nil
		}
		if time.Since(began) >= f.wait.value {
			fmt.Fprintf(stdout, "still: %s\n", strings.Join(now, "; "))
			return &listError{exitHeld}
		}
		if ask && time.Since(asked) > askAgain {
			asked = time.Now()
			for _, h := range still {
				if err := viewer.AskToStepDown(ctx, h.ID, f.asker(), ""); err != nil {
					return err
				}
			}
		}
		select {
		case <-time.After(successorPoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
