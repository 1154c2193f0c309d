package child_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// startPglead starts a process with a guard that has a command ("run") or none ("idle").
func startPglead(t *testing.T, what string) (pglead *exec.Cmd, guard, command int) {
	t.Helper()
	dir := t.TempDir()
	if _, err := child.NewParent(nil); err != nil { // the parent of orphans
		t.Fatal(err)
	}
	pglead = exec.Command("/proc/self/exe", dir, what)
	pglead.Env = append(os.Environ(), "CHILD_TEST_ROLE=pglead")
	if err := pglead.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = pglead.Process.Kill()
		_ = pglead.Wait()
		for _, pid := range []int{guard, command} { // other tests reap all of this process's children
			if pid == 0 {
				continue
			}
			if t.Failed() { // it may live on
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			_, _ = unix.Wait4(pid, nil, 0, nil)
		}
	})
	pid := awaitRecords(dir, 1)[0]
	if what == "idle" {
		return pglead, pid, 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	if guard, err = strconv.Atoi(strings.Fields(rest)[1]); err != nil {
		t.Fatal(err)
	}
	return pglead, guard, pid
}

// gone says whether a process is dead. Its parent may not have reaped it.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// TestNoGraceAfterPglead: a command whose pglead is killed has no grace.
func TestNoGraceAfterPglead(t *testing.T) {
	pglead, _, command := startPglead(t, "run")
	if err := pglead.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	testserver.Eventually(t, "the command is dead", func() bool { return gone(command) })
}

// TestKernelKills: a command dies with its guard, also if pglead can't do anything.
func TestKernelKills(t *testing.T) {
	pglead, guard, command := startPglead(t, "run")
	if err := pglead.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(guard, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testserver.Eventually(t, "the command is dead", func() bool { return gone(command) })
}

// TestGroupOfUnused: of a guard that never has a command no control group is left, whether pglead closes
// it or is killed.
func TestGroupOfUnused(t *testing.T) {
	skipWithoutGroup(t)
	groupOf := func(guard int) (group string) {
		testserver.Eventually(t, "the guard has a group", func() bool {
			environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", guard))
			_, rest, _ := strings.Cut(string(environ), "CGROUP=")
			group, _, _ = strings.Cut(rest, "\x00")
			return err == nil && group != "" && unix.Access(group, unix.F_OK) == nil
		})
		return group
	}
	isLeft := func(group string) bool { return unix.Access(group, unix.F_OK) != unix.ENOENT }

	g := newGuard(t, nil)
	group := groupOf(child.UnusedPID(g))
	if g.Close(); isLeft(group) {
		t.Errorf("%s is left", group)
	}
	pglead, guard, _ := startPglead(t, "idle")
	group = groupOf(guard)
	if err := pglead.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	testserver.Eventually(t, "the group is removed", func() bool { return !isLeft(group) })
}
