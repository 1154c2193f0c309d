package cmd

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/ledger"
)

// options are the flags of run, and those that several commands have, with their defaults. A command
// registers those that it takes. To add one:
//
//	its field          here
//	its default        newOptions
//	its usage          all
//	its commands       the lists of flags that these give to register, in the order of help
//	its check          checkRanges, if it is about the value alone; check, if run, lead and each
//	                   don't take it together with other flags
//	its use            config in config.go, which passes it on in runner.Config or lock.Config
//	its text           REFERENCE.md, where a test looks for its name
//	its script         testdata/script
type options struct {
	u *ui // what is said

	keys                        []string
	keyScheme                   string
	shared                      bool
	slots, conflictCode         int
	wait, splay, minHold        duration
	lease, lockDelay, lostGrace duration
	transaction, quorum         bool
	timeout, killAfter          duration
	leftovers                   choice
	hooks                       runner.Hooks
	note, oncePer               string
	ledger                      choice
	dsn                         string
	passDSN, quiet, verbose     bool
	connectTimeout              duration
	logFormat, output           choice
}

const (
	defaultLease = 15 * time.Second
	leastLease   = 3 * time.Second // it leaves 0.6 s for a heartbeat
)

func newOptions(u *ui) options {
	return options{
		u:              u,
		keyScheme:      lockkey.DefaultScheme,
		slots:          1,
		conflictCode:   exitConflict,
		wait:           duration{mayBeForever: true},
		lease:          duration{value: defaultLease},
		leftovers:      choose("kill", "wait"),
		ledger:         choose(string(ledger.Auto), string(ledger.Require), string(ledger.Off)),
		connectTimeout: duration{value: 10 * time.Second},
		logFormat:      choose("text", "json"),
		output:         choose("text", "json"),
	}
}

// register gives a command the flags of these names, in this order, which is that of help. The
// command's first step is to read all its flags, and to check each by itself.
func (o *options) register(cmd *cobra.Command, names string) {
	all := o.all()
	for name := range strings.FieldsSeq(names) {
		cmd.Flags().AddFlag(all.Lookup(name)) // it panics if all lacks the name
	}
	cmd.PreRunE = func(*cobra.Command, []string) error { return cmp.Or(readFlags(cmd.Flags()), o.checkRanges()) }
}

// all has the flags as most commands describe them. The others change Usage.
func (o *options) all() *pflag.FlagSet {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.StringArrayVar(&o.keys, "key", nil, "lock this `KEY` (required); repeat it to hold several")
	flags.StringVar(&o.keyScheme, "key-scheme", o.keyScheme, "how a key becomes a number: a `SCHEME` of pglead key --help")
	flags.BoolVarP(&o.shared, "shared", "s", false, "share the lock with other --shared runs, and with no exclusive one")
	flags.IntVar(&o.slots, "slots", o.slots, "up to `N` holders at once")
	flags.VarP(&o.wait, "wait", "w", "how long to wait for the lock, or forever; 0 tries once. The lock-delay comes on top")
	flags.IntVarP(&o.conflictCode, "conflict-exit-code", "E", o.conflictCode, "exit status `N` if the lock is held elsewhere or paused")
	flags.Var(&o.splay, "splay", "wait a random time, up to this, before the first try")
	flags.Var(&o.lease, "lease", "a holder that the server can't hear for this long loses the lock; from 3s to 24h")
	flags.Var(&o.lockDelay, "lock-delay", "how long a new holder waits for an old command that may still run; 0 never waits "+
		"(default 2/3 of the lease, plus the lost-grace, at most the lease)")
	flags.Var(&o.lostGrace, "lost-grace", "after a loss: TERM first, KILL after this time or when 9/10 of the lease are over; 0 is KILL at once")
	flags.BoolVar(&o.transaction, "transaction", false, "hold the lock in a transaction that stays open: for a connection pooler")
	flags.BoolVar(&o.quorum, "quorum", false, "lose the lock when the primary loses its synchronous standbys")
	flags.VarP(&o.timeout, "timeout", "t", "the command may run this long, then TERM, then KILL; 0 is no limit")
	flags.Var(&o.killAfter, "kill-after", "time from TERM to KILL: after a forwarded TERM or INT (default never), and after --timeout (default 10s)")
	flags.Var(&o.leftovers, "leftovers", "take this `ACTION` on processes that outlive the command: "+o.leftovers.list())
	flags.Var(&o.minHold, "min-hold", "hold the lock at least this long after the start, even if the command is done")
	flags.StringVar(&o.hooks.Acquired, "on-acquired", "", "shell `COMMAND` to run, for at most 10s, beside the start of the command")
	flags.StringVar(&o.hooks.Lost, "on-lost", "", "shell `COMMAND` to run, for at most 10s, when the lock is lost, beside the kill")
	flags.StringVar(&o.hooks.Released, "on-released", "", "shell `COMMAND` to run, for at most 10s, after the lock is released")
	flags.StringVar(&o.note, "note", "", "show others this `TEXT` about the run "+
		"(default the job's address in GitHub Actions, GitLab, Jenkins, Buildkite, CircleCI)")
	flags.StringVar(&o.oncePer, "once-per", "",
		"do nothing if a run has succeeded in this `PERIOD`, such as 5m, hour or day (the local date, by TZ); needs a ledger")
	flags.Var(&o.ledger, "ledger", "use the database's ledger in this `MODE`: auto (if it has one), require (always) or off (never)")
	flags.StringVarP(&o.dsn, "dsn", "d", "", "the database's `DSN`: a URI, keywords or a name, as for psql; or embedded, a private server")
	flags.BoolVar(&o.passDSN, "pass-dsn", false, "pass the connection string on to the command, in PGLEAD_DSN")
	flags.Var(&o.connectTimeout, "connect-timeout", "how long each attempt to connect may take, and how long a full server is asked again")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "say only errors; killing a command counts as an error")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "say every step")
	flags.Var(&o.logFormat, "log-format", "write the messages on standard error in this `FORMAT`: "+o.logFormat.list())
	flags.VarP(&o.output, "output", "o", "in this `FORMAT`: "+o.output.list())
	return flags
}

// checkRanges finds a value that is wrong whatever the other flags are. A flag that a command does not
// take has its default, which is right.
func (o *options) checkRanges() error {
	switch {
	case o.slots < 1 || o.slots > describe.MostSlots:
		return usagef("", "--slots %d: from 1 to %d", o.slots, describe.MostSlots)
	case o.conflictCode < 0 || o.conflictCode > 255:
		return usagef("", "--conflict-exit-code %d: an exit status is from 0 to 255", o.conflictCode)
	case o.lease.value < leastLease:
		return usagef("", "--lease %s is too short: at least %v", &o.lease, leastLease)
	case o.lease.value > leasetime.Most:
		return usagef("", "--lease %s is too long: at most %s", &o.lease, &duration{value: leasetime.Most})
	case o.connectTimeout.value <= 0:
		return usagef("", "--connect-timeout must be longer than 0")
	}
	return nil
}

// check finds what is wrong with the flags of run, lead or each taken together, before anything
// happens. example is a correct command line.
func (o *options) check(flags *pflag.FlagSet, args []string, example string) error {
	switch {
	case len(o.keys) == 0 && slices.Contains(args, "--"): // a word that isn't a flag has ended the flags
		return usagef("did you mean --key "+printable(args[0])+"?", "--key is missing")
	case len(o.keys) == 0:
		return usagef(example, "--key is missing")
	case len(o.keys) > describe.MostKeys:
		return usagef("", "--key is given %d times: at most %d", len(o.keys), describe.MostKeys)
	case len(args) == 0:
		return usagef("it follows after --, as in: "+example, "the command to run is missing")
	case o.slots > 1 && o.shared:
		return exclude(flags, "slots", "shared")
	case o.slots > 1 && len(o.keys) > 1:
		return usagef("", "%s takes one --key, not %d", sourceOf(flags.Lookup("slots")), len(o.keys))
	case o.quiet && o.verbose:
		return exclude(flags, "quiet", "verbose")
	}
	return o.checkOncePer(flags)
}

// exclude is the error for two flags that exclude each other. It says where each comes from.
func exclude(flags *pflag.FlagSet, one, other string) error {
	return usagef("", "%s and %s exclude each other", sourceOf(flags.Lookup(one)), sourceOf(flags.Lookup(other)))
}

func (o *options) checkOncePer(flags *pflag.FlagSet) error {
	if o.oncePer == "" {
		return nil
	}
	switch {
	case ledger.Mode(o.ledger.value) == ledger.Off:
		return usagef("", "%s needs a ledger: %s off excludes it", sourceOf(flags.Lookup("once-per")), sourceOf(flags.Lookup("ledger")))
	case o.shared:
		return exclude(flags, "once-per", "shared")
	case o.slots > 1:
		return exclude(flags, "once-per", "slots")
	}
	per, err := ledger.ParsePeriod(o.oncePer)
	if err != nil {
		return usagef("", "--once-per: %w", err)
	}
	if zone := unknownZone(); zone != "" && per == day {
		return usagef("TZ=Europe/Berlin names one; rules such as CET-1CEST are not read",
			"the day of %s is unknown, since TZ names no known time zone: %s", sourceOf(flags.Lookup("once-per")), printable(zone))
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
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	late := slices.ContainsFunc(args, func(arg string) bool { return arg == "--key" || strings.HasPrefix(arg, "--key=") })
	if len(o.keys) > 0 || !late {
		return nil
	}
	return usagef("flags come before the command, and a value is one word (--wait 10m), as in: "+example,
		"--key comes too late: %s before it is no flag, and ends pglead's flags", printable(args[0]))
}
