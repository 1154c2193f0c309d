package lock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

func withQuorum(cfg lock.Config) lock.Config {
	cfg.Session.Quorum = true
	return cfg
}

// startWithStandby starts a server with a standby that confirms its commits.
func startWithStandby(t *testing.T) *localpg.Server {
	t.Helper()
	primary := start(t, map[string]string{"synchronous_standby_names": "*", "wal_receiver_status_interval": "100ms"})
	_, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	return primary
}

func TestQuorum(t *testing.T) {
	t.Parallel()
	primary := start(t, map[string]string{
		"synchronous_standby_names": "*", "wal_receiver_status_interval": "100ms",
		"wal_sender_timeout": "0", // a stopped standby still seems to be there
	})
	cfg := withQuorum(config(t, primary.DSN("postgres"), exclusive(7)))
	cfg.Wait = 0

	// There is no standby yet: the token's commit hangs, and is given up.
	c := contend(t, cfg)
	<-c.done
	if kindOf(c.err) != session.Unreachable || !strings.Contains(c.err.Error(), "standbys do not confirm") {
		t.Errorf("Acquire without a standby: %v", c.err)
	}

	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	h := acquire(t, cfg)
	cron := as(t, primary, "cron") // it can't see how far the standby is
	query(t, primary, "ALTER ROLE cron SET synchronous_commit = local")
	ordinary := acquire(t, withQuorum(config(t, cron, exclusive(8))))
	// Through a pooler a connection has the role's own settings.
	as(t, primary, "quiet")
	query(t, primary, "ALTER ROLE quiet SET client_min_messages = error")
	quiet := acquire(t, withQuorum(inTransaction(config(t, pooled(t, primary, "quiet", "transaction", 3), exclusive(9)))))
	keeps(t, h.Session, 2*leasetime.BeatEvery(lease))

	// The standby is stopped: the locks are lost, even if an administrator releases the hanging
	// commits.
	if err := standby.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	receivers, err := exec.Command("pgrep", "-P", strconv.Itoa(standby.PID())).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range strings.Fields(string(receivers)) {
		signal(t, "STOP", pid)
	}
	cancelling := make(chan struct{})
	go func() {
		defer close(cancelling)
		for h.Err() == nil || ordinary.Err() == nil || quiet.Err() == nil {
			_, _ = primary.Query("postgres", "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			time.Sleep(50 * time.Millisecond)
		}
	}()
	for _, lost := range []*lock.Held{h, ordinary, quiet} {
		await(t, lost.Session)
		if err := lost.Err(); !strings.Contains(err.Error(), "synchronous standbys") {
			t.Errorf("lost: %v", err)
		}
	}
	<-cancelling

	// The standby takes over, and the next token is larger.
	for _, pid := range append(strings.Fields(string(receivers)), strconv.Itoa(standby.PID())) {
		signal(t, "CONT", pid)
	}
	if err := primary.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if err := standby.Run("pg_ctl", "promote", "-w", "-D", standby.Data); err != nil {
		t.Fatal(err)
	}
	if after := acquire(t, config(t, standby.DSN("postgres"), exclusive(7))); after.Token <= h.Token || after.SystemID != h.SystemID {
		t.Errorf("token %d after the promotion, %d before", after.Token, h.Token)
	}
}

func TestQuorumNeedsStandbys(t *testing.T) {
	t.Parallel()
	for want, settings := range map[string]map[string]string{
		"synchronous_standby_names is empty": nil,
		"max_wal_senders = 0":                {"synchronous_standby_names": "*", "max_wal_senders": "0"},
	} {
		cfg := withQuorum(config(t, start(t, settings).DSN("postgres"), exclusive(7)))
		cfg.Wait = 0 // a run that waits would survive this
		c := contend(t, cfg)
		<-c.done
		if kindOf(c.err) != session.NoStandbys || !strings.Contains(c.err.Error(), want) {
			t.Errorf("Acquire, and %s: %v", want, c.err)
		}
	}
}

// TestQuorumOnOtherHost: of several hosts the first is a primary that was left behind, without
// standbys. A run that tries once goes on to the next.
func TestQuorumOnOtherHost(t *testing.T) {
	t.Parallel()
	settings := map[string]string{"synchronous_standby_names": "*", "wal_receiver_status_interval": "100ms"}
	behind, unset, now := start(t, settings), start(t, nil), start(t, settings)
	_, remove, err := now.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	hosts := func(servers ...*localpg.Server) lock.Config {
		var list []string
		for _, s := range servers {
			list = append(list, s.Socket)
		}
		cfg := withQuorum(config(t, fmt.Sprintf("host=%s user=%s dbname=postgres", strings.Join(list, ","), localpg.Superuser), exclusive(7)))
		cfg.Wait = 0
		return cfg
	}
	c := contend(t, hosts(behind, unset, now))
	h := c.held(t)
	if delayed(c) {
		t.Errorf("a first try: %v", c.said())
	}
	if system := query(t, now, "SELECT system_identifier FROM pg_control_system()")[0]; h.SystemID != system {
		t.Errorf("it is in the cluster %s, not in %s", h.SystemID, system)
	}
	c = contend(t, hosts(unset, behind))
	<-c.done
	if kindOf(c.err) != session.Unreachable || !strings.Contains(c.err.Error(), "standbys do not confirm") {
		t.Errorf("no host has standbys: %v", c.err)
	}
}

// TestQuorumBeforeDelay: a lock-delay does not begin before the standbys have confirmed a commit:
// until then they may follow another primary, whose holders' commands would outlive the delay.
func TestQuorumBeforeDelay(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"synchronous_standby_names": "gone"})
	cfg := withQuorum(config(t, server.DSN("postgres"), exclusive(7)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg.Observer.Delayed = func(time.Time) {
		t.Error("the delay has begun")
		cancel()
	}
	returning := lock.NewBid(open(t, cfg), cfg, true)
	if !try(t, returning) {
		t.Fatal("the lock is not free")
	}
	if _, err := returning.Settle(ctx); kindOf(err) != session.Unreachable || !strings.Contains(err.Error(), "standbys do not confirm") {
		t.Errorf("without the standbys: %v", err)
	}
}

// TestQuorumHandover: after a clean end the next one starts at once.
func TestQuorumHandover(t *testing.T) {
	t.Parallel()
	primary := startWithStandby(t)
	cfg := withQuorum(config(t, primary.DSN("postgres"), exclusive(7)))
	h := acquire(t, cfg)
	for i := range 3 {
		next := contend(t, cfg)
		inLine(t, primary, id(7), 1)
		release(t, h)
		h.Close()
		h = next.held(t)
		if delayed(next) {
			t.Errorf("handover %d: %v", i, next.said())
		}
	}
}

// hurry fails the test if a commit in f waits for a standby that is gone.
func hurry(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(longest):
		t.Fatalf("%s hangs", what)
	}
}

func TestQuorumInTransaction(t *testing.T) {
	t.Parallel()
	primary := start(t, map[string]string{"synchronous_standby_names": "*", "wal_receiver_status_interval": "100ms"})
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove() })
	dsn := pooled(t, primary, localpg.Superuser, "transaction", 3)
	cfg := withQuorum(leased(inTransaction(config(t, dsn, exclusive(7))), 3*time.Second))
	h := acquire(t, cfg)
	if row := query(t, primary, fmt.Sprintf("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %d", h.Session.BackendPID())); row[0] != "1" {
		t.Errorf("backend %d holds %s locks", h.Session.BackendPID(), row[0])
	}
	keeps(t, h.Session, cfg.Session.Lease)
	if err := standby.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	await(t, h.Session)
	if err := h.Err(); !strings.Contains(err.Error(), "synchronous standbys") {
		t.Errorf("lost: %v", err)
	}
	h.Close()
	again := config(t, primary.DSN("postgres"), exclusive(7))
	again.LockDelay = 0
	if after := acquire(t, inTransaction(again)); after.Token <= h.Token {
		t.Errorf("token %d after %d", after.Token, h.Token)
	}
	remove()
	remove = func() {}
}

// TestQuorumAfterPolling: a waiter in a transaction has no use for its second session, for longer
// than a holder's share. It keeps the lock that it then gets.
func TestQuorumAfterPolling(t *testing.T) {
	t.Parallel()
	primary := startWithStandby(t)
	cfg := withQuorum(inTransaction(config(t, primary.DSN("postgres"), exclusive(7))))
	cfg.LockDelay = 0
	h := acquire(t, cfg)
	waiter := contend(t, cfg)
	eventually(t, "it waits", func() bool { return slices.Contains(waiter.said(), "waiting") })
	time.Sleep(leasetime.HolderShare(cfg.Session.Lease)) // in this time a session without a heartbeat would expire
	release(t, h)
	release(t, waiter.held(t))
	if said := waiter.said(); !slices.Equal(said, []string{"waiting"}) {
		t.Errorf("it said %v: %q", said, waiter.texts)
	}
}

// TestQuorumThroughMovedPooler: a pooler leads to another server by now, whose standbys confirm
// commits. They confirm nothing for a holder on the server before, so the holder loses its lock.
func TestQuorumThroughMovedPooler(t *testing.T) {
	t.Parallel()
	before, now := startWithStandby(t), startWithStandby(t)
	dsn, _ := testserver.Pooler(t, before, localpg.Superuser, map[string]string{
		"pool_mode": "transaction", "default_pool_size": "3", "server_lifetime": "0", // a connection for each transaction
	})
	h := acquire(t, withQuorum(inTransaction(config(t, dsn, exclusive(7)))))
	keeps(t, h.Session, 2*leasetime.BeatEvery(lease))

	socket := func(s *localpg.Server) string { return filepath.Join(s.Socket, ".s.PGSQL.5432") }
	there, aside := socket(before), socket(before)+".aside"
	if err := errors.Join(os.Rename(there, aside), os.Symlink(socket(now), there)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Rename(aside, there); err != nil {
			t.Error(err)
		}
	})
	await(t, h.Session)
	if err := h.Session.Err(); !strings.Contains(err.Error(), "another server") {
		t.Errorf("lost: %v", err)
	}
}

// TestQuorumNotTakenUp: the checkpointer, which is busy, has not taken up the names of the
// standbys. So no commit waits, though everybody sees the names. Where standbys are missing, or
// lag, no command starts for all that, and a holder loses its lock. No other test of this package runs
// beside it: a standby has to confirm a commit before the next statement, which a busy one never does.
func TestQuorumNotTakenUp(t *testing.T) {
	primary := start(t, nil)
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	checkpointer := query(t, primary, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")[0]
	signal(t, "STOP", checkpointer)
	t.Cleanup(func() { signal(t, "CONT", checkpointer) })
	super := withQuorum(config(t, primary.DSN("postgres"), exclusive(8)))
	super.Wait = 0
	setNames(t, primary, "gone") // the standby that is there doesn't count
	isUnconfirmed(t, super)
	setNames(t, primary, "*")

	ordinary := withQuorum(config(t, as(t, primary, "cron"), exclusive(7)))
	ordinary.Wait, super.Wait = time.Minute, time.Minute // a busy standby may confirm too late at first
	held := acquire(t, ordinary)
	release(t, acquire(t, super))
	ordinary.Wait, super.Wait = 0, 0

	// The walreceiver is stopped: a standby is there that confirms nothing. That is for some roles
	// to see.
	receiver := query(t, standby, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'")[0]
	signal(t, "STOP", receiver)
	isUnconfirmed(t, super)
	signal(t, "CONT", receiver)

	if err := standby.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	await(t, held.Session)
	if err := held.Session.Err(); !strings.Contains(err.Error(), "synchronous standbys") {
		t.Errorf("lost: %v", err)
	}
	ordinary.Claim = exclusive(9)
	isUnconfirmed(t, ordinary)
	isUnconfirmed(t, super)
}

func isUnconfirmed(t *testing.T, cfg lock.Config) {
	t.Helper()
	c := contend(t, cfg)
	<-c.done
	if kindOf(c.err) != session.Unreachable || !strings.Contains(c.err.Error(), "standbys do not confirm") {
		t.Errorf("Acquire: %v", c.err)
	}
}

// setNames sets the names of the synchronous standbys, and waits until everybody sees them.
func setNames(t *testing.T, server *localpg.Server, names string) {
	t.Helper()
	_ = query(t, server, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'")
	_ = query(t, server, "SELECT pg_reload_conf()")
	eventually(t, "the names are seen", func() bool { return query(t, server, "SHOW synchronous_standby_names")[0] == names })
}

func signal(t *testing.T, signal, pid string) {
	t.Helper()
	if out, err := exec.Command("kill", "-"+signal, pid).CombinedOutput(); err != nil {
		t.Errorf("kill -%s %s: %v, %s", signal, pid, err, out)
	}
}
