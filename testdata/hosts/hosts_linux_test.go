// Package hosts tests the .deb on Debian machines with systemd and cron of
// their own: containers that share the network of this machine, and with it
// one PostgreSQL. It needs root, debootstrap and systemd-nspawn:
//
//	go test ./testdata/hosts
//
// DEB names a package that is made already, and HOSTS_ROOT a directory in which
// the Debian stays for the next time.
package hosts

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/pgtest"
)

const top = "../.."

// host is a machine of its own but for the network.
type host struct {
	t      *testing.T
	name   string
	nspawn *exec.Cmd
	ended  chan struct{}
	first  string // its first process, as this machine counts
}

// bench is what the hosts share.
type bench struct {
	t      *testing.T
	shared string // a directory, /shared on each
	hosts  []*host
	// minutes are those in which cron fires.
	minutes []string
}

func TestHosts(t *testing.T) {
	if missing := missing(); missing != "" {
		if os.Getenv("CI") != "" {
			t.Fatal("needs ", missing)
		}
		t.Skip("NOT TESTED: systemd, cron and the package, which need ", missing)
	}
	deb := makePackages(t)
	t.Run("rpm and apk", func(t *testing.T) { testOtherPackages(t, filepath.Dir(deb)) })
	b := boot(t, deb, debian(t), "alpha", "beta", "gamma")
	t.Run("package", b.testPackage)
	if t.Failed() {
		return
	}
	b.startCron()
	t.Run("service", b.testService)
	t.Run("timer", b.testTimer)
	t.Run("cron", b.testCron)
	t.Run("host dies", b.testHostDies)
}

func missing() string {
	if os.Geteuid() != 0 {
		return "root"
	}
	for _, program := range []string{"debootstrap", "systemd-nspawn", "nsenter", "rpm"} {
		if _, err := exec.LookPath(program); err != nil {
			return program
		}
	}
	return ""
}

// run runs a command of this machine, which must not fail.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// makePackages makes those of this machine's architecture by the command that
// .goreleaser.yaml has in its first lines, of all targets only that one. The
// others are beside the .deb.
func makePackages(t *testing.T) (deb string) {
	t.Helper()
	if deb := os.Getenv("DEB"); deb != "" {
		return deb
	}
	text, err := os.ReadFile(filepath.Join(top, ".goreleaser.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^# +(go run github.com/goreleaser/.*)$`).FindStringSubmatch(string(text))
	if command == nil {
		t.Fatal(".goreleaser.yaml doesn't say how to run it")
	}
	dist := t.TempDir()
	config := filepath.Join(t.TempDir(), "goreleaser.yaml")
	text = regexp.MustCompile(`(?m)^      - (linux|darwin|freebsd)_.*\n`).ReplaceAllFunc(text, func(line []byte) []byte {
		if strings.TrimSpace(string(line)) == "- linux_"+runtime.GOARCH {
			return line
		}
		return nil
	})
	if err := os.WriteFile(config, append(text, "\ndist: "+dist+"\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	args := strings.Fields(command[1])
	for _, args := range [][]string{append(slices.Clone(args[:3]), "check"), append(args, "--config", config)} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = top, t.Output(), t.Output()
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v", strings.Join(args, " "), err)
		}
	}
	debs, _ := filepath.Glob(filepath.Join(dist, "*.deb"))
	if len(debs) != 1 {
		t.Fatalf("the packages are %q", debs)
	}
	return debs[0]
}

// debian is the root of a Debian with systemd and cron.
func debian(t *testing.T) string {
	t.Helper()
	root := os.Getenv("HOSTS_ROOT")
	if root == "" {
		root = filepath.Join(t.TempDir(), "debian")
	}
	if _, err := os.Stat(filepath.Join(root, "usr/sbin/cron")); err != nil {
		run(t, "debootstrap", "--variant=minbase", "--include=systemd-sysv,dbus,cron", "bookworm", root)
		// These would go and fetch lists of packages.
		run(t, "systemctl", "--root="+root, "disable", "--quiet", "apt-daily.timer", "apt-daily-upgrade.timer")
	}
	return root
}

func boot(t *testing.T, deb, root string, names ...string) *bench {
	t.Helper()
	port, err := pgtest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	_, remove, err := pgtest.Throwaway(map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)

	// A file system that takes an overlay's upper directories, wherever this is.
	dir := t.TempDir()
	run(t, "mount", "-t", "tmpfs", "pglead-hosts", dir)
	t.Cleanup(func() { _ = exec.Command("umount", "--lazy", "--recursive", dir).Run() })
	b := &bench{t: t, shared: filepath.Join(dir, "shared")}
	if err := os.Mkdir(b.shared, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(b.shared, 0o777); err != nil {
		t.Fatal(err)
	}
	b.write("pglead.deb", string(must(os.ReadFile(deb))(t)), 0o644)
	b.write("pglead.env", fmt.Sprintf("PGLEAD_DSN=postgresql://%s@127.0.0.1:%s/postgres\n", pgtest.Superuser, port), 0o600)
	// Whatever is left of a job, its daemon included, keeps the file locked, so
	// that the next one sees an overlap. Perl takes two signals at nearly the
	// same time for one, as does a shell, but none for none.
	b.write("scheduler", `#!/usr/bin/perl
use strict; use Fcntl ":flock"; use POSIX;
my $host = (POSIX::uname())[1];
sub tell_all { open(my $log, ">>", "/shared/log"); syswrite($log, "$host $_[0]\n") }
$^F = 10; # which descriptors a child inherits
open(my $running, ">", "/shared/running");
flock($running, LOCK_EX | LOCK_NB) or tell_all("overlap");
fork or do { setsid(); exec("sleep", "1000") };
my $terms = 0;
$SIG{TERM} = sub { $terms++; tell_all("term") };
tell_all("start");
sleep 1 until $terms;
select(undef, undef, undef, 0.1) for 1 .. 10; # room for a second TERM
tell_all("end");
`, 0o755)
	b.write("nightly", "#!/bin/sh\necho \"$(hostname)\" >>/shared/nights\n", 0o755)
	b.write("fire", "#!/bin/sh\necho \"$1 $(date +%H:%M)\" >>/shared/fires\n", 0o755)
	for _, name := range names {
		b.hosts = append(b.hosts, b.start(root, dir, name))
	}
	for _, h := range b.hosts {
		if !eventually(func() bool {
			// Not once and for all: systemd-nspawn has other children at first.
			out, _ := exec.Command("pgrep", "-P", strconv.Itoa(h.nspawn.Process.Pid)).Output()
			h.first = strings.TrimSpace(string(out))
			state, _ := h.try("systemctl", "is-system-running")
			return state == "running" || state == "degraded"
		}) {
			t.Fatalf("%s never reaches multi-user", h.name)
		}
	}
	return b
}

// start boots a host from a copy of root. The containers have to be in groups
// of their own, since each makes its groups beside its own.
func (b *bench) start(root, dir, name string) *host {
	t := b.t
	t.Helper()
	h := &host{t: t, name: name, ended: make(chan struct{})}
	part := func(part string) string { return filepath.Join(dir, name, part) }
	for _, p := range []string{"upper", "work", "root"} {
		if err := os.MkdirAll(part(p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "mount", "-t", "overlay", "overlay", "-o", fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", root, part("upper"), part("work")), part("root"))
	if err := os.WriteFile(filepath.Join(part("root"), "etc/hostname"), []byte(name+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprintf("pglead-hosts-%d-%s", os.Getpid(), name)
	t.Cleanup(func() {
		for _, hierarchy := range hierarchies() {
			dir := filepath.Join(hierarchy, group)
			if !eventually(func() bool { // it has members until the last of them is dead
				_ = exec.Command("find", dir, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run()
				_, err := os.Stat(dir)
				return err != nil
			}) {
				t.Errorf("%s is left", dir)
			}
		}
	})
	h.nspawn = exec.Command("sh", "-ec", `for group in $0; do mkdir "$group"; echo $$ >"$group/cgroup.procs"; done; exec "$@"`,
		strings.Join(hierarchies(), "/"+group+" ")+"/"+group,
		"systemd-nspawn", "--quiet", "--directory="+part("root"), "--register=no", "--keep-unit", "--machine="+name,
		"--bind="+b.shared+":/shared", "--boot", "--console=passive")
	h.nspawn.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	h.nspawn.Stderr = t.Output()
	if err := h.nspawn.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = h.nspawn.Wait()
		close(h.ended)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			journal, _ := h.try("journalctl", "--boot", "--no-pager", "--lines=40", "--unit=scheduler", "--unit=nightly", "--unit=cron")
			t.Logf("%s says:\n%s", name, journal)
		}
		h.kill()
	})
	return h
}

// hierarchies are the trees of control groups in which systemd has its own:
// one, or two where the old and the new kind are mounted.
func hierarchies() []string {
	both := []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"}
	if _, err := os.Stat(both[0]); err != nil {
		return []string{"/sys/fs/cgroup"}
	}
	return slices.DeleteFunc(both, func(dir string) bool {
		_, err := os.Stat(dir)
		return err != nil
	})
}

// kill ends a host as a power failure does.
func (h *host) kill() {
	_ = exec.Command("pkill", "-KILL", "-P", strconv.Itoa(h.nspawn.Process.Pid)).Run() // its first process
	_ = h.nspawn.Process.Kill()
	<-h.ended
}

func (h *host) try(args ...string) (string, error) {
	out, err := exec.Command("nsenter", append([]string{"--target", h.first, "--all", "--"}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// run runs a command on the host.
func (h *host) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := h.try(args...)
	if err != nil {
		t.Fatalf("%s: %s: %v: %s", h.name, strings.Join(args, " "), err, out)
	}
	return out
}

// shell runs lines on all hosts at once.
func (b *bench) shell(t *testing.T, lines string) {
	t.Helper()
	failed := make(chan error, len(b.hosts))
	for _, h := range b.hosts {
		go func() {
			out, err := h.try("sh", "-ec", lines)
			if err != nil {
				err = fmt.Errorf("%s: %w: %s", h.name, err, out)
			}
			failed <- err
		}()
	}
	var all []error
	for range b.hosts {
		all = append(all, <-failed)
	}
	if err := errors.Join(all...); err != nil {
		t.Fatal(err)
	}
}

func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func (b *bench) write(name, text string, mode os.FileMode) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.shared, name), []byte(text), mode); err != nil {
		b.t.Fatal(err)
	}
}

// lines are those of a file that the hosts write.
func (b *bench) lines(name string) []string {
	text, _ := os.ReadFile(filepath.Join(b.shared, name))
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

func eventually(condition func() bool) bool {
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		if condition() {
			return true
		}
	}
	return false
}

func (b *bench) testPackage(t *testing.T) {
	b.shell(t, `
		dpkg -i /shared/pglead.deb
		test -z "$(dpkg --verify pglead)"
		pglead version
		cd /usr/share/doc/pglead && test -s README.md -a -s cmd/README.md -a -s runner/README.md
		install -m 600 /shared/pglead.env /etc/
		install /shared/scheduler /shared/nightly /shared/fire /usr/local/bin/
		cd /usr/share/doc/pglead/examples && cp scheduler.service nightly.service nightly.timer /etc/systemd/system/
		mkdir /etc/systemd/system/scheduler.service.d /etc/systemd/system/nightly.service.d
		printf '[Service]\nReadWritePaths=/shared\n' | tee /etc/systemd/system/scheduler.service.d/shared.conf >/etc/systemd/system/nightly.service.d/shared.conf
		systemctl daemon-reload`)
	out := b.hosts[0].run(t, "sh", "-ec", `
		systemd-analyze verify /etc/systemd/system/scheduler.service /etc/systemd/system/nightly.timer
		zcat /usr/share/man/man1/pglead-run.1.gz | head -1
		bash -n /usr/share/bash-completion/completions/pglead
		. /etc/pglead.env; export PGLEAD_DSN; pglead run --key first -- echo ran`)
	if !strings.HasPrefix(out, `.TH "PGLEAD-RUN" "1"`) || !strings.HasSuffix(out, "\nran") {
		t.Errorf("the package: %s", out)
	}
}

// leader waits until the n-th start of the scheduler and returns its host.
func (b *bench) leader(t *testing.T, n int) *host {
	t.Helper()
	var starts []string
	if !eventually(func() bool {
		starts = nil
		for _, line := range b.lines("log") {
			if name, ok := strings.CutSuffix(line, " start"); ok {
				starts = append(starts, name)
			}
		}
		return len(starts) >= n
	}) {
		t.Fatalf("nobody leads for the time number %d:\n%s", n, strings.Join(b.lines("log"), "\n"))
	}
	return b.hosts[slices.IndexFunc(b.hosts, func(h *host) bool { return h.name == starts[n-1] })]
}

func (b *bench) noOverlap(t *testing.T) {
	t.Helper()
	if log := strings.Join(b.lines("log"), "\n"); strings.Contains(log, "overlap") {
		t.Errorf("two ran at once:\n%s", log)
	}
}

// terms is how many TERM the first run of the scheduler on a host has got
// before it ended by itself.
func (b *bench) terms(t *testing.T, h *host) int {
	t.Helper()
	b.noOverlap(t)
	lines := b.lines("log")
	end := slices.Index(lines, h.name+" end")
	if end < 0 {
		t.Fatalf("the scheduler on %s did not end by itself:\n%s", h.name, strings.Join(lines, "\n"))
	}
	n := 0
	for _, l := range lines[:end] {
		if l == h.name+" term" {
			n++
		}
	}
	return n
}

// testService: a service that is up on all hosts leads on one.
func (b *bench) testService(t *testing.T) {
	b.shell(t, "systemctl start scheduler")
	first := b.leader(t, 1)
	for _, h := range b.hosts {
		want := "standing by, waiting.*; held by " + first.name + ` \(scheduler, process `
		if h == first {
			want = "leading since "
		}
		var status string
		if !eventually(func() bool {
			status, _ = h.try("systemctl", "show", "--property=StatusText,ActiveState", "scheduler")
			return strings.Contains(status, "ActiveState=active") && regexp.MustCompile("StatusText="+want).MatchString(status)
		}) {
			t.Errorf("%s: systemd knows of %s, want %s", h.name, status, want)
		}
	}

	// systemctl stop waits for the end of the service.
	first.run(t, "systemctl", "stop", "scheduler")
	if n := b.terms(t, first); n != 1 {
		t.Errorf("KillMode=mixed: %d TERM", n)
	}
	stopped := func(h *host) {
		t.Helper()
		if state := h.run(t, "systemctl", "show", "--property=ActiveState,Result", "scheduler"); !strings.Contains(state, "ActiveState=inactive") || !strings.Contains(state, "Result=success") {
			t.Errorf("a stopped service is %s", state)
		}
	}
	stopped(first)

	second := b.leader(t, 2)
	second.run(t, "sh", "-ec", "printf '[Service]\nKillMode=control-group\n' >/etc/systemd/system/scheduler.service.d/kill.conf; systemctl daemon-reload; systemctl stop scheduler")
	n := b.terms(t, second)
	if n < 1 {
		t.Errorf("KillMode=control-group: %d TERM", n)
	}
	t.Logf("KillMode=control-group: %d TERM", n)
	stopped(second)

	third := b.leader(t, 3)
	first.run(t, "systemctl", "start", "scheduler")
	// Up, and in line: a start that fails would end at once.
	before := third.run(t, "systemctl", "show", "--property=MainPID", "scheduler")
	third.run(t, "systemctl", "kill", "--signal=KILL", "--kill-who=main", "scheduler")
	b.leader(t, 4)
	if !eventually(func() bool {
		now, _ := third.try("systemctl", "show", "--property=MainPID,ActiveState", "scheduler")
		return strings.Contains(now, "ActiveState=active") && !strings.Contains(now, before)
	}) {
		t.Error("Restart=always did not restart a pglead that was killed")
	}
	b.noOverlap(t)
	second.run(t, "systemctl", "start", "scheduler")
}

// testTimer: the timers of all hosts fire at one instant, and one host runs.
func (b *bench) testTimer(t *testing.T) {
	at := time.Now().Add(10 * time.Second).UTC().Format("2006-01-02 15:04:05 UTC")
	b.shell(t, `
		mkdir /etc/systemd/system/nightly.timer.d
		printf '[Timer]\nOnCalendar=\nOnCalendar=`+at+`\n' >/etc/systemd/system/nightly.timer.d/now.conf
		systemctl daemon-reload; systemctl start nightly.timer`)
	// The one that runs keeps its lock for --min-hold, and its service is up.
	states := map[string]int{}
	if !eventually(func() bool {
		clear(states)
		for _, h := range b.hosts {
			state, _ := h.try("systemctl", "show", "--property=ActiveState,Result,ExecMainStatus", "nightly.service")
			states[strings.ReplaceAll(state, "\n", " ")]++
		}
		return states["Result=success ExecMainStatus=75 ActiveState=inactive"] == len(b.hosts)-1 &&
			states["Result=success ExecMainStatus=0 ActiveState=activating"] == 1
	}) {
		t.Errorf("the services are %v", states)
	}
	if ran := b.lines("nights"); len(ran) != 1 {
		t.Errorf("the timers of all hosts fired once, and the job ran on %q", ran)
	}
}

// Of each host, cron starts this many jobs at each full minute, each under a
// key of its own, for so many minutes.
const (
	cronJobs    = 30
	cronMinutes = 2
)

// startCron gives all hosts one crontab, which fires from the next full minute
// on.
func (b *bench) startCron() {
	tab := bytes.NewBuffer(must(os.ReadFile(filepath.Join(b.shared, "pglead.env")))(b.t))
	for i := range cronJobs {
		fmt.Fprintf(tab, "* * * * * pglead run --key fire/%d --min-hold 30s -q -E 0 -- /usr/local/bin/fire %d\n", i, i)
	}
	b.write("crontab", tab.String(), 0o644)
	b.shell(b.t, "systemctl is-active cron; crontab /shared/crontab")
	// cron reads crontabs at each full minute, before it starts the jobs.
	next := time.Now().UTC().Truncate(time.Minute)
	for range cronMinutes {
		next = next.Add(time.Minute)
		b.minutes = append(b.minutes, next.Format("15:04"))
	}
}

// testCron: each fire ran on one host.
func (b *bench) testCron(t *testing.T) {
	last := b.minutes[len(b.minutes)-1]
	for began := time.Now(); time.Since(began) < (cronMinutes+1)*time.Minute; time.Sleep(time.Second) {
		if now := time.Now().UTC(); now.Format("15:04") == last && now.Second() > 10 {
			break
		}
	}
	b.shell(t, "crontab -r")
	count := func() map[string]int {
		times := map[string]int{}
		for _, fire := range b.lines("fires") {
			times[fire]++
		}
		return times
	}
	if !eventually(func() bool { return len(count()) >= cronJobs*len(b.minutes) }) {
		t.Errorf("%d of %d fires ran", len(count()), cronJobs*len(b.minutes))
	}
	// The others of each fire have been refused by then, or would run next.
	b.shell(t, `while pgrep -x pglead >/dev/null && pgrep -f 'key fir[e]/' >/dev/null; do sleep 0.1; done`)
	times := count()
	for fire, n := range times {
		_, minute, _ := strings.Cut(fire, " ")
		if n != 1 || !slices.Contains(b.minutes, minute) {
			t.Errorf("fire %s ran %d times", fire, n)
		}
	}
	t.Logf("%d fires on %d hosts, each ran once", len(times), len(b.hosts))
}

// testHostDies: another leads when the leader's host is gone.
func (b *bench) testHostDies(t *testing.T) {
	starts := 0
	for _, line := range b.lines("log") {
		if strings.HasSuffix(line, " start") {
			starts++
		}
	}
	leader := b.leader(t, starts)
	leader.kill()
	next := b.leader(t, starts+1)
	if next == leader {
		t.Errorf("%s leads after its death", next.name)
	}
	b.noOverlap(t)
}
