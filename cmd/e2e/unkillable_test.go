package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// becomesRoot puts a setuid program into dir, on a file system that has to heed that.
func becomesRoot(t *testing.T, dir string) string {
	t.Helper()
	program, err := exec.LookPath("setpriv")
	if err != nil {
		t.Fatal(err)
	}
	suid := filepath.Join(dir, "becomeroot")
	if out, err := exec.Command("install", "-m", "4755", program, suid).CombinedOutput(); err != nil {
		t.Fatalf("install: %s", out)
	}
	asNobody := []string{"--reuid", "nobody", "--regid", "nogroup", "--clear-groups"}
	if out, err := exec.Command(program, append(asNobody, program, "--dump")...).CombinedOutput(); err != nil {
		t.Fatalf("become nobody: %s", out)
	}
	if err := exec.Command(program, append(asNobody, suid, "--reuid", "0", "--clear-groups", "true")...).Run(); err != nil {
		t.Skipf("NOT TESTED: a setuid program does not become root in %s, which may be mounted nosuid (%v): name another place by TMPDIR", filepath.Dir(dir), err)
	}
	return suid
}

// namedPipe makes a named pipe that only root can open.
func namedPipe(t *testing.T) string {
	t.Helper()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	return pipe
}

// outlives fails if pglead ends before the last of its command's processes, which reads from a
// named pipe. It returns when that process and pglead have ended.
func outlives(t *testing.T, cmd *exec.Cmd, pipe string) {
	t.Helper()
	for range 20 {
		if dead(cmd.Process.Pid) {
			t.Error("pglead ended before the last of its command's processes")
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	var writer *os.File
	var err error
	if !eventually(func() bool { // the reader may not have opened it yet
		writer, err = os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		return err == nil
	}) {
		t.Error("nobody reads: ", err)
		_ = cmd.Process.Kill()
	}
	_ = writer.Close() // the reader's end
	_ = cmd.Wait()
}

// TestUnkillable: a descendant of another user is reported, and the lock stays
// held while it lives.
func TestUnkillable(t *testing.T) {
	requireRoot(t, "a setuid program")
	dsn, dir := openServer(t), openDir(t)
	suid, pipe := becomesRoot(t, dir), namedPipe(t)
	cmd := exec.Command("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups",
		filepath.Join(testbed.dir, "pglead"), "run", "--dsn", dsn, "--key", "suid", "--kill-after", "100ms", "--lock-delay", "0", "--", "sh", "-c",
		suid+` --reuid 0 --regid 0 --clear-groups sh -c 'touch `+dir+`/started; exec cat `+pipe+`' & trap "" TERM; while :; do sleep 0.05; done`)
	cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH")}, dir
	var said lockedBuffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return exists(dir + "/started") }) {
		t.Errorf("never starts: %s", &said)
	}
	guard := guardOf(t, cmd.Process.Pid)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if !eventually(func() bool {
		return strings.Contains(said.String(), "these processes can't be killed, and the lock stays held while they live: cat (")
	}) {
		t.Errorf("not reported: %s", &said)
	}
	const late = 2 * time.Second // so much after its order pglead kills a guard that has not said why it takes so long
	if time.Sleep(late); dead(guard) {
		t.Error("the guard is killed, though it has reported what it can't kill")
	}
	outlives(t, cmd, pipe)
}

// TestUnkillableHook: a hook that can't be killed doesn't keep pglead from ending, nor later hooks
// from being run.
func TestUnkillableHook(t *testing.T) {
	requireRoot(t, "a setuid program")
	dsn, dir := openServer(t), openDir(t)
	suid, pipe := becomesRoot(t, dir), namedPipe(t)
	cmd := exec.Command("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups",
		filepath.Join(testbed.dir, "pglead"), "run", "--dsn", dsn, "--key", "hook", "--lock-delay", "0",
		"--on-acquired", "exec "+suid+" --reuid 0 --regid 0 --clear-groups cat "+pipe, "--on-released", "echo later >&2", "--", "true")
	cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH")}, dir
	stderr, err := os.Create(filepath.Join(dir, "stderr")) // the hook keeps it open
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	ended := make(chan error, 1)
	go func() { ended <- cmd.Run() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(3 * time.Minute):
		t.Error("it waits for a hook that can't be killed")
		_ = cmd.Process.Kill()
	}
	said, _ := os.ReadFile(stderr.Name())
	writer, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatalf("the hook does not read: %v; %s", err, said)
	}
	_ = writer.Close()
	unnumbered := regexp.MustCompile(`\(\d+,`).ReplaceAllString(string(said), "(N,")
	const want = `pglead: hook: --on-acquired: these processes can't be killed: cat (N, another user's)
pglead: hook: --on-acquired: not waited for any longer, since it can't be killed: it has had 20s
later
`
	if unnumbered != want {
		t.Errorf("it says\n%s\nnot\n%s", unnumbered, want)
	}
}

// TestUnkillableUnseen: a descendant that /proc hides from pglead's user is reported, and the lock
// stays held while it lives. The PID namespace is for kernels before 5.8, on which all mounts of
// one namespace's /proc have the same options.
func TestUnkillableUnseen(t *testing.T) {
	racesNothing(t)
	requireRoot(t, "a setuid program, and a /proc that hides it")
	dsn, dir := openServer(t), openDir(t)
	suid, pipe := becomesRoot(t, dir), namedPipe(t)
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "sh", "-c", `mount -t proc -o hidepid=invisible proc /proc && "$@"; exit`, "sh",
		"setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups",
		filepath.Join(testbed.dir, "pglead"), "run", "--dsn", dsn, "--key", "unseen", "--lock-delay", "0", "--timeout", "3s", "--kill-after", "0.1s", "--", "sh", "-c",
		suid+` --reuid 0 --regid 0 --clear-groups cat `+pipe+` & trap "" TERM; while :; do sleep 0.05; done`)
	cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH")}, dir
	var said lockedBuffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return strings.Contains(said.String(), "these processes can't be killed") }) {
		t.Errorf("not reported: %s", &said)
	}
	outlives(t, cmd, pipe)
	if code := cmd.ProcessState.ExitCode(); code != 124 {
		t.Errorf("status %d, want 124", code)
	}
	says(t, said.String(), `pglead: unseen: the command ran for all of the 3s that --timeout allows; sending SIGTERM\n`+
		`pglead: unseen: the command did not end after SIGTERM; killing it and all that it started\n`+
		`pglead: unseen: these processes can't be killed, and the lock stays held while they live: one that /proc hides \(\d+, another user's\)\n`)
}

// TestUnkillableAfterLoss: of a lock that is lost nobody says that it stays held.
func TestUnkillableAfterLoss(t *testing.T) {
	racesNothing(t)
	requireRoot(t, "a setuid program")
	t.Parallel() // it has a server of its own
	dsn, dir := openServer(t), openDir(t)
	suid := becomesRoot(t, dir)
	for name, early := range map[string]bool{"lost first": false, "unkillable first": true} {
		t.Run(name, func(t *testing.T) {
			var said lockedBuffer
			cmd := exec.Command("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups",
				filepath.Join(testbed.dir, "pglead"), "run", "--dsn", dsn, "--key", "suid", "--kill-after", "100ms", "--lock-delay", "0", "--", "sh", "-c",
				suid+` --reuid 0 --regid 0 --clear-groups sh -c 'echo '$PGLEAD_BACKEND_PID' $$; exec sleep 1000 >&-' & trap "" TERM; while :; do sleep 0.05; done`)
			cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH")}, dir
			cmd.Stderr = &said
			line, _ := start(t, cmd)
			var backend, sleeper int
			if _, err := fmt.Sscan(line, &backend, &sleeper); err != nil {
				t.Fatal(err)
			}
			const held, lost = "and the lock stays held while they live", "and the lock is lost: another node may run the command while they live"
			complained := func(consequence string) bool {
				return eventually(func() bool { return strings.Contains(said.String(), consequence) })
			}
			want := ""
			if early {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				if !complained(held) {
					t.Error("not reported before the loss")
				}
				want = `pglead: suid: the command did not end after SIGTERM; killing it and all that it started\n` +
					`pglead: suid: these processes can't be killed, ` + held + `: sleep \(\d+, another user's\)\n`
			}
			_ = syscall.Kill(backend, syscall.SIGTERM)
			if !complained(lost) {
				t.Error("not reported after the loss")
			}
			_ = syscall.Kill(sleeper, syscall.SIGKILL)
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 76 {
				t.Errorf("status %d, want 76", code)
			}
			says(t, said.String(), want+`pglead: suid: these processes can't be killed, `+lost+`: sleep \(\d+, another user's\)\npglead: suid: the lock in .* was lost .*\n`)
		})
	}
}

// TestListOutlivesPglead: of a list whose pglead is killed the locks are held until the last of its
// commands' processes is dead, although they share a session, whether its guards may give the locks
// back or, as with readers, may not. The same goes for one that is first stopped until its guards
// end the commands: no lock comes free before the server's lease is over.
func TestListOutlivesPglead(t *testing.T) {
	requireRoot(t, "a setuid program")
	t.Parallel() // it has a server of its own
	port := testserver.Port(t)
	server := throwaway(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	dir := openDir(t)
	suid := becomesRoot(t, dir)
	for name, tt := range map[string]struct {
		mode    []string
		stopped bool           // until a guard has ended its command
		end     syscall.Signal // comes then
	}{
		"exclusive":           {end: syscall.SIGKILL},
		"shared":              {mode: []string{"--shared"}, end: syscall.SIGKILL},
		"stopped and killed":  {stopped: true, end: syscall.SIGKILL},
		"stopped and resumed": {stopped: true, end: syscall.SIGCONT},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var said lockedBuffer
			dsn := fmt.Sprintf("host=127.0.0.1 port=%s user=%s dbname=postgres", port, localpg.Superuser)
			list := slices.Concat([]string{"--reuid", "nobody", "--regid", "nogroup", "--clear-groups",
				filepath.Join(testbed.dir, "pglead"), "each", "--dsn", dsn, "--key", name + "/{}", "-P", "2", "--lock-delay", "0", "--lease", "30s"}, tt.mode,
				[]string{"brief", "long", "--", "sh", "-c", `case $1 in
brief) exec sleep 1000;;
esac
exec ` + suid + ` --reuid 0 --regid 0 --clear-groups sh -c 'echo $$; exec sleep 1000 >&-'`, "sh", "{}"})
			cmd := exec.Command("setpriv", list...)
			cmd.Env, cmd.Dir, cmd.Stderr = []string{"PATH=" + os.Getenv("PATH")}, dir, &said
			line, _ := start(t, cmd)
			var sleeper int
			if _, err := fmt.Sscan(line, &sleeper); err != nil {
				t.Fatalf("%q: %v: %s", line, err, &said)
			}
			held := func(item string) bool {
				id := lockOf(name + "/" + item)
				return stage{server: server}.locks(fmt.Sprintf("granted AND classid = %d AND objid = %d AND objsubid = 1", id.ClassID(), id.ObjID())) == 1
			}
			if !eventually(func() bool { return held("brief") && held("long") }) {
				t.Fatalf("the locks are not held: %s", &said)
			}
			var guards []int
			if !eventually(func() bool {
				guards = guardsOf(cmd.Process.Pid)
				return len(guards) == 2 && len(children(guards[0])) > 0 && len(children(guards[1])) > 0
			}) {
				t.Fatalf("the guards: %v", guards)
			}
			if tt.stopped {
				_ = cmd.Process.Signal(syscall.SIGSTOP)
				if !eventually(func() bool { return len(children(guards[0])) == 0 || len(children(guards[1])) == 0 }) {
					t.Fatal("no guard ends its command")
				}
			}
			_ = cmd.Process.Signal(tt.end)
			if !eventually(func() bool { return dead(guards[0]) || dead(guards[1]) }) {
				t.Fatal("no guard ends")
			}
			for range 20 { // the server needs a moment to see the end of a connection
				if !held("long") {
					t.Error("a lock is free whose command's process is alive")
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			_ = syscall.Kill(sleeper, syscall.SIGKILL)
			if !eventually(func() bool { return !held("brief") && !held("long") }) {
				t.Error("the locks stay held")
			}
			_, _ = cmd.Process.Wait() // a guard may have its standard error for longer
		})
	}
}
