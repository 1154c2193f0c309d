package cmd

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// options are the flags of the commands that run a command. To add one:
//
//	its field          here
//	its default        newOptions
//	its registration   below, for all of these commands, or in one command's file (see newRunCmd)
//	its check          check, which says what is wrong with a value
//	its use            config, which passes it on in runner.Config or, for package lock, lock.Config
//	its text           REFERENCE.md, where a test looks for its name
//	its script         testdata/script
type options struct {
	keyOptions
	serverOptions
	leaseOptions

	wait, splay        duration
	conflictCode       int
	lostGrace          duration
	timeout, killAfter duration
	minHold            duration
	leftovers          choice
	hooks              runner.Hooks
	note               string
	oncePer            string
	ledger             choice
	passDSN            bool
	quiet, verbose     bool
	logFormat          choice
}

func newOptions() options {
	return options{
		keyOptions: newKeyOptions(), serverOptions: newServerOptions(), leaseOptions: newLeaseOptions(),

		wait:         duration{mayBeForever: true},
		conflictCode: exitConflict,
		ledger:       choose(string(ledger.Auto), string(ledger.Require), string(ledger.Off)),
		leftovers:    choose("kill", "wait"),
		logFormat:    choose("text", "json"),
	}
}

// The flags are registered in groups, in the order of help.

func (o *options) waitFlags(flags *pflag.FlagSet) {
	flags.VarP(&o.wait, "wait", "w", "how long to wait for the lock, or forever; 0 tries once. The lock-delay comes on top")
	flags.IntVarP(&o.conflictCode, "conflict-exit-code", "E", o.conflictCode, "exit status `N` if the lock is held elsewhere or paused")
}

func (o *options) leaseFlags(flags *pflag.FlagSet) {
	o.takeoverFlags(flags, ", plus the lost-grace, at most the lease")
	flags.Var(&o.lostGrace, "lost-grace", "after a loss: TERM first, KILL after this time or when 9/10 of the lease are over; 0 is KILL at once")
	o.modeFlags(flags)
}

func (o *options) commandFlags(flags *pflag.FlagSet) {
	flags.VarP(&o.timeout, "timeout", "t", "the command may run this long, then TERM, then KILL; 0 is no limit")
	flags.Var(&o.killAfter, "kill-after", "time from TERM to KILL: after a forwarded TERM or INT (default never), and after --timeout (default 10s)")
	flags.Var(&o.leftovers, "leftovers", "take this `ACTION` on processes that outlive the command: "+o.leftovers.list())
}

func (o *options) noteFlag(flags *pflag.FlagSet) {
	flags.StringVar(&o.note, "note", "", "show others this `TEXT` about the run "+
		"(default the job's address in GitHub Actions, GitLab, Jenkins, Buildkite, CircleCI)")
}

func (o *options) hookFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.hooks.Acquired, "on-acquired", "", "shell `COMMAND` to run, for at most 10s, beside the start of the command")
	flags.StringVar(&o.hooks.Lost, "on-lost", "", "shell `COMMAND` to run, for at most 10s, when the lock is lost, beside the kill")
	flags.StringVar(&o.hooks.Released, "on-released", "", "shell `COMMAND` to run, for at most 10s, after the lock is released")
}

func (o *options) onceFlag(flags *pflag.FlagSet) {
	flags.StringVar(&o.oncePer, "once-per", "",
		"do nothing if a run has succeeded in this `PERIOD`, such as 5m, hour or day (the local date, by TZ); needs a ledger")
}

// commonFlags come last in help.
func (o *options) commonFlags(flags *pflag.FlagSet) {
	flags.Var(&o.ledger, "ledger", "use the database's ledger in this `MODE`: auto (if it has one), require (always) or off (never)")
	o.dsnFlag(flags)
	flags.BoolVar(&o.passDSN, "pass-dsn", false, "pass the connection string on to the command, in PGLEAD_DSN")
	o.connectTimeoutFlag(flags)
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "say only errors; killing a command counts as an error")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "say every step")
	flags.Var(&o.logFormat, "log-format", "write the messages on standard error in this `FORMAT`: "+o.logFormat.list())
}

// check finds what is wrong with the flags before anything happens.
// example is a correct command line.
func (o *options) check(flags *pflag.FlagSet, args []string, example string) error {
	switch {
	case len(o.keys) == 0 && slices.Contains(args, "--"): // a word that isn't a flag has ended the flags
		return &usageError{err: errors.New("--key is missing"), hint: "did you mean --key " + printable(args[0]) + "?"}
	case len(o.keys) == 0:
		return &usageError{err: errors.New("--key is missing"), hint: example}
	case len(o.keys) > lockkey.MostKeys:
		return usagef("--key is given %d times: at most %d", len(o.keys), lockkey.MostKeys)
	case len(args) == 0:
		return &usageError{err: errors.New("the command to run is missing"), hint: "it follows after --, as in: " + example}
	case o.slots > 1 && o.shared:
		return exclude(flags, "slots", "shared")
	case o.slots > 1 && len(o.keys) > 1:
		return usagef("%s takes one --key, not %d", sourceOf(flags.Lookup("slots")), len(o.keys))
	case o.conflictCode < 0 || o.conflictCode > 255:
		return usagef("--conflict-exit-code %d: an exit status is from 0 to 255", o.conflictCode)
	case o.quiet && o.verbose:
		return exclude(flags, "quiet", "verbose")
	}
	return cmp.Or(o.checkLedger(flags), o.checkLease(), o.checkTimeout())
}

// exclude is the error for two flags that exclude each other. It says where each comes from.
func exclude(flags *pflag.FlagSet, one, other string) error {
	return usagef("%s and %s exclude each other", sourceOf(flags.Lookup(one)), sourceOf(flags.Lookup(other)))
}

func (o *options) checkLedger(flags *pflag.FlagSet) error {
	if o.oncePer == "" {
		return nil
	}
	switch {
	case ledger.Mode(o.ledger.value) == ledger.Off:
		return usagef("%s needs a ledger: %s off excludes it", sourceOf(flags.Lookup("once-per")), sourceOf(flags.Lookup("ledger")))
	case o.shared:
		return exclude(flags, "once-per", "shared")
	case o.slots > 1:
		return exclude(flags, "once-per", "slots")
	}
	per, err := ledger.ParsePeriod(o.oncePer)
	if err != nil {
		return usagef("--once-per: %w", err)
	}
	if zone := unknownZone(); zone != "" && per == day {
		return &usageError{
			err:  fmt.Errorf("the day of %s is unknown, since TZ names no known time zone: %s", sourceOf(flags.Lookup("once-per")), printable(zone)),
			hint: "TZ=Europe/Berlin names one; rules such as CET-1CEST are not read",
		}
	}
	return nil
}

// unknownZone is the time zone that TZ names, if it is not known, so that Go takes UTC for it.
// POSIX spells UTC as a rule, UTC0.
func unknownZone() string {
	name := strings.TrimPrefix(os.Getenv("TZ"), ":")
	if name == "UTC" || name == "UTC0" || time.Local.String() != "UTC" {
		return ""
	}
	return name
}

// checkPlace finds a --key after the word that has ended the flags.
func (o *options) checkPlace(args []string, example string) error {
	if len(o.keys) > 0 || !givenLate(args) {
		return nil
	}
	return &usageError{
		err:  fmt.Errorf("--key comes too late: %s before it is no flag, and ends pglead's flags", printable(args[0])),
		hint: "flags come before the command, and a value is one word (--wait 10m), as in: " + example,
	}
}

// givenLate says whether there is a --key after the word that has ended the flags.
func givenLate(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.ContainsFunc(args, func(arg string) bool { return arg == "--key" || strings.HasPrefix(arg, "--key=") })
}

// prepare is the first step of the RunE of run and lead. example is a correct command line.
func (o *options) prepare(u *ui, cmd *cobra.Command, args []string, example string) (runner.Config, error) {
	if err := cmp.Or(o.checkPlace(args, example), o.check(cmd.Flags(), args, example)); err != nil {
		return runner.Config{}, err
	}
	claim, keys, err := o.claim()
	if err != nil {
		return runner.Config{}, err
	}
	o.configureUI(u, keys)
	cfg, err := o.config(u, cmd, keys, args)
	if err != nil {
		if missing := (*child.LookupError)(nil); errors.As(err, &missing) {
			o.noteMissing(u, cmd, claim, missing)
		}
		return runner.Config{}, err
	}
	warnOfSockets(u)
	cfg.Lock.Claim = claim
	o.observe(u, &cfg, "leading")
	return cfg, nil
}

// configureUI makes the ui say what the flags ask for. keys are what its messages start with.
func (o *options) configureUI(u *ui, keys []string) {
	u.configure(o.quiet, o.verbose, o.logFormat.value == "json", keys)
}

// config finds the command and the database, and turns flags, after check, into what the runner
// needs. It looks up the command before anything touches the database, since a typo needs no lock.
func (o *options) config(u *ui, cmd *cobra.Command, keys, args []string) (runner.Config, error) {
	path, err := child.Lookup(args[0])
	if err != nil {
		return runner.Config{}, err
	}
	db, err := o.resolveDatabase(u, cmd, o.passDSN)
	if err != nil {
		return runner.Config{}, err
	}
	env := passedOn(cmd)
	if db.pass != "" {
		env = append(env, envName("dsn")+"="+db.pass)
	}
	killAfterTimeout := 10 * time.Second
	if cmd.Flags().Changed("kill-after") {
		killAfterTimeout = o.killAfter.value
	}
	about := o.description(args[0], o.note)
	about.Keys = keys
	return runner.Config{
		Lock: lock.Config{
			Session: session.Config{
				Database:        db.config,
				Lease:           o.lease.value,
				ConnectTimeout:  db.connectTimeout,
				ApplicationName: describe.Name{Key: strings.Join(keys, ", "), Host: about.Host}.String(),
				Transaction:     o.transaction,
				Quorum:          o.quorum,
			},
			Description:   about,
			Wait:          o.wait.value,
			LostGrace:     o.lostGrace.value,
			LockDelay:     o.delay(cmd.Flags(), o.lostGrace.value),
			PrivateServer: db.private,
			Ledger:        o.remembering(),
			Log:           u.log,
		},
		Path:             path,
		Command:          args,
		Env:              env,
		Timeout:          o.timeout.value,
		KillAfterTimeout: killAfterTimeout,
		KillAfterSignal:  o.killAfter.value,
		WaitForLeftovers: o.leftovers.value == "wait",
		MinHold:          o.minHold.value,
		Splay:            o.splay.value,
		Hooks:            o.hooks,
	}, nil
}

// remembering is what the flags, after check, ask of a ledger. The tick is that of this
// process's start, before it waits for anything.
func (o *options) remembering() ledger.Use {
	use := ledger.Use{Mode: ledger.Mode(o.ledger.value)}
	if o.oncePer != "" {
		per, _ := ledger.ParsePeriod(o.oncePer)
		use.Tick = ledger.TickOf(per, time.Now)
	}
	return use
}
