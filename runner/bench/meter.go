//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

// spent is what a server and the nodes have spent.
type spent struct {
	logins, xids, wal, words, requests float64
	server, nodes                      time.Duration
}

func (s spent) minus(o spent) spent {
	return spent{s.logins - o.logins, s.xids - o.xids, s.wal - o.wal, s.words - o.words,
		s.requests - o.requests, s.server - o.server, s.nodes - o.nodes}
}

// each is one n-th of it.
func (s spent) each(n int) spent {
	f := float64(n)
	return spent{s.logins / f, s.xids / f, s.wal / f, s.words / f, s.requests / f,
		s.server / time.Duration(n), s.nodes / time.Duration(n)}
}

// meter reads what one server has spent. It listens on the locks of two keys.
type meter struct {
	w     watcher
	at    site
	words float64
}

// freeKey is a key that nobody holds while it is measured.
const freeKey = "8"

// guestMeter is the meter of a separate server.
func (b *bench) guestMeter(settings map[string]string) (m *meter, end func(), err error) {
	at, remove, err := b.guestServer(settings)
	if err != nil {
		return nil, nil, err
	}
	if m, err = b.meter(at); err != nil {
		remove()
		return nil, nil, err
	}
	return m, func() { m.w.close(); remove() }, nil
}

func (b *bench) meter(at site) (*meter, error) {
	m := &meter{at: at}
	cfg, err := pgconn.ParseConfig(at.server.DSN("postgres"))
	if err != nil {
		return nil, err
	}
	cfg.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { m.words++ }
	conn, err := pgconn.ConnectConfig(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	m.w = watcher{conn}
	_, err = m.w.ask(fmt.Sprintf(`LISTEN "pglead.1.%s"; LISTEN "pglead.1.%s"`, key, freeKey))
	return m, err
}

// read waits until sessions that have ended are counted.
func (m *meter) read() (spent, error) {
	time.Sleep(300 * time.Millisecond)
	values, err := m.w.ask(`SELECT sum(sessions), pg_snapshot_xmax(pg_current_snapshot()), pg_current_wal_insert_lsn() - '0/0',
	(SELECT coalesce(sum(substring(query FROM 'beat=''([0-9]+)''')::bigint), 0) FROM pg_stat_activity) FROM pg_stat_database`)
	if err != nil {
		return spent{}, err
	}
	n := make([]float64, len(values))
	for i, value := range values {
		if n[i], err = strconv.ParseFloat(value, 64); err != nil {
			return spent{}, fmt.Errorf("read %q: %w", value, err)
		}
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &usage); err != nil {
		return spent{}, err
	}
	postmaster := m.at.server.PID()
	return spent{
		logins: n[0], xids: n[1], wal: n[2], requests: n[3], words: m.words,
		server: ticks(postmaster) + processorTime(postmaster) + total(children(postmaster)),
		nodes:  time.Duration(usage.Utime.Nano() + usage.Stime.Nano()),
	}, nil
}

// during is what do takes.
func (m *meter) during(do func() error) (spent, error) {
	before, err := m.read()
	if err != nil {
		return spent{}, err
	}
	if err := do(); err != nil {
		return spent{}, err
	}
	after, err := m.read()
	return after.minus(before), err
}

// hourly is one waiter's share in an hour.
func (s spent) hourly(n int, of time.Duration) spent {
	f := float64(time.Hour) / float64(of)
	s = s.each(n)
	s.requests, s.wal, s.server = s.requests*f, s.wal*f, time.Duration(float64(s.server)*f)
	return s
}
