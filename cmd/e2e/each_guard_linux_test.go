package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/advisory"
)

// secondItem has `each` at its second item, whose command has a daemon and a child, under
// the guard that the first item's command had; on a busy machine that takes several tries.
func secondItem(t *testing.T) (each *exec.Cmd, backend int, tree []int, said *lockedBuffer) {
	t.Helper()
	const job = `if [ "$0" = first ]; then echo $PPID >first; exit; fi
		(setsid sh -c 'echo $$ >daemon; exec sleep 1000' &); sleep 1000 & echo $! >child
		until test -s daemon; do sleep 0.01; done; echo $PPID $$ $PGLEAD_BACKEND_PID >second.new; mv second.new second; wait`
	for try := range 20 {
		each, said = command(t, "each", "--key", fmt.Sprintf("second %s %d {}", t.Name(), try), "first", "second", "--", "sh", "-c", job, "{}"), &lockedBuffer{}
		each.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // with a terminal there is a guard for each
		each.Stderr = said
		if err := each.Start(); err != nil {
			t.Fatal(err)
		}
		number := func(file string) (n int) {
			text, err := os.ReadFile(filepath.Join(each.Dir, file))
			if err == nil {
				n, err = strconv.Atoi(strings.TrimSpace(string(text)))
			}
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		if !eventually(func() bool { return exists(filepath.Join(each.Dir, "second")) }) {
			t.Fatalf("the second item is never worked on: %s", said.String())
		}
		var guard, shell int
		if _, err := fmt.Sscan(lines(t, filepath.Join(each.Dir, "second"))[0], &guard, &shell, &backend); err != nil {
			t.Fatal(err)
		}
		tree = []int{shell, number("daemon"), number("child")}
		if guard == number("first") {
			return each, backend, tree, said
		}
		_ = each.Process.Signal(syscall.SIGTERM)
		_ = each.Wait()
	}
	t.Fatal("no guard has had two commands")
	return nil, 0, nil, nil
}

func allDead(pids []int) func() bool {
	return func() bool {
		for _, pid := range pids {
			if !dead(pid) {
				return false
			}
		}
		return true
	}
}

// TestEachKilled: SIGKILL of pglead at a later item kills that one's command and all that
// it started, and only then does the lock come free.
func TestEachKilled(t *testing.T) {
	each, backend, tree, _ := secondItem(t)
	held := func() int { return testbed.locks(fmt.Sprintf("granted AND pid = %d", backend)) }
	if held() == 0 {
		t.Fatal("the item's lock is not held")
	}
	if err := each.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = each.Wait()
	if !eventually(func() bool { return held() == 0 }) {
		t.Error("the lock stays held")
	}
	if !allDead(tree)() {
		t.Error("the lock is free and the command's tree is not dead")
	}
}

// TestEachReleases: SIGKILL of pglead during a list gives its locks to those in line without a
// lock-delay, also if the server takes its time over a guard's release. Here it waits in vain for
// an arriving waiter.
func TestEachReleases(t *testing.T) {
	for _, parallel := range []int{1, 2} {
		t.Run(fmt.Sprintf("-P %d", parallel), func(t *testing.T) {
			key := fmt.Sprintf("releases %d/", parallel)
			items := []string{"a", "b"}[:parallel]
			args := append([]string{"each", "--key", key + "{}", "-P", strconv.Itoa(parallel)}, items...)
			each := command(t, append(args, "--", "sleep", "1000")...)
			if err := each.Start(); err != nil {
				t.Fatal(err)
			}
			said, ended := map[string]*lockedBuffer{}, make(chan error, len(items))
			for _, item := range items {
				if !eventually(func() bool { return testbed.holders(key+item) == 1 }) {
					t.Fatalf("item %s is never worked on", item)
				}
				waiter := command(t, "run", "--key", key+item, "--wait", "10m", "--lock-delay", "10m", "--", "true")
				said[item] = &lockedBuffer{}
				waiter.Stderr = said[item]
				if err := waiter.Start(); err != nil {
					t.Fatal(err)
				}
				go func() { ended <- waiter.Wait() }()
				if !eventually(func() bool { return testbed.settled(key+item) == 1 }) {
					t.Fatalf("nobody waits for item %s", item)
				}
			}
			stranger, err := pgconn.Connect(t.Context(), testbed.server.DSN("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			defer stranger.Close(t.Context())
			arrival := advisory.Exclusive(advisory.ArrivalOf(lockOf(key + "a")).ID)
			if got, err := stranger.Exec(t.Context(), "SELECT "+arrival.TrySQL()).ReadAll(); err != nil || string(got[0].Rows[0][0]) != "t" {
				t.Fatalf("the stranger has not got its lock: %v", err)
			}
			if err := each.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = each.Wait()
			for range items {
				select {
				case err := <-ended:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(time.Minute):
					t.Fatal("one of those in line waits for the lock-delay")
				}
			}
			for item, text := range said {
				if text.String() != "" {
					t.Errorf("item %s: %s", item, text.String())
				}
			}
		})
	}
}

// TestEachLost: at a later item the loss of the session kills that one's command and all
// that it started, and ends the list.
func TestEachLost(t *testing.T) {
	each, backend, tree, said := secondItem(t)
	if _, err := testbed.server.Query("postgres", fmt.Sprintf("SELECT pg_terminate_backend(%d)", backend)); err != nil {
		t.Fatal(err)
	}
	_ = each.Wait()
	if code := each.ProcessState.ExitCode(); code != 76 || !strings.Contains(said.String(), "was lost") {
		t.Errorf("status %d, want 76: %s", code, said.String())
	}
	if !allDead(tree)() {
		t.Error("pglead has ended and the command's tree is not dead")
	}
}

// TestEachStopped: SIGTERM reaches the command of a later item, and no item comes after it.
func TestEachStopped(t *testing.T) {
	each, _, tree, _ := secondItem(t)
	if err := each.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = each.Wait()
	if each.ProcessState.ExitCode() == 0 {
		t.Error("it ends as if all were done")
	}
	if !allDead(tree)() {
		t.Error("pglead has ended and the command's tree is not dead")
	}
}

// TestEachFlooded: the locks of a list whose pglead is stopped come free, though the server waits
// to write to it, so that no time-out of the server's ends the session: other workers on the list
// have announced more than the unix socket takes.
func TestEachFlooded(t *testing.T) {
	racesNothing(t)
	const key = "flooded/"
	each := command(t, "each", "--key", key+"{}", "-P", "2", "--lease", "9s", "a", "b", "--", "sh", "-c", "echo; exec sleep 1000")
	start(t, each) // a guard without a command has no deadline
	held := func() int { return testbed.holders(key+"a") + testbed.holders(key+"b") }
	if !eventually(func() bool { return held() == 2 }) {
		t.Fatal("the items are never worked on")
	}
	if err := each.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	flood := fmt.Sprintf("SELECT count(pg_notify('pglead.1.each.%v', i || ' ok')) FROM generate_series(1, 20000) AS i", lockOf(key+"{}"))
	if _, err := testbed.server.Query("postgres", flood); err != nil {
		t.Fatal(err)
	}
	const stuck = "pid IN (SELECT pid FROM pg_stat_activity WHERE wait_event = 'ClientWrite')"
	if !eventually(func() bool { return testbed.locks(stuck) > 0 }) {
		t.Error("the server never waits to write")
	}
	if !eventually(func() bool { return held() == 0 }) {
		t.Error("the locks stay held")
	}
	_ = each.Process.Signal(syscall.SIGCONT)
	_ = each.Wait()
	if code := each.ProcessState.ExitCode(); code != 76 {
		t.Errorf("status %d, want 76", code)
	}
}

// TestEachAhead: a lock that is taken ahead of its turn is free again soon, if its turn
// does not come.
func TestEachAhead(t *testing.T) {
	const key = "ahead"
	items := make([]string, 0, 12)
	for i := range 10 {
		items = append(items, "brief"+strconv.Itoa(i))
	}
	items = append(items, "long", "after")
	// With --wait it comes back to the item if the run below has the lock at its first try.
	args := append([]string{"each", "--wait", "1m", "--key", key + "/{}"}, items...)
	each := command(t, append(args, "--", "sh", "-c", `case $0 in long) touch long; until test -e go; do sleep 0.01; done;; after) touch after;; esac`, "{}")...)
	each.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := each.Start(); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return exists(filepath.Join(each.Dir, "long")) }) {
		t.Fatal("the long item is never worked on")
	}
	began := time.Now()
	if !eventually(func() bool { return testbed.holders(key+"/after") == 0 }) {
		t.Error("the item after it stays held")
	}
	t.Logf("the item after it was free %v later", time.Since(began))
	if status, stderr := outcome(t, "run", "--key", key+"/after", "--", "true"); status != 0 {
		t.Errorf("a run of the item after it: status %d: %s", status, stderr)
	}
	if exists(filepath.Join(each.Dir, "after")) || testbed.holders(key+"/long") != 1 {
		t.Error("the long item is not at work any more")
	}
	if err := os.WriteFile(filepath.Join(each.Dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := each.Wait(); err != nil || !exists(filepath.Join(each.Dir, "after")) {
		t.Errorf("the item after it was left out: %v", err)
	}
}

// TestEachGuardDies: a guard that is killed between two items, while the server is asked
// for the next one, is replaced, and the list goes on.
func TestEachGuardDies(t *testing.T) {
	// Between two items there is no time to be seen from outside unless the server takes its time.
	const job = `: >ran-$0; if [ $0 = first ]; then echo $PPID $PGLEAD_BACKEND_PID >pids; kill -STOP $PGLEAD_BACKEND_PID; fi`
	for try := range 20 {
		each, said := command(t, "each", "-v", "--key", fmt.Sprintf("dies %d {}", try), "first", "second", "third", "--", "sh", "-c", job, "{}"), &lockedBuffer{}
		each.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // with a terminal there is a guard for each
		each.Stderr = said
		if err := each.Start(); err != nil {
			t.Fatal(err)
		}
		ended := eventually(func() bool { return strings.Contains(said.String(), ": first: command ended") })
		var guard, backend int
		if _, err := fmt.Sscan(lines(t, filepath.Join(each.Dir, "pids"))[0], &guard, &backend); err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(guard, syscall.SIGKILL) // or it has ended, since the command was not brief
		died := eventually(func() bool { return dead(guard) })
		_ = syscall.Kill(backend, syscall.SIGCONT)
		err := each.Wait()
		if strings.Contains(said.String(), "the guard process died before it said that the command runs") {
			continue // it had the next request already, and nobody knows what it did with that
		}
		if !ended || !died || err != nil || !exists(filepath.Join(each.Dir, "ran-second")) || !exists(filepath.Join(each.Dir, "ran-third")) {
			t.Fatalf("ended %v, died %v, %v: %s", ended, died, err, said.String())
		}
		if n := strings.Count(said.String(), "the guard process died before the command was started; starting another"); n == 1 {
			return
		} else if n > 1 {
			t.Fatalf("it is said %d times: %s", n, said.String())
		}
	}
	t.Error("no guard was there between two items")
}
