package lock_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pglead/pglead/runner/session"
)

// TestUnconfirmedGivesBack: a run whose token no standby confirms frees the lock before it ends its
// session. It may try the next of several hosts, which may lead to the same server.
func TestUnconfirmedGivesBack(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"synchronous_standby_names": "gone"})
	var freed atomic.Bool
	cfg := withQuorum(config(t, newSlowRelay(t, server, func(sql string) string {
		if strings.Contains(sql, "SELECT pg_catalog.pg_advisory_unlock(7)") {
			freed.Store(true)
		}
		return sql
	}), exclusive(7)))
	cfg.Wait = 0
	c := contend(t, cfg)
	<-c.done
	if !errors.Is(c.err, session.ErrUnconfirmed) || !freed.Load() {
		t.Errorf("freed: %t; %v", freed.Load(), c.err)
	}
}
