package cmd

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/session"
)

// leastLease leaves a heartbeat of 0.6 s some air.
const leastLease = 3 * time.Second

type runFlags struct {
	keys           []string
	wait           duration
	lease          duration
	lockDelay      duration
	lostGrace      duration
	timeout        duration
	killAfter      duration
	leftovers      string
	conflictCode   int
	dsn            string
	passDSN        bool
	quorum         bool
	connectTimeout duration
	quiet, verbose bool
	logFormat      string
}

func newRunCmd(v *voice) *cobra.Command {
	f := runFlags{
		wait:           duration{forever: true},
		lease:          duration{value: 15 * time.Second},
		connectTimeout: duration{value: 10 * time.Second},
	}
	cmd := &cobra.Command{
		Use:   "run --key KEY [flags] -- COMMAND [ARG...]",
		Short: "Run a command while holding the lock",
		Long: `Run a command while holding the lock of KEY in a PostgreSQL database.

The command starts only while the server grants the lock. If the connection is
lost the command and everything it started are killed.`,
		Example: `  pglead run --key invoice_gen/SUB-1234 -- ./job
  pglead run --key nightly --wait 10m --timeout 2h -- ./backup.sh /data`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(v, cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows the command is the command's
	flags.SortFlags = false
	flags.StringArrayVar(&f.keys, "key", nil, "`KEY`: what to lock (required)")
	flags.VarP(&f.wait, "wait", "w", "how long to wait for the lock, or forever; 0 tries once")
	flags.Var(&f.lease, "lease", "a holder that the server can't hear for this long loses the lock; at least 3s")
	flags.Var(&f.lockDelay, "lock-delay", "how long an old holder may live on without knowing that it lost; 0 never waits for it (default 2/3 of the lease, plus the lost-grace)")
	flags.Var(&f.lostGrace, "lost-grace", "after a loss: TERM first, KILL after this or when nine tenths of the lease are over; 0 is KILL at once")
	flags.VarP(&f.timeout, "timeout", "t", "the command may run this long, then TERM, then KILL; 0 is no limit")
	flags.Var(&f.killAfter, "kill-after", "from a forwarded TERM, INT or HUP to KILL (default never), and from --timeout's TERM (default 10s)")
	flags.StringVar(&f.leftovers, "leftovers", "kill", "`kill` or wait: what becomes of processes still alive when the command has ended")
	flags.IntVarP(&f.conflictCode, "conflict-exit-code", "E", exitHeld, "exit status `N` when the lock is held elsewhere")
	flags.StringVarP(&f.dsn, "dsn", "d", "", "`DSN` of the database: URI, keywords or name, as for psql; embedded: a private server")
	flags.BoolVar(&f.passDSN, "pass-dsn", false, "pass the connection string on to the command, in PGLEAD_DSN")
	flags.BoolVar(&f.quorum, "quorum", false, "lose the lock when the primary loses its synchronous standbys")
	flags.Var(&f.connectTimeout, "connect-timeout", "for each attempt to connect")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "say nothing but errors")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "say every step")
	flags.StringVar(&f.logFormat, "log-format", "text", "`text` or json, on standard error")
	return cmd
}

func (f *runFlags) run(v *voice, cmd *cobra.Command, args []string) error {
	flags := cmd.Flags()
	dsnOnCommandLine := flags.Changed("dsn")
	if err := fromEnvironment(flags); err != nil {
		return err
	}
	if !flags.Changed("lock-delay") {
		f.lockDelay.value = session.TakeoverDelay(f.lease.value) + f.lostGrace.value
	}
	key, err := f.check(args)
	if err != nil {
		return err
	}
	v.configure(f.quiet, f.verbose, f.logFormat == "json", key)

	// Looked up before the database is touched: a typo needs no lock.
	if _, err := child.Lookup(args[0]); err != nil {
		return err
	}
	db, err := databaseFrom(v, f.dsn, !dsnOnCommandLine, f.passDSN)
	if err != nil {
		return err
	}
	connectTimeout := f.connectTimeout.value
	if !flags.Changed("connect-timeout") && db.config.ConnectTimeout > 0 {
		connectTimeout = db.config.ConnectTimeout
	}
	env := withoutFlags(os.Environ(), flags)
	if db.pass != "" {
		env = append(env, envName("dsn")+"="+db.pass)
	}
	killAfterTimeout := 10 * time.Second
	if flags.Changed("kill-after") {
		killAfterTimeout = f.killAfter.value
	}
	outcome, err := runner.Run(runner.Config{
		Key: key,
		ID:  lockkey.SipHash24(key),
		Session: session.Config{
			Database:        db.config,
			Lease:           f.lease.value,
			ConnectTimeout:  connectTimeout,
			ApplicationName: applicationName(key),
			Quorum:          f.quorum,
		},
		Wait:             f.wait.value,
		LockDelay:        f.lockDelay.value,
		LostGrace:        f.lostGrace.value,
		Command:          args,
		Env:              env,
		Timeout:          f.timeout.value,
		KillAfterTimeout: killAfterTimeout,
		KillAfterSignal:  f.killAfter.value,
		WaitForLeftovers: f.leftovers == "wait",
		Log:              v.log,
	})
	runtime.KeepAlive(db.embedded)
	var held *runner.HeldError
	switch {
	case errors.As(err, &held):
		return &heldError{held, f.conflictCode}
	case err != nil:
		return err
	}
	return &ended{outcome}
}

// check finds what is wrong with the flags before anything is touched.
func (f *runFlags) check(args []string) (key string, err error) {
	switch {
	case len(f.keys) == 0:
		return "", &usageError{err: errors.New("--key is missing"), hint: "pglead run --key invoice_gen/SUB-1234 -- ./job"}
	case len(f.keys) > 1:
		return "", usagef("--key is given %d times; a run holds one lock", len(f.keys))
	case len(args) == 0:
		return "", &usageError{err: errors.New("the command to run is missing"), hint: "it follows after --, as in: pglead run --key " + printable(f.keys[0]) + " -- ./job"}
	case f.lease.value < leastLease:
		return "", usagef("--lease %s is too short: at least %v", &f.lease, leastLease)
	case f.connectTimeout.value <= 0:
		return "", usagef("--connect-timeout must be longer than 0")
	case f.leftovers != "kill" && f.leftovers != "wait":
		return "", usagef("--leftovers %s: kill or wait", printable(f.leftovers))
	case f.conflictCode < 0 || f.conflictCode > 255:
		return "", usagef("--conflict-exit-code %d: an exit status is from 0 to 255", f.conflictCode)
	case f.logFormat != "text" && f.logFormat != "json":
		return "", usagef("--log-format %s: text or json", printable(f.logFormat))
	case f.quiet && f.verbose:
		return "", usagef("--quiet and --verbose exclude each other")
	}
	if err := lockkey.Check(f.keys[0]); err != nil {
		return "", usagef("--key: %w", err)
	}
	return f.keys[0], nil
}

// applicationNameMost is NAMEDATALEN-1: the server cuts off what is longer.
const applicationNameMost = 63

// applicationName is what everyone can see in pg_stat_activity: the key and
// the host, as far as they fit.
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
	// The server shows other bytes as question marks, and a quote would end
	// the literal that this becomes.
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '\'' || r == '\\' {
			return '?'
		}
		return r
	}, name+suffix)
}
