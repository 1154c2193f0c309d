// Package cmd is pglead's command line. Each command is in the file of its name (resume is in
// pause.go).
//
//	options                        the flags of run, and those that several commands have; mistakes
//	config                         what they mean for a run
//	database                       the database that they name, and what the command is told of it
//	each_items                     the list of each
//	look, look_ledger              the commands that look at locks, or at the ledger
//	look_pauses                    what those show of pauses
//	flags, mistakes                how flags are read, and what is said of mistakes
//	exit                           the exit status for each end
//	ui                             what goes to standard error, with a status line on a terminal
//	ui_log, ui_outlet              write that
//	ui_wait, ui_outage, ui_notify  what is said of a wait, of an outage, and to systemd
//	cijob                          the address of the CI job, for --note
//	table, text                    the table of ls, and how texts and JSON are written
//	metrics                        ls -o prometheus
//	history_keys                   history of several keys
//	history_page, history_picture  history -o html
//	complete, docs                 completions, and the pages of packages
package cmd

import (
	"cmp"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner/localpg"
)

// Main runs pglead with the given arguments and returns its exit status.
func Main(args []string) int {
	if status, ok := localpg.RunKeeper(os.Args); ok { // this process is the keeper that a pglead has started
		return status
	}
	u := newStderrUI()
	called := ""
	if len(args) > 0 {
		called = args[0]
	}
	stdout := &checkedWriter{Writer: os.Stdout}
	root := newRootCmd(called, u, stdout)
	if strings.HasPrefix(called, cobra.ShellCompRequestCmd) {
		addCompletions(root)
	}
	if isUnknown(called) {
		args = args[:1] // otherwise --help would show all commands and succeed
	}
	root.SetArgs(args)
	var refused error
	refuseHelp(root, &refused)
	err := root.Execute()
	if !u.configured && wantsJSON(args) {
		u.configure(false, false, true, nil)
	}
	return exit(u, cmp.Or(err, refused, stdout.err))
}

// checkedWriter notes why it could not be written to, since cobra ignores that for help.
type checkedWriter struct {
	io.Writer
	err error
}

func (w *checkedWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.err = cmp.Or(w.err, err)
	return n, err
}

// wantsJSON says whether the messages are to be in JSON, also where the flags could not be read
// to their end. It may take an argument of the job for the flag if there is no -- between them.
func wantsJSON(args []string) bool {
	if len(args) == 0 || !isIn(toRun, args[0]) {
		return false
	}
	format := os.Getenv(envName("log-format"))
	for i, arg := range args {
		value, found := strings.CutPrefix(arg, "--log-format=")
		switch {
		case arg == "--":
			return format == "json"
		case found:
			format = value
		case arg == "--log-format" && i+1 < len(args):
			format = args[i+1]
		}
	}
	return format == "json"
}

func isCommand(name string) bool {
	return slices.ContainsFunc(commands(), func(c subcommand) bool { return c.name == name })
}

// isUnknown says whether the first argument looks like a command, and is none.
func isUnknown(called string) bool {
	known := called == "" || called == "help" || called == "completion" || isCommand(called)
	return !known && called[0] != '-' && !strings.HasPrefix(called, cobra.ShellCompRequestCmd)
}

// newRootCmd makes only the command that is called or, if no command has that name, all
// commands. Making all takes 0.5 to 0.7 ms of processor time, a twentieth of a run of true,
// and a tenth of a refusal.
func newRootCmd(called string, u *ui, stdout io.Writer) *cobra.Command {
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
		RunE: func(cmd *cobra.Command, args []string) error {
			if version {
				return printVersion(cmd, args)
			}
			_ = cmd.Help()
			return usagef("", "a command is missing")
		},
		SilenceErrors: true, // exit prints them, once
		SilenceUsage:  true,
	}
	root.Flags().BoolVar(&version, "version", false, "print the version")
	root.SetOut(stdout)
	root.SetErr(u.w) // for completion's messages, which shells don't read
	root.SetFlagErrorFunc(flagMistake)
	wrapHelp(root)
	alone := isCommand(called)
	cobra.EnableCommandSorting = false // help and the pages show them in the order of commands
	for _, c := range commands() {
		if !root.ContainsGroup(c.group) {
			root.AddGroup(&cobra.Group{ID: c.group, Title: c.group})
		}
		if !alone || c.name == called {
			cmd := c.make(u)
			cmd.GroupID = c.group
			root.AddCommand(cmd)
		}
		root.SetHelpCommandGroupID(c.group) // the last call counts: they belong to the last group
		root.SetCompletionCommandGroupID(c.group)
	}
	root.CompletionOptions.DisableDefaultCmd = alone
	for _, cmd := range root.Commands() {
		cmd.Flags().SortFlags = false // help shows them in the order of registration
	}
	switch called {
	case "help":
		refuseTopics(root)
	case "completion":
		refuseShells(root)
	}
	return root
}

// The groups of commands, by their headings in help.
const (
	toRun      = "Run a command:"
	toLook     = "Look at locks, and hand over:"
	toRemember = "Remember runs (ledger):"
	toSetUp    = "Set up:"
)

// namesIn are the names of a group's commands, with spaces between them.
func namesIn(group string) string {
	var names []string
	for _, c := range commands() {
		if c.group == group {
			names = append(names, c.name)
		}
	}
	return strings.Join(names, " ")
}

func isIn(group, command string) bool {
	return slices.ContainsFunc(commands(), func(c subcommand) bool { return c.group == group && c.name == command })
}

// subcommand is one of pglead's commands.
type subcommand struct {
	group, name string
	make        func(u *ui) *cobra.Command
}

// commands has all commands, in the order of help: those for which pglead is there come first. To
// add one:
//
//	its function       in a file of its name, and here
//	its exit statuses  exitMeanings in docs.go
//	its arguments      addCompletions in complete.go
//	its text           REFERENCE.md, and its name in testdata/script/usage.txtar, which checks that
//	                   its help fits 80 columns
func commands() []subcommand {
	return []subcommand{
		{toRun, "run", newRunCmd},
		{toRun, "lead", newLeadCmd},
		{toRun, "each", newEachCmd},
		{toLook, "ls", newLsCmd},
		{toLook, "who", newWhoCmd},
		{toLook, "stepdown", newStepdownCmd},
		{toRemember, "history", newHistoryCmd},
		{toRemember, "check", newCheckCmd},
		{toRemember, "pause", newPauseCmd},
		{toRemember, "resume", newResumeCmd},
		{toRemember, "ledger", newLedgerCmd},
		{toSetUp, "doctor", newDoctorCmd},
		{toSetUp, "key", newKeyCmd},
		{toSetUp, "version", newVersionCmd},
	}
}
