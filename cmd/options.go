package cmd

import (
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/ledger"
)

// options are the flags that several commands have, with their defaults. A command registers those
// that it takes. To add one:
//
//	its field          here
//	its default        newOptions
//	its usage          all
//	its commands       the lists of flags that these give to register, in the order of help
//	its check          check in options_check.go, which says what is wrong with a value
//	its use            config.go: config passes it on in runner.Config or, for package lock, lock.Config
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

// register gives a command the flags of these names, in this order, which is that of help.
func (o *options) register(flags *pflag.FlagSet, names string) {
	all := o.all()
	for name := range strings.FieldsSeq(names) {
		flags.AddFlag(all.Lookup(name))
	}
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
