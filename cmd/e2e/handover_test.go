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
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
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
