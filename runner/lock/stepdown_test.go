package lock_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// TestStepDown: a request reaches the holder by its next heartbeat, with the names of the person
// who asks and of the host, which then gets the lock. Another role than the holder's may ask, too.
func TestStepDown(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	asker := config(t, as(t, server, "askers"), exclusive(7))
	cfg := config(t, dsn, exclusive(7))
	h := acquire(t, lock.OfList(cfg)) // like pglead each, which otherwise names nobody
	t.Cleanup(h.Session.Close)
	first := contend(t, cfg)
	inLine(t, server, id(7), 1)
	there := cfg
	there.Session.ApplicationName = "pglead:test@there"
	preferred := contend(t, there)
	inLine(t, server, id(7), 2)

	ask := func(h *lock.Held, to string) {
		t.Helper()
		r, err := lock.AskToStepDown(t.Context(), asker.Session, []lockkey.ID{id(7)}, "cron on web1", to)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case request := <-h.StepDowns():
			if want := (lock.StepDown{By: "cron on web1", To: to}); request != want || !h.StepDownPending() {
				t.Errorf("it is asked %+v, want %+v", request, want)
			}
		case <-time.After(longest):
			t.Fatal("the request is not heard")
		}
		r.Close()
		h.Prefer(to)
		release(t, h)
		h.Close()
	}
	ask(h, "there")
	h = preferred.held(t)
	if !first.waits() || delayed(preferred) {
		t.Errorf("the preferred host: %v", preferred.said())
	}
	ask(h, "")
	h = first.held(t)
	if delayed(first) {
		t.Errorf("the next one: %v", first.said())
	}
	// Nobody waits on this host.
	next := contend(t, cfg)
	inLine(t, server, id(7), 1)
	h.Prefer("nowhere")
	release(t, h)
	h = next.held(t)
	if delayed(next) {
		t.Errorf("the next one, where another host was preferred: %v", next.said())
	}
	for end := time.Now().Add(2 * leasetime.BeatEvery(lease)); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		select {
		case <-h.StepDowns():
			t.Fatal("it is asked by nobody")
		default:
		}
	}
	release(t, h)
}

// TestStepDownWays: a request reaches every kind of holder, and each of several readers.
func TestStepDownWays(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	for name, claim := range map[string]lock.Claim{"several": exclusive(1, 2), "slots": slots(11, 2), "shared": shared(21)} {
		cfg := config(t, dsn, claim)
		holders := []*lock.Held{acquire(t, cfg)}
		if claim.Shared {
			holders = append(holders, acquire(t, cfg))
		}
		r, err := lock.AskToStepDown(t.Context(), cfg.Session, []lockkey.ID{holders[0].Locks()[len(holders[0].Locks())-1].ID}, "me", "")
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range holders {
			select {
			case <-h.StepDowns():
			case <-time.After(longest):
				t.Fatalf("%s: the request is not heard", name)
			}
			release(t, h)
		}
		r.Close()
	}
}

// TestStepDownOfSeveral: a request to several holders reaches all of them, although another request has
// the first one's lock all the time.
func TestStepDownOfSeveral(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(2))
	h := acquire(t, cfg)
	run(t, plain(t, server.DSN("postgres")), "SELECT "+advisory.StepDownOf(id(1)).TrySQL())
	r, err := lock.AskToStepDown(t.Context(), cfg.Session, []lockkey.ID{id(1), id(2)}, "me", "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	select {
	case <-h.StepDowns():
	case <-time.After(longest):
		t.Fatal("the request is not heard")
	}
}

// TestStepDownSilent: a request ends soon after its asker has fallen silent, and the asker is told
// so when it is back. An older request lasts, although its caller does nothing.
func TestStepDownSilent(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	ask := func(dsn string, of int64) *lock.StepDownRequest {
		t.Helper()
		r, err := lock.AskToStepDown(t.Context(), config(t, dsn, exclusive(of)).Session, []lockkey.ID{id(of)}, "me", "")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	lasts := func(of int64) bool {
		sql := "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND " + advisory.AmongSQL([]lockkey.ID{advisory.StepDownOf(id(of)).ID})
		return query(t, server, sql)[0] == "1"
	}
	older := ask(server.DSN("postgres"), 7)
	relay := newRelay(t, server)
	silent := ask(relay.dsn, 8)
	if !lasts(8) {
		t.Error("nobody asks")
	}
	relay.silence()
	eventually(t, "the silent one's request ends", func() bool { return !lasts(8) })
	if err := older.Check(); err != nil || !lasts(7) {
		t.Errorf("the older request has ended: %v", err)
	}
	relay.speak()
	eventually(t, "the silent one notices", func() bool { return silent.Check() != nil })
	err := silent.Check()
	if kindOf(err) != session.Unreachable || err.Error() != "keep up the request: the server has ended it, having heard nothing from here for 5s" {
		t.Errorf("it says %v", err)
	}
	silent.Close()
	older.Close()
	eventually(t, "the other is closed", func() bool { return !lasts(7) })
}

// TestLockedCatalog: a catalog is locked, as by VACUUM FULL, and the heartbeats need it. Nobody
// loses a lock: the server rejects the heartbeats, and so answers.
func TestLockedCatalog(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	owner := plain(t, server.DSN("postgres"))
	do := func(sql string) string { return strings.Join(run(t, owner, sql), " ") }
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	a, l := acquire(t, cfg), openList(t, cfg)
	item := takeItem(t, l, cfg, 8, false)
	settleItem(t, item)
	pids := fmt.Sprintf("%d, %d", a.Session.BackendPID(), l.Session.BackendPID())
	eventually(t, "both have sent their first heartbeat", func() bool {
		return do("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_try_advisory_lock_shared(%' AND pid IN ("+pids+")") == "2"
	})

	// What the sessions know of the catalog is out of date, and one of them may have read it again
	// before the lock.
	eventually(t, "both wait for the catalog", func() bool {
		do("VACUUM FULL pg_proc")
		do("BEGIN; LOCK TABLE pg_proc IN ACCESS EXCLUSIVE MODE")
		for range 20 {
			if do("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN ("+pids+")") == "2" {
				return true
			}
			time.Sleep(leasetime.BeatEvery(lease) / 10)
		}
		do("ROLLBACK")
		return false
	})
	keeps(t, a.Session, 2*lease)
	keeps(t, l.Session, leasetime.BeatEvery(lease))
	do("COMMIT")
	release(t, a)
	if err := item.GiveBack(); err != nil {
		t.Error(err)
	}
	item.Close()
	a.Close()
}

// TestPreferredHost: hosts whose names differ only where a session's name doesn't show them are told
// apart by those who see the session's comment.
func TestPreferredHost(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	hosts := []string{
		"web1", "ip-10-0-0-12.eu-central-1.compute.internal", "ip-10-0-0-12.eu-central-1.compute.interior",
		"invoice-worker-in-production-7d9f8b6c5d-abcde", "invoice-worker-in-production-7d9f8b6c5d-fghij",
		"bücher", "bäcker",
	}
	h := acquire(t, cfg)
	for i, host := range hosts {
		there := cfg
		there.Description.Host = host
		there.Session.ApplicationName = describe.Name{Key: "test", Host: host}.String()
		contend(t, there)
		inLine(t, server, id(7), i+1)
	}
	for _, host := range append(hosts, "nowhere") {
		h.Prefer(describe.ShortHost(host))
		named := query(t, server, "SELECT query FROM pg_stat_activity WHERE pid = "+h.NextNamed(t.Context()))[0]
		want := host
		if host == "nowhere" {
			want = hosts[0] // the first in line
		}
		if d, _ := describe.Parse(named); d.Host != want {
			t.Errorf("with %s preferred the next one is on %q", host, d.Host)
		}
	}
	release(t, h)
}
