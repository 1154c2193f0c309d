package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/pglead/pglead/runner/localpg"
)

func lead(t *testing.T, dsn string, args ...string) candidate {
	t.Helper()
	return launch(t, append([]string{"lead", "--dsn", dsn, "--key", "lead", "--first-delay", "0", "--lease", "3s", "-v"}, args...)...)
}

// TestLead: of two nodes one leads, through a kill, an outage and a step-down.
func TestLead(t *testing.T) {
	t.Parallel() // it has a server of its own
	server := throwaway(t, nil)
	dsn, log := server.DSN("postgres"), filepath.Join(t.TempDir(), "log")
	node := func(name string) candidate {
		return lead(t, dsn, "--", "sh", "-c", alone(log)+"echo "+name+" >&9; exec sleep 98763")
	}
	last := func() string {
		all := lines(t, log)
		return all[len(all)-1]
	}
	leads := func(who string) {
		t.Helper()
		if !eventually(func() bool { return last() == who }) {
			t.Fatalf("%s never leads: %v", who, lines(t, log))
		}
	}
	stands := func() {
		t.Helper()
		if !eventually(func() bool {
			return stage{server: server}.waiters("lead") == 1
		}) {
			t.Fatal("nobody stands by")
		}
	}
	a := node("a")
	leads("a")
	b := node("b")
	stands()
	if err := a.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	leads("b")

	c := node("c")
	stands()
	terms := len(lines(t, log))
	if err := server.Stop(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for _, node := range []candidate{b, c} {
		// Both try again and again from now on, and say so once.
		if !eventually(func() bool { return strings.Contains(node.said.String(), "waiting for the database") }) {
			t.Fatalf("not ridden out: %s", node.said)
		}
	}
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return len(lines(t, log)) > terms }) {
		t.Fatal("after the outage nobody leads")
	}
	stands()
	leader, successor, name := b, c, "c"
	if last() == "c" {
		leader, successor, name = c, b, "b"
	}
	if err := leader.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = leader.Wait()
	if status := leader.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGTERM {
		t.Errorf("the leader that was told to step down: %v", leader.ProcessState)
	}
	leads(name)
	if err := successor.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = successor.Wait()
	if slices.Contains(lines(t, log), "overlap") {
		t.Errorf("two led at once: %v", lines(t, log))
	}
}

// TestLeadBeforeTheDatabase: a node that is up before its database waits for
// it, and one that will never be let in doesn't.
func TestLeadBeforeTheDatabase(t *testing.T) {
	t.Parallel() // it has a server of its own
	server := throwaway(t, nil)
	if err := server.Stop(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	early := lead(t, server.DSN("postgres"), "--restart", "never", "--", "sh", "-c", "exit 9")
	denied := lead(t, strings.Replace(server.DSN("postgres"), localpg.Superuser, "nobody", 1), "--", "true")
	for _, node := range []candidate{early, denied} {
		if !eventually(func() bool { return strings.Count(node.said.String(), "waiting for the database") >= 2 }) {
			t.Fatalf("not ridden out: %s", node.said)
		}
	}
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	_, _ = early.Wait(), denied.Wait()
	if status := early.ProcessState.ExitCode(); status != 9 {
		t.Errorf("the command's status is 9, its leader's %d: %s", status, early.said)
	}
	if status := denied.ProcessState.ExitCode(); status != 77 {
		t.Errorf("the status of a refused login is %d: %s", status, denied.said)
	}

	// A former leader rides that out, too.
	execute := func(sql string) {
		t.Helper()
		if _, err := server.Query("postgres", sql); err != nil {
			t.Fatal(err)
		}
	}
	execute("CREATE ROLE node LOGIN")
	known := lead(t, strings.Replace(server.DSN("postgres"), localpg.Superuser, "node", 1), "--", "sh", "-c", "echo led >&2; exec sleep 98762")
	leads := func(times int) {
		t.Helper()
		if !eventually(func() bool { return strings.Count(known.said.String(), "led\n") == times }) {
			t.Fatalf("does not lead %d times: %s", times, known.said)
		}
	}
	leads(1)
	execute("ALTER ROLE node NOLOGIN")
	execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pglead:%'")
	if !eventually(func() bool { return strings.Contains(known.said.String(), "is not permitted to log in") }) {
		t.Fatalf("not refused: %s", known.said)
	}
	execute("ALTER ROLE node LOGIN")
	leads(2)
}

// TestLeadEndsAfterLoss: a signal that comes while a leader tries to tell others of its lost
// command ends the candidacy. It is then that people stop a node.
func TestLeadEndsAfterLoss(t *testing.T) {
	t.Parallel() // it has a server of its own
	server := throwaway(t, nil)
	leader := launch(t, "lead", "--dsn", server.DSN("postgres"), "--key", "lead", "--first-delay", "0", "-v", "--", "sleep", "98763")
	if !eventually(func() bool { return strings.Contains(leader.said.String(), "command started") }) {
		t.Fatal("it never leads")
	}
	if err := server.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return strings.Contains(leader.said.String(), "command killed") }) {
		t.Fatal("its command lives on")
	}
	// From now on it tries to open a session, for as long as a lock-delay.
	if err := leader.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status := leader.ends(); status != 76 || strings.Contains(leader.said.String(), "standing for election again") {
		t.Errorf("status %d: %s", status, leader.said.String())
	}
}

// TestReloadDuringTheStart: a SIGHUP that comes while the guard starts the command, and that the
// command survives, does not end the candidacy. Guard and leader are stopped in turn, so that the
// signal comes before the command has started, and the command has its trap before it gets it.
func TestReloadDuringTheStart(t *testing.T) {
	const number = "7210401"
	holder := connected(t, testbed.server, "SELECT pg_advisory_lock("+number+")")
	leader := launch(t, "lead", "--key-scheme", "int", "--key", number, "--first-delay", "0", "--lease", "1h", "--lock-delay", "0", "-v", "--",
		"sh", "-c", `trap "touch reloaded" HUP; touch trapped; until test -e reloaded; do sleep 0.01; done`)
	pid := leader.Process.Pid
	guard := guardOf(t, pid)
	await := func(what string, condition func() bool) {
		t.Helper()
		if !eventually(condition) {
			t.Fatalf("%s: never; it says %s", what, leader.said)
		}
	}
	send := func(to int, sig syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(to, sig); err != nil {
			t.Fatal(err)
		}
	}
	send(guard, syscall.SIGSTOP)
	await("the guard is stopped", func() bool { return stopped(guard) })
	_ = holder.Close(t.Context())
	await("it has asked the guard", func() bool { return strings.Contains(leader.said.String(), "lock acquired") && idle(pid) })
	send(pid, syscall.SIGHUP)
	await("it has taken the signal", func() bool { return idle(pid) })
	send(pid, syscall.SIGSTOP)
	await("it is stopped", func() bool { return stopped(pid) })
	send(guard, syscall.SIGCONT)
	await("the command has its trap", func() bool { return exists(filepath.Join(leader.Dir, "trapped")) })
	send(pid, syscall.SIGCONT)

	await("it stands again, or ends", func() bool {
		return strings.Contains(leader.said.String(), "(exit status 0); standing for election again") || dead(pid)
	})
	if dead(pid) || !exists(filepath.Join(leader.Dir, "reloaded")) {
		t.Errorf("status %d: %s", leader.ends(), leader.said)
	}
}

// idle says that all threads of a process have slept at the same instant, and that it has handled
// all signals sent to it. They have if each one sleeps now, in a second look, and has not run since
// the first one: no work can then have gone from one thread to another.
func idle(pid int) bool {
	first, sleep := threadsOf(pid)
	second, sleepOn := threadsOf(pid)
	return sleep && sleepOn && maps.Equal(first, second)
}

// threadsOf returns how often each thread of a process has stopped running, and says whether all of
// them sleep and no signal waits for the process.
func threadsOf(pid int) (switches map[string]string, sleep bool) {
	switches, sleep = map[string]string{}, true
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, file := range files {
		status, _ := os.ReadFile(file)
		before, after, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
		switches[file] = after
		sleep = sleep && strings.Contains(before, "\nState:\tS") && strings.Contains(before, "\nShdPnd:\t0000000000000000\n")
	}
	return switches, sleep && len(files) > 0
}
