package inspect

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// bare is a connection without any settings of pglead, as a pooler may give one.
type bare struct{ *pgconn.PgConn }

func (b bare) Query(ctx context.Context, queries ...string) (rows session.Rows, err error) {
	for _, sql := range queries {
		results, err := b.Exec(ctx, sql).ReadAll()
		if err != nil {
			return nil, err
		}
		for _, row := range results[len(results)-1].Rows {
			var texts []string
			for _, value := range row {
				texts = append(texts, string(value))
			}
			rows = append(rows, texts)
		}
	}
	return rows, nil
}

// TestTimesInAnyDateStyle: how long others have been silent, or have waited, does not depend on how
// this role writes instants.
func TestTimesInAnyDateStyle(t *testing.T) {
	server := testserver.Start(t, nil)
	connect := func() *pgconn.PgConn {
		conn, err := pgconn.Connect(t.Context(), server.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	holder, waiter, looker := bare{connect()}, connect(), bare{connect()}
	began := time.Now()
	if _, err := holder.Query(t.Context(), "SELECT pg_advisory_lock(7)"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		_ = waiter.Exec(ctx, "SELECT pg_advisory_lock(7)").Close()
	}()
	t.Cleanup(func() { // before the connections are closed
		cancel()
		<-waited
	})
	testserver.Eventually(t, "a session waits", func() bool {
		return testserver.Query(t, server, "SELECT count(*) FROM pg_locks WHERE NOT granted")[0] == "1"
	})
	id := lockkey.ID{Number: 7}
	for style, zone := range map[string]string{
		"ISO, MDY": "UTC", "SQL, DMY": "Asia/Kolkata", "German, DMY": "America/St_Johns", "Postgres, MDY": "Asia/Shanghai", "ISO, YMD": "1.034167", // hours, so that there are seconds
	} {
		t.Run(style, func(t *testing.T) {
			if _, err := looker.Query(t.Context(), "SET datestyle = '"+style+"'", "SET timezone = '"+zone+"'"); err != nil {
				t.Fatal(err)
			}
			holders, err := Holders(t.Context(), looker, id)
			if err != nil || len(holders) != 1 {
				t.Fatalf("%v, %v", holders, err)
			}
			views, err := Views(t.Context(), looker, Sought{Locks: []lockkey.ID{id}, Lines: []lockkey.ID{id}})
			if err != nil || len(views) != 2 {
				t.Fatalf("%v, %v", views, err)
			}
			most := time.Since(began) + time.Minute // the clocks may differ a little
			for _, v := range append(holders, views...) {
				if since := v.Now.Sub(began); since < -time.Minute || since > most {
					t.Errorf("now is %v", v.Now)
				}
				silent, waiting := v.Idle > 0 && v.Idle < most, v.Waiting > 0 && v.Waiting < most
				if silent != v.Granted || waiting == v.Granted {
					t.Errorf("granted %t, idle for %v, waiting for %v", v.Granted, v.Idle, v.Waiting)
				}
			}
			if rows, err := looker.Query(t.Context(), "SHOW datestyle"); err != nil || !rows.Is(style) {
				t.Errorf("then the style is %v, %v", rows, err)
			}
		})
	}
}
