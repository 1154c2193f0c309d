// Package cmd is pglead's command line: one file a command, exit.go for the
// exit status of each end, ui.go for all that goes to standard error.
package cmd

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner/pgtest"
)

// Main runs pglead with the given arguments and returns its exit status.
func Main(args []string) int {
	if status, ok := pgtest.RunKeeper(os.Args); ok {
		return status
	}
	u := newStderrUI()
	root := newRootCmd(u, os.Stdout)
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		addCompletions(root)
	}
	root.SetArgs(args)
	return exit(u, root.Execute())
}

func newRootCmd(u *ui, stdout io.Writer) *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "pglead",
		Short: "Run a command on at most one machine at a time, by a PostgreSQL advisory lock",
		Long: `Run a command on at most one machine at a time, by a PostgreSQL advisory lock.

pglead hashes the key to a 64-bit number, takes the lock of that number on a
connection of its own, starts the command only while it holds the lock, and
kills the command and everything it started when the connection is lost.`,
		Example: `  pglead run --key invoice_gen/SUB-1234 -- ./job
  pglead lead --key scheduler -- ./scheduler
  pglead who scheduler`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return printVersion(stdout)
			}
			_ = cmd.Help()
			return usagef("a command is missing")
		},
		SilenceErrors: true, // exit prints them, once
		SilenceUsage:  true,
	}
	root.Flags().BoolVar(&version, "version", false, "print the version")
	root.SetOut(stdout)
	root.SetErr(u.w) // where completion's remarks go, which shells don't read
	root.SetFlagErrorFunc(flagMistake)
	wrapHelp(root)
	root.AddCommand(newRunCmd(u), newLeadCmd(u), newEachCmd(u), newLsCmd(u, stdout), newWhoCmd(u, stdout), newStepdownCmd(u, stdout), newHistoryCmd(u, stdout), newCheckCmd(u, stdout), newPauseCmd(u, stdout), newResumeCmd(u, stdout), newLedgerCmd(u, stdout), newKeyCmd(stdout), newDoctorCmd(u, stdout), newVersionCmd(stdout))
	for _, cmd := range root.Commands() {
		cmd.PreRunE = readFlags
	}
	return root
}
