package cmd

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/lock"
)

func newLeadCmd(u *ui) *cobra.Command {
	o, firstDelay := newOptions(u), duration{value: 3 * time.Second}
	restart := choose(string(runner.RestartAlways), string(runner.RestartOnFailure), string(runner.RestartNever))
	cmd := &cobra.Command{
		Use:   "lead --key KEY [flags] -- COMMAND [ARG...]",
		Short: "Stand for election for ever; run the command while this node leads",
		Long: `Stand for election for ever, and run the command whenever this node leads.

When the lock is lost, the command is killed and the node stands again, even
through an outage of the database. When the command ends, the lock is released,
so that another node can lead; --restart says whether this one stands again.
SIGTERM steps down: the command is stopped, and the lock is released.

The exit status is that of the last command, or 124 after --timeout; 76 if the
lock was lost, and a signal ended pglead before it stood again; 64 for a mistake
in the flags; 69, 77 or 78 if the database can't be used at the start. If a
signal comes while no command runs, pglead dies of it.`,
		Example:               `  pglead lead --key scheduler --lost-grace 2s -- ./scheduler`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := o.prepare(cmd, args, "leading", "pglead lead --key scheduler -- ./scheduler")
			if err != nil {
				return err
			}
			if !o.quiet && !o.verbose {
				u.level.Set(lock.LevelNotice)
			}
			warnOfOuter(u, cfg.Lock.Claim)
			cfg.Splay = firstDelay.value
			outcome, err := runner.Lead(cfg, runner.Restart(restart.value))
			return o.end(outcome, unstarted(err, "the command", cfg.Lock.Session.Database))
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows the command belongs to the command
	o.register(cmd, "key key-scheme shared slots")
	flags.Var(&firstDelay, "first-delay", "wait a random time, up to this, before the first candidacy")
	flags.Var(&restart, "restart", "stand again `WHEN` the command has ended: "+restart.list())
	o.register(cmd, `lease lock-delay lost-grace transaction quorum timeout kill-after leftovers
		on-acquired on-lost on-released note ledger dsn pass-dsn connect-timeout quiet verbose log-format`)
	return cmd
}
