package cmd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/visible"
)

// notifier tells systemd what this process does, if systemd wants to know.
// https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
type notifier struct {
	conn *net.UnixConn

	mu    sync.Mutex
	said  string    // the last status, or empty
	until time.Time // until then this process is certainly not stuck
}

// newNotifier is nil if nobody wants to know. It says if it can't tell systemd anything, since
// systemd then ends a unit with Type=notify after its start time-out, and doesn't say why.
func newNotifier(u *ui) *notifier {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		u.remark("systemd can't be told what this process does (NOTIFY_SOCKET): "+err.Error(),
			"the unit needs AF_UNIX among its RestrictAddressFamilies=, and the socket's path in its file system")
		return nil
	}
	n := &notifier{conn: conn}
	if every, ok := watchdogInterval(os.Getenv, os.Getpid()); ok {
		go n.ping(every)
	}
	return n
}

// watchdogInterval is how often to feed systemd's watchdog: twice as often as it asks for.
func watchdogInterval(getenv func(string) string, pid int) (time.Duration, bool) {
	microseconds, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || microseconds <= 0 {
		return 0, false
	}
	if of := getenv("WATCHDOG_PID"); of != "" && of != strconv.Itoa(pid) {
		return 0, false
	}
	return time.Duration(microseconds) * time.Microsecond / 2, true
}

// ping feeds the watchdog while the work goes on.
func (n *notifier) ping(every time.Duration) {
	for range time.Tick(every) {
		n.mu.Lock()
		alive := time.Now().Before(n.until)
		n.mu.Unlock()
		if alive {
			n.send("WATCHDOG=1")
		}
	}
}

func (n *notifier) alive(within time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.until = time.Now().Add(within)
}

// status says what this process is doing. With the first status the unit counts as started: a
// node that stands by is up.
func (n *notifier) status(text string) {
	n.mu.Lock()
	before := n.said
	n.said = text
	n.mu.Unlock()
	if text == before {
		return
	}
	message := "STATUS=" + visible.Text(text)
	if before == "" {
		message = "READY=1\n" + message
	}
	n.send(message)
}

// observe passes on to systemd what the runner reports. It gives all times as instants, since
// a status stays until the next one.
func (n *notifier) observe(s *waitReport, cfg *runner.Config, work string) {
	at := func(t time.Time) string { return t.Format(time.DateTime) }
	name := func(v inspect.View) string {
		since := v.Since
		left, delayed := v.StartsIn()
		v.Since, v.Delay = time.Time{}, 0 // String would show durations for them
		text := v.String()
		if !since.IsZero() {
			text += " since " + at(since.Local())
		}
		if delayed {
			text += ", its command starts at " + at(time.Now().Add(left))
		}
		return text
	}
	o := &cfg.Lock.Observer
	waiting, away, delayed := o.Waiting, o.Away, o.Delayed
	o.Waiting = func(backend uint32, views []inspect.View) {
		if waiting != nil {
			waiting(backend, views)
		}
		n.status("standing by since " + at(s.begin()) + s.position(backend, views, name))
	}
	o.Away = func(obstacle error) {
		away(obstacle)
		switch {
		case obstacle == nil:
		case errors.As(obstacle, new(*ledger.PausedError)):
			n.status("standing by; " + obstacle.Error())
		default:
			been, since := s.out.state()
			n.status("standing by; " + been + " since " + at(since) + ": " + obstacle.Error())
		}
	}
	o.Delayed = func(until time.Time) {
		delayed(until)
		if !until.IsZero() {
			n.status("starts at " + at(until) + ": the last holder may live on")
		}
	}
	o.Alive = n.alive
	command := &cfg.CommandObserver
	started := command.Started
	command.Started = func() {
		started()
		n.status(work + " since " + at(time.Now()))
	}
	command.NextTry = func(until time.Time) { n.status("tries next at " + at(until)) }
	command.Interrupted = func() { go n.send("STOPPING=1\nSTATUS=ending the command") } // the command's end must not wait for systemd
}

func (n *notifier) send(message string) {
	// Nothing waits for a systemd that doesn't listen.
	_ = n.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprint(n.conn, message)
}

// systemdVariables are the variables for the process that systemd started. A command that obeys
// them would speak for pglead, or expect sockets that it doesn't have.
// https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html#Environment%20Variables%20Set%20or%20Propagated%20by%20the%20Service%20Manager
func systemdVariables() []string {
	return []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"}
}

// warnOfSockets says that the command doesn't get the sockets that systemd has opened.
func warnOfSockets(u *ui) {
	if os.Getenv("LISTEN_FDS") != "" {
		u.log.Warn("the sockets that systemd has opened (LISTEN_FDS) are not passed to the command", "event", "environment")
	}
}
