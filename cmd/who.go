package cmd

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

func newWhoCmd(u *ui, stdout io.Writer) *cobra.Command {
	f := newLookFlags("text", "json")
	cmd := &cobra.Command{
		Use:   "who KEY [flags]",
		Short: "The holder of one key; exit 0 held, 1 free",
		Long: `The holders of one key, a line each: exit status 0 if there are any, 1 if the
lock is free.`,
		Example: `  pglead who invoice_gen/SUB-1234
  pglead who render -o json`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.who(u, cmd, args[0], stdout)
		},
	}
	cmd.Flags().SortFlags = false
	f.outputFlag(cmd, f.output.usage())
	f.serverFlags(cmd)
	f.keyFlags(cmd)
	cmd.Flags().BoolVarP(&f.shared, "shared", "s", false, "only who keeps others from a shared lock: an exclusive holder")
	return cmd
}

func (f *lookFlags) who(u *ui, cmd *cobra.Command, key string, stdout io.Writer) error {
	claim, err := f.claimOf(key)
	if err != nil {
		return err
	}
	if err := f.find(u, cmd); err != nil {
		return err
	}
	var locks []*inspect.Lock
	err = f.look(func(ctx context.Context, viewer *session.Viewer) (err error) {
		if _, locks, err = f.seek(ctx, viewer, claim); err == nil {
			locks, err = f.withPauseOf(ctx, viewer, locks, key)
		}
		return err
	})
	if err != nil {
		return err
	}
	held := slices.ContainsFunc(locks, func(l *inspect.Lock) bool { return len(l.Holders) > 0 })
	switch {
	case f.output.value == "json":
		if err := writeJSON(stdout, locks); err != nil {
			return err
		}
	case held:
		writeHolders(stdout, locks)
	default:
		f.writeFree(stdout)
	}
	if f.output.value != "json" {
		for _, line := range pausedLines(pausesOf(locks), 0) {
			fmt.Fprintln(stdout, line)
		}
	}
	if !held {
		return &silentExit{exitFree}
	}
	return nil
}

// writeFree says of the one key that nobody holds it.
func (f *lookFlags) writeFree(w io.Writer) {
	fmt.Fprintf(w, "%s is free in %s\n", printable(f.keys[0]), visible.Text(f.target()))
}

func writeHolders(w io.Writer, locks []*inspect.Lock) {
	for _, l := range locks {
		for _, h := range l.Holders {
			as := ""
			switch {
			case l.Slot > 0:
				as = fmt.Sprintf("slot %d: ", l.Slot)
			case h.Shared:
				as = "shared: "
			}
			fmt.Fprintln(w, as+h.String()+waitersText(len(l.Waiters)))
		}
	}
}

func waitersText(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "; 1 waits"
	}
	return fmt.Sprintf("; %d wait", n)
}
