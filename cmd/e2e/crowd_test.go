package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestSoak is the load under which a team's own lock hung: taken on one
// connection of a pool, given back on another.
func TestSoak(t *testing.T) {
	processes, runs := 4, 75
	if testing.Short() {
		runs = 15
	}
	var wg sync.WaitGroup
	var ran, refused atomic.Int32
	for range processes {
		wg.Go(func() {
			for range runs {
				out, err := command(t, "run", "--key", "soak", "--", "true").CombinedOutput()
				var exit *exec.ExitError
				switch {
				case err == nil:
					ran.Add(1)
				case errors.As(err, &exit) && exit.ExitCode() == 75:
					refused.Add(1)
				default:
					t.Errorf("%v: %s", err, out)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d ran, %d were refused", ran.Load(), refused.Load())
	if ran.Load() == 0 {
		t.Error("nobody ever got the lock")
	}
	if testbed.holders("soak") != 0 {
		t.Error("the lock is not free at the end")
	}
	if !eventually(func() bool {
		left, err := testbed.server.Query("postgres", "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pglead:%soak@%'")
		return err == nil && left[0] == "0"
	}) {
		t.Error("connections are left behind")
	}
}

// TestHerd: many more wait through a pooler than it has connections to the
// server, and more than it lets in. HERD=1000 go test -run Herd -v . is the
// large one.
func TestHerd(t *testing.T) {
	processes, connections, clients := 60, 5, 50
	if n, err := strconv.Atoi(os.Getenv("HERD")); err == nil {
		processes, connections, clients = n, 20, 3000
	}
	dsn, _ := testserver.Pooler(t, testbed.server, localpg.Superuser, map[string]string{
		"pool_mode": "transaction", "default_pool_size": strconv.Itoa(connections),
		"max_client_conn": strconv.Itoa(clients), "query_wait_timeout": "5",
	})
	log := filepath.Join(t.TempDir(), "log")
	began := time.Now()
	var ended sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	var used time.Duration
	for range processes {
		cmd := command(t, "run", "--dsn", dsn, "--transaction", "--key", "herd", "--wait", "10m", "--lease", "60s", "--lock-delay", "0", "--",
			"sh", "-c", alone(log)+"echo $PGLEAD_TOKEN >&9")
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended.Go(func() {
			_ = cmd.Wait()
			mu.Lock()
			defer mu.Unlock()
			statuses[cmd.ProcessState.ExitCode()]++
			used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			if !cmd.ProcessState.Success() {
				t.Errorf("%v: %s", cmd.ProcessState, &said)
			}
		})
	}
	started := time.Since(began)
	ended.Wait()
	t.Logf("%d processes, all started after %v, all ended after %v, %v of processor time; exit statuses %v",
		processes, started.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), used.Round(time.Millisecond), statuses)
	tokens := lines(t, log)
	if len(tokens) != processes {
		t.Errorf("%d lines of %d processes", len(tokens), processes)
	}
	last := 0
	for _, line := range tokens {
		token, err := strconv.Atoi(line)
		if err != nil || token <= last {
			t.Errorf("%q after token %d", line, last)
		}
		last = token
	}
	if testbed.locks("true") != 0 {
		t.Error("the lock is not free at the end")
	}
}

// TestFullServer: many more than the server has room for, at once, and each has
// its turn although it doesn't wait for its lock.
func TestFullServer(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	server := throwaway(t, map[string]string{"max_connections": "5", "superuser_reserved_connections": "0", "max_wal_senders": "0"})
	var ended sync.WaitGroup
	for i := range 40 {
		ended.Go(func() {
			out, err := command(t, "run", "--dsn", server.DSN("postgres"), "--connect-timeout", "1m", "--key", fmt.Sprint("full/", i), "--", "true").CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	ended.Wait()
}

// TestCrowd: of a crowd of waiters each has its turn, one after the other, and
// ls counts them.
func TestCrowd(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	const crowd, lockDelay = 45, 2 * time.Second
	server := throwaway(t, nil)
	dsn := server.DSN("postgres")
	holder, err := pgconn.Connect(t.Context(), dsn)
	if err == nil {
		_, err = holder.Exec(t.Context(), "SELECT pg_advisory_lock(7)").ReadAll()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Close(context.Background()) })
	var said lockedBuffer
	var waiters []*exec.Cmd
	tickets := fmt.Sprintf("classid = %d AND objsubid = 1", advisory.TicketClass(lockkey.ID{Number: 7}))
	for i := range crowd {
		cmd := command(t, "run", "--dsn", dsn, "--key-scheme", "int", "--key", "7", "--wait", "5m", "--lock-delay", lockDelay.String(), "--", "echo", "my turn")
		cmd.Stdout = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		waiters = append(waiters, cmd)
		if !eventually(func() bool { return stage{server: server}.locks(tickets) == i+1 }) {
			t.Fatalf("never %d who wait", i+1)
		}
	}
	if n := (stage{server: server}).locks("NOT granted"); n != 0 {
		t.Errorf("%d block in the server", n)
	}
	out, err := command(t, "ls", "--dsn", dsn, "-o", "json").Output()
	var locks []struct {
		ID      int64             `json:"id"`
		Waiters []json.RawMessage `json:"waiters"`
	}
	if err := errors.Join(err, json.Unmarshal(out, &locks)); err != nil || len(locks) != 1 || locks[0].ID != 7 || len(locks[0].Waiters) != crowd {
		t.Errorf("ls: %v: %s", err, out)
	}
	if err := holder.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range waiters {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	if turns := strings.Count(said.String(), "my turn"); turns != crowd {
		t.Errorf("%d had their turn", turns)
	}
	if left := (stage{server: server}).locks("true"); left != 0 {
		t.Errorf("%d locks are left", left)
	}
}
