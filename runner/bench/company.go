//go:build linux

package main

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/localpg"
)

// company is a number of pgleads that hold a lock or wait for it while something else is
// measured.
type company struct {
	b    *bench
	w    watcher
	at   site
	list []*os.Process
}

func (b *bench) company(at site) (*company, error) {
	w, err := watch(at.server)
	return &company{b: b, w: w, at: at}, err
}

// start starts one more pglead, which logs nothing.
func (c *company) start(stdin, stdout *os.File, args ...string) error {
	p, err := c.b.program(slices.Concat(c.at.unix, numbered()), append([]string{c.b.pglead}, args...)...)
	if err != nil {
		return err
	}
	p.quiet = true
	process, err := p.start(stdin, stdout)
	if err == nil {
		c.list = append(c.list, process)
	}
	return err
}

// hold makes one pglead hold the lock, and so many wait for it.
func (c *company) hold(waiters int) error {
	if err := c.start(nil, nil, "run", "--key", key, "--", "sleep", "100000"); err != nil {
		return err
	}
	return c.wait(waiters)
}

// wait makes so many stand in line, once somebody has the lock. They come a few at a time, since a
// server would refuse a rush.
func (c *company) wait(waiters int) error {
	if err := c.w.count(1, holding); err != nil {
		return err
	}
	for i := range waiters {
		if err := c.start(nil, nil, "run", "--wait", "forever", "--key", key, "--", "true"); err != nil {
			return err
		}
		if i%20 == 19 || i == waiters-1 {
			if err := c.w.awaitWaiters(i + 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// leave ends all, the waiters first, and returns when they and their sessions are gone.
func (c *company) leave() {
	defer c.w.close()
	slices.Reverse(c.list)
	for _, p := range c.list {
		_ = p.Signal(syscall.SIGTERM)
		late := time.AfterFunc(20*time.Second, func() { _ = p.Kill() })
		_, _ = p.Wait()
		late.Stop()
	}
	_ = c.w.awaitSessions(0)
	c.b.reapOthers()
}

// beside starts a holder and so many waiters, or nothing if the number is negative,
// and measures in their presence.
func (b *bench) beside(at site, waiters int, measure func(w watcher) error) error {
	c, err := b.company(at)
	if err != nil {
		return err
	}
	defer c.leave()
	if waiters >= 0 {
		if err := c.hold(waiters); err != nil {
			return err
		}
	}
	return measure(c.w)
}

// turns counts up to n, but begins no turn after a time.
func turns(n int, within time.Duration) iter.Seq[int] {
	return func(yield func(int) bool) {
		began := time.Now()
		for i := 0; i < n && (i == 0 || time.Since(began) < within); i++ {
			if !yield(i) {
				return
			}
		}
	}
}

// toAndFro reverses the order every other time, so that nothing always comes
// first.
func toAndFro[T any](list []T, turn int) []T {
	list = slices.Clone(list)
	if turn%2 != 0 {
		slices.Reverse(list)
	}
	return list
}

// either chooses between what is measured with -short and without.
func either[T any](b *bench, short, long T) T {
	if b.short {
		return short
	}
	return long
}

// guestServer is a server that is reached by its socket, and to whose log only the guests write.
func (b *bench) guestServer(settings map[string]string) (at site, remove func(), err error) {
	all := map[string]string{"listen_addresses": "", "ssl": "off", "log_checkpoints": "off", "log_lock_waits": "on"}
	maps.Copy(all, settings)
	return b.startServer(all)
}

// guestSite is such a server, shared by several parts.
func (b *bench) guestSite() (site, error) {
	if b.guests == nil {
		at, remove, err := b.guestServer(nil)
		if err != nil {
			return site{}, err
		}
		b.guests, b.ends = &at, append(b.ends, remove)
	}
	return *b.guests, nil
}

// median is that of what was measured in turns, if anything was.
func median(list []float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	list = slices.Sorted(slices.Values(list))
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}

// pace is how often an application gets something done, and the processor time
// that its sessions at the server take each time.
type pace struct {
	perSecond float64
	cost      time.Duration
}

// atPace makes so many sessions act at once, without rest, for some time.
func atPace(s *localpg.Server, sessions int, during time.Duration, prepare string, act func(*pgconn.PgConn) error) (pace, error) {
	ctx := context.Background()
	type outcome struct {
		n    int
		cost time.Duration
		err  error
	}
	outcomes := make(chan outcome, sessions)
	began := time.Now()
	for range sessions {
		conn, err := pgconn.Connect(ctx, s.DSN("postgres"))
		if err != nil {
			return pace{}, err
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, prepare).ReadAll(); err != nil {
			return pace{}, err
		}
		go func() {
			backend := int(conn.PID())
			o := outcome{cost: -processorTime(backend)}
			for ; o.err == nil && time.Since(began) < during; o.n++ {
				o.err = act(conn)
			}
			o.cost += processorTime(backend)
			outcomes <- o
		}()
	}
	var sum outcome
	for range sessions {
		o := <-outcomes
		if o.err != nil {
			return pace{}, fmt.Errorf("the application: %w", o.err)
		}
		sum.n, sum.cost = sum.n+o.n, sum.cost+o.cost
	}
	return pace{float64(sum.n) / time.Since(began).Seconds(), sum.cost / time.Duration(max(1, sum.n))}, nil
}
