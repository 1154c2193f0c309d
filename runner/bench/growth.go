//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// lifetime fills a ledger: runs of so many keys, an hour apart, the newest just ended.
// keptRuns of each are kept by default.
const (
	keptRuns = 1000
	lifetime = `INSERT INTO pglead.run (number, sub, started, token, system, key, host, os_user, pid, command, role, ended, outcome, status, waited)
		SELECT n %% %[1]d + 1, 1, now() - (1 + n / %[1]d) * interval '1 hour', 1 + n, (SELECT system_identifier FROM pg_control_system()), n %% %[1]d + 1,
			'web' || n %% 9, 'cron', 1000 + n %% 30000, './backup.sh --all', 'cron', now() - (1 + n / %[1]d) * interval '1 hour' + interval '4 minutes',
			CASE WHEN n %% 50 = 0 THEN 'failed' ELSE 'ok' END, CASE WHEN n %% 50 = 0 THEN 1 ELSE 0 END, interval '0'
		FROM generate_series(0, %[2]d - 1) AS n;
		INSERT INTO pglead.lock (number, sub, key, system, token, host, os_user, pid, command, role, lease, grace, waited, started, ended, outcome, status)
		SELECT DISTINCT ON (number) number, sub, key, system, token, host, os_user, pid, command, role, interval '15 s', interval '0', waited, started, ended, outcome, status
		FROM pglead.run ORDER BY number, started DESC ON CONFLICT DO NOTHING`
)

// ledgerGrowth measures what changes where very many runs are remembered.
func (b *bench) ledgerGrowth() error {
	at, remove, err := b.guestServer(nil)
	if err != nil {
		return err
	}
	defer remove()
	few, err := b.installLedger(at, "few")
	if err != nil {
		return err
	}
	many, err := b.installLedger(at, "many")
	if err != nil {
		return err
	}
	rows := either(b, 20_000, 1_000_000)
	if err := fill(at, rows); err != nil {
		return err
	}
	sizes, err := at.server.Query("many", "SELECT pg_total_relation_size('pglead.run') + pg_total_relation_size('pglead.lock')")
	if err != nil {
		return err
	}
	bytes, err := strconv.ParseFloat(sizes[0], 64)
	if err != nil {
		return err
	}
	if err := b.growthRace(at, few, many, rows); err != nil {
		return err
	}
	fmt.Printf("\nOn disk: %.0f MiB.\n", bytes/(1<<20))
	b.goal("ledger on disk, a million rows", bytes/(1<<20)*1_000_000/float64(rows), 300, " MiB")
	return b.growthPrunings(at, many)
}

// fill gives a ledger its past.
func fill(at site, rows int) error {
	for _, sql := range append(strings.Split(fmt.Sprintf(lifetime, max(rows/keptRuns, 10), rows), ";"), "VACUUM ANALYZE", "CHECKPOINT") {
		if _, err := at.server.Query("many", sql); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) growthRace(at site, few, many []string, rows int) error {
	there := *b
	there.site = at // whose sessions end
	f := &field{b: &there, rounds: max(3, b.rounds/2)}
	commands := [][]string{{"run", "--ledger", "require", "--key", key, "--", "true"}, {"history", key}, {"check", key, "--within", "25h"}}
	for _, args := range commands {
		little := "**pglead " + args[0] + "**"
		f.add(little, "", slices.Concat(few, numbered()), append([]string{b.pglead}, args...)...)
		f.add(little+", many rows", little, slices.Concat(many, numbered()), append([]string{b.pglead}, args...)...)
	}
	if err := f.race(); err != nil {
		return err
	}
	f.print(fmt.Sprintf("A ledger of %d rows", rows), fmt.Sprintf(" They are the runs of %d keys; the other ledger has only those that are measured here.", max(rows/keptRuns, 10)))
	b.goal(fmt.Sprintf("run with %d rows in the ledger against few", rows), f.against("**pglead run**, many rows", "**pglead run**"), 1.15, " ×")
	return nil
}

// growthPrunings are two: one at the end of one run in 64, of its own key, and one of a
// tenth of all rows.
func (b *bench) growthPrunings(at site, many []string) error {
	ctx := context.Background()
	var times []time.Duration
	for i := range either(b, 3, 20) {
		conn, err := pgconn.Connect(ctx, at.server.DSN("many")) // a new connection, as a run has
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, fmt.Sprintf(`INSERT INTO pglead.run SELECT number, sub, started + interval '1 day', token, system, key, host, os_user, pid, command, role, ended, outcome, status, waited
			FROM pglead.run WHERE number = %d ORDER BY started DESC LIMIT 64`, 8+i)).ReadAll()
		began := time.Now()
		if err == nil {
			_, err = conn.Exec(ctx, fmt.Sprintf("SELECT pglead.tidy_1(%d, 1::smallint)", 8+i)).ReadAll()
		}
		times = append(times, time.Since(began))
		_ = conn.Close(ctx)
		if err != nil {
			return err
		}
	}
	p, err := b.program(slices.Concat(many, numbered()), b.pglead, "ledger", "prune", "--older", "900h")
	if err != nil {
		return err
	}
	began := time.Now()
	forgot, err := p.output()
	if err != nil {
		return err
	}
	fmt.Printf("\nForgetting 64 runs of one key, as one run in 64 does at its end: p50 %s ms, max %s ms. `pglead ledger prune --older 900h`: %.1f s, %s.\n",
		ms(quantile(times, .5)), ms(quantile(times, 1)), time.Since(began).Seconds(), strings.TrimSpace(forgot))
	b.goal("forgetting 64 runs of one key at the end of a run, p50", float64(quantile(times, .5))/float64(time.Millisecond), 10, " ms")
	return nil
}
