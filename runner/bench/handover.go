//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/localpg"
)

// watcher looks at the lock from its own session.
type watcher struct{ conn *pgconn.PgConn }

func watch(s *localpg.Server) (watcher, error) {
	conn, err := pgconn.Connect(context.Background(), s.DSN("postgres"))
	return watcher{conn}, err
}

// holdKey takes the lock for a session that is not a pglead's.
func (b *bench) holdKey() (release func(), err error) {
	w, err := watch(b.server)
	if err != nil {
		return nil, err
	}
	if _, err := w.ask("SELECT pg_advisory_lock(" + key + ")"); err != nil {
		w.close()
		return nil, err
	}
	return w.close, nil
}

func (w watcher) close() { _ = w.conn.Close(context.Background()) }

// ask returns the values of an answer.
func (w watcher) ask(sql string) ([]string, error) {
	return localpg.Ask(context.Background(), w.conn, sql)
}

// The sessions that hold the lock, and those that wait for it, whichever program they belong
// to: each has an advisory lock, or waits for one.
const (
	holding = "(SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = " + key + " AND granted) AS holding"
	holders = "(SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND granted) AS holders" // of any lock, where nobody waits
	waiting = "(SELECT pid FROM pg_locks WHERE locktype = 'advisory' EXCEPT SELECT * FROM " + holding + ") AS waiting"
)

func (w watcher) awaitWaiters(n int) error { return w.count(n, waiting) }

// backend is the server's process number of such a session.
func (w watcher) backend(of string) (int, error) {
	values, err := w.ask("SELECT pid FROM " + of)
	if err != nil {
		return 0, err
	}
	if len(values) == 0 {
		return 0, errors.New("nobody is in " + of)
	}
	return strconv.Atoi(values[0])
}

// awaitSessions waits until there are n sessions besides this one.
func (w watcher) awaitSessions(n int) error {
	return w.count(n, "pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
}

// count waits until there are n. If there are many, a few are always about to come or
// to go.
func (w watcher) count(n int, of string) error {
	have := 0
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(2 * time.Millisecond) {
		values, err := w.ask("SELECT count(*) FROM " + of)
		if err != nil {
			return err
		}
		if have, err = strconv.Atoi(values[0]); err != nil || have >= n-n/20 && have <= n+n/20 {
			return err
		}
	}
	return fmt.Errorf("never: %d in %s, but %d", n, of, have)
}

// pair is a holder and a waiter of one kind.
type pair struct {
	name, against  string
	holder, waiter process
	elsewhere      bool // the lock is not PostgreSQL's
	times          []time.Duration
}

// pair looks up the programs of a pair.
func (b *bench) pair(name, against string, env, holder, waiter []string) (*pair, error) {
	first, err1 := b.program(env, holder...)
	second, err2 := b.program(env, waiter...)
	return &pair{name: name, against: against, holder: first, waiter: second}, errors.Join(err1, err2)
}

// stamps are the times that stamp.c has printed.
func stamps(text []byte) ([]int64, error) {
	var list []int64
	for _, field := range strings.Fields(string(text)) {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// handover is from the last act of a command that ends well to the first
// instruction of the next one's, whose pglead has waited.
func (b *bench) handover() error {
	pairs, stop, err := b.pairs()
	if err != nil {
		return err
	}
	defer stop()
	rounds := max(3, b.rounds/2)
	if err := b.handOverInTurns(pairs, rounds); err != nil {
		return err
	}
	b.printPairs("From the end of one command to the first instruction of the next", fmt.Sprintf("%d times each in turns.", rounds), pairs)
	b.goal("handover against two C processes", ratio(named(pairs, "**pglead run**").times, pairs[0].times), 1.05, " ×")
	return nil
}

// handOverInTurns makes each pair hand over, to and fro. The first round is not counted.
func (b *bench) handOverInTurns(pairs []*pair, rounds int) error {
	for round := -1; round < rounds; round++ {
		for _, p := range toAndFro(pairs, round) {
			took, err := b.handOver(p)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			if round >= 0 {
				p.times = append(p.times, took)
			}
		}
	}
	return nil
}

func named(pairs []*pair, name string) *pair {
	i := slices.IndexFunc(pairs, func(p *pair) bool { return p.name == name })
	return pairs[max(0, i)]
}

func (b *bench) printPairs(title, note string, pairs []*pair) {
	section(title, note, "| | p50 ms | p99 ms | |\n|---|---|---|---|")
	for _, p := range pairs {
		multiple := ""
		if p.against != "" {
			multiple = fmt.Sprintf("%.2f × %s", ratio(p.times, named(pairs, p.against).times), p.against)
		}
		fmt.Printf("| %s | %s | %s | %s |\n", p.name, ms(quantile(p.times, .5)), ms(quantile(p.times, .99)), multiple)
	}
}

func (b *bench) pairs() (pairs []*pair, stop func(), err error) {
	const floor, polite, guarded = "two C processes", "two C processes that wait as pglead does", "two C processes that wait so, with guards"
	number := slices.Concat(b.unix, numbered())
	add := func(name, against string, env, holder, waiter []string) {
		p, err := b.pair(name, against, env, holder, waiter)
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench: left out:", err)
			return
		}
		pairs = append(pairs, p)
	}
	same := func(name string, env []string, args ...string) {
		add(name, floor, env, slices.Concat(args, []string{"stamp", "end"}), slices.Concat(args, []string{"stamp"}))
	}
	add(floor, "", b.unix, []string{"floor", "try", key, "stamp", "end"}, []string{"floor", "wait", key, "stamp"})
	// Nobody waits in the server: the end is announced, and the waiter tries then. What this takes
	// longer is the price of that rule, and not pglead's.
	add(polite, floor, b.unix, []string{"floor", "say", key, "stamp", "end"}, []string{"floor", "hear", key, "stamp"})
	add(guarded, floor, b.unix, []string{"floor", "-g", "say", key, "stamp", "end"}, []string{"floor", "-g", "hear", key, "stamp"})
	same("**pglead run**", number, b.pglead, "run", "--wait", "1m", "--key", key, "--")
	if b.also != "" {
		same("(the other build)", number, b.also, "run", "--wait", "1m", "--key", key, "--")
	}
	psql := []string{"psql", "-X", "-q", "-o", os.DevNull, "-c", "select pg_advisory_lock(" + key + ")", "-c"}
	add("`psql -c lock -c '\\! …'`", floor, b.unix, slices.Concat(psql, []string{`\! stamp end`}), slices.Concat(psql, []string{`\! stamp`}))
	before := len(pairs)
	same("`flock`", b.unix, "flock", filepath.Join(b.dir, "lockfile"))
	f := &field{b: b}
	stopEtcd, err := b.addEtcd(f, "")
	if err != nil {
		return nil, nil, err
	}
	stopConsul, err := b.addConsul(f, "")
	if err != nil {
		stopEtcd()
		return nil, nil, err
	}
	for _, c := range f.list {
		same(c.name, b.unix, c.of.args...)
	}
	for _, p := range pairs[before:] {
		p.elsewhere = true
	}
	return pairs, func() { stopEtcd(); stopConsul() }, nil
}

// contest is a holder, and a waiter that stands in line.
type contest struct {
	holder, waiter *os.Process
	proceed        *os.File // its end makes the holder's command end
	said, stamped  *os.File // written by the holder's command, and by the waiter's
}

// untilPrepared is longer than the time to a holder's first heartbeat, and to the first question that
// the first in line asks after it. With these both prepare for the handover.
const untilPrepared = time.Second

func (b *bench) contend(p *pair) (c *contest, err error) {
	in, proceed, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	c = &contest{proceed: proceed}
	out := make([]*os.File, 2)
	for i, to := range []**os.File{&c.said, &c.stamped} {
		if *to, out[i], err = os.Pipe(); err != nil {
			return nil, err
		}
		defer out[i].Close()
	}
	w, err := watch(b.server)
	if err != nil {
		return nil, err
	}
	defer w.close()
	stands := func(of string) error {
		if p.elsewhere {
			time.Sleep(200 * time.Millisecond)
			return nil
		}
		return w.count(1, of)
	}
	if !p.elsewhere { // the previous contest's session may outlive its program, and refuse the holder
		if err := w.count(0, holders); err != nil {
			return nil, err
		}
	}
	if c.holder, err = p.holder.start(in, out[0]); err != nil {
		return nil, err
	}
	if err := stands(holding); err != nil {
		return nil, err
	}
	if c.waiter, err = p.waiter.start(nil, out[1]); err != nil {
		return nil, err
	}
	if err := stands(waiting); err != nil {
		return nil, err
	}
	time.Sleep(untilPrepared) // the holder has held for a while, and the standby has waited for longer than its own start takes
	return c, nil
}

func (c *contest) end() error {
	_, err1 := c.holder.Wait()
	_, err2 := succeed(c.waiter)
	_ = c.said.Close()
	_ = c.stamped.Close()
	return errors.Join(err1, err2)
}

func (b *bench) handOver(p *pair) (time.Duration, error) {
	c, err := b.contend(p)
	if err != nil {
		return 0, err
	}
	_ = c.proceed.Close()
	ended, err1 := io.ReadAll(c.said)
	started, err2 := io.ReadAll(c.stamped)
	if err := errors.Join(err1, err2, c.end()); err != nil {
		return 0, err
	}
	list, err := stamps(bytes.Join([][]byte{ended, started}, []byte(" ")))
	if err != nil || len(list) != 2 {
		return 0, fmt.Errorf("stamps %q and %q: %w", ended, started, err)
	}
	return time.Duration(list[1] - list[0]), nil
}

// killed is the time from SIGKILL of the holder to the first instruction of the next
// command. The C program's command lives on meanwhile.
func (b *bench) killed() error {
	number := slices.Concat(b.unix, numbered())
	run := []string{b.pglead, "run", "--wait", "1m", "--key", key}
	floor, err1 := b.pair("two C processes, the command lives on", "", b.unix, []string{"floor", "try", key, "sleep", "1000"}, []string{"floor", "wait", key, "stamp"})
	ours, err2 := b.pair("**pglead run** --lock-delay 0", floor.name, number,
		slices.Concat(run, []string{"--", "sleep", "1000"}), slices.Concat(run, []string{"--lock-delay", "0", "--", "stamp"}))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	pairs := []*pair{floor, ours}
	rounds := max(5, b.rounds/4)
	for range rounds {
		for _, p := range pairs {
			c, err := b.contend(p)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			orphans := children(c.holder.Pid)
			killed := monotonic()
			_ = c.holder.Kill()
			started, err := io.ReadAll(c.stamped)
			for _, pid := range orphans {
				_ = unix.Kill(pid, unix.SIGKILL)
				_, _ = unix.Wait4(pid, nil, 0, nil)
			}
			_ = c.proceed.Close()
			if err := errors.Join(err, c.end()); err != nil {
				return err
			}
			list, err := stamps(started)
			if err != nil || len(list) != 1 {
				return fmt.Errorf("stamp %q: %w", started, err)
			}
			p.times = append(p.times, time.Duration(list[0]-killed))
		}
	}
	b.printPairs("From SIGKILL of the holder to the first instruction of the next command", fmt.Sprintf("%d times each in turns. With its lock-delay: taking over.", rounds), pairs)
	return nil
}
