package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

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
give the lock back; whoever waits gets it next. A pglead listens from a second
after its command's start on. Any role that may log in may ask.

With --wait it returns when the lock is another's, or free: exit status 0, or 75
if it is still held when the time is over. The exit status is 1 if nobody holds
the lock.`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			viewer, db, err := f.open(ctx, v, cmd)
			if err != nil {
				return err
			}
			defer viewer.Close()
			if _, err := f.keyIDs(args[0]); err != nil {
				return err
			}
			return f.stepDown(ctx, stdout, viewer, session.Target(db.config), force, to)
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

func (f *viewFlags) stepDown(ctx context.Context, stdout io.Writer, viewer *session.Viewer, target string, force bool, to string) error {
	key := f.keys[0]
	ids, err := f.keyIDs(key)
	if err != nil {
		return err
	}
	views, err := viewer.Locks(ctx, false, ids...)
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
	by := "somebody"
	if host, err := os.Hostname(); err == nil {
		by = f.description("").User + " on " + host
	}
	for _, h := range holders {
		switch {
		case force:
			err = viewer.Terminate(ctx, h.Backend)
			fmt.Fprintf(stdout, "ended the session of %s\n", h)
		case !h.Pglead():
			return &usageError{err: errors.New("the lock is held by " + h.String()), hint: "only --force ends it, which asks nothing"}
		default:
			err = viewer.AskToStepDown(ctx, h.ID, by, to)
			fmt.Fprintf(stdout, "asked %s\n", h)
		}
		if err != nil {
			return err
		}
	}
	if f.wait.value == 0 {
		return nil
	}
	return f.awaitSuccessor(ctx, stdout, viewer, holders)
}

// successorPoll is how often somebody who waits for a successor looks.
const successorPoll = 200 * time.Millisecond

func (f *viewFlags) awaitSuccessor(ctx context.Context, stdout io.Writer, viewer *session.Viewer, former []session.View) error {
	ids, err := f.keyIDs(f.keys[0])
	if err != nil {
		return err
	}
	for began := time.Now(); ; {
		views, err := viewer.Locks(ctx, false, ids...)
		if err != nil {
			return err
		}
		var now []string
		still := false
		for _, l := range locksOf(views) {
			for _, h := range l.Holders {
				now = append(now, h.view.String())
				still = still || slices.ContainsFunc(former, func(v session.View) bool { return v.Backend == h.Backend })
			}
		}
		if !still {
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
		select {
		case <-time.After(successorPoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
