package cmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// ledgerAdmin carries out an action on a database's ledger, even if there is none yet.
type ledgerAdmin struct {
	lookFlags
	keep           int
	sql, published bool
	older          duration
	yes            bool

	foundLedger
	out io.Writer
}

func newLedgerCmd(u *ui) *cobra.Command {
	a := ledgerAdmin{lookFlags: lookFlags{options: newOptions(u)}, older: duration{value: 90 * day}}
	cmd := &cobra.Command{
		Use:   "ledger install|status|prune|uninstall [flags]",
		Short: "Have the database remember runs",
		Long: `Have the database remember runs, in a schema named pglead. Every pglead whose
role is granted the schema uses it. Without it nothing is remembered, and all
else works.

  install    make the schema, or bring it up to this pglead's version, as the
             owner of the database. Then grant it to the jobs' role: GRANT USAGE
             ON SCHEMA pglead TO cron
  status     version, rows, size, who is granted; exit status 1 without a ledger
  prune      forget the runs of keys that have not run for --older, as the owner
             of the schema
  uninstall  drop the schema, with all that is remembered; asks first, or needs
             --yes where there is no terminal`,
		Example: `  pglead ledger install
  pglead ledger install --keep 10000 --sql | less
  pglead ledger status`,
		ValidArgs: []string{"install", "status", "prune", "uninstall"},
		Args:      oneAction,
		RunE:      func(cmd *cobra.Command, args []string) error { return a.carryOut(cmd, args[0]) },
	}
	flags := cmd.Flags()
	flags.IntVar(&a.keep, "keep", ledger.Keep, "install: remember the `N` newest runs of each key")
	flags.BoolVar(&a.sql, "sql", false, "install: print the SQL that would be run, and change nothing")
	flags.BoolVar(&a.published, "published", false, "install: also if a publication FOR ALL TABLES takes the tables along: its subscribers have them")
	flags.Var(&a.older, "older", "prune: forget keys whose last run is older than this")
	flags.Lookup("older").DefValue = "90d" // in help, for 2160h
	flags.BoolVar(&a.yes, "yes", false, "uninstall: don't ask")
	a.register(cmd, "output")
	output := flags.Lookup("output")
	output.Usage = "status: " + output.Usage
	a.serverFlags(cmd)
	return cmd
}

func oneAction(cmd *cobra.Command, args []string) error {
	hint := "one of " + strings.Join(cmd.ValidArgs, ", ") + "; see " + cmd.CommandPath() + " --help"
	switch {
	case len(args) == 0:
		return usagef(hint, "what to do with the ledger is missing")
	case len(args) > 1:
		return usagef(hint, "%s takes one action, not %d: %s", cmd.CommandPath(), len(args), printable(args[1]))
	case slices.Contains(cmd.ValidArgs, args[0]):
		return nil
	}
	return usagef(didYouMean(nearest(args[0], cmd.ValidArgs), hint), "unknown action %q", args[0])
}

// ofAction refuses flags that the action does not have. A variable is for every command, so
// those of such flags count for nothing.
func ofAction(cmd *cobra.Command, action string) error {
	for _, flag := range [][2]string{{"keep", "install"}, {"sql", "install"}, {"published", "install"}, {"older", "prune"}, {"yes", "uninstall"}, {"output", "status"}} {
		name, of := flag[0], flag[1]
		f := cmd.Flags().Lookup(name)
		switch {
		case !f.Changed || action == of:
		case f.Annotations[ofVariable] == nil:
			return usagef("", "only pglead ledger %s takes --%s", of, name)
		default:
			_ = f.Value.Set(f.DefValue) // a default is no mistake
		}
	}
	return nil
}

// mostKept is the ledger's own limit.
const mostKept = 1_000_000

func (a *ledgerAdmin) carryOut(cmd *cobra.Command, action string) error {
	if err := ofAction(cmd, action); err != nil {
		return err
	}
	if a.keep < 1 || a.keep > mostKept {
		return usagef("", "--keep %d: from 1 to %d", a.keep, mostKept)
	}
	if !cmd.Flags().Changed("keep") {
		a.keep = 0 // keep the present setting, or else the default
	}
	if a.sql {
		_, err := io.WriteString(cmd.OutOrStdout(), ledger.InstallSQL(a.plan()))
		return err
	}
	open := openWriter
	if action == "status" {
		open = a.openReader
	}
	a.out = cmd.OutOrStdout()
	return a.connect(cmd, open, func(ctx context.Context, client *session.Client) (err error) {
		if a.foundLedger, err = findLedger(ctx, client); err != nil {
			return err
		}
		do := map[string]func(context.Context) error{"install": a.install, "status": a.status, "prune": a.prune, "uninstall": a.uninstall}
		return do[action](ctx)
	})
}

func (a *ledgerAdmin) plan() ledger.Plan { return ledger.Plan{Keep: a.keep, Published: a.published} }

func (a *ledgerAdmin) install(ctx context.Context) error {
	if a.access == ledger.Foreign {
		return a.denial()
	}
	switch err := ledger.Install(ctx, a.on, a.plan()); {
	case session.HasCode(err, ledger.WouldBePublished):
		return session.Errorf(session.Unsafe, ledger.PublishedHint, "%w", err)
	case session.HasCode(err, session.FeatureNotSupported):
		return session.Errorf(session.Unsafe, "a ledger takes a server that was built with libxml, as packages of PostgreSQL are", "%w", err)
	case err != nil:
		return denied(err, a.takes())
	}
	s, err := ledger.ReadState(ctx, a.on)
	if err != nil {
		return err
	}
	_, err = io.WriteString(a.out, a.statusText(s, nil, nil))
	return err
}

// takes says who may install or uninstall: if a superuser has installed the ledger, or a part of it,
// the owner of the database may not.
func (a *ledgerAdmin) takes() string {
	if a.access == ledger.Absent {
		return "it takes the owner of the database, or a superuser"
	}
	return "it takes the owner of the schema pglead and of all that is in it, or a superuser"
}

// denied adds a hint to the error of a role that lacks a privilege.
func denied(err error, hint string) error {
	if session.HasCode(err, session.InsufficientPrivilege) {
		return session.Errorf(session.Denied, hint, "%w", err)
	}
	return err
}

func (a *ledgerAdmin) status(ctx context.Context) error {
	if a.access == ledger.Absent {
		if err := a.writeAbsent(); err != nil {
			return err
		}
		return &silentExit{code: exitNo}
	}
	if err := a.denial(); err != nil {
		return err
	}
	s, err := ledger.ReadState(ctx, a.on)
	if err != nil {
		return err
	}
	forRuns, others, err := ledger.Missing(ctx, a.on)
	if err != nil {
		return err
	}
	faults, err := ledger.Faults(ctx, a.on)
	if err != nil {
		return err
	}
	for _, missing := range slices.Concat(forRuns, others) {
		faults = append(faults, "there is no "+missing+": "+ledger.Mend)
	}
	altered, err := ledger.Alterations(ctx, a.on)
	if err != nil {
		return err
	}
	return a.print(a.out, ledgerView{true, s, faults, altered}, a.statusText(s, faults, altered))
}

func (a *ledgerAdmin) writeAbsent() error {
	none := []string{} // in JSON this is [], not null
	view := ledgerView{State: ledger.State{Granted: none, Former: none, Published: none}, Faults: none, Altered: none}
	return a.print(a.out, view, "there is no ledger in "+a.where+"\n")
}

// ledgerView is the form of a ledger in status -o json. Version is 0 if there is none.
type ledgerView struct {
	Installed bool `json:"installed"`
	ledger.State
	Faults  []string `json:"faults"`
	Altered []string `json:"altered"`
}

func (a *ledgerAdmin) statusText(s ledger.State, faults, altered []string) string {
	version := "of unknown version"
	if s.Version > 0 {
		version = "version " + strconv.Itoa(s.Version)
	}
	text := fmt.Sprintf("ledger in %s: %s, keeps %d runs of each key\n", a.where, version, s.Keep)
	text += fmt.Sprintf("  holds    %s of %s, %s", plural(s.Runs, "run"), plural(s.Keys, "key"), size(s.Bytes))
	if s.Oldest != nil {
		text += ", from " + when(*s.Oldest, time.Now()) + " on"
	}
	text += "\n  owner    " + visible.Text(s.Owner)
	if !s.Trusted {
		text += ", who is neither the database's owner nor a superuser:\n           other roles leave it alone"
	}
	text += "\n  granted  " + visible.Text(strings.Join(s.Granted, ", "))
	if len(s.Granted) == 0 {
		text += "nobody else; for each role that runs pglead:\n           GRANT USAGE ON SCHEMA pglead TO role"
	}
	lines := []string{text}
	for _, role := range s.Former {
		lines = append(lines, "  lacking  "+visible.Text(role)+" has run something, and is not granted it any more")
	}
	if len(s.Published) > 0 {
		lines = append(lines, "  copied   by "+visible.Text(strings.Join(s.Published, ", "))+", FOR ALL TABLES: a subscriber without these tables stops")
	}
	for _, found := range []struct {
		label string
		what  []string
	}{{"broken", faults}, {"altered", altered}} {
		for _, what := range found.what {
			lines = append(lines, fmt.Sprintf("  %-7s  %s", found.label, visible.Text(what)))
			found.label = ""
		}
	}
	return strings.Join(lines, "\n") + "\n"
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

func (a *ledgerAdmin) prune(ctx context.Context) error {
	if err := a.denial(); err != nil {
		return err
	}
	n, err := ledger.Prune(ctx, a.on, a.older.value)
	if err != nil {
		return denied(err, "it takes the owner of the schema pglead, or a superuser")
	}
	_, err = fmt.Fprintf(a.out, "forgot %s\n", plural(n, "row"))
	return err
}

func (a *ledgerAdmin) uninstall(ctx context.Context) error {
	if a.access == ledger.Absent {
		return a.writeAbsent()
	}
	if err := a.confirm(ctx); err != nil {
		return err
	}
	if err := ledger.Uninstall(ctx, a.on); err != nil {
		return denied(err, a.takes())
	}
	_, err := fmt.Fprintf(a.out, "the ledger in %s is gone, with all that it had\n", a.where)
	return err
}

// confirm asks somebody at a terminal to agree to what uninstalling removes. Without a
// terminal --yes is required.
func (a *ledgerAdmin) confirm(ctx context.Context) error {
	if a.yes {
		return nil
	}
	what := "the ledger in " + a.where
	if a.access == ledger.Granted { // pglead must touch nothing in somebody else's schema
		s, err := ledger.ReadState(ctx, a.on)
		if err != nil {
			return err
		}
		what += fmt.Sprintf(", with %s of %s", plural(s.Runs, "run"), plural(s.Keys, "key"))
	}
	if !isTerminal(os.Stdin) || !isTerminal(os.Stderr) {
		return usagef("--yes says that this is meant", "this would remove %s", what)
	}
	fmt.Fprintf(os.Stderr, "This removes %s. Go on? [y/N] ", what)
	answered := make(chan string, 1)
	go func() {
		answer, _ := bufio.NewReader(os.Stdin).ReadString('\n') // the end of the input means no
		answered <- strings.ToLower(strings.TrimSpace(answer))
	}()
	var answer string
	select {
	case answer = <-answered:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !slices.Contains([]string{"y", "yes"}, answer) {
		fmt.Fprintln(os.Stderr, "Nothing was removed.")
		return &silentExit{code: exitNo}
	}
	return nil
}

// missingPatience is how long noteMissing may take.
const missingPatience = 3 * time.Second

// noteMissing notes in the ledger, if there is one, that a command should have run but
// could not be executed: there may be a mistake in a crontab. It takes no lock, since
// another node may have the command. If it fails, that is not worth a second error.
func (o *options) noteMissing(cmd *cobra.Command, claim lock.Claim, missing *child.LookupError) {
	if ledger.Mode(o.ledger.value) == ledger.Off {
		return
	}
	status, _ := status(missing)
	if err := o.tellMissing(cmd, claim, missing.Name, status); err != nil {
		o.u.log.Info("the ledger was not told of it: "+err.Error(), "event", "ledger")
	}
}

func (o *options) tellMissing(cmd *cobra.Command, claim lock.Claim, name string, status int) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), missingPatience, errors.New("the database did not answer in time"))
	defer cancel()
	client, err := openAside(ctx, cmd, "pglead "+cmd.Name(), missingPatience)
	if err != nil {
		return err
	}
	defer client.Close()
	client.MayWrite()
	on, err := grantedLedger(ctx, client)
	if on == nil {
		return err
	}
	d := o.description(name)
	if claim.Gate != nil {
		claim.IDs = claim.IDs[:1] // any slot stands for the key
	}
	for i, id := range claim.IDs {
		run := ledger.Run{Host: d.Host, User: d.User, Command: d.Command, PID: d.PID}
		if _, err := on.Query(ctx, run.MissingQuery(ledger.Lock{ID: id, Key: claim.Key(i)}, status)); err != nil {
			return err
		}
	}
	return nil
}
