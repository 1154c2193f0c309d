package cmd

import (
	"cmp"
	"errors"
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
)

// prepare is the first step of the RunE of run and lead. work is as for config, and example is a
// correct command line.
func (o *options) prepare(cmd *cobra.Command, args []string, work, example string) (runner.Config, error) {
	if err := cmp.Or(o.checkPlace(args, example), o.check(cmd.Flags(), args, example)); err != nil {
		return runner.Config{}, err
	}
	claim, keys, err := o.claim()
	if err != nil {
		return runner.Config{}, err
	}
	o.configureUI(keys)
	cfg, err := o.config(cmd, claim, keys, args, work)
	if missing, ok := errors.AsType[*child.LookupError](err); ok {
		o.noteMissing(cmd, claim, missing)
	}
	return cfg, err
}

// configureUI makes the ui say what the flags ask for. keys are what its messages start with.
func (o *options) configureUI(keys []string) {
	o.u.configure(o.quiet, o.verbose, o.logFormat.value == "json", keys)
}

// config finds the command and the database, and turns flags, after check, into what the runner
// needs. It looks up the command before anything touches the database, since a typo needs no lock.
// work says what this process does while a command runs.
func (o *options) config(cmd *cobra.Command, claim lock.Claim, keys, args []string, work string) (runner.Config, error) {
	path, err := child.Lookup(args[0])
	if err != nil {
		return runner.Config{}, err
	}
	connection, db, err := o.connection(cmd)
	if err != nil {
		return runner.Config{}, err
	}
	env := commandEnvironment(cmd)
	dsn := cmp.Or(db.dsn, os.Getenv("DATABASE_URL"))
	switch {
	case o.passDSN && dsn != "":
		env = append(env, envName("dsn")+"="+dsn)
	case db.dsn != "":
		env = append(env, envName("dsn")+"="+withheld)
	}
	killAfterTimeout := 10 * time.Second
	if cmd.Flags().Changed("kill-after") {
		killAfterTimeout = o.killAfter.value
	}
	about := o.description(args[0])
	about.Keys = keys
	connection.ApplicationName = describe.Name{Key: strings.Join(keys, ", "), Host: about.Host}.String()
	cfg := runner.Config{
		Lock: lock.Config{
			Claim:         claim,
			Session:       connection,
			Description:   about,
			Wait:          o.wait.value,
			LostGrace:     o.lostGrace.value,
			LockDelay:     o.delay(cmd.Flags()),
			PrivateServer: db.private,
			Ledger:        o.ledgerUse(),
			Log:           o.u.log,
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
	}
	warnOfSockets(o.u)
	o.observe(&cfg, work)
	return cfg, nil
}

// ledgerUse is what the flags, after check, ask of a ledger. The tick is that of this
// process's start, before it waits for anything.
func (o *options) ledgerUse() ledger.Use {
	use := ledger.Use{Mode: ledger.Mode(o.ledger.value)}
	if o.oncePer != "" {
		per, _ := ledger.ParsePeriod(o.oncePer)
		use.Tick = ledger.TickOf(per, time.Now)
	}
	return use
}

// claim makes the locks from the keys. It returns the keys, too, in the order of their locks.
func (o *options) claim() (claim lock.Claim, keys []string, err error) {
	scheme, err := o.scheme()
	if err != nil {
		return claim, nil, err
	}
	ids := map[string]lockkey.ID{}
	for _, key := range o.keys {
		if _, twice := ids[key]; twice {
			return claim, nil, usagef("", "--key %s is given twice", printable(key))
		}
		if ids[key], err = scheme.ID(key); err != nil {
			return claim, nil, usagef("", "--key %s: %w", printable(key), err)
		}
	}
	keys = slices.Clone(o.keys)
	slices.SortFunc(keys, func(a, b string) int { return ids[a].Compare(ids[b]) })
	if o.slots > 1 {
		gate, err := scheme.Gate(keys[0])
		if err != nil {
			return claim, nil, usagef("", "--slots: %w", err)
		}
		claim.Keys, claim.Gate = keys, &gate
		for i := range o.slots {
			id, _ := scheme.Slot(keys[0], i+1) // the scheme has a gate, so it has slots
			claim.IDs = append(claim.IDs, id)
		}
		return claim, keys, nil
	}
	claim.Shared = o.shared
	for _, key := range keys {
		if id := ids[key]; !slices.Contains(claim.IDs, id) { // two keys with one number are one lock
			claim.IDs, claim.Keys = append(claim.IDs, id), append(claim.Keys, key)
		}
	}
	return claim, keys, nil
}

// description is what a session says about itself, besides its keys and what everyone sees.
func (o *options) description(command string) describe.Description {
	d := describe.Description{
		Scheme: o.keyScheme, PID: os.Getpid(), Command: filepath.Base(command),
		Note: cmp.Or(o.note, jobAddress(os.Getenv)),
	}
	if o.slots > 1 {
		d.Slots = o.slots
	}
	d.Host, _ = os.Hostname()
	user := "uid " + strconv.Itoa(os.Getuid())
	if os.Getuid() == 0 {
		user = "root"
	}
	// Not from the user database, which may be on a network that is down.
	d.User = cmp.Or(os.Getenv("LOGNAME"), os.Getenv("USER"), user)
	return d
}

// delay is the lock-delay. Unless the flag is given, it is as long as an old holder may live on.
func (o *options) delay(flags *pflag.FlagSet) time.Duration {
	if flags.Changed("lock-delay") {
		return o.lockDelay.value
	}
	return leasetime.DeadAfter(o.lease.value, o.lostGrace.value)
}
