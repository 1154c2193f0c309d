package torture

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

type patroniOptions struct {
	rounds           int
	lease, lockDelay time.Duration
	ttl, loop, retry int
	seed             uint64
	only, logs       string
	quorum, strict   bool
}

func parsePatroniOptions() patroniOptions {
	var o patroniOptions
	flags := flag.NewFlagSet("patroni", flag.ExitOnError)
	flags.IntVar(&o.rounds, "rounds", 1, "how often each fault comes")
	flags.DurationVar(&o.lease, "lease", 3*time.Second, "--lease of all")
	flags.DurationVar(&o.lockDelay, "lock-delay", 2*time.Second, "--lock-delay of all")
	flags.IntVar(&o.ttl, "ttl", 12, "Patroni's ttl, in seconds")
	flags.IntVar(&o.loop, "loop", 2, "its loop_wait")
	flags.IntVar(&o.retry, "retry", 3, "its retry_timeout")
	flags.Uint64Var(&o.seed, "seed", 0, "of the schedule; 0 picks one")
	flags.StringVar(&o.only, "only", "", "faults whose names match this regular expression")
	flags.StringVar(&o.logs, "logs", "", "directory for what all of them say")
	flags.BoolVar(&o.quorum, "quorum", true, "--quorum of all")
	flags.BoolVar(&o.strict, "strict", true, "Patroni's synchronous_mode_strict")
	_ = flags.Parse(strings.Fields(os.Getenv("PATRONI")))
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return o
}

// TestPatroni: a cluster of Debian's Patroni, with all that can become of it.
func TestPatroni(t *testing.T) {
	if os.Getenv("PATRONI") == "" {
		t.Skip("NOT TESTED: a Patroni cluster takes a minute for each fault: PATRONI='-rounds 1' go test ./runner/torture -run TestPatroni -timeout 0 -v")
	}
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces need root")
	}
	for _, program := range []string{"ip", "nft", "etcd", "patroni", "haproxy"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%s is missing: testdata/setup patroni installs it", program)
		}
	}
	o := parsePatroniOptions()
	if o.logs == "" {
		o.logs = t.TempDir()
	} else if err := os.MkdirAll(o.logs, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Logf("PATRONI='-seed %d -rounds %d -lease %v -lock-delay %v -ttl %d -loop %d -retry %d -quorum=%t -strict=%t'",
		o.seed, o.rounds, o.lease, o.lockDelay, o.ttl, o.loop, o.retry, o.quorum, o.strict)
	binary := buildPglead(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := newNetwork(t, append(append(databaseHosts(), contestants()...), proxyHost, operatorHost)...)
	c := newCluster(t, o, n)
	contests := newContests(c, binary, self)
	c.prepareJobs(contests)
	for _, x := range contests {
		t.Cleanup(x.over)
		for _, host := range contestants() {
			x.contend(host)
		}
	}
	began := uptime()
	schedule := c.schedule()
	for i, f := range schedule {
		events := c.inflict(f, contests)
		for _, x := range contests {
			x.events = append(x.events, events[x.modeName])
		}
		t.Logf("%d of %d, %v: %s", i+1, len(schedule), (uptime() - began).Round(time.Second), f.name)
	}
	c.awaitAll(contests)
	for _, x := range contests {
		x.over()
		x.assess(began, schedule)
	}
	t.Log("\n" + patroniTable(contests))
}

// prepareJobs makes the jobs' tables and the role.
func (c *cluster) prepareJobs(contests []*contest) {
	c.t.Helper()
	sql := "CREATE ROLE " + role + " LOGIN; " + jobTables + "; GRANT ALL ON jobs, lines TO " + role
	for _, x := range contests {
		sql += "; INSERT INTO jobs (key, cluster) SELECT '" + x.key + "', system_identifier FROM pg_control_system()"
	}
	if _, err := c.query(sql); err != nil {
		c.t.Fatal(err)
	}
}

// schedule is all faults, so many times, in any order.
func (c *cluster) schedule() []outage {
	only := regexp.MustCompile(c.only)
	var all []outage
	for range c.rounds {
		for _, f := range outages() {
			if only.MatchString(f.name) {
				all = append(all, f)
			}
		}
	}
	rand.New(rand.NewPCG(c.seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// awaitAll waits until nothing is left of a fault: the cluster is whole, all have
// come back, and somebody leads.
func (c *cluster) awaitAll(contests []*contest) {
	c.t.Helper()
	c.recover()
	for _, x := range contests {
		c.await(x.modeName+": all are there", notice, x.inLine)
		c.await(x.modeName+": somebody leads", notice, func() bool {
			_, leads := x.leads()
			return leads
		})
	}
}

// inflict lets a fault strike whoever leads, and says what followed in each contest.
func (c *cluster) inflict(f outage, contests []*contest) map[string]event {
	c.t.Helper()
	c.awaitAll(contests)
	h := scene{primary: c.inRole("leader"), sync: c.inRole("sync_standby"), async: c.inRole("replica"), contests: contests}
	for _, x := range contests {
		l, leads := x.leads()
		if !leads || h.primary == "" || h.sync == "" || h.async == "" {
			return c.inflict(f, contests) // Patroni or they had a change of mind
		}
		x.struck = l
	}
	h.client = contests[0].struck.host
	at := uptime()
	contests[0].note("%s: primary %s, synchronous %s; token %d on %s, %d on %s", f.name, h.primary, h.sync,
		contests[0].struck.token, contests[0].struck.host, contests[1].struck.token, contests[1].struck.host)
	f.strike(c, h)
	time.Sleep(c.lease + c.lockDelay) // what overlaps has time to show itself
	if f.mend != nil {
		contests[0].note("mend")
		f.mend(c, h)
	}
	c.awaitAll(contests)
	events := map[string]event{}
	for _, x := range contests {
		e := event{fault: f.name, at: at, host: x.struck.host}
		if next, ok := x.history(0).next(x.struck.first, x.struck.life); ok && next.first > at {
			e.next = next.first - at
		}
		events[x.modeName] = e
	}
	return events
}

// assess checks what a contest has left, and prints it.
func (x *contest) assess(began time.Duration, schedule []outage) {
	x.t.Helper()
	h := x.history(0)
	promised := func(at time.Duration) bool {
		for i, e := range x.events {
			if at >= e.at && (i+1 == len(x.events) || at < x.events[i+1].at) {
				return x.cluster.quorum || !schedule[i].behind
			}
		}
		return true
	}
	overlaps := h.overlaps()
	for _, o := range overlaps {
		if promised(o.young.first) {
			x.t.Errorf("%s: overlap: %v", x.modeName, o)
		}
	}
	for _, back := range h.steps() {
		if promised(back.first) {
			x.t.Errorf("%s: token %d on %s is not larger than those before", x.modeName, back.token, back.host)
		}
	}
	found, err := x.lines()
	if err != nil {
		x.t.Fatal(err)
	}
	writes, err := readWrites(x.jobs)
	if err != nil {
		x.t.Fatal(err)
	}
	complain := func(holds bool, all []string) {
		const most = 5
		for i, bad := range all {
			switch {
			case i == most:
				x.t.Logf("%s: and %d more", x.modeName, len(all)-most)
				return
			case holds:
				x.t.Errorf("%s: %s", x.modeName, bad)
			default:
				x.t.Logf("%s, which is not promised: %s", x.modeName, bad)
			}
		}
	}
	complain(x.cluster.quorum, judge(h))
	complain(x.cluster.strict, append(judgeWrites(found, writes[x.key]), misdeeds(found, writes[x.key])...))
	x.overlaps = overlaps
	x.t.Logf("%s: %d commands led in %v, %d overlaps; %s", x.modeName, len(h), (uptime() - began).Round(time.Second), len(overlaps), tally(writes[x.key]))
}

// tally counts what became of what the jobs wrote.
func tally(writes []write) string {
	written, fenced := 0, 0
	for _, w := range writes {
		switch {
		case w.fenced:
			fenced++
		case w.answered != 0:
			written++
		}
	}
	return fmt.Sprintf("of %d attempts to write a line %d were acknowledged, %d fenced off, %d not answered", len(writes), written, fenced, len(writes)-written-fenced)
}

// patroniTable is a row a fault: how often it came, how many overlaps began after it
// and before the next, how often the leader went on, and how long it took else until
// the next command led.
func patroniTable(contests []*contest) string {
	var b strings.Builder
	b.WriteString("| fault | times |")
	for _, x := range contests {
		fmt.Fprintf(&b, " %s: overlaps | kept | next command after p50 | max |", x.modeName)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|---|---|---|", len(contests)) + "\n")
	for _, f := range outages() {
		came, row := 0, ""
		for _, x := range contests {
			n, cells := x.row(f.name)
			came, row = n, row+cells
		}
		if came > 0 {
			fmt.Fprintf(&b, "| %s | %d |%s\n", f.name, came, row)
		}
	}
	return b.String()
}

// row is a contest's part of a fault's row.
func (x *contest) row(fault string) (came int, cells string) {
	var times []time.Duration
	overlapped := 0
	for i, e := range x.events {
		if e.fault != fault {
			continue
		}
		came++
		if e.next > 0 {
			times = append(times, e.next)
		}
		for _, o := range x.overlaps {
			if o.young.first > e.at && (i+1 == len(x.events) || o.young.first <= x.events[i+1].at) {
				overlapped++
			}
		}
	}
	return came, fmt.Sprintf(" %d | %d | %s | %s |", overlapped, came-len(times), quantile(times, 50), quantile(times, 100))
}

// steps are the lives whose token is not larger than all before.
func (h history) steps() []life {
	h.sort()
	var back []life
	var most int64
	for _, l := range h {
		if l.token <= most {
			back = append(back, l)
		}
		most = max(most, l.token)
	}
	return back
}
