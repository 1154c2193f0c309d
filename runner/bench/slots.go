//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/localpg"
)

// as is an environment in which programs log in as another role.
func as(env []string, role string) []string { return withVariable(env, "PGUSER", role) }

// withVariable is an environment in which a variable has another value.
func withVariable(env []string, name, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(e string) bool { return strings.HasPrefix(e, name+"=") })
	return append(env, name+"="+value)
}

// asApp is how the application, not a superuser, finds the server.
func asApp(s *localpg.Server) string {
	return strings.Replace(s.DSN("postgres"), "user="+localpg.Superuser, "user=app", 1)
}

// logins are those of an application.
type logins struct {
	tried, done int
	times       []time.Duration // of those that were let in
	refused     []time.Duration // when the others began, since the first one
}

// refusals says when logins were refused, in seconds.
func (l logins) refusals() string {
	slices.Sort(l.refused)
	var at []string
	for _, d := range l.refused {
		at = append(at, fmt.Sprintf("%.1f", d.Seconds()))
	}
	return strings.Join(at, ", ")
}

// logIn logs in and out at a steady pace, at most most times, whether or not the previous
// logins are done.
func logIn(ctx context.Context, dsn string, every time.Duration, most int) logins {
	l, first := logins{}, time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	pace := time.NewTicker(every)
	defer pace.Stop()
	for ctx.Err() == nil && l.tried < most {
		l.tried++
		all.Go(func() {
			at := time.Since(first)
			took, err := logInOnce(dsn)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				l.refused = append(l.refused, at)
				return
			}
			l.done++
			l.times = append(l.times, took)
		})
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
	}
	all.Wait()
	return l
}

// logInOnce logs in, asks something and logs out. took is the time until the answer.
func logInOnce(dsn string) (took time.Duration, err error) {
	began := time.Now()
	limit, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := pgconn.Connect(limit, dsn)
	if err != nil {
		return 0, err
	}
	defer conn.Close(limit)
	_, err = conn.Exec(limit, "SELECT 1").ReadAll()
	return time.Since(began), err
}

// connectionSlots measures what is left for an application on a small server on which many
// candidates stand by.
func (b *bench) connectionSlots() error {
	const candidates, places, tries = 40, 12, 30
	at, remove, err := b.guestServer(map[string]string{"max_connections": strconv.Itoa(places)})
	if err != nil {
		return err
	}
	defer remove()
	at.unix = as(at.unix, "app")
	c, err := b.company(at)
	if err != nil {
		return err
	}
	defer c.leave()
	before, err := at.logged(0)
	if err != nil {
		return err
	}
	for range candidates {
		if err := c.start(nil, nil, "lead", "--key", key, "--", "sleep", "100000"); err != nil {
			return err
		}
	}
	window := either(b, 6*time.Second, time.Minute)
	section(fmt.Sprintf("%d `pglead lead` on max_connections = %d", candidates, places), "", "| | logins of the application | their p50 ms | FATAL lines in the server's log, a minute |\n|---|---|---|---|")
	for _, name := range either(b, []string{"at first"}, []string{"at first", "then"}) {
		began := time.Now()
		app := logIn(context.Background(), asApp(at.server), window/tries, tries)
		text, err := at.logged(len(before))
		if err != nil {
			return err
		}
		before = append(before, text...)
		fatal := float64(bytes.Count(text, []byte("FATAL:"))) * float64(time.Minute) / float64(time.Since(began))
		fmt.Printf("| %s, for %v | %d of %d | %s | %.0f |\n", name, window, app.done, app.tried, ms(quantile(app.times, .5)), fatal)
		what := fmt.Sprintf("beside %d candidates on %d slots, %s", candidates, places, name)
		b.goal("the application's logins refused "+what, float64(app.tried-app.done), 0, "")
		b.goal("refused logins in the server's log, a minute, "+what, fatal, 40, "")
	}
	return nil
}
