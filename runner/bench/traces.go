//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// seen is what pg_stat_activity shows of one kind of session.
type seen struct {
	samples, busy, xmin int
	longest             float64 // that a statement or transaction has lasted, in seconds
	events              map[string]int
}

// activity measures what an administrator sees of holders and waiters.
func (b *bench) activity() error {
	at, err := b.guestSite()
	if err != nil {
		return err
	}
	during := either(b, 2*time.Second, 30*time.Second)
	kinds := map[string]*seen{"holder": {events: map[string]int{}}, "waiter": {events: map[string]int{}}}
	err = b.beside(at, 5, func(w watcher) error {
		time.Sleep(time.Second)
		holder, err := w.backend(holding)
		if err != nil {
			return err
		}
		for began := time.Now(); time.Since(began) < during; time.Sleep(17 * time.Millisecond) {
			if err := w.look(holder, kinds); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	section("In pg_stat_activity", fmt.Sprintf("A holder and 5 waiters, looked at every 17 ms for %v.", during),
		"| | samples | not idle | with an xid or xmin | longest statement or transaction, s | wait events |\n|---|---|---|---|---|---|")
	for _, kind := range []string{"holder", "waiter"} {
		s := kinds[kind]
		var events []string
		for _, event := range slices.Sorted(maps.Keys(s.events)) {
			events = append(events, fmt.Sprintf("%s %d", event, s.events[event]))
		}
		fmt.Printf("| %s | %d | %d | %d | %.3f | %s |\n", kind, s.samples, s.busy, s.xmin, s.longest, strings.Join(events, ", "))
		all := float64(max(1, s.samples)) / 100
		b.goal("samples of a "+kind+" that is not idle", float64(s.busy)/all, 1, " %")
		b.goal("samples of a "+kind+" that has an xid or xmin", float64(s.xmin)/all, 1, " %")
	}
	return nil
}

func (w watcher) look(holder int, kinds map[string]*seen) error {
	rows, err := w.ask(`SELECT pid, state, coalesce(backend_xid, backend_xmin) IS NOT NULL,
		CASE WHEN state = 'idle' THEN 0 ELSE coalesce(extract(epoch FROM clock_timestamp() - least(xact_start, query_start)), 0) END,
		coalesce(wait_event_type || ': ' || wait_event, 'none')
		FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`)
	if err != nil {
		return err
	}
	for row := range slices.Chunk(rows, 5) {
		s := kinds["waiter"]
		if row[0] == strconv.Itoa(holder) {
			s = kinds["holder"]
		}
		s.samples++
		if row[1] != "idle" {
			s.busy++
		}
		if row[2] == "t" {
			s.xmin++
		}
		lasting, _ := strconv.ParseFloat(row[3], 64)
		s.longest = max(s.longest, lasting)
		s.events[row[4]]++
	}
	return nil
}

// logged is what the server has written to its log since that had the length since.
func (at site) logged(since int) ([]byte, error) {
	text, err := os.ReadFile(at.server.LogPath())
	return text[min(since, len(text)):], err
}

// serverLog measures what the server writes about waiters, while an application
// listens and notifies on its own channel.
func (b *bench) serverLog() error {
	at, err := b.guestSite()
	if err != nil {
		return err
	}
	const waiters, pause = 2, 100 * time.Millisecond
	during := either(b, 3*time.Second, time.Minute)
	var text []byte
	err = b.beside(at, waiters, func(watcher) error {
		before, err := at.logged(0)
		if err != nil {
			return err
		}
		_, err = atPace(at.server, 1, during, "LISTEN application", func(conn *pgconn.PgConn) error {
			time.Sleep(pause)
			return conn.Exec(context.Background(), "NOTIFY application").Close()
		})
		if err != nil {
			return err
		}
		text, err = at.logged(len(before))
		return err
	})
	if err != nil {
		return err
	}
	lines := bytes.Count(text, []byte("\n"))
	hourly := float64(lines) / waiters * float64(time.Hour) / float64(during)
	section("In the server's log", fmt.Sprintf("With log_lock_waits = on, a holder, %d waiters, and an application's NOTIFY every %v: %d lines in %v, %.0f a waiter and hour.",
		waiters, pause, lines, during, hourly), "")
	if first, _, _ := bytes.Cut(text, []byte("\n")); len(first) > 0 {
		fmt.Printf("\n    %s\n", first)
	}
	b.goal("lines in the server's log, a waiter and hour", hourly, 0, "")
	return nil
}

// statements counts the texts that pg_stat_statements has of many runs. Each place
// there that pglead takes pushes out one of the application's.
func (b *bench) statements() error {
	at, err := b.guestSite()
	if err != nil {
		return err
	}
	if found, err := at.server.Query("postgres", "SELECT 1 FROM pg_available_extensions WHERE name = 'pg_stat_statements'"); err != nil || len(found) == 0 {
		fmt.Fprintln(os.Stderr, "bench: left out: pg_stat_statements is not installed")
		return err
	}
	at.server.Settings["shared_preload_libraries"] = "pg_stat_statements"
	if err := errors.Join(at.server.Stop(syscall.SIGINT), at.server.StartLogged()); err != nil {
		return err
	}
	if _, err := at.server.Query("postgres", "CREATE EXTENSION pg_stat_statements"); err != nil {
		return err
	}
	runs := either(b, 20, 1000)
	section("Entries in pg_stat_statements", "After many runs, four at a time.", "| | runs | entries | of them utility statements | slowest run s |\n|---|---|---|---|---|")
	for _, keys := range []int{1, 100} {
		if _, err := at.server.Query("postgres", "SELECT pg_stat_statements_reset()"); err != nil {
			return err
		}
		done, slowest, err := b.runMany(at, runs, keys)
		if err != nil {
			return err
		}
		values, err := at.server.Query("postgres", `SELECT count(*), count(*) FILTER (WHERE query !~* '^\s*(/\*.*\*/\s*)?(select|with|insert|update|delete|values)')
			FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'`)
		if err != nil {
			return err
		}
		n, _ := strconv.ParseFloat(values[0], 64)
		fmt.Printf("| under one of %d keys | %d | %s | %s | %.1f |\n", keys, done, values[0], values[1], slowest.Seconds())
		if keys == 1 {
			b.goal(fmt.Sprintf("entries in pg_stat_statements after %d runs", done), n, 29, "")
		}
	}
	return nil
}

// runMany runs commands, four at a time. Each four have one of so many keys. It stops
// after three minutes.
func (b *bench) runMany(at site, runs, keys int) (done int, slowest time.Duration, err error) {
	next := make(chan int)
	var mu sync.Mutex
	var all sync.WaitGroup
	run := func(i int) {
		// A waiter asks the same however long it holds a lock that came free unheard.
		args := slices.Concat([]string{b.pglead, "run", "--wait", "5m", "--lock-delay", "0.1", "--key", strconv.Itoa(i/4%keys + 1)}, b.shorter(), []string{"--", "true"})
		began := time.Now()
		p, failed := b.program(slices.Concat(at.unix, numbered()), args...)
		if failed == nil {
			failed = p.run()
		}
		mu.Lock()
		defer mu.Unlock()
		slowest, err = max(slowest, time.Since(began)), errors.Join(err, failed)
	}
	for range 4 {
		all.Go(func() {
			for i := range next {
				run(i)
			}
		})
	}
	for i := range turns(runs, 3*time.Minute) {
		next <- i
		done++
	}
	close(next)
	all.Wait()
	return done, slowest, err
}
