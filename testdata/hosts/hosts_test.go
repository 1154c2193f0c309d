// Package hosts tests the .deb on Debian machines with systemd and cron of
// their own, and --once-per on some whose clocks are apart: containers that share the
// network of this machine, and with it one PostgreSQL. It needs root, debootstrap and
// systemd-nspawn:
//
//	go test ./testdata/hosts
//
// DEB names a package that is made already, and HOSTS_ROOT a directory in which
// the Debian stays for the next time.
package hosts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

const top = "../.."

func TestHosts(t *testing.T) {
	if missing := missing(); missing != "" {
		if os.Getenv("CI") != "" {
			t.Fatal("needs ", missing)
		}
		t.Skip("NOT TESTED: systemd, cron and the package, which need ", missing)
	}
	deb := makePackages(t)
	t.Run("rpm and apk", func(t *testing.T) { testOtherPackages(t, filepath.Dir(deb)) })
	b := boot(t, debian(t), "alpha", "beta", "gamma")
	b.writeJobs(deb)
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
	for _, program := range []string{"debootstrap", "systemd-nspawn", "nsenter", "rpm", "cc"} {
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

// host is a machine of its own but for the network.
type host struct {
	t      *testing.T
	name   string
	nspawn *exec.Cmd
	ended  chan struct{}
	first  string // its first process, as this machine counts
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

// bench is what the hosts share.
type bench struct {
	t      *testing.T
	server *localpg.Server
	port   string // of the server, at 127.0.0.1
	shared string // a directory, /shared on each
	hosts  []*host
	// minutes are those in which cron fires.
	minutes []string
}

// boot boots hosts from copies of root, with a server that all of them reach.
func boot(t *testing.T, root string, names ...string) *bench {
	t.Helper()
	port := testserver.Port(t)
	server := testserver.Start(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})

	// A file system that takes an overlay's upper directories, wherever this is.
	dir := t.TempDir()
	run(t, "mount", "-t", "tmpfs", "pglead-hosts", dir)
	t.Cleanup(func() { _ = exec.Command("umount", "--lazy", "--recursive", dir).Run() })
	b := &bench{t: t, server: server, port: port, shared: filepath.Join(dir, "shared")}
	if err := os.Mkdir(b.shared, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(b.shared, 0o777); err != nil {
		t.Fatal(err)
	}
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

// dsn is where the server is.
func (b *bench) dsn() string {
	return fmt.Sprintf("postgresql://%s@127.0.0.1:%s/postgres", localpg.Superuser, b.port)
}

// writeJobs writes the package and what runs by it.
func (b *bench) writeJobs(deb string) {
	b.t.Helper()
	b.write("pglead.deb", string(must(os.ReadFile(deb))(b.t)), 0o644)
	b.write("pglead.env", "PGLEAD_DSN="+b.dsn()+"\n", 0o600)
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

func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func eventually(condition func() bool) bool {
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		if condition() {
			return true
		}
	}
	return false
}
