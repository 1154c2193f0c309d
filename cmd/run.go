package cmd

import (
	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner"
)

func newRunCmd(u *ui) *cobra.Command {
	o := newOptions(u)
	cmd := &cobra.Command{
		Use:        "run --key KEY [flags] -- COMMAND [ARG...]",
		SuggestFor: []string{"lock", "exec", "start"},
		Short:      "Run a command while holding the lock",
		Long: `Run a command while holding the lock of KEY in a PostgreSQL database.

The command starts only after the server has granted the lock. If the connection
is lost, the command and everything it started are killed.

The exit status is the command's own; 75 if the lock is held elsewhere or
paused, 76 if it was lost while the command ran, 124 after --timeout; 64 for a
mistake in the flags, 69, 77 or 78 if the database can't be used.`,
		Example: `  pglead run --key invoice_gen/SUB-1234 -- ./job
  pglead run --key nightly --wait 10m --timeout 2h -- ./backup.sh /data`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := o.prepare(cmd, args, "running", "pglead run --key invoice_gen/SUB-1234 -- ./job")
			if err != nil {
				return err
			}
			if o.wait.value > 0 {
				warnOfOuter(u, cfg.Lock.Claim)
			}
			outcome, err := runner.Run(cfg)
			return o.end(outcome, unstarted(o.withWait(err), "the command", cfg.Lock.Session.Database))
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows the command belongs to the command
	o.register(cmd, `key key-scheme shared slots wait conflict-exit-code splay lease lock-delay lost-grace
		transaction quorum timeout kill-after leftovers min-hold on-acquired on-lost on-released note once-per
		ledger dsn pass-dsn connect-timeout quiet verbose log-format`)
	return cmd
}
