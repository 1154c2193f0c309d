package ledger_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestFenceTakeovers: jobs that don't know of their loss go on writing, while others take over, one
// after the other. What a run has committed when the next one starts is all that it ever commits.
func TestFenceTakeovers(t *testing.T) {
	takeovers := 350
	if testing.Short() {
		takeovers = 50
	}
	server := remembering(t, nil)
	query(t, server, table)
	for _, level := range levels {
		t.Run(level, func(t *testing.T) {
			a := connect(t, server, "cron")
			current := fenced(t, a)
			var latest atomic.Int64
			latest.Store(current.token)
			ctx, stop := context.WithCancel(t.Context())
			var writers sync.WaitGroup
			var commits atomic.Int64
			w := &writing{server: server, level: level, latest: &latest, commits: &commits}
			for n := range 4 {
				writers.Go(func() { w.writeOn(ctx, n) })
			}
			testserver.Eventually(t, "the writers commit", func() bool { return commits.Load() >= 4 })
			at := map[int64]string{}
			var slowest time.Duration
			for i := range takeovers {
				next := of(token(t, a))
				if i%2 == 0 {
					run(t, a, finish(7, current.token, "ok"))
				}
				next.closes = fmt.Sprint(current.token)
				began := time.Now()
				word := run(t, a, next.rest())
				slowest = max(slowest, time.Since(began))
				if word != "started" {
					t.Fatalf("takeover %d: %q", i, word)
				}
				at[current.token] = run(t, a, fmt.Sprintf("SELECT count(*) FROM public.work WHERE token = %d", current.token))
				current = next
				latest.Store(current.token)
			}
			stop()
			writers.Wait()
			for token, then := range at {
				if now := run(t, a, fmt.Sprintf("SELECT count(*) FROM public.work WHERE token = %d", token)); now != then {
					t.Errorf("run %d had committed %s when the next one started, and %s in the end", token, then, now)
				}
			}
			t.Logf("%d commits, %d takeovers, the slowest of %v", commits.Load(), takeovers, slowest)
		})
	}
}

// writing is what the writers have in common.
type writing struct {
	server          *localpg.Server
	level           string
	latest, commits *atomic.Int64
}

// writeOn writes, after a call of fence, for the latest run of which it has heard. It goes on for a
// while with the same run.
func (w *writing) writeOn(ctx context.Context, n int) {
	var conn *pgconn.PgConn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}()
	ask := func(sql string) error {
		_, err := conn.Exec(ctx, sql).ReadAll()
		return err
	}
	for i := 0; ctx.Err() == nil; i++ {
		var err error
		if conn == nil || conn.IsClosed() {
			if conn, err = pgconn.Connect(ctx, strings.Replace(w.server.DSN("postgres"), "user="+localpg.Superuser, "user=other", 1)); err != nil {
				conn = nil
				continue
			}
		}
		token := w.latest.Load()
		for range n + 1 { // with the same run again
			begin := "BEGIN ISOLATION LEVEL " + w.level
			if (i+n)%2 == 0 {
				begin += "; SELECT count(*) FROM public.work WHERE token = 0" // an old snapshot
			}
			if err = ask(begin); err == nil {
				err = ask(fence(token))
			}
			if err == nil {
				err = ask(write(token))
			}
			if err == nil {
				time.Sleep(time.Duration(n) * time.Millisecond)
				if err = ask("COMMIT"); err == nil {
					w.commits.Add(1)
				}
			}
			if err != nil && !conn.IsClosed() {
				_ = ask("ROLLBACK")
			}
		}
	}
}
