package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/crowd"
)

// BenchmarkHandover measures from the last act of a command that ends well to
// the first of the next one's, which has been waiting; and from SIGKILL of
// pglead to the instant at which the server has freed the lock.
func BenchmarkHandover(b *testing.B) {
	run := func(out io.Writer, in io.Reader, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(testbed.dir, "pglead"), append([]string{"run", "--key", "handover", "--wait", "1m", "--"}, args...)...)
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stdin = testbed.environ(b.TempDir()), b.TempDir(), out, in
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		return cmd
	}
	until := func(what string, condition func() bool) {
		if !eventually(condition) {
			b.Fatal("never: " + what)
		}
	}
	nanos := func(buf *bytes.Buffer) int64 {
		n, err := strconv.ParseInt(strings.TrimSpace(buf.String()), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	report := func(b *testing.B, times []time.Duration) {
		b.Helper()
		slices.Sort(times)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
	}
	b.Run("clean", func(b *testing.B) {
		stamp := filepath.Join(b.TempDir(), "stamp")
		if out, err := exec.Command("cc", "-O2", "-static", "-o", stamp, "testdata/bench/stamp.c").CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		var times []time.Duration
		for b.Loop() {
			var ended, started bytes.Buffer
			in, proceed, err := os.Pipe()
			if err != nil {
				b.Fatal(err)
			}
			holder := run(&ended, in, stamp, "end")
			_ = in.Close()
			until("held", func() bool { return testbed.holders("handover") == 1 })
			waiter := run(&started, nil, stamp)
			until("waited for", func() bool { return testbed.waiters("handover") == 1 })
			time.Sleep(100 * time.Millisecond) // a standby has been one for longer than its own start takes
			_ = proceed.Close()
			if err := errors.Join(holder.Wait(), waiter.Wait()); err != nil {
				b.Fatal(err)
			}
			times = append(times, time.Duration(nanos(&started)-nanos(&ended)))
		}
		report(b, times)
	})
	b.Run("killed", func(b *testing.B) {
		// A plain session waits for the lock: its grant is the lock's release.
		var times []time.Duration
		conn, err := pgconn.Connect(b.Context(), testbed.server.DSN("postgres"))
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close(b.Context())
		id := lockkey.SipHash24("handover")
		for b.Loop() {
			holder := run(nil, nil, "sleep", "1000")
			until("held", func() bool { return testbed.holders("handover") == 1 })
			granted := make(chan time.Time, 1)
			go func() {
				_, _ = conn.Exec(context.Background(), fmt.Sprintf("SELECT pg_advisory_lock(%s)", id)).ReadAll()
				granted <- time.Now()
			}()
			until("waited for", func() bool { return testbed.locks("NOT granted") == 1 })
			killed := time.Now()
			_ = holder.Process.Kill()
			times = append(times, (<-granted).Sub(killed))
			_ = holder.Wait()
			if _, err := conn.Exec(b.Context(), fmt.Sprintf("SELECT pg_advisory_unlock(%s)", id)).ReadAll(); err != nil {
				b.Fatal(err)
			}
		}
		report(b, times)
	})
}

// TestCallIsCutShort: a signal that asks a holder to end, while its command runs or while the holder
// calls a dormant waiter, leaves that call a short time, also with a long lease. The lock is
// released all the same.
func TestCallIsCutShort(t *testing.T) {
	const lease = time.Minute
	for name, tt := range map[string]struct {
		command, askAt, ended, rest string
		status                      int
	}{
		"before the call": {"sleep 1000", "command started", "SIGTERM", "2s", 128 + int(syscall.SIGTERM)},
		"during the call": {"true", "holding the lock until", `"exit status 0"`, "5.1s", 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, release := start(t, command(t, "run", "--key", "call", "--", "sh", "-c", "echo held; read end"))
			holder, said := command(t, "run", "-v", "--key", "call", "--lease", lease.String(), "--wait", "1h", "--", "sh", "-c", "exec "+tt.command), &lockedBuffer{}
			holder.Stderr = said
			if err := holder.Start(); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool { return testbed.settled("call") == 1 }) {
				t.Fatal("it doesn't wait")
			}
			dormantTicket(t, "call")
			release()
			if !eventually(func() bool { return strings.Contains(said.String(), tt.askAt) }) {
				t.Fatalf("it never gets there: %s", said.String())
			}
			asked := time.Now()
			_ = holder.Process.Signal(syscall.SIGTERM)
			_ = holder.Wait()
			if took, most := time.Since(asked), crowd.SomeDormant.Patience(lease); took > most {
				t.Errorf("it ends %v after the signal, later than without one (%v)", took, most)
			}
			if status := shellStatus(holder.ProcessState); status != tt.status || testbed.holders("call") != 0 {
				t.Errorf("status %d, want %d; holders: %d", status, tt.status, testbed.holders("call"))
			}
			says(t, said.String(), `pglead: call: waiting for the lock
pglead: call: lock acquired token=\d+ .*
pglead: call: command started token=\d+ pid=\d+
pglead: call: command ended token=\d+ ran=\S+ status=`+tt.ended+`
pglead: call: holding the lock until somebody in line listens token=\d+ rest=`+tt.rest+`
pglead: call: lock released token=\d+
`)
		})
	}
}

// dormantTicket is the ticket of a waiter that came last, and does nothing.
func dormantTicket(t *testing.T, key string) {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), testbed.server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	latest := fmt.Sprintf("SELECT pg_advisory_lock(%d::bigint << 32 | ((extract(epoch FROM clock_timestamp()) * 100)::bigint & 4294967295))", int32(advisory.TicketClass(lockOf(key))))
	if err := conn.Exec(t.Context(), latest).Close(); err != nil {
		t.Fatal(err)
	}
}
