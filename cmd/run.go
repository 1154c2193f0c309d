package cmd

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/visible"
)

func newRunCmd(u *ui) *cobra.Command {
	o := newOptions()
	cmd := &cobra.Command{
		Use:        "run --key KEY [flags] -- COMMAND [ARG...]",
		SuggestFor: []string{"lock", "exec", "start"},
		Short:      "Run a command while holding the lock",
		Long: `Run a command while holding the lock of KEY in a PostgreSQL database.

The command starts only while the server grants the lock. If the connection is
lost the command and everything it started are killed.`,
		Example: `  pglead run --key invoice_gen/SUB-1234 -- ./job
  pglead run --key nightly --wait 10m --timeout 2h -- ./backup.sh /data`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := o.prepare(u, cmd, args, "pglead run --key invoice_gen/SUB-1234 -- ./job")
			if err != nil {
				return err
			}
			if o.wait.value > 0 {
				warnOfOuter(u, cfg.Claim)
			}
			outcome, err := runner.Run(cfg)
			return o.end(outcome, unstarted(o.withWait(err), "the command", cfg.Session.Database))
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows the command belongs to the command
	o.keyFlags(flags)
	o.waitFlags(flags)
	flags.Var(&o.splay, "splay", "a random part of this passes before the first try")
	o.leaseFlags(flags)
	o.commandFlags(flags)
	flags.Var(&o.minHold, "min-hold", "hold the lock at least this long after the start, even if the command is done")
	o.hookFlags(flags)
	o.noteFlag(flags)
	o.onceFlag(flags)
	o.commonFlags(flags)
	return cmd
}

// resumption is the command that ends a pause.
func (o *options) resumption() string {
	key := "KEY" // any key
	if len(o.keys) == 1 {
		key = visible.ShellWord(o.keys[0])
	}
	if o.keyScheme != lockkey.Schemes()[0].Name {
		key += " --key-scheme " + o.keyScheme
	}
	return "pglead resume " + key + " ends the pause"
}

// end is the end of a run in the form that exit needs.
func (o *options) end(outcome runner.Outcome, err error) error {
	var conflict *lock.ConflictError
	var paused *ledger.PausedError
	switch {
	case errors.As(err, &conflict):
		return &refusedError{conflict, o.conflictCode, ""}
	case errors.As(err, &paused):
		return &refusedError{paused, o.conflictCode, o.resumption()}
	case err != nil:
		return err
	}
	return &commandEnded{outcome}
}
