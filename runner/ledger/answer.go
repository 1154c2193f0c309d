package ledger

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// Started is the answer to a start that may begin.
const Started = "started"

// Answer is what a start is told.
type Answer struct {
	// Word is started, paused, done, clock, busy, lost, unknown or fenced.
	Word   string
	Lost   []OpenRun
	Until  time.Time     // of a pause, or zero if nobody knows
	By     string        // who made it
	Note   string        // and why
	Host   string        // of a success
	At     time.Time     // when it was
	Ahead  time.Duration // the caller's clock
	Fenced string        // the role, and its session, whose transaction is in the way
}

// OpenRun is a run whose command may be alive.
type OpenRun struct {
	Lock  int // its place
	Token int64
	Lease time.Duration
	Grace time.Duration
	Host  string
}

// Need is how long after the lock was lost its command is dead for certain. No
// command lives on for longer than the lease, whatever its grace is.
func (e OpenRun) Need() time.Duration {
	return min(session.DeadAfter(e.Lease, e.Grace), e.Lease)
}

const mostLease = 24 * time.Hour

// ParseAnswer reads an answer to so many locks.
func ParseAnswer(text string, locks int) (Answer, error) {
	lines := strings.Split(text, "\n")
	fields := strings.Split(lines[0], " ")
	a := Answer{Word: fields[0]}
	switch {
	case a.Word == Started, a.Word == "unknown", a.Word == "busy":
		return a, nil
	case a.Word == "paused" && len(fields) == 2 && len(lines) == 3:
		if seconds, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			a.Until = time.Unix(seconds, 0)
		}
		a.By, a.Note = lines[1], lines[2]
		return a, nil
	case a.Word == "done":
		if len(fields) > 1 {
			seconds, _ := strconv.ParseInt(fields[1], 10, 64)
			a.At = time.Unix(seconds, 0)
		}
		if len(fields) > 2 {
			a.Host = fields[2]
		}
		return a, nil
	case a.Word == "clock" && len(fields) == 2:
		seconds, err := strconv.ParseInt(fields[1], 10, 64)
		a.Ahead = time.Duration(min(max(seconds, -math.MaxInt32), math.MaxInt32)) * time.Second
		return a, errorOf(err == nil)
	case a.Word == "fenced":
		a.Fenced = "a prepared transaction"
		if len(fields) == 3 {
			a.Fenced = "the transaction of role " + fields[2] + ", session " + fields[1] + ","
		}
		return a, nil
	case a.Word == "lost":
		for _, line := range lines {
			lost, ok := parseLost(line, locks)
			if !ok {
				return a, errorOf(false)
			}
			a.Lost = append(a.Lost, lost)
		}
		return a, nil
	}
	return a, errorOf(false)
}

func parseLost(line string, locks int) (e OpenRun, ok bool) {
	fields := strings.Split(line, " ")
	if len(fields) < 5 || fields[0] != "lost" {
		return e, false
	}
	var n [4]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(fields[i+1], 10, 64); err != nil || n[i] < 0 {
			return e, false
		}
	}
	most := mostLease.Milliseconds()
	e = OpenRun{Lock: int(n[0]) - 1, Token: n[1], Lease: time.Duration(min(n[2], most)) * time.Millisecond, Grace: time.Duration(min(n[3], most)) * time.Millisecond}
	if len(fields) > 5 {
		e.Host = fields[5]
	}
	return e, n[0] >= 1 && n[0] <= int64(locks)
}

func errorOf(ok bool) error {
	if ok {
		return nil
	}
	return session.Errorf(session.Unsafe, "", "the ledger does not answer as this version's does")
}

// PausedError says that a key may not start now.
type PausedError struct {
	Until    time.Time // or zero: until somebody ends it
	By, Note string
}

func (e *PausedError) Error() string {
	text := "paused"
	if !e.Until.IsZero() {
		format := "15:04"
		if time.Until(e.Until) > 12*time.Hour {
			format = "Jan 2 15:04"
		}
		text += " until " + e.Until.Local().Format(format)
	}
	who := e.By
	if who != "" && e.Note != "" {
		who += ": "
	}
	if who += e.Note; who != "" {
		text += " (" + visible.Text(who) + ")"
	}
	return text
}
