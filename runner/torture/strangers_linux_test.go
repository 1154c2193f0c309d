package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
)

// stranger is a role that may connect, and no more.
const stranger = "stranger"

// names are what witnesses call the mode's locks.
func (m mode) names() []string {
	switch {
	case m.slots > 0:
		var names []string
		for i := range m.slots {
			names = append(names, fmt.Sprintf("torture#%d", i+1))
		}
		return names
	case m.keys != nil:
		return m.keys
	}
	return []string{"torture"}
}

// number is the lock's.
func number(name string) lockkey.ID { return lockkey.SipHash24(strings.Replace(name, "#", "\x00", 1)) }

// strange connects as a stranger.
func (a *arena) strange(ctx context.Context, application string) (*pgconn.PgConn, error) {
	cfg, err := pgconn.ParseConfig(a.server.DSN("postgres"))
	if err != nil {
		return nil, err
	}
	cfg.User, cfg.ConnectTimeout = stranger, 2*time.Second
	cfg.RuntimeParams["application_name"] = application
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err == nil {
		a.mu.Lock()
		a.strangers = append(a.strangers, conn.PID())
		a.mu.Unlock()
	}
	return conn, err
}

// heeds is when a holder has noticed a request for certain: it has more urgent things
// to do in its command's first moments, and then looks with each heartbeat.
func (a *arena) heeds() time.Duration { return a.lease/5 + time.Second }

// strangersRequest is what cmd/REFERENCE.md lets every role do: ask who leads to step down.
func strangersRequest(a *arena) fault {
	return fault{
		name: "a stranger's request to step down", unseats: true, pauses: true, within: a.heeds() + stepDown + a.mode.polls,
		strikes: func(host string) bool { return a.mode.pooled == nil || !a.mode.pooled(host) },
		strike: func(a *arena, l leader) {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			conn, err := a.strange(ctx, "pglead stepdown to h1 by \x1b[31mroot\r\n")
			if err != nil {
				a.t.Error(err)
				return
			}
			defer conn.Close(ctx)
			for _, name := range l.locks {
				if err := say(ctx, conn, "pglead.1.stepdown."+number(name).String(), "\x1b[31mroot\r\n"); err != nil { // for old versions
					a.t.Error(err)
				}
				if err := conn.Exec(ctx, "SELECT pg_advisory_lock("+advisory.StepDownOf(number(name)).String()+")").Close(); err != nil {
					a.t.Error(err)
				}
			}
			for began := uptime(); uptime()-began < a.heeds()+stepDown; time.Sleep(20 * time.Millisecond) {
				if !slices.ContainsFunc(a.living(), func(x life) bool { return x.token == l.token }) {
					return
				}
			}
		},
	}
}

func say(ctx context.Context, conn *pgconn.PgConn, channel, payload string) error {
	return conn.ExecParams(ctx, "SELECT pg_notify($1, $2)", [][]byte{[]byte(channel), []byte(payload)}, nil, nil, nil).Read().Err
}

// forged is what strangers may add to a takeover: a lock-delay by saying that
// somebody has started, and what it takes the next in line to try by itself, with
// strangers' tickets before it.
func (a *arena) forged() time.Duration {
	if a.hostile {
		return a.lockDelay + time.Second
	}
	return 0
}

// foreignHold is how long the foreign session keeps what it has waited for.
const foreignHold = 300 * time.Millisecond

// foreignInLine: a session that knows nothing of pglead waits for the locks like
// everyone else, and gives them back without a word. While it has them no command
// runs, and then the next one does.
func foreignInLine() fault {
	return fault{name: "foreign holder in line", alone: func(a *arena) event {
		a.t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		conn, err := a.strange(ctx, "psql")
		if err != nil {
			a.t.Fatal(err)
		}
		defer conn.Close(ctx)
		a.waitForAll(ctx, conn)
		l := life{host: "psql", locks: a.mode.names(), first: uptime()}
		time.Sleep(foreignHold)
		l.last = uptime()
		a.foreign = append(a.foreign, l)
		if a.rand.IntN(2) == 0 {
			err = conn.Close(ctx)
		} else {
			err = conn.Exec(ctx, "SELECT pg_advisory_unlock_all()").Close()
		}
		if err != nil {
			a.t.Error(err)
		}
		e := event{fault: "foreign holder in line", at: l.last, host: l.host, bound: a.lockDelay + 2*time.Second + a.mode.polls + a.forged()}
		if a.mode.stays { // its candidates' commands have ended
			e.bound = standsAfterPause
		}
		for {
			if next, ok := a.history(l.last).next(l.last, l); ok {
				e.next = next.first - l.last
				break
			}
			if uptime()-l.last > e.bound+30*time.Second {
				a.t.Errorf("nobody leads %v after a foreign holder", uptime()-l.last)
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if a.mode.stays {
			a.awaitCandidates(standsAfterPause)
		}
		return e
	}}
}

// waitForAll takes all of the mode's locks in the order that all keep to. Commands
// are ended well until it has them.
func (a *arena) waitForAll(ctx context.Context, conn *pgconn.PgConn) {
	a.t.Helper()
	var ids []lockkey.ID
	for _, name := range a.mode.names() {
		ids = append(ids, number(name))
	}
	slices.SortFunc(ids, lockkey.ID.Compare)
	granted := make(chan error, 1)
	go func() {
		var err error
		for _, id := range ids {
			if err == nil {
				err = conn.Exec(ctx, "SELECT pg_advisory_lock("+id.String()+")").Close()
			}
		}
		granted <- err
	}()
	for {
		select {
		case err := <-granted:
			if err != nil {
				a.t.Fatal(err)
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
		living := slices.DeleteFunc(a.living(), func(l life) bool { return !l.complete })
		a.mu.Lock()
		for _, l := range living {
			_ = unix.Kill(a.pids[l.host], unix.SIGUSR1)
		}
		a.mu.Unlock()
	}
}

// hostility has strangers do, until it is stopped, what README's Security section
// says that every role may: stand in line for a moment, with a ticket or in the
// server's own queue, and say anything. That an item is done is left out, since README
// says that it breaks what is checked here. Requests to step down are a fault of their
// own. What strangers say is malformed, forged, or far out of range; what one of the
// contenders' own role says is late and repeated, and true.
func (a *arena) hostility() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var strangers sync.WaitGroup
	for i := range 2 {
		own := i * len(comments()) / 2 // also where it begins among the comments
		strangers.Go(func() { a.again(ctx, func(conn *pgconn.PgConn) error { return a.standAbout(ctx, conn, own) }) })
	}
	strangers.Go(func() { a.again(ctx, func(conn *pgconn.PgConn) error { return a.talk(ctx, conn) }) })
	strangers.Go(func() { a.repeat(ctx) })
	strangers.Go(func() { a.look(ctx) })
	return func() {
		cancel()
		strangers.Wait()
	}
}

// again connects as a stranger, over and over: servers come and go here.
func (a *arena) again(ctx context.Context, do func(*pgconn.PgConn) error) {
	for ctx.Err() == nil {
		if conn, err := a.strange(ctx, "pglead:torture@\x1b[2Jh1"); err == nil {
			_ = do(conn)
			closing, cancel := context.WithTimeout(context.Background(), time.Second)
			_ = conn.Close(closing)
			cancel()
		}
		pause(ctx, 200*time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func comments() []string {
	return []string{
		`/*pglead slots='1000000000000',key='torture',host='h1'*/`,
		`/*pglead slots='-1',slot='9223372036854775807',key='torture',host='h1'*/`,
		`/*pglead key='torture',host='%1B%5B2J%0Aroot',command='%07%0D%9B',user='%E2%80%AE%FF'*/`,
		"/*pglead key='\x1b]0;owned\a\x1b[2J',host='\r\n\u009b31m'*/",
		`/*pglead key='` + strings.Repeat("k", 60000) + `',host='` + strings.Repeat("h", 60000) + `'*/`,
		`/*pglead key='` + strings.Repeat("k%0A", 300) + `'*/`,
		`/*pglead since='9999-12-31T23:59:59Z',lease='2540400h',token='9223372036854775807',key='torture'*/`,
		`/*pglead pid='99999999999999999999',lease='-1ns',token='x',since='-',scheme='%00',key='torture'*/`,
		`/*pglead ,,=,'='*/`,
	}
}

// standAbout holds a lock of the stranger's own, and stands in each line for a
// moment, with comments that describe nobody.
func (a *arena) standAbout(ctx context.Context, conn *pgconn.PgConn, own int) error {
	names := append(a.mode.names(), "torture") // with slots the gate, too
	_, lines := a.mode.ids()
	if err := conn.Exec(ctx, fmt.Sprintf("SET lock_timeout = '200ms'; SELECT pg_advisory_lock(%d)", own)).Close(); err != nil {
		return err
	}
	all := comments()
	for i := own; ; i++ {
		comment, id := all[i%len(all)], number(names[rand.IntN(len(names))])
		// A time-out that comes with the grant is an error that leaves the lock held.
		_ = conn.Exec(ctx, comment+" SELECT pg_advisory_lock("+id.String()+")").Close()
		if conn.IsClosed() {
			return nil
		}
		if err := conn.Exec(ctx, comment+" SELECT pg_advisory_unlock("+id.String()+")").Close(); err != nil {
			return err
		}
		ticket := fmt.Sprintf("(%d::bigint << 32 | %d)", int32(advisory.TicketClass(lines[rand.IntN(len(lines))])), rand.Uint32())
		if err := conn.Exec(ctx, "SELECT pg_try_advisory_lock("+ticket+")").Close(); err != nil {
			return err
		}
		pause(ctx, time.Second)
		if err := conn.Exec(ctx, "SELECT pg_advisory_unlock("+ticket+")").Close(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// longLeases are left out where old versions take part: one of those waits 40 hours
// for such a holder if this is the last that it heard before an unclean end.
func longLeases() []string {
	return []string{"started 9223372036854775807 86400000 86400000", "started 1 9223372036854775807 9223372036854775807 shared"}
}

func payloads() []string {
	return []string{
		"started 0 0 0", "started 1 2", "started -1 3000 0", "started 99999999999999999999 3000 0", "started 1 1e9 0", "started  1 3000 0",
		"clean", "clean 1 2", "clean x 3000 0", "clean -1 3000 0", "clean 1 -3000 0", "CLEAN 1 3000 0", " clean 1 3000 0",
		"dead", "dead 1 2", "dead 1 3000 0", "dead 9223372036854775807 3000 0", "dead 9223372036854775807 3000 0 first", "dead -1 3000 0",
		"clean 1 3000 0", "clean 9223372036854775807 3000 0", "clean 9223372036854775807 3000 0 to=1", "clean 1 3000 0 first to=99999999999",
		"left 1 3000 0", "left 9223372036854775807 3000 0 to=x",
		"prefer ghost 60", "prefer %1B%5B2J 65535", "prefer ghost 99999999999", "prefer %zz 60", "prefer", "",
		"\x1b[2J\r\n", strings.Repeat("started ", 900),
	}
}

// talk says something on one of the channels four times a second.
func (a *arena) talk(ctx context.Context, conn *pgconn.PgConn) error {
	type said struct{ channel, payload string }
	var all []said
	for _, name := range a.mode.names() {
		words := payloads()
		if a.old == "" {
			words = append(words, longLeases()...)
		}
		for _, p := range words {
			all = append(all, said{"pglead.1." + number(name).String(), p})
		}
	}
	list := "pglead.1.each." + lockkey.SipHash24("{}").String()
	for _, p := range []string{"", "4242 ok", "ok", number("torture").String(), number("torture").String() + " maybe", "99999999999999999999 ok", "\x1b[2J ok"} {
		all = append(all, said{list, p}, said{"pglead.1.stepdown.4242", p})
	}
	for ctx.Err() == nil {
		s := all[rand.IntN(len(all))]
		if living := a.living(); len(living) > 0 && rand.IntN(3) == 0 { // the right token, too, which every role sees
			l := living[rand.IntN(len(living))]
			word := []string{"clean", "dead"}[rand.IntN(2)]
			s = said{"pglead.1." + number(l.locks[0]).String(), fmt.Sprintf("%s %d 3000 0", word, l.token)}
		}
		if err := say(ctx, conn, s.channel, s.payload); err != nil {
			return err
		}
		pause(ctx, 250*time.Millisecond)
	}
	return ctx.Err()
}

// lookMost is more than a look at the locks takes on a machine that is busy, and on a
// server that is stopped for a while.
const lookMost = 30 * time.Second

// look asks who has the locks: that ends, and shows no control characters.
func (a *arena) look(ctx context.Context) {
	for ctx.Err() == nil {
		for _, args := range [][]string{{"ls"}, {"ls", "-o", "prometheus"}, {"who", "torture"}} {
			within, cancel := context.WithTimeout(context.Background(), lookMost) // also at the end
			cmd := exec.CommandContext(within, a.binary, append(args, "--connect-timeout", "2s")...)
			cmd.Env = append(os.Environ(), "PGLEAD_DSN="+a.server.DSN("postgres"))
			out, _ := cmd.CombinedOutput()
			if within.Err() != nil {
				a.t.Errorf("pglead %s does not end within %v", args, lookMost)
			}
			cancel()
			control := func(r rune) bool { return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) }
			if !utf8.Valid(out) || strings.ContainsFunc(string(out), control) {
				a.t.Errorf("pglead %s lets a stranger write to the terminal: %q", args, out)
			}
		}
		pause(ctx, 2*time.Second)
	}
}
