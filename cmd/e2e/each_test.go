package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
)

// TestEachShares: eight nodes with one list. Once all of them are at work no
// item is worked on twice.
func TestEachShares(t *testing.T) {
	const nodes, items = 8, 400
	dir := t.TempDir()
	var list strings.Builder
	for i := range items {
		fmt.Fprintf(&list, "%d\n", i)
	}
	if err := os.WriteFile(filepath.Join(dir, "list"), []byte(list.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	// The first command of each node waits until every node has one. While a
	// command runs there is a directory that only one can make.
	const job = `mkdir "run-$1" || exit 1; touch "at-$0"; until test -e go; do sleep 0.01; done; echo "$1" >> "done-$0"; rmdir "run-$1"`
	var wg sync.WaitGroup
	for node := range nodes {
		cmd := command(t, "each", "--key", "shares/{}", "-a", filepath.Join(dir, "list"), "--", "sh", "-c", job, strconv.Itoa(node), "{}")
		cmd.Dir = dir
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("node %d: %v: %s", node, err, out)
			}
		})
	}
	if !eventually(func() bool {
		at, _ := filepath.Glob(filepath.Join(dir, "at-*"))
		return len(at) == nodes
	}) {
		t.Error("not all nodes are at work")
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	times := map[string]int{}
	for node := range nodes {
		text, _ := os.ReadFile(filepath.Join(dir, "done-"+strconv.Itoa(node)))
		worked := strings.Fields(string(text))
		t.Logf("node %d: %d items", node, len(worked))
		for _, item := range worked {
			times[item]++
		}
	}
	for i := range items {
		if n := times[strconv.Itoa(i)]; n != 1 {
			t.Errorf("item %d was worked on %d times", i, n)
		}
	}
}

// TestEachOfTwoSchemes: two lists whose items' keys are the same, but not their locks, know nothing
// of each other's items.
func TestEachOfTwoSchemes(t *testing.T) {
	dir := t.TempDir()
	slow := command(t, "each", "--key", "{}", "81001", "81007", "--", "sh", "-c", `touch at; until test -e go; do sleep 0.01; done; echo slow-{} >> done`)
	slow.Dir = dir
	wait := make(chan error, 1)
	go func() {
		out, err := slow.CombinedOutput()
		if len(out) > 0 {
			err = errors.Join(err, errors.New(string(out)))
		}
		wait <- err
	}()
	if !eventually(func() bool { _, err := os.Stat(filepath.Join(dir, "at")); return err == nil }) {
		t.Error("the first item does not run")
	}
	other := command(t, "each", "--key", "{}", "--key-scheme", "int", "81001", "81007", "--", "sh", "-c", "echo int-{} >> done")
	other.Dir = dir
	if out, err := other.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-wait; err != nil {
		t.Error(err)
	}
	text, _ := os.ReadFile(filepath.Join(dir, "done"))
	if want := "int-81001\nint-81007\nslow-81001\nslow-81007\n"; string(text) != want {
		t.Errorf("ran %q, not %q", text, want)
	}
}

// TestEachFreesAll: the end of each item is said, also where a command that takes about as
// long as the next item's lock is held ahead of time follows a briefer one.
func TestEachFreesAll(t *testing.T) {
	const key, items = "frees/{}", 120
	words := map[string]bool{}
	cfg, err := pgconn.ParseConfig(testbed.server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { words[n.Payload] = true }
	listener, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close(context.WithoutCancel(t.Context()))
	ask := func(sql string) {
		if _, err := listener.Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	ask(fmt.Sprintf(`LISTEN "pglead.1.each.%s"`, lockkey.SipHash24(key)))
	args := []string{"each", "--key", key}
	for i := range items {
		args = append(args, fmt.Sprintf("0.0%02d-%d", 5+i%30, i))
	}
	each := command(t, append(args, "--", "sh", "-c", `sleep "${0%-*}"`, "{}")...)
	each.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // with a terminal nothing is fetched ahead
	if out, err := each.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ask("SELECT") // all that was said comes before its end
	if len(words) != items {
		t.Errorf("of %d items, the ends of %d were said", items, len(words))
	}
}

// TestEachReturns: a worker comes back to the items that failed elsewhere before it got to them.
// Nobody has had their locks in between, so it starts at once.
func TestEachReturns(t *testing.T) {
	dir := t.TempDir()
	start := func(name, first string, wait string) (say *bytes.Buffer, done func()) {
		cmd := command(t, "each", "-v", "--key", "returns/{}", "--wait", wait, "1", "2", "3", "4", "--", "sh", "-c", first+`; echo "$0" >> `+name+`; exit 1`, "{}")
		cmd.Dir, say = dir, &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = say, say
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return say, func() {
			t.Helper()
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 123 {
				t.Errorf("%s: %v, not exit status 123: %s", name, err, say)
			}
		}
	}
	text := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(dir, name))
		return string(text)
	}
	// The first one's commands are not brief. Otherwise it would fetch locks ahead, and one that it
	// gives back because it is busy counts as anybody's meanwhile.
	first, firstDone := start("first", `touch at; until test -e go; do sleep 0.01; done; sleep 0.05`, "1m")
	if !eventually(func() bool { _, err := os.Stat(filepath.Join(dir, "at")); return err == nil }) {
		t.Error("the first one is not at work")
	}
	_, secondDone := start("second", "true", "1s")
	held := func() int {
		return testbed.holders("returns/2") + testbed.holders("returns/3") + testbed.holders("returns/4")
	}
	// A command that has written its item still holds the lock. Before that is free, a slow machine's
	// first one could be refused it, and then hear of the end too late.
	if !eventually(func() bool { return strings.HasPrefix(text("second"), "2\n3\n4\n") && held() == 0 }) {
		t.Errorf("the second one has worked on %q, and %d locks are held", text("second"), held())
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	firstDone()
	secondDone()
	if got := text("first"); got != "1\n2\n3\n4\n" {
		t.Errorf("the first one worked on %q", got)
	}
	if strings.Contains(first.String(), "without evidence") {
		t.Errorf("it waited out a lock-delay: %s", first)
	}
}

// TestEachPaused: whoever comes back to paused items asks whether their pauses are over, and draws
// no tokens meanwhile. Each item's pause ends by itself.
func TestEachPaused(t *testing.T) {
	t.Parallel() // it has a server of its own
	const items = 20
	server := throwaway(t, nil)
	p := planted{t, server.DSN("postgres")}
	p.does(0, "ledger", "install")
	for _, mode := range []string{"--transaction=false", "--transaction"} {
		dir := t.TempDir()
		list := func(args ...string) []string {
			args = append([]string{"each", mode, "-v", "--lock-delay", "0", "--key", "sleepers/{}"}, args...)
			for i := range items {
				args = append(args, strconv.Itoa(i))
			}
			return p.at(append(args, "--", "touch", filepath.Join(dir, "{}")))
		}
		if status, said := outcome(t, list()...); status != 0 {
			t.Fatalf("%s: status %d: %s", mode, status, said)
		}
		p.does(0, "pause", "sleepers/*")
		transactions := func() int {
			n, _ := strconv.Atoi(ask(t, server, "SELECT pg_snapshot_xmax(pg_current_snapshot())")[0])
			return n
		}
		works := func(want int, args ...string) (drawn int) {
			before := transactions()
			status, said := outcome(t, list(args...)...)
			if status != want || strings.Count(said, ": paused (") != items ||
				!strings.Contains(said, "20 items: 0 ran, 0 of them failed; 20 skipped: 0 held elsewhere, 0 already done, 20 paused\n") {
				t.Errorf("%s: status %d: %s", mode, status, said)
			}
			return transactions() - before
		}
		once := works(0)
		if drawn := works(75, "--wait", "4s"); drawn >= 2*once { // in that time it looks at least twice more
			t.Errorf("%s: %d transactions, and %d with --wait", mode, once, drawn)
		}

		returning := launch(t, list("--wait", "1m")...)
		ran := func() int {
			files, _ := os.ReadDir(dir)
			return len(files)
		}
		for i := range items {
			_ = os.Remove(filepath.Join(dir, strconv.Itoa(i)))
		}
		if !eventually(func() bool { return strings.Count(returning.said.String(), ": paused (") == items }) {
			t.Errorf("%s: %s", mode, returning.said)
		}
		p.does(0, "resume", "sleepers/7")
		if !eventually(func() bool { return exists(filepath.Join(dir, "7")) }) || ran() != 1 {
			t.Errorf("%s: %d ran of the one that is resumed: %s", mode, ran(), returning.said)
		}
		p.does(0, "resume", "sleepers/*")
		if status := returning.ends(); status != 0 || ran() != items || !strings.Contains(returning.said.String(), "20 items: 20 ran, 0 of them failed; 0 skipped") {
			t.Errorf("%s: status %d, %d ran: %s", mode, status, ran(), returning.said)
		}
	}
}
