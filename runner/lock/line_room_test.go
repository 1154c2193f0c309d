package lock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestRoomForTheApplication: however many waiters there are, a fifth of the connections is left to the application.
// In the end all waiters get the lock, and the holder is never kept from its work.
func TestRoomForTheApplication(t *testing.T) {
	t.Parallel()
	const connections, waiters = 30, 40
	server := start(t, map[string]string{"max_connections": fmt.Sprint(connections), "superuser_reserved_connections": "0", "max_wal_senders": "0"})
	dsn := as(t, server, "cron")
	cfg := config(t, dsn, exclusive(7))
	h := acquire(t, cfg)
	all := make([]*contender, waiters)
	for i := range all {
		all[i] = contend(t, cfg)
	}
	full := func(err error) bool {
		var refused *pgconn.PgError
		return errors.As(err, &refused) && refused.Code == "53300"
	}
	guests := func() (n int, err error) {
		values, err := server.Query("postgres", "SELECT count(*) FROM pg_stat_activity WHERE usename = 'cron'")
		if err == nil {
			_, err = fmt.Sscan(values[0], &n)
		}
		if err != nil && !full(err) {
			t.Fatal(err)
		}
		return n, err
	}
	// At the beginning all come at once, and more connections may be taken.
	calm := 0
	eventually(t, "a fifth of the connections is free", func() bool {
		if n, err := guests(); err == nil && n <= connections*4/5 {
			calm++
		} else {
			calm = 0
		}
		return calm >= 50
	})
	// On a busy machine those that look whether there is room take longer, and so more of them are
	// there at once.
	const logins = 50
	windows := 0
	eventually(t, "nearly all logins of the application succeed", func() bool {
		if windows++; windows > 3 {
			t.Fatal("three times many logins of the application were refused")
		}
		refused := 0
		for range logins {
			time.Sleep(40 * time.Millisecond)
			_, err := server.Query("postgres", "SELECT 1")
			switch {
			case full(err):
				refused++
			case err != nil:
				t.Fatal(err)
			}
		}
		return refused <= logins/10
	})
	// The question itself may be among the few that are refused.
	eventually(t, "several wait, on a server with room for more", func() bool {
		n, err := guests()
		return err == nil && n >= 5
	})
	for range 3 { // the first in line is there, and goes on
		release(t, h)
		h.Close()
		h = nil
		eventually(t, "the next one has it", func() bool {
			for i, c := range all {
				if c != nil && !c.waits() {
					h, all[i] = c.held(t), nil
					return true
				}
			}
			return false
		})
	}
}
