//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// candidate is a pglead that holds a lock or waits for it. Its command reports its
// start and stays until it is killed.
type candidate struct {
	process *os.Process
	out     *os.File
	relay   *relay // through which it is connected, or nil
}

// started waits for the command's first instruction.
func (c *candidate) started() (int64, error) {
	_ = c.out.SetReadDeadline(time.Now().Add(90 * time.Second))
	line, err := bufio.NewReader(c.out).ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("the next command does not start: %w", err)
	}
	return strconv.ParseInt(strings.TrimSpace(line), 10, 64)
}

// end waits for the end of a pglead that has lost its lock, or kills it.
func (c *candidate) end(patience time.Duration) {
	late := time.AfterFunc(patience, func() { _ = c.process.Kill() })
	_, _ = c.process.Wait()
	late.Stop()
	_ = c.out.Close()
	if c.relay != nil {
		c.relay.end()
	}
}

// succession is a row of candidates, each of which takes over from the previous one, so
// that none of them has the luck or the delay of a first try.
type succession struct {
	b       *bench
	env     []string
	relayed bool
	seen    int
}

func (s *succession) stand() (*candidate, error) {
	c := &candidate{}
	env := slices.Concat(s.env, numbered())
	if s.relayed {
		dir := filepath.Join(s.b.dir, fmt.Sprintf("cut-%d", s.seen))
		s.seen++
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		socket := ".s.PGSQL." + s.b.server.Settings["port"]
		var err error
		if c.relay, err = listen(filepath.Join(dir, socket), filepath.Join(s.b.server.Socket, socket)); err != nil {
			return nil, err
		}
		env = through(env, dir)
	}
	args := slices.Concat([]string{s.b.pglead, "run", "--wait", "forever", "--key", key}, s.b.shorter(), []string{"--", "stamp", "stay"})
	p, err := s.b.program(env, args...)
	if err != nil {
		return nil, err
	}
	p.quiet = true
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	c.out = out
	c.process, err = p.start(nil, in)
	return c, err
}

// through is an environment in which the server is at another socket.
func through(env []string, dir string) []string { return withVariable(env, "PGHOST", dir) }

// shorter are flags with which a takeover that waits takes only seconds.
func (b *bench) shorter() []string { return either(b, []string{"--lease", "3s"}, nil) }

// delay is the delay of a takeover without evidence.
func (b *bench) delay() time.Duration { return either(b, 2*time.Second, 10*time.Second) }

// fault strikes the holder and returns the time.
type fault func(holder *candidate, w watcher) (at int64, err error)

// measure makes the fault strike one holder after the other, and returns how long
// it takes from then to the first instruction of the next holder's command.
func (s *succession) measure(rounds int, within time.Duration, strike fault) (times []time.Duration, err error) {
	holder, err := s.stand()
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = holder.process.Signal(syscall.SIGTERM)
		holder.end(5 * time.Second)
	}()
	if _, err := holder.started(); err != nil {
		return nil, err
	}
	for range turns(rounds, within) {
		next, took, err := s.round(holder, strike)
		if next != nil {
			holder.end(30 * time.Second)
			holder = next
		}
		if err != nil {
			return nil, err
		}
		times = append(times, took)
	}
	return times, nil
}

func (s *succession) round(holder *candidate, strike fault) (next *candidate, took time.Duration, err error) {
	w, err := watch(s.b.server) // a new connection, since servers end here
	if err != nil {
		return nil, 0, err
	}
	defer w.close()
	if next, err = s.stand(); err != nil {
		return nil, 0, err
	}
	if err := w.awaitWaiters(1); err != nil {
		return next, 0, err
	}
	time.Sleep(200 * time.Millisecond) // the standby has waited for longer than its own start takes
	struck, err := strike(holder, w)
	if err != nil {
		return next, 0, err
	}
	started, err := next.started()
	return next, time.Duration(started - struck), err
}

// ending is one kind of end, and how often it is measured.
type ending struct {
	what   string
	rounds int
	within time.Duration
	most   time.Duration // that a takeover may take
	strike fault
}

// takeover measures one kind of end and prints it.
func (b *bench) takeover(s *succession, e ending) error {
	times, err := s.measure(either(b, 3, e.rounds), either(b, time.Second, e.within), e.strike)
	if err != nil {
		return fmt.Errorf("%s: %w", e.what, err)
	}
	b.printTakeover(e.what, times, e.most)
	return nil
}

func (b *bench) printTakeover(what string, times []time.Duration, most time.Duration) {
	if !b.takeovers {
		section("Taking over", "From the fault to the first instruction of the next command, of one waiter that has stood there for a while. Each\n"+
			"holder was the waiter before, so that no first try is among them, and none of its delays.", "| | goal (p50) | p50 | p99 | max | times |\n|---|---|---|---|---|---|")
		b.takeovers = true
	}
	if b.short {
		what += " (--lease 3s)"
	}
	fmt.Printf("| %s | ≤ %.1f s | %.3f s | %.3f s | %.3f s | %d |\n", what, most.Seconds(),
		quantile(times, .5).Seconds(), quantile(times, .99).Seconds(), quantile(times, 1).Seconds(), len(times))
	b.goal(what+" → next command, p50", quantile(times, .5).Seconds(), most.Seconds(), " s")
}

// terminated measures the end of a session by an administrator.
func (b *bench) terminated() error {
	strike := func(_ *candidate, w watcher) (int64, error) {
		backend, err := w.backend(holding)
		if err != nil {
			return 0, err
		}
		struck := monotonic()
		ended, err := w.ask(fmt.Sprintf("SELECT pg_terminate_backend(%d)", backend))
		if err == nil && ended[0] != "t" {
			err = errors.New("the holder has no session to terminate")
		}
		return struck, err
	}
	return b.takeover(&succession{b: b, env: b.unix}, ending{"`pg_terminate_backend` of the holder", 100, time.Minute, 100 * time.Millisecond, strike})
}

// sigkill measures the death of pglead, whose guard lives on. With TLS the guard can't
// send anything on the connection.
func (b *bench) sigkill() error {
	strike := func(holder *candidate, _ watcher) (int64, error) {
		guards := children(holder.process.Pid)
		struck := monotonic()
		err := holder.process.Kill()
		for _, guard := range guards {
			go func() { _, _ = unix.Wait4(guard, nil, 0, nil) }()
		}
		return struck, err
	}
	for _, way := range []struct {
		name string
		env  []string
		most time.Duration
	}{
		{"unix socket", b.unix, 100 * time.Millisecond},
		{"TCP", b.tcp, 100 * time.Millisecond},
		{"TLS", b.tls, b.delay() + time.Second},
	} {
		if b.short && way.name == "TCP" {
			continue // as at a unix socket
		}
		if err := b.takeover(&succession{b: b, env: way.env}, ending{"SIGKILL of pglead, " + way.name, 60, time.Minute, way.most, strike}); err != nil {
			return err
		}
	}
	return nil
}

// restart measures a fast shutdown of the server, and its immediate start. After it first
// tries on this server wait for the lock-delay, so it comes last.
func (b *bench) restart() error {
	with, err := b.remembering()
	if err != nil {
		return err
	}
	times, since, err := b.restartBeside(b.unix)
	if err != nil {
		return err
	}
	b.printTakeover("Server restart (fast)", times, b.delay()+time.Second)
	b.printTakeover("Server up again after a fast restart", since, b.delay()+time.Second)
	if times, since, err = b.restartBeside(with); err != nil {
		return err
	}
	b.printTakeover("Server up again after a fast restart, with a ledger", since, time.Second)
	fmt.Printf("\nWith a ledger, from the beginning of the restart: p50 %.3f s, max %.3f s.\n", quantile(times, .5).Seconds(), quantile(times, 1).Seconds())
	return nil
}

// restartBeside restarts the server while there is a holder and a waiter. It returns the times
// from then and from when it is up again.
func (b *bench) restartBeside(env []string) (times, since []time.Duration, err error) {
	s := &succession{b: b, env: env}
	times, err = s.measure(either(b, 1, 7), either(b, time.Second, 90*time.Second), func(*candidate, watcher) (int64, error) {
		struck := monotonic()
		err := errors.Join(b.server.Stop(syscall.SIGINT), b.server.StartLogged())
		since = append(since, time.Duration(monotonic()-struck))
		return struck, err
	})
	if err != nil {
		return nil, nil, err
	}
	for i := range since {
		since[i] = times[i] - since[i]
	}
	return times, since, nil
}

// cutOff measures a network that goes silent in both directions for the holder alone.
// Server and holder each find out by themselves.
func (b *bench) cutOff() error {
	lease := either(b, 3*time.Second, 15*time.Second)
	strike := func(holder *candidate, _ watcher) (int64, error) {
		holder.relay.silent.Store(true)
		return monotonic(), nil
	}
	return b.takeover(&succession{b: b, env: b.unix, relayed: true}, ending{"Holder cut off", 4, 2 * time.Minute, lease*2/3 + 2*time.Second, strike})
}
