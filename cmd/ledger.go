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

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// ledgerFlags are those of all that can be done with a ledger.
type ledgerFlags struct {
	lookFlags
	keep  int
	sql   bool
	older duration
	yes   bool
}

func newLedgerCmd(u *ui, stdout io.Writer) *cobra.Command {
	f := ledgerFlags{lookFlags: newLookFlags("text", "json"), older: duration{value: 90 * 24 * time.Hour}}
	cmd := &cobra.Command{
		Use:   "ledger install|status|prune|uninstall [flags]",
		Short: "Have the database remember runs",
		Long: `Have the database remember runs: a schema, pglead, that every pglead uses which
finds it there and may. Without it nothing is remembered, and all else works.

  install    make the schema, or bring it up to this pglead's version; the owner
             of the database may, and then grants it: GRANT USAGE ON SCHEMA
             pglead TO cron
  status     version, rows, size, who is granted; exit status 1 without a ledger
  prune      forget the runs of keys that nobody has started for --older
  uninstall  drop the schema, with all that is remembered; asks before, or needs
             --yes where there is no terminal`,
		Example: `  pglead ledger install
  pglead ledger install --keep 10000 --sql | less
  pglead ledger status`,
		Args: oneAction,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := ofAction(cmd, args[0]); err != nil {
				return err
			}
			if err := f.check(); err != nil {
				return err
			}
			if !cmd.Flags().Changed("keep") {
				f.keep = 0 // what it is already, or the default
			}
			if f.sql {
				_, err := io.WriteString(stdout, ledger.SQL(f.keep))
				return err
			}
			do := map[string]func(context.Context, io.Writer, *session.Viewer, string) error{"install": f.install, "status": f.status, "prune": f.prune, "uninstall": f.uninstall}[args[0]]
			if err := f.find(u, cmd); err != nil {
				return err
			}
			return f.look(func(ctx context.Context, viewer *session.Viewer) error { return do(ctx, stdout, viewer, f.target()) })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&f.keep, "keep", ledger.Keep, "install: remember the `N` newest runs of each key")
	flags.BoolVar(&f.sql, "sql", false, "install: print what would be run, and touch nothing")
	flags.Var(&f.older, "older", "prune: of keys whose last run is so long ago")
	flags.BoolVar(&f.yes, "yes", false, "uninstall: without asking")
	f.outputFlag(cmd, "status: "+f.output.usage())
	f.serverFlags(cmd)
	return cmd
}

func ledgerActions() []string { return []string{"install", "status", "prune", "uninstall"} }

func oneAction(cmd *cobra.Command, args []string) error {
	actions := ledgerActions()
	hint := "one of " + strings.Join(actions, ", ") + "; see " + cmd.CommandPath() + " --help"
	switch {
	case len(args) != 1:
		return &usageError{err: errors.New("what to do with the ledger is missing"), hint: hint}
	case slices.Contains(actions, args[0]):
		return nil
	}
	text := fmt.Sprintf("unknown action %q", args[0])
	if meant := nearest(args[0], actions); meant != "" {
		text += ": did you mean " + meant + "?"
	}
	return &usageError{err: errors.New(text), hint: hint}
}

// ofAction refuses flags that the action does not have.
func ofAction(cmd *cobra.Command, action string) error {
	for flag, of := range map[string]string{"keep": "install", "sql": "install", "older": "prune", "yes": "uninstall", "output": "status"} {
		if cmd.Flags().Changed(flag) && action != of {
			return usagef("--%s is of pglead ledger %s", flag, of)
		}
	}
	return nil
}

// mostKept is what the ledger itself takes.
const mostKept = 1_000_000

func (f *ledgerFlags) check() error {
	if f.keep < 1 || f.keep > mostKept {
		return usagef("--keep %d: from 1 to %d", f.keep, mostKept)
	}
	return nil
}

func (f *ledgerFlags) install(ctx context.Context, w io.Writer, viewer *session.Viewer, target string) error {
	ask := asking(viewer)
	access, _, err := ledger.Look(ctx, ask)
	switch {
	case err != nil:
		return err
	case access == ledger.Foreign:
		return foreignLedger(target)
	}
	if err := ledger.Install(ctx, ask, f.keep); err != nil {
		return notOwner(err)
	}
	s, err := ledger.ReadState(ctx, ask)
	if err != nil {
		return err
	}
	return writeStatus(w, s, target)
}

// notOwner adds to a refusal what would have helped.
func notOwner(err error) error {
	var refused *session.Error
	if errors.As(err, &refused) && refused.Kind == session.Denied && refused.Hint == "" {
		return session.Errorf(session.Denied, "it takes the owner of the database, or a superuser", "%w", err)
	}
	return err
}

func (f *ledgerFlags) status(ctx context.Context, w io.Writer, viewer *session.Viewer, target string) error {
	ask := asking(viewer)
	access, _, err := ledger.Look(ctx, ask)
	if err != nil {
		return err
	}
	if access == ledger.Absent {
		if f.output.value == "json" {
			err = writeJSON(w, ledgerView{Granted: []string{}, Former: []string{}, Faults: []string{}})
		} else {
			_, err = fmt.Fprintf(w, "there is no ledger in %s\n", visible.Text(target))
		}
		if err != nil {
			return err
		}
		return &silentExit{exitFree}
	}
	if _, err := needLedger(ctx, viewer, target); err != nil {
		return err
	}
	s, err := ledger.ReadState(ctx, ask)
	if err != nil {
		return err
	}
	faults, err := ledger.Faults(ctx, ask)
	if err != nil {
		return err
	}
	if f.output.value == "json" {
		return writeJSON(w, newLedgerView(s, faults))
	}
	if err := writeStatus(w, s, target); err != nil {
		return err
	}
	for i, fault := range faults {
		_, err = fmt.Fprintf(w, "  %-7s  %s\n", map[bool]string{true: "broken"}[i == 0], visible.Text(fault))
	}
	return err
}

// ledgerView is a ledger, as status -o json has it.
type ledgerView struct {
	Installed bool       `json:"installed"`
	Version   int        `json:"version"` // 0 without a ledger
	Keep      int        `json:"keep"`    // runs of each key
	Runs      int64      `json:"runs"`
	Locks     int64      `json:"locks"`
	Bytes     int64      `json:"bytes"`
	Oldest    *time.Time `json:"oldest"`
	Owner     string     `json:"owner"`
	Trusted   bool       `json:"trusted"` // by other roles, too
	Granted   []string   `json:"granted"`
	Former    []string   `json:"not_granted_any_more"`
	Faults    []string   `json:"faults"`
}

func newLedgerView(s ledger.State, faults []string) ledgerView {
	v := ledgerView{Installed: true, Version: s.Version, Keep: s.Keep, Runs: s.Runs, Locks: s.Locks, Bytes: s.Bytes, Owner: s.Owner, Trusted: s.Trusted, Granted: append([]string{}, s.Granted...), Former: append([]string{}, s.Former...), Faults: append([]string{}, faults...)}
	if !s.Oldest.IsZero() {
		v.Oldest = &s.Oldest
	}
	return v
}

func writeStatus(w io.Writer, s ledger.State, target string) error {
	text := fmt.Sprintf("ledger in %s: version %d, keeps %d runs of each key\n", visible.Text(target), s.Version, s.Keep)
	text += fmt.Sprintf("  holds    %s of %s, %s", plural(s.Runs, "run"), plural(s.Locks, "lock"), size(s.Bytes))
	if !s.Oldest.IsZero() {
		text += ", from " + when(s.Oldest, time.Now()) + " on"
	}
	var roles []string
	for _, role := range s.Granted {
		roles = append(roles, visible.Text(role))
	}
	text += "\n  owner    " + visible.Text(s.Owner)
	if !s.Trusted {
		text += ", who is neither the database's owner nor a superuser:\n           other roles leave it alone"
	}
	text += "\n  granted  " + strings.Join(roles, ", ")
	if len(roles) == 0 {
		text += "nobody else; for each role that runs pglead:\n           GRANT USAGE ON SCHEMA pglead TO role"
	}
	lines := []string{text}
	for _, role := range s.Former {
		lines = append(lines, "  lacking  "+visible.Text(role)+" has run something, and is not granted it any more")
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// size is in the units of PostgreSQL's pg_size_pretty.
func size(bytes int64) string {
	const kilo = 1024
	switch {
	case bytes < kilo*kilo:
		return fmt.Sprintf("%d kB", bytes/kilo)
	case bytes < kilo*kilo*kilo:
		return fmt.Sprintf("%.1f MB", float64(bytes)/kilo/kilo)
	}
	return fmt.Sprintf("%.1f GB", float64(bytes)/kilo/kilo/kilo)
}

func (f *ledgerFlags) prune(ctx context.Context, w io.Writer, viewer *session.Viewer, target string) error {
	ask, err := needLedger(ctx, viewer, target)
	if err != nil {
		return err
	}
	n, err := ledger.Prune(ctx, ask, f.older.value)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "forgot %s\n", plural(n, "row"))
	return err
}

func (f *ledgerFlags) uninstall(ctx context.Context, w io.Writer, viewer *session.Viewer, target string) error {
	ask := asking(viewer)
	access, _, err := ledger.Look(ctx, ask)
	switch {
	case err != nil:
		return err
	case access == ledger.Absent:
		_, err := fmt.Fprintf(w, "there is no ledger in %s\n", visible.Text(target))
		return err
	}
	if err := f.confirm(ctx, ask, access, target); err != nil {
		return err
	}
	if err := ledger.Uninstall(ctx, ask); err != nil {
		return notOwner(err)
	}
	_, err = fmt.Fprintf(w, "the ledger in %s is gone, with all that it had\n", visible.Text(target))
	return err
}
