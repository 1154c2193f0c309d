package session_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
)

// TestAgeOfPromoted: each checkpoint makes a promoted server look as if it had been promoted just
// now. A vacuum since the promotion shows that it was earlier, and so do, to a role with
// pg_read_all_stats, processes that only a primary has. A vacuum in the server's earlier life, as a
// primary, shows nothing.
func TestAgeOfPromoted(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"autovacuum": "off", "hot_standby": "on"})
	ask := func(sql string) string {
		t.Helper()
		return query(t, server, sql)[0]
	}
	since := func(instant string) time.Duration {
		t.Helper()
		seconds, err := strconv.ParseFloat(ask("SELECT extract(epoch FROM clock_timestamp() - '"+instant+"')"), 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(seconds * float64(time.Second))
	}
	query(t, server, "CREATE ROLE weak LOGIN")
	query(t, server, "VACUUM ANALYZE pg_class")
	if err := server.Stop(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(server.Data, "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	restarted := ask("SELECT clock_timestamp()")
	if err := server.Run("pg_ctl", "promote", "-w", "-D", server.Data); err != nil {
		t.Fatal(err)
	}

	// seems is how old the server seems, before and after LearnAge.
	seems := func(role string) (before, after time.Duration) {
		t.Helper()
		s := open(t, fmt.Sprintf("host=%s user=%s dbname=postgres", server.Socket, role))
		before = s.ServerAge()
		if err := s.LearnAge(t.Context()); err != nil {
			t.Fatal(err)
		}
		return before, s.ServerAge()
	}
	eventually(t, "the first checkpoint after the promotion is done", func() bool {
		return ask("SELECT timeline_id FROM pg_control_checkpoint()") == "2"
	})
	if _, age := seems("weak"); age > since(restarted) {
		t.Errorf("it seems to be %v old, %v after its start as a standby", age, since(restarted))
	}

	vacuumed := ask("SELECT clock_timestamp()")
	query(t, server, "VACUUM pg_class")
	const apart = 3 * time.Second
	eventually(t, "the checkpoint is much later", func() bool { return since(vacuumed) > apart })
	query(t, server, "CREATE TABLE written()")
	query(t, server, "CHECKPOINT")
	for _, role := range []string{"weak", localpg.Superuser} {
		eventually(t, role+" learns that it is older", func() bool { // PostgreSQL 14 may count the vacuum late
			before, after := seems(role)
			if most := since(restarted); after > most {
				t.Errorf("%s: it seems to be %v old, %v after its start as a standby", role, after, most)
			}
			return after-before > time.Second
		})
	}
}

// TestAgeOfRecovered: a server that has recovered from a crash, and was never a standby, is as old as
// its recovery, whenever its last checkpoint was. A role that may not ask for more learns nothing,
// without an error.
func TestAgeOfRecovered(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	query(t, server, "CREATE ROLE weak LOGIN")
	if err := server.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	const old = 5 * time.Second
	eventually(t, "it is some seconds old", func() bool {
		return query(t, server, fmt.Sprintf("SELECT clock_timestamp() - greatest(pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time()) > interval '%d s'", int(old.Seconds())))[0] == "t"
	})
	query(t, server, "CHECKPOINT")
	query(t, server, "REVOKE EXECUTE ON FUNCTION pg_stat_get_activity(integer) FROM PUBLIC")
	s := open(t, fmt.Sprintf("host=%s user=weak dbname=postgres", server.Socket))
	if age := s.ServerAge(); age < old {
		t.Errorf("it seems to be %v old", age)
	}
	if err := s.LearnAge(t.Context()); err != nil || s.ServerAge() < old {
		t.Errorf("it seems to be %v old; %v", s.ServerAge(), err)
	}
}
