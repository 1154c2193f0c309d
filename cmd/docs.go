package cmd

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Docs are the files that packages ship beside the binary, by their names: manual pages
// and completions. No command calls it, so the linker leaves it out.
func Docs(version, date string) (map[string]string, error) {
	root := newRootCmd("", newUI(nil), nil)
	root.InitDefaultCompletionCmd()
	files := map[string]string{"man/pglead.1": manPage(root, version, date)}
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() && cmd.Name() != "help" {
			files["man/"+pageName(cmd)+".1"] = manPage(cmd, version, date)
		}
	}
	var bash, zsh, fish strings.Builder
	err := cmp.Or(root.GenBashCompletionV2(&bash, true), root.GenZshCompletion(&zsh), root.GenFishCompletion(&fish, true))
	files["completions/pglead.bash"], files["completions/_pglead"], files["completions/pglead.fish"] = bash.String(), zsh.String(), fish.String()
	return files, err
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func about(commands string, cmd *cobra.Command) bool {
	return !cmd.HasParent() || slices.Contains(strings.Fields(commands), cmd.Name())
}

// exitMeaning is what an exit status means for these commands.
type exitMeaning struct{ status, commands, meaning string }

func exitMeanings() []exitMeaning {
	const others = " key version completion"
	runners, ledgers := namesIn(toRun), namesIn(toRemember)
	database := strings.Join([]string{runners, namesIn(toLook), ledgers, "doctor"}, " ")
	code := func(status int, commands, meaning string) exitMeaning {
		return exitMeaning{strconv.Itoa(status), commands, meaning}
	}
	return []exitMeaning{
		{"the command's own", "run lead", "It ran to its end. If it died of a signal, pglead dies of the same."},
		code(0, "ls"+others, "All went well."),
		code(0, "each", "No command failed, or there are no items."),
		code(0, "who", "The lock is held."),
		code(0, "doctor", "The promise can be kept."),
		code(0, "stepdown", "The holder was asked; with --wait, it has stepped down."),
		code(0, "history pause resume ledger", "All went well."),
		code(0, "check", "The last success is recent enough, and nothing has failed since."),
		code(exitNo, "who stepdown", "Nobody holds the lock."),
		code(exitNo, "check", "The last success is too old, or a run has failed or was lost since."),
		code(exitNo, "pause resume", "No key that is remembered matches the pattern."),
		code(exitNo, "ledger", "status: there is no ledger; uninstall: the answer was no."),
		code(exitUsage, database+others, "Usage, or a malformed connection string."),
		code(exitUsage, "stepdown", "Another program holds the lock, or nobody waits on the host of --to."),
		code(exitUsage, "ledger", "uninstall: there is no terminal to ask at, and no --yes."),
		code(exitUnreachable, database, "The database can't be reached, or is lost or out of space before the command starts."),
		code(exitInternal, database+others, "pglead itself failed."),
		code(exitConflict, "run", "The lock is held elsewhere, or paused. --conflict-exit-code changes the status."),
		code(exitConflict, "each", "Some items were still held elsewhere, paused or kept from starting when --wait was over. "+
			"--conflict-exit-code changes the status."),
		code(exitConflict, "run", "A transaction of the last run, which has called pglead.fence, is still under way; "+
			"--conflict-exit-code doesn't change the status."),
		code(exitConflict, "stepdown", "The lock was still held when --wait was over."),
		code(exitLost, "run each", "The lock was lost while the command ran; the command was killed."),
		code(exitLost, "lead", "The same, and a signal ended pglead before it stood for election again."),
		code(exitDenied, runners+" ls who stepdown doctor", "The database refused the login, the lock or the query."),
		code(exitDenied, ledgers, "The database refused the login or the query, or has no ledger for this role."),
		code(exitUnsafe, runners, "Unsafe set-up: a standby, a connection pooler without --transaction, no real advisory locks, "+
			"a /proc of another PID namespace."),
		code(exitUnsafe, "ls who stepdown pause resume ledger", "The server is a standby, which has none of the primary's locks, and takes no writes."),
		code(exitUnsafe, "doctor", "Something breaks the promise."),
		code(exitSomeFailed, "each", "A command failed."),
		code(exitTimeout, "run lead", "The command ran longer than --timeout."),
		code(exitNotExecutable, runners, "The command can't be executed."),
		code(exitNotFound, runners, "The command is not found."),
	}
}

// commandVariables are the variables that pglead sets for the command.
func commandVariables() [][2]string {
	return [][2]string{
		{"PGLEAD_LOCK_KEY", "The key. Several keys are a line each."},
		{"PGLEAD_LOCK_ID", "The lock's number. Those of several keys are a line each."},
		{"PGLEAD_TOKEN", "The fencing token: a number that grows with every grant."},
		{"PGLEAD_SYSTEM_ID", "The cluster that the token belongs to."},
		{"PGLEAD_BACKEND_PID", "The server's process of the session that holds the lock."},
		{"PGLEAD_SLOT", "With --slots of 2 or more: the number of the slot."},
		{itemVariable, "With pglead each: the item."},
		{"PGLEAD_EVENT", "For hooks: acquired, lost or released."},
		{"PGLEAD_REASON", "For the hook --on-lost: why."},
	}
}

// manPage writes a page in man(7)'s language. What it shares with --help comes from the same
// source.
func manPage(cmd *cobra.Command, version, date string) string {
	cmd.InitDefaultHelpFlag()
	p := &manual{}
	p.line(`.TH "%s" "1" "%s" "pglead %s" "User Commands"`, strings.ToUpper(pageName(cmd)), date, version)
	p.section("NAME")
	p.line(`%s \- %s`, pageName(cmd), escape(strings.ToLower(cmd.Short[:1])+cmd.Short[1:]))
	p.synopsis(cmd)
	p.section("DESCRIPTION")
	p.text(cmp.Or(cmd.Long, cmd.Short+"."))
	p.commands(cmd)
	p.options(cmd)
	p.exitStatus(cmd)
	p.environment(cmd)
	if cmd.Flag("dsn") != nil || !cmd.HasParent() {
		p.section("FILES")
		p.entry("~/.pgpass, ~/.pg_service.conf", "Passwords and services, as for psql(1). PGPASSFILE and PGSERVICEFILE name others.")
		p.entry("~/.postgresql/", "Certificates and keys for TLS, as for psql(1).")
		p.entry("~/.local/state/pglead/", "The private server of --dsn embedded; root's is in /var/lib/pglead/. With XDG_STATE_HOME it is there.")
	}
	if cmd.Example != "" {
		p.section("EXAMPLES")
		p.text(cmd.Example)
	}
	p.seeAlso(cmd)
	return p.String()
}

func (p *manual) synopsis(cmd *cobra.Command) {
	p.section("SYNOPSIS")
	p.line(".nf")
	if !cmd.HasAvailableSubCommands() {
		p.line("%s", escape(cmd.UseLine()))
	}
	for _, sub := range subcommands(cmd) {
		p.line("%s", escape(sub.UseLine()))
	}
	p.line(".fi")
}

func (p *manual) commands(cmd *cobra.Command) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	p.section("COMMANDS")
	for _, sub := range subcommands(cmd) {
		name := sub.Name()
		if !cmd.HasParent() {
			name = pageName(sub) + "(1)"
		}
		p.entry(name, sub.Short)
	}
}

func (p *manual) options(cmd *cobra.Command) {
	p.section("OPTIONS")
	// This parses the lines of --help, since pflag doesn't export how it shows a default.
	flag := regexp.MustCompile(`^ +((?:-\w, )?--[\w-]+(?: \S+)?) {3,}(.*)$`)
	for line := range strings.Lines(cmd.LocalFlags().FlagUsages()) {
		if m := flag.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			p.entry(m[1], m[2])
		}
	}
}

func (p *manual) exitStatus(cmd *cobra.Command) {
	p.section("EXIT STATUS")
	for _, e := range exitMeanings() {
		switch {
		case !cmd.HasParent():
			p.entry(e.status, "("+strings.Join(strings.Fields(e.commands), ", ")+") "+e.meaning)
		case about(e.commands, cmd):
			p.entry(e.status, e.meaning)
		}
	}
	if about(namesIn(toRun), cmd) {
		p.text("\nInterrupted before the command started, pglead dies of that signal, and nothing stays locked.")
	}
}

func (p *manual) seeAlso(cmd *cobra.Command) {
	p.section("SEE ALSO")
	var others []string
	for _, c := range append([]*cobra.Command{cmd.Root()}, subcommands(cmd.Root())...) {
		if c != cmd {
			others = append(others, pageName(c)+"(1)")
		}
	}
	p.text(strings.Join(append(others, "flock(1)", "timeout(1)", "psql(1)", "crontab(5)", "systemd.service(5)"), ", "))
}

func subcommands(cmd *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool {
		return !c.IsAvailableCommand() || c.Name() == "help"
	})
}

// manual is a manual page while it is written.
type manual struct{ strings.Builder }

func (p *manual) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *manual) section(name string) { p.line(`.SH "%s"`, name) }

func (p *manual) entry(term, text string) {
	p.line(".TP\n\\fB%s\\fR\n%s", escape(term), escape(text))
}

// text writes paragraphs. Indented lines stay as they are.
func (p *manual) text(s string) {
	literal := false
	for line := range strings.Lines(s) {
		line = strings.TrimRight(line, "\n")
		indented := strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t")
		switch {
		case indented && !literal:
			p.line(".RS 2\n.nf")
		case literal && !indented:
			p.line(".fi\n.RE")
		}
		literal = indented
		if line == "" {
			p.line(".PP")
		} else {
			p.line("%s", escape(strings.TrimSpace(line)))
		}
	}
	if literal {
		p.line(".fi\n.RE")
	}
}

func (p *manual) environment(cmd *cobra.Command) {
	var options []string
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && f.Name != "version" && !f.Hidden { // these two ask pglead itself
			options = append(options, envName(f.Name))
		}
	})
	if len(options) == 0 && cmd.HasParent() {
		return
	}
	p.section("ENVIRONMENT")
	p.text("Each option has a variable: PGLEAD_ and its name in capitals, with _ for -. " +
		"The option on the command line wins, and an empty variable is none. A repeated option's values are a line each.")
	if len(options) > 0 {
		p.text("\n" + strings.Join(options, ", "))
	}
	if cmd.Flag("dsn") != nil || !cmd.HasParent() {
		p.entry("PGLEAD_DSN, DATABASE_URL, PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD, ...",
			"The database, in this order, where --dsn doesn't name it; the last are libpq's, of which all count.")
	}
	if about(namesIn(toRun), cmd) {
		p.text("\nThe command gets the variables that follow. The options' variables are kept from it, and PGLEAD_DSN is withheld unless --pass-dsn is given.")
		for _, v := range commandVariables() {
			p.entry(v[0], v[1])
		}
	}
}

// escape keeps troff from reading text as its own language.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
