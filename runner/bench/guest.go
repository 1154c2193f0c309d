//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// index measures how long CREATE INDEX CONCURRENTLY by the holder takes. It waits for
// every older transaction and snapshot, and so for waiters that have one.
func (b *bench) index() error {
	at, err := b.guestSite()
	if err != nil {
		return err
	}
	if _, err := at.server.Query("postgres", "DROP TABLE IF EXISTS big; CREATE TABLE big AS SELECT n, md5(n::text) AS text FROM generate_series(1, 200000) AS n; ANALYZE big; CHECKPOINT"); err != nil {
		return err
	}
	counts := []int{0, 5}
	limit := either(b, 3*time.Second, time.Minute)
	times := map[int][]time.Duration{}
	for turn := range turns(either(b, 2, 15), either(b, time.Second, 3*time.Minute)) {
		for _, waiters := range toAndFro(counts, turn) {
			took, err := b.createIndex(at, waiters, limit)
			if err != nil {
				return err
			}
			times[waiters] = append(times[waiters], took)
		}
	}
	multiple := ratio(times[5], times[0])
	section("`CREATE INDEX CONCURRENTLY` by the holder", fmt.Sprintf("200,000 rows, %d times each in turns, given up after %v.", len(times[0]), limit),
		"| waiters | p50 s | max s | |\n|---|---|---|---|")
	for _, n := range counts {
		note := ""
		if n > 0 {
			note = fmt.Sprintf("%.2f × none", multiple)
		}
		fmt.Printf("| %d | %.3f | %.3f | %s |\n", n, quantile(times[n], .5).Seconds(), quantile(times[n], 1).Seconds(), note)
	}
	b.goal("CREATE INDEX CONCURRENTLY by the holder, 5 waiters against none", multiple, 1.2, " ×")
	return nil
}

// createIndex makes the holder's command, a psql, build an index.
func (b *bench) createIndex(at site, waiters int, limit time.Duration) (time.Duration, error) {
	c, err := b.company(at)
	if err != nil {
		return 0, err
	}
	defer c.leave()
	in, say, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	hear, out, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer hear.Close()
	defer say.Close() // ends the command, before all leave
	err = c.start(in, out, "run", "--key", key, "--", "psql", "-X", "-q", "-t")
	_, _ = in.Close(), out.Close()
	if err != nil {
		return 0, err
	}
	answers := bufio.NewScanner(hear)
	ask := func(sql string) error {
		if _, err := say.WriteString(sql + "\n\\echo done\n"); err != nil {
			return err
		}
		for answers.Scan() {
			if answers.Text() == "done" {
				return nil
			}
		}
		return fmt.Errorf("psql ended before it was done: %w", answers.Err())
	}
	if err := ask(fmt.Sprintf("SET statement_timeout = %d;", limit.Milliseconds())); err != nil {
		return 0, err
	}
	if err := c.wait(waiters); err != nil {
		return 0, err
	}
	time.Sleep(500 * time.Millisecond) // they have been standing there for a while
	began := time.Now()
	err = ask("CREATE INDEX CONCURRENTLY big_text ON big (text);")
	took := time.Since(began)
	if err == nil {
		err = ask("DROP INDEX IF EXISTS big_text;") // even an invalid one
	}
	return took, err
}

// hotRow measures how fast an application updates one row again and again:
// a snapshot that stays open keeps the row's old versions.
func (b *bench) hotRow() error {
	at, err := b.guestSite()
	if err != nil {
		return err
	}
	const sessions = 2
	during := either(b, time.Second, 5*time.Second)
	counts := []int{-1, 0, 1, 5}
	rates, ratios, costs := map[int][]float64{}, map[int][]float64{}, map[int][]time.Duration{}
	for turn := range turns(either(b, 1, 8), 4*time.Minute) {
		for _, waiters := range toAndFro(counts, turn) {
			hit, err := b.hit(at, waiters, sessions, during)
			if err != nil {
				return err
			}
			rates[waiters], costs[waiters] = append(rates[waiters], hit.perSecond), append(costs[waiters], hit.cost)
		}
		for _, waiters := range counts {
			ratios[waiters] = append(ratios[waiters], rates[waiters][turn]/rates[-1][turn])
		}
	}
	section(fmt.Sprintf("One row, updated by %d sessions without rest", sessions), fmt.Sprintf("%v each, %d times in turns, synchronous_commit = off.", during, len(rates[-1])),
		"| beside | a second | against no pglead | processor time of one at the server, µs |\n|---|---|---|---|")
	for _, n := range counts {
		name := "no pglead"
		if n >= 0 {
			name = fmt.Sprintf("a holder and %d waiters", n)
		}
		if n == 1 {
			name = "a holder and 1 waiter"
		}
		fmt.Printf("| %s | %.0f | %.2f × | %.1f |\n", name, median(rates[n]), median(ratios[n]), float64(quantile(costs[n], .5).Nanoseconds())/1000)
	}
	b.goalAtLeast("hot row's updates beside a holder and 1 waiter", median(ratios[1]), .95, " ×")
	b.goalAtLeast("hot row's updates beside a holder and 5 waiters", median(ratios[5]), .95, " ×")
	return nil
}

// hit updates the new row, in the presence of so many waiters.
func (b *bench) hit(at site, waiters, sessions int, during time.Duration) (hit pace, err error) {
	const prepare = "SET synchronous_commit = off; PREPARE hit AS UPDATE hot SET n = n + 1 WHERE id = 1"
	if _, err := at.server.Query("postgres", "DROP TABLE IF EXISTS hot; CREATE TABLE hot (id int PRIMARY KEY, n bigint); INSERT INTO hot VALUES (1, 0)"); err != nil {
		return hit, err
	}
	err = b.beside(at, waiters, func(watcher) error {
		if _, err := atPace(at.server, sessions, during/5, prepare, execute("hit")); err != nil { // to warm up
			return err
		}
		var err error
		hit, err = atPace(at.server, sessions, during, prepare, execute("hit"))
		return err
	})
	return hit, err
}

// execute runs a prepared statement.
func execute(name string) func(*pgconn.PgConn) error {
	return func(conn *pgconn.PgConn) error {
		return conn.ExecPrepared(context.Background(), name, nil, nil, nil).Read().Err
	}
}

// notify measures how many notifications an application gets through while pglead
// holds locks in its database.
func (b *bench) notify() error {
	at, err := b.guestSite()
	if err != nil {
		return err
	}
	during := either(b, time.Second, 5*time.Second)
	counts := []int{0, 30}
	rates := map[int][]float64{}
	var ratios []float64
	for turn := range turns(either(b, 1, 8), 150*time.Second) {
		for _, n := range toAndFro(counts, turn) {
			rate, err := b.notifications(at, n, during)
			if err != nil {
				return err
			}
			rates[n] = append(rates[n], rate)
		}
		ratios = append(ratios, rates[30][turn]/rates[0][turn])
	}
	section("An application's notifications", fmt.Sprintf("From one session to another, %v each, %d times in turns.", during, len(ratios)), "| holders | a second | |\n|---|---|---|")
	fmt.Printf("| 0 | %.0f | |\n| 30 | %.0f | %.2f × |\n",
		median(rates[0]), median(rates[30]), median(ratios))
	b.goalAtLeast("an application's NOTIFY rate beside 30 holders", median(ratios), .9, " ×")
	return nil
}

// notifications counts those per second that arrive at one session from another
// that waits for nothing but its own commits.
func (b *bench) notifications(at site, n int, during time.Duration) (float64, error) {
	c, err := b.company(at)
	if err != nil {
		return 0, err
	}
	defer c.leave()
	for i := range n {
		if err := c.start(nil, nil, "run", "--key", strconv.Itoa(100+i), "--", "sleep", "100000"); err != nil {
			return 0, err
		}
	}
	if err := c.w.count(n, holders); err != nil {
		return 0, err
	}
	time.Sleep(500 * time.Millisecond) // until all have started
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	heard := 0
	config, err := pgconn.ParseConfig(at.server.DSN("postgres"))
	if err != nil {
		return 0, err
	}
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { heard += strings.Count(n.Channel, "application") }
	listener, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return 0, err
	}
	defer listener.Close(context.Background())
	if _, err := listener.Exec(ctx, "LISTEN application").ReadAll(); err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for listener.WaitForNotification(ctx) == nil {
		}
	}()
	said := 0
	_, err = atPace(at.server, 1, during, "SET synchronous_commit = off", func(conn *pgconn.PgConn) error {
		said++
		return conn.Exec(ctx, fmt.Sprintf("NOTIFY application, '%d'", said)).Close()
	})
	cancel()
	<-ended
	return float64(heard) / during.Seconds(), err
}
