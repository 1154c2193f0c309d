package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
)

// TestLedgerUpgrade has pg_upgrade make a cluster of a newer major version of one with a
// ledger. That is another cluster, of timeline 1 again, whose tokens can't be compared with
// the old one's: they may even be smaller. What has been done, the ledger still tells, but
// not that a command is dead.
func TestLedgerUpgrade(t *testing.T) {
	t.Parallel() // it has servers of its own
	racesNothing(t)
	majors := upgradable()
	if len(majors) < 2 {
		t.Skip("NOT TESTED: a ledger after pg_upgrade, which takes the programs of two major versions in /usr/lib/postgresql: see testdata/upgrade")
	}
	for i, next := range majors[1:] {
		for _, timeline := range []int64{1, 2} {
			t.Run(fmt.Sprintf("%d to %d, timeline %d", majors[i].Major, next.Major, timeline), func(t *testing.T) {
				t.Parallel()
				u := newUpgrade(t, majors[i], timeline)
				u.before(t)
				u.to(t, next)
				u.after(t)
			})
		}
	}
}

// upgradable are the versions of which all programs are there, as Debian's packages have
// them, the oldest first.
func upgradable() (found []localpg.Programs) {
	const oldest = 14
	programs, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pg_upgrade")
	for _, program := range programs {
		dir := filepath.Dir(program)
		major, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err == nil && major >= oldest && exists(filepath.Join(dir, "initdb")) && exists(filepath.Join(dir, "pg_dump")) {
			found = append(found, localpg.Programs{Dir: dir, Major: major})
		}
	}
	slices.SortFunc(found, func(a, b localpg.Programs) int { return a.Major - b.Major })
	return found
}

// upgraded is a cluster with a ledger, before or after, and what runs there.
type upgraded struct {
	*localpg.Server
	timeline int64 // before
	dir      string
	frozen   map[string]candidate // those whose runs the upgrade cuts off, by key
	old      map[string]ran       // by key
	waiter   candidate
}

// ran is what a command knows of its run.
type ran struct {
	token  int64
	system string
}

func newUpgrade(t *testing.T, programs localpg.Programs, timeline int64) *upgraded {
	t.Helper()
	server, remove, err := localpg.Prepare(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	server.Programs = programs
	u := &upgraded{Server: server, timeline: timeline, dir: openDir(t), frozen: map[string]candidate{}, old: map[string]ran{}}
	u.initialize(t)
	if timeline > 1 {
		if err := u.Stop(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		u.must(t, u.Run("/bin/sh", "-c", `: >"$1/standby.signal"`, "sh", u.Data))
		u.must(t, u.StartLogged())
		u.must(t, u.Run("pg_ctl", "promote", "-w", "-D", u.Data))
	}
	ask(t, u.Server, "CREATE ROLE cron LOGIN")
	if status, said := outcome(t, "ledger", "install", "--dsn", u.DSN("postgres")); status != 0 {
		t.Fatal(said)
	}
	ask(t, u.Server, "GRANT USAGE ON SCHEMA pglead TO cron")
	return u
}

func (u *upgraded) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		log, _ := os.ReadFile(u.LogPath())
		t.Fatalf("%v\n%s", err, log)
	}
}

// initialize makes a cluster, all of which are alike, and starts it. Since version 18
// initdb has checksums, unless it is told otherwise.
func (u *upgraded) initialize(t *testing.T) {
	t.Helper()
	u.must(t, localpg.MakeDir(u.Data))
	args := []string{"-D", u.Data, "-U", localpg.Superuser, "--auth=trust", "--encoding=UTF8", "--locale=C"}
	const checksums = 18
	if u.Programs.Major >= checksums {
		args = append(args, "--no-data-checksums")
	}
	u.must(t, u.Run("initdb", args...))
	u.must(t, u.StartLogged())
}

func (u *upgraded) dsn() string {
	return strings.Replace(u.DSN("postgres"), "user="+localpg.Superuser, "user=cron", 1)
}

// pglead runs a pglead of the role that the ledger is granted to.
func (u *upgraded) pglead(t *testing.T, args ...string) (status int, said string) {
	t.Helper()
	return outcome(t, append(args[:1:1], append([]string{"--dsn", u.dsn()}, args[1:]...)...)...)
}

// noting is a command that notes its token.
func (u *upgraded) noting(key string) []string {
	return []string{"--", "sh", "-c", "echo $PGLEAD_TOKEN $PGLEAD_SYSTEM_ID >" + filepath.Join(u.dir, key)}
}

func (u *upgraded) noted(t *testing.T, key string) (r ran) {
	t.Helper()
	file := filepath.Join(u.dir, key)
	if _, err := fmt.Sscan(strings.Join(lines(t, file), ""), &r.token, &r.system); err != nil {
		t.Errorf("%s has not run: %v", key, err)
	}
	if err := os.Remove(file); err != nil {
		t.Error(err)
	}
	return r
}

// longLease is such that a command which is cut off outlives an upgrade.
const longLease = 60 * time.Second

// before has all kinds of runs: over, or under way when the cluster goes down. Those
// belong to a pglead that is stopped, so that their commands live on until their guard
// kills them, 36 s later, and nobody notes their ends.
func (u *upgraded) before(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{{"nightly"}, {"second"}, {"held"}, {"daily", "--once-per", "day"}} {
		key := args[0]
		if status, said := u.pglead(t, slices.Concat([]string{"run", "--key"}, args, u.noting(key))...); status != 0 {
			t.Fatalf("%s: %s", key, said)
		}
		u.old[key] = u.noted(t, key)
		if got := u.old[key].token >> 48; got != u.timeline {
			t.Fatalf("a token of timeline %d, want %d", got, u.timeline)
		}
	}
	if status, _ := u.pglead(t, "run", "--key", "broken", "--", "false"); status != 1 {
		t.Errorf("false has status %d", status)
	}
	if status, said := u.pglead(t, "pause", "held", "--note", "upgrade"); status != 0 {
		t.Error(said)
	}
	for key, flags := range map[string][]string{"open": nil, "left": nil, "read": {"--shared"}} {
		args := slices.Concat([]string{"run", "--dsn", u.dsn(), "--key", key, "--lease", longLease.String()}, flags,
			[]string{"--", "sh", "-c", u.alone(key) + "echo $PGLEAD_TOKEN $PGLEAD_SYSTEM_ID >" + filepath.Join(u.dir, key) + "; exec sleep 1000"})
		u.frozen[key] = launch(t, args...)
		if !eventually(func() bool { return len(lines(t, filepath.Join(u.dir, key))[0]) > 0 }) {
			t.Fatalf("%s never starts: %s", key, u.frozen[key].said)
		}
		u.old[key] = u.noted(t, key)
	}
	u.waiter = launch(t, "run", "--dsn", u.dsn(), "--key", "open", "--wait", "5m", "--lock-delay", "1s", "--log-format", "json", "-v", "--", "sh", "-c", u.alone("open")+"true")
	if !eventually(func() bool { return stage{server: u.Server}.waiters("open") == 1 }) {
		t.Fatalf("nobody waits: %s", u.waiter.said)
	}
	for _, c := range u.frozen {
		if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
}

func (u *upgraded) alone(key string) string { return alone(filepath.Join(u.dir, "alone."+key)) }

// to upgrades the cluster. The new one is where the old one was.
func (u *upgraded) to(t *testing.T, next localpg.Programs) {
	t.Helper()
	old := *u.Server
	u.must(t, u.Stop(syscall.SIGINT))
	u.Server = &localpg.Server{Programs: next, Data: filepath.Join(filepath.Dir(old.Data), "next"), Socket: old.Socket}
	u.initialize(t)
	t.Cleanup(func() { _ = u.Stop(syscall.SIGQUIT) })
	u.must(t, u.Stop(syscall.SIGINT))
	began := time.Now()
	u.must(t, u.Run("/bin/sh", "-c", `cd "$1" && shift && exec "$@"`, "sh", old.Socket, filepath.Join(next.Dir, "pg_upgrade"),
		"-U", localpg.Superuser, "-b", old.Programs.Dir, "-B", next.Dir, "-d", old.Data, "-D", u.Data))
	t.Logf("pg_upgrade took %v", time.Since(began))
	u.must(t, u.StartLogged())
}

func (u *upgraded) after(t *testing.T) {
	t.Helper()
	if got := ask(t, u.Server, "SELECT timeline_id FROM pg_control_checkpoint()"); got[0] != "1" {
		t.Errorf("the new cluster has timeline %s", got)
	}
	u.whatIsKnown(t)
	u.cutOff(t)
	u.whoIsOver(t)
	if status, said := outcome(t, "ledger", "install", "--dsn", u.DSN("postgres")); status != 0 {
		t.Errorf("install: %s", said)
	}
	status, said := outcome(t, "ledger", "status", "--dsn", u.DSN("postgres"))
	if status != 0 || strings.Contains(said, "broken") {
		t.Errorf("status: %d, %s", status, said)
	}
}

// whatIsKnown: what has been done is done, a pause goes on, and history and check know
// of all, on a server that is up just now.
func (u *upgraded) whatIsKnown(t *testing.T) {
	t.Helper()
	began := time.Now()
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"run -v --key daily --once-per day -- touch " + u.dir + "/never", 0, "daily: done already: "},
		{"run --key held -- touch " + u.dir + "/never", 75, "held: paused (root: upgrade)"},
		{"check nightly --within 1h", 0, ""},
		{"check broken --within 1h", 1, ""},
		{"check left --within 1h", 1, ""},
	} {
		if status, said := u.pglead(t, strings.Fields(c.args)...); status != c.status || !strings.Contains(said, c.says) {
			t.Errorf("%s: status %d, %s", c.args, status, said)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("this took %v: somebody has waited", took)
	}
	if exists(filepath.Join(u.dir, "never")) {
		t.Error("what was done or paused has run")
	}
	if got := u.outcomes(t, "left"); !slices.Equal(got, []string{"lost"}) {
		t.Errorf("history of a run that the upgrade cut off: %q", got)
	}
}

// outcomes are those that history shows of a key, the newest first.
func (u *upgraded) outcomes(t *testing.T, key string) (outcomes []string) {
	t.Helper()
	out, err := command(t, "history", "--dsn", u.dsn(), "-o", "json", key).Output()
	if err != nil {
		t.Fatal(err)
	}
	var runs []struct {
		Outcome string `json:"outcome"`
	}
	if err := json.Unmarshal(out, &runs); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, r := range runs {
		outcomes = append(outcomes, r.Outcome)
	}
	return outcomes
}

// cutOff: nobody starts beside a command that was cut off, whoever comes: one who has
// waited throughout, a first try, and a writer after a reader. Nobody waits for longer
// than that run's own settings call for.
func (u *upgraded) cutOff(t *testing.T) {
	t.Helper()
	end := filepath.Join(u.dir, "end")
	comers := map[string]candidate{"open": u.waiter}
	for _, key := range []string{"left", "read"} {
		comers[key] = launch(t, "run", "--dsn", u.dsn(), "--key", key, "--lock-delay", "1s", "--log-format", "json", "-v", "--", "sh", "-c",
			u.alone(key)+"echo $PGLEAD_TOKEN $PGLEAD_SYSTEM_ID >"+filepath.Join(u.dir, key)+"; until test -e "+end+"; do sleep 0.1; done")
	}
	fence := fmt.Sprintf("SELECT pglead.fence('left', %d)", u.old["left"].token)
	if !eventually(func() bool {
		_, err := u.Query("postgres", fence)
		return err != nil && strings.Contains(err.Error(), "of left is over")
	}) {
		t.Error("a run that is waited for is not fenced off")
	}
	for _, key := range []string{"left", "read"} {
		if !eventually(func() bool { return exists(filepath.Join(u.dir, key)) }) {
			t.Fatalf("%s never starts: %s", key, comers[key].said)
		}
		r := u.noted(t, key)
		u.isOther(t, key, r)
		u.thaws(t, key, r)
	}
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for key, c := range comers {
		if status := c.ends(); status != 0 {
			t.Errorf("%s: status %d: %s", key, status, c.said)
		}
		delays := delayed(t, c.said.String())
		if len(delays) == 0 || slices.Max(delays) < 2*longLease.Seconds()/3-5 || slices.Max(delays) > longLease.Seconds() {
			t.Errorf("%s waited for %v: %s", key, delays, c.said)
		}
		if got := lines(t, filepath.Join(u.dir, "alone."+key)); got[0] != "" {
			t.Errorf("%s: %q", key, got)
		}
		if got := u.outcomes(t, key); !slices.Equal(got, []string{"ok", "lost"}) {
			t.Errorf("history of %s: %q", key, got)
		}
	}
}

// thaws has the pglead go on whose run was cut off: it must not end the run of the one
// that came after.
func (u *upgraded) thaws(t *testing.T, key string, next ran) {
	t.Helper()
	c := u.frozen[key]
	if err := c.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if status := c.ends(); status != 76 {
		t.Errorf("%s: status %d: %s", key, status, c.said)
	}
	got := ask(t, u.Server, fmt.Sprintf("SELECT token FROM pglead.lock WHERE number = %d AND ended IS NULL", lockOf(key).Number))
	if !slices.Contains(got, strconv.FormatInt(next.token, 10)) {
		t.Errorf("%s: open is %q, want %d", key, got, next.token)
	}
}

// isOther fails unless a run is of the new cluster.
func (u *upgraded) isOther(t *testing.T, key string, r ran) {
	t.Helper()
	old := u.old[key]
	if r.system == old.system || r.token>>48 != 1 || u.timeline > 1 && r.token > old.token {
		t.Errorf("%s: token %d of %s after %d of %s", key, r.token, r.system, old.token, old.system)
	}
}

// whoIsOver: a lock whose last run ended on the old cluster is as without a ledger, and
// then goes by it again. The server is older than a lock-delay by now.
func (u *upgraded) whoIsOver(t *testing.T) {
	t.Helper()
	if status, said := u.pglead(t, "resume", "held"); status != 0 {
		t.Error(said)
	}
	for _, key := range []string{"nightly", "second", "held"} {
		var last int64
		for range 2 {
			status, said := u.pglead(t, slices.Concat([]string{"run", "--key", key, "--ledger", "require", "--log-format", "json", "-v"}, u.noting(key))...)
			if status != 0 || len(delayed(t, said)) > 0 {
				t.Errorf("%s: status %d: %s", key, status, said)
			}
			r := u.noted(t, key)
			u.isOther(t, key, r)
			if r.token <= last {
				t.Errorf("%s: token %d after %d", key, r.token, last)
			}
			last = r.token
		}
		if got := u.outcomes(t, key); !slices.Equal(got, []string{"ok", "ok", "ok"}) {
			t.Errorf("history of %s: %q", key, got)
		}
	}
	if status, said := u.pglead(t, "run", "--key", "daily", "--once-per", "day", "--", "touch", u.dir+"/never"); status != 0 || exists(u.dir+"/never") {
		t.Errorf("once per day: status %d: %s", status, said)
	}
}
