package e2e

import (
	"bytes"
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
	_ "time/tzdata" // this machine may have no zones
)

// TestCron: a real cron daemon, in a mount namespace with crontabs of its own,
// fires a job of an ordinary user with next to no environment.
func TestCron(t *testing.T) {
	requireRoot(t, "cron")
	if testing.Short() {
		t.Skip("NOT TESTED: cron takes up to a minute")
	}
	t.Parallel() // it has a server of its own
	dsn, dir := openServer(t), openDir(t)
	tab := fmt.Sprintf("PGLEAD_DSN=%s\nPGLEAD_KEY=cron\n* * * * * %s/pglead run -- sh -c 'id -un; env' >%s/out 2>%s/err; echo $? >%s/status\n",
		dsn, testbed.dir, dir, dir, dir)
	if err := os.WriteFile(filepath.Join(dir, "tab"), []byte(tab), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("unshare", "--mount", "sh", "-ec", `
		mount -t tmpfs none /var/spool/cron && mkdir -m 1730 /var/spool/cron/crontabs && chgrp crontab /var/spool/cron/crontabs
		mkdir -p /etc/cron.d && mount -t tmpfs none /etc/cron.d && mount --bind /dev/null /etc/crontab
		mount -t tmpfs none /run
		install -o nobody -g crontab -m 600 "$0/tab" /var/spool/cron/crontabs/nobody
		exec cron -f`, dir)
	daemon.Stdout, daemon.Stderr = os.Stderr, os.Stderr
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	read := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(dir, name))
		return string(text)
	}
	for began := time.Now(); read("status") == "" && time.Since(began) < 3*time.Minute; {
		time.Sleep(100 * time.Millisecond)
	}
	if read("status") != "0\n" || read("err") != "" {
		t.Errorf("status %q, standard error %q", read("status"), read("err"))
	}
	for _, want := range []string{"nobody\n", "PGLEAD_LOCK_KEY=cron\n", "PGLEAD_DSN=withheld\n"} {
		if !strings.Contains(read("out"), want) {
			t.Errorf("the job's output has no %q:\n%s", want, read("out"))
		}
	}
}

// TestOrdinaryUser: without root, without a home, and with the embedded server.
func TestOrdinaryUser(t *testing.T) {
	requireRoot(t, "to become another user")
	dir := openDir(t)
	cmd := exec.Command("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups",
		filepath.Join(testbed.dir, "pglead"), "run", "--dsn", "embedded", "--key", "k", "--", "id", "-un")
	cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "TMPDIR=" + dir}, dir
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	t.Cleanup(func() { _ = exec.Command("pkill", "-f", "^embedded-postgres-keeper.*"+dir).Run() })
	if err != nil || string(out) != "nobody\n" {
		t.Errorf("%q, %v: %s", out, err, &said)
	}
	if !strings.Contains(said.String(), "this lock is local to this machine") {
		t.Errorf("the embedded server is not announced: %s", &said)
	}
}

// TestSurroundings: what pglead has to get by with in containers, under sudo
// and in the hands of careful administrators.
func TestSurroundings(t *testing.T) {
	requireRoot(t, "to take things away from an ordinary user")
	if _, err := exec.LookPath("sudo"); err != nil && os.Getenv("CI") == "" {
		t.Skip("NOT TESTED: sudo, which testdata/setup tests installs")
	}
	dsn := openServer(t)
	asNobody := []string{"setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "--"}
	pglead := []string{filepath.Join(testbed.dir, "pglead"), "run", "--"}
	for name, tt := range map[string]struct {
		around []string
		job    string
		want   string
	}{
		"no home, read-only file system": {
			around: append([]string{"unshare", "--mount", "sh", "-ec", `
				mount --rbind / /mnt; mount -o remount,bind,ro /mnt
				tmp=` + os.TempDir() + `; mount --bind $tmp /mnt$tmp; mount -o remount,bind,ro /mnt$tmp
				exec chroot /mnt "$0" "$@"`}, asNobody...),
			job: `! touch "$0" 2>/dev/null && id -un`, want: "nobody\n",
		},
		"no standard streams but output": {
			around: append(slices.Clone(asNobody), "sh", "-c", `exec "$0" "$@" <&- 2>&-`),
			job:    "id -un", want: "nobody\n",
		},
		"few files": {
			around: append(slices.Clone(asNobody), "bash", "-c", `ulimit -n 32; exec "$0" "$@"`),
			job:    "ulimit -n", want: "32\n",
		},
		"sudo -E": {
			around: []string{"sudo", "-E", "-u", "nobody"},
			job:    `echo "$(id -un) $PGLEAD_LOCK_KEY"`, want: "nobody surroundings\n",
		},
		"nohup": {
			around: append(slices.Clone(asNobody), "nohup"),
			job:    "kill -HUP $PPID; kill -HUP $$; id -un", want: "nobody\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := openDir(t)
			args := slices.Concat(tt.around, pglead, []string{"sh", "-c", tt.job, filepath.Join(dir, "file")})
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "PGLEAD_DSN=" + dsn, "PGLEAD_KEY=surroundings", "PGLEAD_LOCK_DELAY=0"}, "/"
			var said bytes.Buffer
			cmd.Stderr = &said
			if out, err := cmd.Output(); err != nil || string(out) != tt.want {
				t.Errorf("%q, %v: %s", out, err, &said)
			}
		})
	}
}

// TestCancelledStep: a deployment in a CI step is cancelled midway, in the way
// of each CI system. Nothing of it is left, and the next one runs.
func TestCancelledStep(t *testing.T) {
	for name, cancel := range map[string]func(step int, cookie string){
		// GitHub's runner interrupts the shell, and later kills it and all its
		// descendants.
		"github": func(step int, _ string) {
			_ = syscall.Kill(step, syscall.SIGINT)
			time.Sleep(200 * time.Millisecond)
			for _, pid := range append([]int{step}, descendants(step)...) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		},
		// GitLab's ends the process group.
		"gitlab": func(step int, _ string) { _ = syscall.Kill(-step, syscall.SIGTERM) },
		// Jenkins ends every process that has the build's cookie.
		"jenkins": func(_ int, cookie string) {
			files, _ := filepath.Glob("/proc/[0-9]*/environ")
			for _, file := range files {
				environ, _ := os.ReadFile(file)
				if slices.Contains(strings.Split(string(environ), "\x00"), "JENKINS_NODE_COOKIE="+cookie) {
					pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
					_ = syscall.Kill(pid, syscall.SIGTERM)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cookie := "step-" + name + "-" + strconv.Itoa(os.Getpid())
			step := exec.Command("bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", `
				pglead run --key "$0" -- sh -c 'setsid sh -c "exec -a $0 sleep 1000" & echo deploying; touch started; sleep 1000; touch done' "$0" | tee log
				touch next`, cookie)
			step.Env, step.Dir = append(testbed.environ(dir), "JENKINS_NODE_COOKIE="+cookie), dir
			step.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := step.Start(); err != nil {
				t.Fatal(err)
			}
			exists := func(file string) bool { _, err := os.Stat(filepath.Join(dir, file)); return err == nil }
			if !eventually(func() bool { return exists("started") }) {
				t.Fatal("the step never starts")
			}
			cancel(step.Process.Pid, cookie)
			if err := step.Wait(); err == nil {
				t.Error("the cancelled step succeeds")
			}
			if !eventually(func() bool { return exec.Command("pgrep", "-f", cookie).Run() != nil }) {
				out, _ := exec.Command("pgrep", "-af", cookie).Output()
				t.Errorf("these are left:\n%s", out)
			}
			if out, err := command(t, "run", "--key", cookie, "--wait", "1m", "--", "echo", "next").CombinedOutput(); err != nil || string(out) != "next\n" {
				t.Errorf("the next step: %v: %s", err, out)
			}
			if exists("done") || exists("next") {
				t.Error("the step went on")
			}
		})
	}
}

// descendants are all processes that a process has started, and they.
func descendants(pid int) (all []int) {
	for _, child := range children(pid) {
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

// TestFirstProcess: pglead as the first process of a container collects the
// orphans of others, passes signals on, and says by its status what it can't
// say by its death.
func TestFirstProcess(t *testing.T) {
	requireRoot(t, "a process namespace")
	dir := openDir(t)
	started := filepath.Join(dir, "started")
	cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
		filepath.Join(testbed.dir, "pglead"), "run", "--key", "first", "--", "sh", "-c", `
			test "$(ps -o pid= -C pglead)" -eq 1 || exit 99
			(setsid sh -c 'sleep 0.1 & exit' &)
			touch "$0"; exec sleep 1000`, started)
	cmd.Env, cmd.Dir = testbed.environ(dir), dir
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { _, err := os.Stat(started); return err == nil }) {
		_ = cmd.Process.Kill()
		t.Fatalf("never starts: %s", &said)
	}
	// An orphan that is nobody's but the first process's, as `docker exec` leaves.
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(cmd.Process.Pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	first := strings.TrimSpace(string(out))
	enter := exec.Command("nsenter", "--pid", "--mount", "--target", first, "sh", "-c", "(sleep 0.1 &) ; exit 0")
	if out, err := enter.CombinedOutput(); err != nil {
		t.Fatalf("nsenter: %v: %s", err, out)
	}
	if !eventually(func() bool {
		zombies, err := exec.Command("nsenter", "--pid", "--mount", "--target", first, "sh", "-c", "ps -e -o stat= | grep -c ^Z").Output()
		return err != nil && strings.TrimSpace(string(zombies)) == "0" && exec.Command("pgrep", "-xf", "sleep 0.1").Run() != nil
	}) {
		t.Error("zombies stay")
	}
	if err := exec.Command("kill", "-TERM", first).Run(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 143 {
		t.Errorf("status %d, want 143: %s", code, &said)
	}
}

// TestForeignProc: where the guard would find no process to kill, nothing is
// started.
func TestForeignProc(t *testing.T) {
	requireRoot(t, "a process namespace")
	dir := openDir(t)
	cmd := exec.Command("unshare", "--pid", "--fork", "--kill-child", filepath.Join(testbed.dir, "pglead"), "run", "--key", "proc", "--", "touch", "never")
	cmd.Env, cmd.Dir = testbed.environ(dir), dir
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 78 || !strings.Contains(string(out), "/proc is another PID namespace's") {
		t.Errorf("exit status %d: %s", code, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "never")); err == nil {
		t.Error("the command was started")
	}
}

// requireRoot skips, and fails in CI, where everything has to be tested.
func requireRoot(t *testing.T, what string) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("CI has to run as root")
	}
	t.Skip("NOT TESTED:", what, "needs root")
}

// TestNoZones: on a machine that has no time zones pglead knows the local date all the same.
func TestNoZones(t *testing.T) {
	racesNothing(t)
	requireRoot(t, "a mount namespace")
	server := throwaway(t, nil)
	if out, err := command(t, "ledger", "install", "--dsn", server.DSN("postgres")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"Pacific/Kiritimati", "Pacific/Pago_Pago"} { // one of them has another date than UTC
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		const hide = `for dir in /usr/share/zoneinfo /usr/share/lib/zoneinfo /usr/lib/locale/TZ /etc/zoneinfo; do
			test ! -d $dir || mount -t tmpfs none $dir || exit
		done
		exec "$@"`
		once := func() string {
			cmd := exec.Command("unshare", "--mount", "sh", "-c", hide, "sh",
				filepath.Join(testbed.dir, "pglead"), "run", "-v", "--dsn", server.DSN("postgres"), "--key", "zones", "--once-per", "day", "--lock-delay", "0", "--", "true")
			cmd.Env = append(testbed.environ(t.TempDir()), "TZ="+name, "GOROOT=/nosuch") // Go has zones, too
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v: %s", name, err, out)
			}
			return string(out)
		}
		before := time.Now().In(zone).Format(time.DateOnly)
		once()
		said := once()
		after := time.Now().In(zone).Format(time.DateOnly)
		if before == after && !strings.Contains(said, "done already: "+before+" had its success") {
			t.Errorf("%s: want a success on %s: %s", name, before, said)
		}
	}
}
