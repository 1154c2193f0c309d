package cmd

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/lock/advisory"
	"github.com/pglead/pglead/runner/session"
)

// leastLease leaves 0.6 s for a heartbeat.
const leastLease = 3 * time.Second

// options are the flags of the commands that run a command. To add one:
//
//	its field          here
//	its registration   below, for all of these commands, or in the one command's file (see newRunCmd)
//	its check          check, which says what is wrong with a value
//	its use            config, which passes it on in runner.Config, or in lock.Config for package lock
//	its text           README.md, where a test looks for its name
type options struct {
	keys                []string
	keyScheme           string
	shared              bool
	slots               int
	wait, splay         duration
	conflictCode        int
	lease, lockDelay    duration
	lostGrace           duration
	transaction, quorum bool
	timeout, killAfter  duration
	minHold             duration
	leftovers           choice
	hooks               runner.Hooks
	note                string
	oncePer             string
	ledger              choice
	dsn                 string
	passDSN             bool
	connectTimeout      duration
	quiet, verbose      bool
	logFormat           choice
}

func newOptions() options {
	return options{
		slots:          1,
		wait:           duration{mayBeForever: true},
		lease:          duration{value: 15 * time.Second},
		connectTimeout: duration{value: 10 * time.Second},
		conflictCode:   exitConflict,
		ledger:         choose(string(ledger.Auto), string(ledger.Require), string(ledger.Off)),
		leftovers:      choose("kill", "wait"),
		logFormat:      choose("text", "json"),
	}
}

// The flags are registered in groups, in the order of help.

func (o *options) keyFlags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&o.keys, "key", nil, "`KEY`: what to lock (required); repeat it to hold several")
	o.schemeFlag(flags)
	flags.BoolVarP(&o.shared, "shared", "s", false, "hold the lock with others, none of whom holds it exclusively")
	flags.IntVar(&o.slots, "slots", o.slots, "up to `N` holders at once")
}

func (o *options) schemeFlag(flags *pflag.FlagSet) {
	flags.StringVar(&o.keyScheme, "key-scheme", lockkey.Schemes()[0].Name, "how a key becomes a number: a `SCHEME` of pglead key --help")
}

func (o *options) waitFlags(flags *pflag.FlagSet) {
	flags.VarP(&o.wait, "wait", "w", "how long to wait for the lock, or forever; 0 tries once")
	flags.IntVarP(&o.conflictCode, "conflict-exit-code", "E", o.conflictCode, "exit status `N` when the lock is held elsewhere")
}

func (o *options) leaseFlags(flags *pflag.FlagSet) {
	o.takeoverFlags(flags)
	flags.Var(&o.lostGrace, "lost-grace", "after a loss: TERM first, KILL after this or when nine tenths of the lease are over; 0 is KILL at once")
	o.modeFlags(flags)
}

func (o *options) takeoverFlags(flags *pflag.FlagSet) {
	flags.Var(&o.lease, "lease", "a holder that the server can't hear for this long loses the lock; at least 3s")
	flags.Var(&o.lockDelay, "lock-delay", "how long an old holder may live on without knowing that it lost; 0 never waits for it (default 2/3 of the lease, plus the lost-grace)")
}

func (o *options) modeFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&o.transaction, "transaction", false, "hold the lock in a transaction that stays open: for a connection pooler")
	flags.BoolVar(&o.quorum, "quorum", false, "lose the lock when the primary loses its synchronous standbys")
}

func (o *options) commandFlags(flags *pflag.FlagSet) {
	flags.VarP(&o.timeout, "timeout", "t", "the command may run this long, then TERM, then KILL; 0 is no limit")
	flags.Var(&o.killAfter, "kill-after", "from a forwarded TERM, INT, HUP or QUIT to KILL (default never), and from --timeout's TERM (default 10s)")
	flags.Var(&o.leftovers, "leftovers", o.leftovers.usage()+": what becomes of processes still alive when the command has ended")
}

func (o *options) noteFlag(flags *pflag.FlagSet) {
	flags.StringVar(&o.note, "note", "", "`TEXT` that others are shown of this run (default the job's address in GitHub Actions, GitLab, Jenkins, Buildkite, CircleCI)")
}

func (o *options) hookFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.hooks.Acquired, "on-acquired", "", "shell `COMMAND` to run, for at most 10s, beside the start of the command")
	flags.StringVar(&o.hooks.Lost, "on-lost", "", "shell `COMMAND` to run, for at most 10s, when the lock is lost, beside the kill")
	flags.StringVar(&o.hooks.Released, "on-released", "", "shell `COMMAND` to run, for at most 10s, after the lock is given back")
}

// commonFlags come last in help.
func (o *options) commonFlags(flags *pflag.FlagSet) {
	flags.Var(&o.ledger, "ledger", o.ledger.usage()+": go by the database's ledger if it has one, always, or never")
	o.dsnFlag(flags)
	flags.BoolVar(&o.passDSN, "pass-dsn", false, "pass the connection string on to the command, in PGLEAD_DSN")
	o.connectTimeoutFlag(flags)
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "say nothing but errors, of which a command that is killed is one")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "say every step")
	flags.Var(&o.logFormat, "log-format", o.logFormat.usage()+", on standard error")
}

func (o *options) dsnFlag(flags *pflag.FlagSet) {
	flags.StringVarP(&o.dsn, "dsn", "d", "", "`DSN` of the database: URI, keywords or name, as for psql; embedded: a private server")
}

func (o *options) connectTimeoutFlag(flags *pflag.FlagSet) {
	flags.Var(&o.connectTimeout, "connect-timeout", "limit of each attempt to connect, and of asking a server that is full again")
}

// check finds what is wrong with the flags before anything happens.
// example is a correct command line.
func (o *options) check(args []string, example string) error {
	switch {
	case len(o.keys) == 0 && slices.Contains(args, "--"): // a word that isn't a flag has ended the flags
		return &usageError{err: errors.New("--key is missing"), hint: "did you mean --key " + printable(args[0]) + "?"}
	case len(o.keys) == 0:
		return &usageError{err: errors.New("--key is missing"), hint: example}
	case len(o.keys) > describe.MostKeys:
		return usagef("--key is given %d times: at most %d", len(o.keys), describe.MostKeys)
	case len(args) == 0:
		return &usageError{err: errors.New("the command to run is missing"), hint: "it follows after --, as in: " + example}
	case o.slots > 1 && o.shared:
		return usagef("--slots and --shared exclude each other")
	case o.slots > 1 && len(o.keys) > 1:
		return usagef("--slots takes one --key, not %d", len(o.keys))
	case o.conflictCode < 0 || o.conflictCode > 255:
		return usagef("--conflict-exit-code %d: an exit status is from 0 to 255", o.conflictCode)
	case o.quiet && o.verbose:
		return usagef("--quiet and --verbose exclude each other")
	}
	return cmp.Or(o.checkLedger(), o.checkSession())
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

func (o *options) checkSession() error {
	switch {
	case o.lease.value < leastLease:
		return usagef("--lease %s is too short: at least %v", &o.lease, leastLease)
	case o.connectTimeout.value <= 0:
		return usagef("--connect-timeout must be longer than 0")
	}
	return nil
}

// scheme is the scheme of --key-scheme.
func (o *options) scheme() (lockkey.Scheme, error) { return schemeByName(o.keyScheme) }

func (o *options) checkSlots() error {
	if o.slots < 1 || o.slots > describe.MostSlots {
		return usagef("--slots %d: from 1 to %d", o.slots, describe.MostSlots)
	}
	return nil
}

// claim makes the locks from the keys. It puts the keys into the order of their locks.
func (o *options) claim() (lock.Claim, error) {
	if err := o.checkSlots(); err != nil {
		return lock.Claim{}, err
	}
	scheme, err := o.scheme()
	if err != nil {
		return lock.Claim{}, err
	}
	ids := map[string]lockkey.ID{}
	for _, key := range o.keys {
		if _, twice := ids[key]; twice {
			return lock.Claim{}, usagef("--key %s is given twice", printable(key))
		}
		if ids[key], err = scheme.ID(key); err != nil {
			return lock.Claim{}, usagef("--key %s: %w", printable(key), err)
		}
	}
	slices.SortFunc(o.keys, func(a, b string) int { return ids[a].Compare(ids[b]) })
	claim := lock.Claim{Keys: o.keys}
	if o.slots > 1 {
		gate, err := scheme.Gate(o.keys[0])
		if err != nil {
			return claim, usagef("--slots: %w", err)
		}
		claim.Gate = &gate
		for i := range o.slots {
			id, err := scheme.Slot(o.keys[0], i+1)
			if err != nil {
				return claim, usagef("--slots: %w", err)
			}
			claim.Locks = append(claim.Locks, advisory.Lock{ID: id})
		}
		return claim, nil
	}
	for _, key := range o.keys {
		l := advisory.Lock{ID: ids[key], Shared: o.shared}
		if !slices.Contains(claim.Locks, l) { // two keys with one number are one lock
			claim.Locks = append(claim.Locks, l)
		}
	}
	return claim, nil
}

// prepare is the first step of run and lead. example is a correct command line.
func (o *options) prepare(u *ui, cmd *cobra.Command, args []string, example string) (runner.Config, error) {
	if err := cmp.Or(o.checkPlace(args, example), o.check(args, example)); err != nil {
		return runner.Config{}, err
	}
	claim, err := o.claim()
	if err != nil {
		return runner.Config{}, err
	}
	cfg, err := o.config(u, cmd, args)
	if err != nil {
		if missing := (*child.LookupError)(nil); errors.As(err, &missing) {
			o.noteMissing(u, cmd, claim, missing)
		}
		return runner.Config{}, err
	}
	cfg.Claim = claim
	o.observe(u, &cfg, "leading")
	return cfg, nil
}

// config turns flags, after check, into what the runner needs. It looks up the command
// before anything touches the database, since a typo needs no lock.
func (o *options) config(u *ui, cmd *cobra.Command, args []string) (runner.Config, error) {
	flags := cmd.Flags()
	if !flags.Changed("lock-delay") {
		o.lockDelay.value = leasetime.DeadAfter(o.lease.value, o.lostGrace.value)
	}
	u.configure(o.quiet, o.verbose, o.logFormat.value == "json", o.keys)
	path, err := child.Lookup(args[0])
	if err != nil {
		return runner.Config{}, err
	}
	db, err := o.database(u, cmd)
	if err != nil {
		return runner.Config{}, err
	}
	env := passedOn(cmd)
	if os.Getenv("LISTEN_FDS") != "" {
		u.log.Warn("the sockets that systemd has opened (LISTEN_FDS) are not passed to the command", "event", "environment")
	}
	if db.pass != "" {
		env = append(env, envName("dsn")+"="+db.pass)
	}
	killAfterTimeout := 10 * time.Second
	if flags.Changed("kill-after") {
		killAfterTimeout = o.killAfter.value
	}
	return runner.Config{
		Locking: lock.Config{
			Session: session.Config{
				Database:        db.config,
				Lease:           o.lease.value,
				ConnectTimeout:  o.connectTimeout.value,
				ApplicationName: applicationName(strings.Join(o.keys, ", ")),
				Transaction:     o.transaction,
				Quorum:          o.quorum,
				Private:         db.private,
			},
			Description: o.description(args[0]),
			Wait:        o.wait.value,
			LostGrace:   o.lostGrace.value,
			LockDelay:   o.lockDelay.value,
			Ledger:      o.remembering(),
			Explain:     !o.quiet,
			Log:         u.log,
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

// database is the database that the flags or the environment name. The connection string may
// set the time for an attempt to connect; the flag overrides that.
func (o *options) database(u *ui, cmd *cobra.Command) (database, error) {
	warnOfVariables(u, cmd)
	flags := cmd.Flags()
	db, err := databaseFrom(u, flags.Lookup("dsn"), o.passDSN)
	if err == nil && !flags.Changed("connect-timeout") && db.config.ConnectTimeout > 0 {
		o.connectTimeout.value = db.config.ConnectTimeout
	}
	return db, err
}

// description is what a session says about itself, besides what everyone sees.
func (o *options) description(command string) describe.Description {
	d := describe.Description{
		Keys: o.keys, Scheme: o.keyScheme, PID: os.Getpid(), Command: filepath.Base(command),
		Note: cmp.Or(o.note, jobAddress(os.Getenv)),
	}
	if o.slots > 1 {
		d.Slots = o.slots
	}
	d.Host, _ = os.Hostname()
	// Not from the user database, which may be on a network that is down.
	for _, variable := range []string{"LOGNAME", "USER"} {
		if d.User == "" {
			d.User = os.Getenv(variable)
		}
	}
	switch {
	case d.User != "":
	case os.Getuid() == 0:
		d.User = "root"
	default:
		d.User = "uid " + strconv.Itoa(os.Getuid())
	}
	return d
}

// applicationNameMost is NAMEDATALEN-1: the server cuts off the rest.
const applicationNameMost = 63

// applicationName is what everyone can see in pg_stat_activity: the key and the host, as
// far as they fit.
func applicationName(key string) string {
	host, _ := os.Hostname()
	suffix := "@" + host
	if len(suffix) > applicationNameMost/2 {
		suffix = suffix[:applicationNameMost/2]
	}
	name := "pglead:" + key
	if most := applicationNameMost - len(suffix); len(name) > most {
		name = name[:most]
	}
	// The server shows other bytes as question marks, and a quote would end the literal
	// with this name.
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '\'' || r == '\\' {
			return '?'
		}
		return r
	}, name+suffix)
}
