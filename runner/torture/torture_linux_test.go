package torture

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/cmd"
)

type options struct {
	rounds           int
	lease, lockDelay time.Duration
	seed             uint64
	only             string
	svg, logs        string
	results          string
	peers            bool
	modeName         string
	hostile          bool
	ledger           bool
	lostGrace        time.Duration
}

func TestMain(m *testing.M) {
	play()
	// go test takes an old result for this one's unless the test program has changed, and the
	// linker leaves out what is never called. So there is a call to all of pglead, which the
	// tests build.
	if m == nil {
		os.Exit(cmd.Main(nil))
	}
	os.Exit(m.Run())
}

// parseOptions defines the flags when the test runs, not before: a package's
// globals would be made in every role that the binary plays.
func parseOptions() options {
	var o options
	flags := flag.NewFlagSet("torture", flag.ExitOnError)
	flags.IntVar(&o.rounds, "rounds", 1, "how often each fault comes")
	flags.DurationVar(&o.lease, "lease", 3*time.Second, "--lease of all")
	flags.DurationVar(&o.lockDelay, "lock-delay", 2*time.Second, "--lock-delay of all")
	flags.Uint64Var(&o.seed, "seed", 0, "of the schedule; 0 picks one")
	flags.StringVar(&o.only, "only", "", "faults whose names match this regular expression")
	flags.StringVar(&o.svg, "svg", "", "file for the run's picture")
	flags.StringVar(&o.logs, "logs", "", "directory for what the pgleads say")
	flags.StringVar(&o.results, "results", "", "file that the outcomes are added to; the table is of all in it")
	flags.BoolVar(&o.peers, "peers", false, "compare with flock, psql and etcdctl")
	flags.BoolVar(&o.hostile, "hostile", true, "strangers say all that they can meanwhile")
	flags.DurationVar(&o.lostGrace, "lost-grace", 0, "--lost-grace of all")
	flags.BoolVar(&o.ledger, "ledger", false, "the database has a ledger, and one contender comes anew all the time")
	flags.StringVar(&o.modeName, "mode", "run", strings.Join(modeNames(), ", "))
	_ = flags.Parse(strings.Fields(os.Getenv("TORTURE")))
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return o
}

// telling are the faults of a mode's short run.
const telling = "^(SIGKILL of (pglead|the guard|the pooler)|pg_terminate_backend|partition|SIGTERM, .*|foreign .*)$"

// TestTorture puts every fault to `pglead run` and the most telling ones to the
// other modes, unless TORTURE says what to do.
func TestTorture(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT TESTED: torture takes minutes")
	}
	o := parseOptions()
	if os.Getenv("TORTURE") != "" {
		torture(t, o)
		return
	}
	t.Run(o.modeName, func(t *testing.T) { torture(t, o) })
	for _, name := range modeNames() {
		if name != o.modeName {
			short := o
			short.modeName, short.only = name, telling
			t.Run(name, func(t *testing.T) { torture(t, short) })
		}
	}
}

func torture(t *testing.T, o options) {
	t.Helper()
	t.Logf("TORTURE='-mode %s -seed %d -rounds %d -lease %v -lock-delay %v'", o.modeName, o.seed, o.rounds, o.lease, o.lockDelay)
	a := newArena(t, o)
	var ended, ears sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer ears.Wait()
	defer cancel()
	ears.Go(func() { a.overhear(ctx) })
	ears.Go(func() { a.stalls.watch(ctx, a.note) })
	for _, host := range contenders() {
		a.contend(host, &ended)
	}
	if a.hostile {
		defer a.hostility()()
	}
	var schedule []fault
	only := regexp.MustCompile(o.only)
	for range o.rounds {
		for _, f := range slices.Concat(faults(), []fault{lossyProxy(a), foreignInLine(), strangersRequest(a)}, lineFaults(a), clockFaults(a), a.mode.more) {
			if only.MatchString(f.name) {
				schedule = append(schedule, f)
			}
		}
	}
	a.rand.Shuffle(len(schedule), func(i, j int) { schedule[i], schedule[j] = schedule[j], schedule[i] })

	began := uptime()
	var events []event
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, unix.SIGINT)
	defer signal.Stop(interrupted)
	for len(events) < len(schedule) && len(interrupted) == 0 {
		e := a.inflict(schedule[len(events)])
		a.accounted(e)
		e.load = loadNow()
		events = append(events, e)
		time.Sleep(a.tenure())
	}
	if len(interrupted) > 0 {
		t.Logf("interrupted: %d of %d faults", len(events), len(schedule))
	} else if a.mode.queues && !a.ledger {
		a.everyonesTurn()
	}
	a.awaitLeader()
	a.close(&ended)

	for _, e := range events {
		if e.next > e.bound {
			t.Errorf("%s: %v until the next command, more than %v; nothing ran for up to %v", e.fault, e.next, e.bound, a.stalls.longest(e.at, e.at+e.next))
		}
	}
	a.verdict(began, a.history(0), events)
}

// tenure is how long a leader is left alone: mostly for an instant, sometimes until it
// has sent heartbeats.
func (a *arena) tenure() time.Duration {
	most := 200 * time.Millisecond
	if a.rand.IntN(8) == 0 {
		most = a.lease * 2 / 5
	}
	return time.Duration(a.rand.Int64N(int64(most)))
}

// verdict checks the history and prints it.
func (a *arena) verdict(began time.Duration, h history, events []event) {
	a.t.Helper()
	// One list for both judges: each of them sorts it where it is.
	promised := slices.DeleteFunc(slices.Concat(h, a.foreign), func(l life) bool { return l.excused })
	overlaps := promised.overlaps()
	for _, o := range overlaps {
		if a.lockDelay > 0 {
			a.t.Errorf("overlap: %v; nothing ran for up to %v in the lease before", o, a.stalls.longest(o.young.first-a.lease, o.young.first+o.by))
		}
	}
	said := judge(promised)
	for _, s := range said {
		if a.lockDelay > 0 {
			a.t.Error(s)
		} else {
			a.t.Log(s)
		}
	}
	if len(overlaps) > 0 && len(said) == 0 {
		a.t.Error("the second judge has seen no overlap")
	}
	if err := h.disorder(); err != nil {
		a.t.Error(err)
	}
	// No slot was anyone's at the same time as another's: as many at once as
	// there are slots.
	if locks := h.held(); a.mode.slots > 0 && len(locks) > a.mode.slots {
		a.t.Errorf("%d slots: %s", a.mode.slots, strings.Join(locks, ", "))
	}
	if err := h.save(filepath.Join(a.logs, "lives.log")); err != nil {
		a.t.Error(err)
	}
	outcomes := a.outcomes(events, overlaps)
	if a.results != "" {
		var err error
		if outcomes, err = accumulate(a.results, outcomes); err != nil {
			a.t.Error(err)
		}
	}
	a.t.Logf("%d commands led in %v\n%s", len(h), (uptime() - began).Round(time.Second), table(outcomes))
	if a.svg != "" {
		if err := os.WriteFile(a.svg, picture(h, events), 0o644); err != nil {
			a.t.Error(err)
		}
	}
}
