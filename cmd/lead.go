package cmd

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner"
)

type leadFlags struct {
	options
	firstDelay duration
	restart    string
}

func newLeadCmd(v *voice) *cobra.Command {
	f := leadFlags{options: newOptions(), firstDelay: duration{value: 3 * time.Second}}
	cmd := &cobra.Command{
		Use:   "lead --key KEY [flags] -- COMMAND [ARG...]",
		Short: "Stand for election for ever, and run the command whenever this node leads",
		Long: `Stand for election for ever, and run the command whenever this node leads.

When the lock is lost the command is killed and the node stands again, also
through an outage of the database. When the command ends, the lock is released,
so that another node can lead, and --restart says whether this one stands again.
SIGTERM steps down: the command is stopped and the lock released.`,
		Example:               `  pglead lead --key scheduler --lost-grace 2s -- ./scheduler`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.lead(v, cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows the command is the command's
	flags.SortFlags = false
	f.keyFlags(flags)
	flags.Var(&f.firstDelay, "first-delay", "the first candidacy begins after a random part of this")
	flags.StringVar(&f.restart, "restart", string(runner.RestartAlways), "stand again when the command has ended: always, on-failure or never, as `WHEN` says")
	f.leaseFlags(flags)
	f.commandFlags(flags)
	f.hookFlags(flags)
	f.noteFlag(flags)
	f.ledgerFlag(flags)
	f.databaseFlags(flags)
	f.voiceFlags(flags)
	return cmd
}

func (f *leadFlags) lead(v *voice, cmd *cobra.Command, args []string) error {
	dsnOnCommandLine := cmd.Flags().Changed("dsn")
	if err := fromEnvironment(cmd.Flags()); err != nil {
		return err
	}
	if err := f.check(args, "pglead lead --key scheduler -- ./scheduler"); err != nil {
		return err
	}
	restart := runner.Restart(f.restart)
	switch restart {
	case runner.RestartAlways, runner.RestartOnFailure, runner.RestartNever:
	default:
		return usagef("--restart %s: always, on-failure or never", printable(f.restart))
	}
	claim, err := f.claim()
	if err != nil {
		return err
	}
	cfg, err := f.config(v, cmd, args, dsnOnCommandLine)
	if err != nil {
		return err
	}
	if !f.quiet && !f.verbose {
		v.level.Set(runner.LevelNotice)
	}
	warnOfOuter(v, claim)
	cfg.Claim = claim
	cfg.Watch = f.watch(v, cfg, "leading")
	outcome, err := runner.Lead(runner.LeadConfig{Config: cfg, FirstDelay: f.firstDelay.value, Restart: restart})
	return f.end(outcome, err)
}
