package cmd

import (
	"context"
	"errors"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// lookFlags are the flags of the commands that look at locks.
type lookFlags struct {
	options
	output choice
	server session.Config // how to connect, once that is known
}

func newLookFlags(outputs ...string) lookFlags {
	return lookFlags{options: newOptions(), output: choice{words: outputs}}
}

func (f *lookFlags) outputFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().VarP(&f.output, "output", "o", usage)
}

func (f *lookFlags) serverFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.dsn, "dsn", "d", "", "`DSN` of the database: URI, keywords or name, as for psql; embedded: the private server")
	flags.Var(&f.connectTimeout, "connect-timeout", "for each attempt to connect")
}

func (f *lookFlags) keyFlags(cmd *cobra.Command) {
	f.schemeFlag(cmd.Flags())
	cmd.Flags().IntVar(&f.slots, "slots", f.slots, "the key has `N` slots; found out without it, where any is held or waited for")
}

// claimOf are the locks that a key of who or stepdown means.
func (f *lookFlags) claimOf(key string) (lock.Claim, error) {
	f.keys = []string{key}
	if f.slots < 1 || f.slots > inspect.MostSlots {
		return lock.Claim{}, usagef("--slots %d: from 1 to %d", f.slots, inspect.MostSlots)
	}
	return f.claim()
}

func oneKey(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return &usageError{err: errors.New("one key is needed"), hint: "pglead " + cmd.Name() + " invoice_gen/SUB-1234"}
	}
	return nil
}

// find sets how to connect to where the locks are.
func (f *lookFlags) find(u *ui, cmd *cobra.Command) error {
	if f.connectTimeout.value <= 0 {
		return usagef("--connect-timeout must be longer than 0")
	}
	db, err := f.database(u, cmd)
	f.server = session.Config{Database: db.config, ConnectTimeout: f.connectTimeout.value, ApplicationName: "pglead " + cmd.Name()}
	return err
}

func (f *lookFlags) target() string { return session.Target(f.server.Database) }

// look connects, and looks until that is done or a signal ends it.
func (f *lookFlags) look(look func(ctx context.Context, viewer *session.Viewer) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	viewer, err := session.OpenViewer(ctx, f.server)
	if err != nil {
		return err
	}
	defer viewer.Close()
	return look(ctx, viewer)
}
