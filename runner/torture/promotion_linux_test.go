package torture

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
)

// TestPromotion: a primary with a synchronous standby, and --quorum. In turn
// the primary crashes, or is cut off from its standby while everyone else
// still reaches both; each time the standby is promoted.
func TestPromotion(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT TESTED: promotion takes a while")
	}
	o := parseOptions()
	if o.modeName != "run" {
		t.Skip("NOT RUN: a failover is the same for all modes")
	}
	a := newArena(t, o)
	a.flags = []string{"--quorum"}
	a.dsn = fmt.Sprintf("host=%s,%s", a.net.hosts["db"], a.net.hosts["db2"])
	settings := map[string]string{"listen_addresses": "*", "synchronous_standby_names": "*"}
	primaryHost, standbyHost := "db", "db2"
	standby := a.standby(standbyHost, primaryHost, settings)
	// Only now, since the base backup is taken from a primary that waits for nobody.
	if _, err := a.server.Query("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.server.Query("postgres", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	for _, host := range contenders() {
		if host != proxied {
			a.contend(host, &ended)
		}
	}
	began := uptime()
	var events []event
	for round := range 2 * o.rounds {
		l := a.awaitLeader()
		e := event{fault: "crash of the primary, promotion", at: uptime(), host: l.host}
		split := round%2 == 1
		if split {
			e.fault = "primary cut off from its standby, promotion"
			a.net.cutFrom(primaryHost, standbyHost)
			// The rule of promotion: not before the old primary's leaders have
			// had their lease. An operator or Patroni has its own time-outs.
			time.Sleep(a.lease)
			if h := a.history(0); !slices.ContainsFunc(h, func(x life) bool { return x.token == l.token && uptime()-x.last > 100*time.Millisecond }) {
				t.Errorf("token %d leads on without its quorum", l.token)
			}
		} else if err := a.server.Stop(syscall.SIGQUIT); err != nil {
			t.Error(err)
		}
		if err := standby.Run("pg_ctl", "promote", "-w", "-D", standby.Data); err != nil {
			t.Fatal(err)
		}
		if split {
			if err := a.server.Stop(syscall.SIGQUIT); err != nil {
				t.Error(err)
			}
			a.net.heal(primaryHost)
		}
		// The new primary gets a standby, where the old one was; until then no
		// token is confirmed.
		a.server = standby
		primaryHost, standbyHost = standbyHost, primaryHost
		standby = a.standby(standbyHost, primaryHost, settings)
		next := a.awaitLeader()
		e.next = next.first - e.at
		events = append(events, e)
	}
	a.close(&ended)
	a.verdict(began, a.history(0), events)
}

// standby makes a standby on one host of the primary on another.
func (a *arena) standby(host, primary string, settings map[string]string) *localpg.Server {
	a.t.Helper()
	var standby *localpg.Server
	a.net.on(host, func() {
		s, remove, err := a.server.Standby(settings, a.net.hosts[primary])
		if err != nil {
			a.t.Error(err)
			return
		}
		a.t.Cleanup(remove)
		standby = s
	})
	if standby == nil {
		a.t.FailNow()
	}
	return standby
}
