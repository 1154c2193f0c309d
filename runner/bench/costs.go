//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/localpg"
)

// crowdCosts are the costs of one of each thing, with so many in line.
type crowdCosts struct {
	line                         int
	run, refused, handover, idle spent
	one, look                    time.Duration // from the start of one command to the next; a look
	waiter, backend              float64       // PSS
	threads                      int           // of a waiter and its guard
}

// costs measures what one of each thing takes from a server, with ever more waiters.
func (b *bench) costs() error {
	var rows []crowdCosts
	fmt.Print("\n**What one takes of the server**, beside so many in line on the other key\n\n" +
		"| in line | of a free lock: ms, WAL, xids | refused: ms, WAL, xids | of a line: ms, WAL, xids, NOTIFYs, logins | idle waiter: requests and s an hour, WAL | PSS there, MiB |\n|---|---|---|---|---|---|\n")
	for _, n := range b.steps(1, 10, 100, 1000, 3000) {
		r, err := b.costsBeside(n)
		if err != nil {
			return fmt.Errorf("beside %d in line: %w", n, err)
		}
		rows = append(rows, r)
		fmt.Printf("| %d | %s, %.0f, %.2f | %s, %.0f, %.2f | %s, %.0f, %.2f, %.2f, %.2f | %.0f, %.2f, %.1f | %.1f |\n", r.line, ms(r.run.server), r.run.wal, r.run.xids,
			ms(r.refused.server), r.refused.wal, r.refused.xids, ms(r.handover.server), r.handover.wal, r.handover.xids, r.handover.words, r.handover.logins,
			r.idle.requests, r.idle.server.Seconds(), r.idle.wal, r.backend/(1<<20))
	}
	fmt.Print("\n**And of the nodes**\n\n| in line | run, ms | refused, ms | handover every ms | a look at the server, ms | PSS of a waiter and its guard, MiB, and threads |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Printf("| %d | %s | %s | %s | %s | %.1f, %d |\n", r.line, ms(r.run.nodes), ms(r.refused.nodes), ms(r.one), ms(r.look), r.waiter/(1<<20), r.threads)
	}
	return errors.Join(b.costsOfRoom(), b.costsOfHerd())
}

func (b *bench) costsBeside(n int) (row crowdCosts, err error) {
	row.line = n
	m, end, err := b.guestMeter(map[string]string{"max_connections": roomFor(n), "track_activity_query_size": "8kB"})
	if err != nil {
		return row, err
	}
	defer end()
	c := &company{b: b, w: m.w, at: m.at}
	defer c.leave()
	if err := c.hold(n); err != nil {
		return row, err
	}
	time.Sleep(min(settling, b.options.idle))
	idle := min(b.options.idle, 30*time.Second)
	row.idle, err = m.during(func() error {
		time.Sleep(idle)
		return nil
	})
	if err != nil {
		return row, err
	}
	row.idle = row.idle.hourly(n, idle)
	row.measureMemory(c)
	if row.look, err = c.w.costOfLook(); err != nil {
		return row, err
	}
	rounds := min(b.rounds, 100)
	if row.run, err = m.during(func() error { return b.again(m.at.unix, rounds, 0, "--key", freeKey) }); err != nil {
		return row, err
	}
	row.run = row.run.each(rounds)
	if row.refused, err = m.during(func() error { return b.again(m.at.unix, rounds, 75, "--key", key) }); err != nil {
		return row, err
	}
	row.refused = row.refused.each(rounds)
	var took time.Duration
	row.handover, err = m.during(func() error {
		began := time.Now()
		err := c.through()
		took = time.Since(began)
		return err
	})
	row.handover, row.one = row.handover.each(n), took/time.Duration(n)
	return row, err
}

func (r *crowdCosts) measureMemory(c *company) {
	ours := c.list[1:]
	for _, p := range ours[:min(100, len(ours))] {
		threads := 0
		r.waiter += shares(family(p)) / float64(min(100, len(ours)))
		for _, pid := range family(p) {
			tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
			threads += len(tasks)
		}
		r.threads = max(r.threads, threads)
	}
	backends := children(c.at.server.PID())
	last := backends[max(0, len(backends)-100):]
	r.backend = shares(last) / float64(len(last))
}

// costOfLook is the processor time of a look as those in line make it.
func (w watcher) costOfLook() (time.Duration, error) {
	own, err := w.ask("SELECT pg_backend_pid()")
	if err != nil {
		return 0, err
	}
	backend, _ := strconv.Atoi(own[0])
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(7 * time.Millisecond) {
		looks, err := w.ask("SELECT query FROM pg_stat_activity WHERE query LIKE '%l.place IS NOT NULL%' AND pid <> pg_backend_pid() LIMIT 1")
		if err != nil {
			return 0, err
		}
		if len(looks) == 0 {
			continue
		}
		const times = 50
		before := processorTime(backend)
		for range times {
			if _, err := w.ask(looks[0]); err != nil {
				return 0, err
			}
		}
		return (processorTime(backend) - before) / times, nil
	}
	return 0, errors.New("nobody looks")
}

// again runs `true` so many times, one after the other. Each run has to end with status.
func (b *bench) again(env []string, times, status int, flags ...string) error {
	p, err := b.program(slices.Concat(env, numbered()), slices.Concat([]string{b.pglead, "run", "-q"}, flags, []string{"--", "true"})...)
	if err != nil {
		return err
	}
	for range times {
		process, err := p.start(nil, nil)
		if err != nil {
			return err
		}
		state, err := process.Wait()
		if err != nil || state.ExitCode() != status {
			return fmt.Errorf("it should end with %d: %v: %w", status, state, err)
		}
	}
	return nil
}

// through ends the first command, and waits until all others have had their turn.
func (c *company) through() error {
	if err := c.list[0].Signal(syscall.SIGTERM); err != nil {
		return err
	}
	for i, p := range c.list {
		state, err := p.Wait()
		if err != nil || i > 0 && !state.Success() {
			return fmt.Errorf("one in line: %v: %w", state, err)
		}
	}
	return nil
}

// costsOfRoom measures what refusals cost on a full server, and through a pooler.
func (b *bench) costsOfRoom() error {
	const places = 12
	m, end, err := b.guestMeter(map[string]string{"max_connections": strconv.Itoa(places)})
	if err != nil {
		return err
	}
	defer end()
	rounds := min(b.rounds, 100)
	fmt.Print("\n**A refusal**, of the lock or of the login\n\n| | server ms | pooler ms |\n|---|---|---|\n")
	pooled, pooler, err := b.pooledRefusals(m, rounds)
	switch {
	case errors.Is(err, localpg.ErrNoPooler):
	case err != nil:
		return err
	default:
		fmt.Printf("| of the lock, through PgBouncer, --transaction | %s | %s |\n", ms(pooled.server), ms(pooler))
	}
	app := asApp(m.at.server)
	for {
		conn, err := pgconn.Connect(context.Background(), app)
		if err != nil {
			break
		}
		defer conn.Close(context.Background())
	}
	full, err := m.during(func() error {
		for range rounds {
			if conn, err := pgconn.Connect(context.Background(), app); err == nil {
				_ = conn.Close(context.Background())
				return errors.New("a full server has room")
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("| of the login, by a full server | %s | |\n", ms(full.each(rounds).server))
	return nil
}

// pooledRefusals are runs through a pooler that are refused because of another run.
func (b *bench) pooledRefusals(m *meter, rounds int) (each spent, pooler time.Duration, err error) {
	before := children(os.Getpid())
	dsn, stop, err := m.at.server.Pooler(localpg.Superuser, map[string]string{"pool_mode": "transaction", "default_pool_size": "4", "max_client_conn": "500"})
	if err != nil {
		return each, 0, err
	}
	defer stop()
	daemons := slices.DeleteFunc(children(os.Getpid()), func(pid int) bool { return slices.Contains(before, pid) })
	p, err := b.program(slices.Concat(m.at.unix, numbered()), b.pglead, "run", "-q", "--key", key, "--", "sleep", "100000")
	if err != nil {
		return each, 0, err
	}
	holder, err := p.start(nil, nil)
	if err != nil {
		return each, 0, err
	}
	defer func() {
		_ = holder.Signal(syscall.SIGTERM)
		_, _ = holder.Wait()
	}()
	if err := m.w.count(1, holding); err != nil {
		return each, 0, err
	}
	pooler = -total(daemons)
	each, err = m.during(func() error {
		return b.again(m.at.unix, rounds, 75, "--dsn", dsn, "--transaction", "--key", key)
	})
	pooler += total(daemons)
	return each.each(rounds), pooler / time.Duration(rounds), err
}

// costsOfHerd is what many nodes cost that start at once, on a server that has room for few of
// them: the simulation in runner/bench/scale has to give the same result.
func (b *bench) costsOfHerd() error {
	m, end, err := b.guestMeter(map[string]string{"max_connections": "100"})
	if err != nil {
		return err
	}
	defer end()
	fmt.Printf("\n**%d nodes at the same instant**, max_connections = 100\n\n"+
		"| | ran | refused the lock | last s | logins | logins refused | xids | NOTIFYs | WAL | server s | nodes s |\n|---|---|---|---|---|---|---|---|---|---|---|\n", b.nodes)
	for _, wait := range []string{"0", "5m"} {
		text, err := m.at.logged(0)
		if err != nil {
			return err
		}
		var statuses map[int]int
		var times []time.Duration
		of, err := m.during(func() (err error) {
			command := []string{"stamp", "end"}
			if wait != "0" {
				command = []string{"true"}
			}
			args := append([]string{b.pglead, "run", "--key", key, "--wait", wait, "--"}, command...)
			statuses, times, err = b.fire(slices.Concat(as(m.at.unix, "app"), numbered()), args, wait != "0")
			return err
		})
		if err != nil {
			return err
		}
		if text, err = m.at.logged(len(text)); err != nil {
			return err
		}
		fmt.Printf("| `--wait %s` | %d | %d | %.1f | %.0f | %d | %.0f | %.0f | %.0f | %.1f | %.1f |\n", wait, statuses[0], statuses[75], quantile(times, 1).Seconds(),
			of.logins, strings.Count(string(text), "FATAL:"), of.xids, of.words, of.wal, of.server.Seconds(), of.nodes.Seconds())
	}
	return nil
}
