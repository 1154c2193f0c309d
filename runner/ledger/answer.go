package ledger

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// Answer is the ledger's answer to a start: how the start continues, or why it must not.
type Answer struct {
	Kind Kind
	Open []OpenRun // with OpenRuns
	Err  error     // with Refused
}

// Kind is what an answer asks a start to do.
type Kind int

// What an answer asks. After pg_upgrade, which makes another cluster, the first answer for a key is
// Unknown, or OpenRuns if the upgrade has cut a run off.
const (
	Started  Kind = iota // the run is in the ledger, and its command may start
	Unknown              // the ledger doesn't know the last run: wait as without a ledger
	OpenRuns             // wait until these runs are certainly over
	Refused              // don't start
)

// HasStarted says whether the first word of an answer, or the value of StartSQL, means Started.
func HasStarted(answer string) bool { return answer == "started" }

// OpenRun is a run whose command may be alive, by the ledger.
type OpenRun struct {
	Lock      int // its index among the run's locks
	Token     int64
	Lease     time.Duration
	LostGrace time.Duration
	Host      string
}

// Outlives is how long after the loss of the lock the command may still be alive. No command
// outlives the lease, whatever its grace is.
func (r OpenRun) Outlives() time.Duration {
	return leasetime.DeadAfter(r.Lease, r.LostGrace)
}

// ParseAnswer reads the answer to the start of a run with this many locks, and with this tick or
// nil. The error of a refusal is a *PausedError, a *DoneError, a *FencedError or a *session.Error.
func ParseAnswer(text string, locks int, tick *Tick) (Answer, error) {
	lines := strings.Split(text, "\n")
	fields := strings.Split(lines[0], " ")
	switch word := fields[0]; {
	case HasStarted(word):
		return Answer{Kind: Started}, nil
	case word == "unknown":
		return Answer{Kind: Unknown}, nil
	case word == "lost":
		return parseOpenRuns(lines, locks)
	case word == "paused" && len(fields) == 2 && len(lines) == 3:
		paused := &PausedError{Pause: Pause{Until: Endless(), By: lines[1], Note: lines[2]}}
		if seconds, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			paused.Until = time.Unix(seconds, 0)
		}
		return Answer{Kind: Refused, Err: paused}, nil
	case word == "done":
		return Answer{Kind: Refused, Err: parseDone(fields[1:], tick)}, nil
	case word == "clock" && len(fields) == 2:
		seconds, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return Answer{}, errAnswer
		}
		return Answer{Kind: Refused, Err: clockError(seconds)}, nil
	case word == "fenced":
		return Answer{Kind: Refused, Err: parseFenced(fields[1:])}, nil
	case word == "busy":
		return Answer{Kind: Refused, Err: session.Errorf(session.Unreachable, "", "the ledger says that another session has the lock")}, nil
	}
	return Answer{}, errAnswer
}

// parseDone reads when and on which host a tick had its success, as far as the answer tells.
func parseDone(fields []string, tick *Tick) error {
	var at time.Time
	done := &DoneError{}
	if len(fields) > 0 {
		seconds, _ := strconv.ParseInt(fields[0], 10, 64)
		at = time.Unix(seconds, 0)
	}
	if len(fields) > 1 {
		done.Host = fields[1]
	}
	if tick != nil {
		done.Tick = *tick
	}
	done.At = at.Local().Format(time.DateTime)
	return done
}

func clockError(secondsAhead int64) error {
	ahead := time.Duration(min(max(secondsAhead, -math.MaxInt32), math.MaxInt32)) * time.Second
	side := "ahead of"
	if ahead < 0 {
		side = "behind"
	}
	return session.Errorf(session.Unsafe, "correct the wrong clock; --once-per uses this machine's",
		"this machine's clock is %v %s the server's", ahead.Abs(), side)
}

// parseFenced reads which transaction is in the way: that of a session, with its role, or a
// prepared transaction, which has neither.
func parseFenced(fields []string) error {
	whose, hint := "a prepared transaction", "COMMIT PREPARED or ROLLBACK PREPARED ends it; pg_prepared_xacts has its name"
	if len(fields) == 2 {
		whose = "the transaction of role " + fields[1] + ", session " + fields[0] + ","
		hint = "SELECT pg_terminate_backend(" + fields[0] + ") ends it; with GRANT pg_signal_backend TO the owner of " +
			"the schema pglead the next start does, unless the session is a superuser's"
	}
	return &FencedError{session.Errorf(session.Unreachable, hint,
		"the last run is not over in the database: %s has called pglead.fence and goes on", visible.Text(whose))}
}

func parseOpenRuns(lines []string, locks int) (Answer, error) {
	a := Answer{Kind: OpenRuns}
	for _, line := range lines {
		run, ok := parseOpenRun(line, locks)
		if !ok {
			return Answer{}, errAnswer
		}
		a.Open = append(a.Open, run)
	}
	return a, nil
}

func parseOpenRun(line string, locks int) (r OpenRun, ok bool) {
	fields := strings.Split(line, " ")
	if len(fields) < 5 || fields[0] != "lost" {
		return r, false
	}
	var n [4]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(fields[i+1], 10, 64); err != nil || n[i] < 0 {
			return r, false
		}
	}
	most := leasetime.Most.Milliseconds()
	r = OpenRun{
		Lock: int(n[0]) - 1, Token: n[1],
		Lease: time.Duration(min(n[2], most)) * time.Millisecond, LostGrace: time.Duration(min(n[3], most)) * time.Millisecond,
	}
	if len(fields) > 5 {
		r.Host = fields[5]
	}
	return r, n[0] >= 1 && n[0] <= int64(locks)
}

// ParsePaused reads the rows of PausedQuery. It returns nil if nothing is paused. left is the time
// until the pause ends by the server's clock, rounded up to a second, and at most a day.
func ParsePaused(rows session.Rows) (paused *PausedError, left time.Duration, err error) {
	if len(rows) == 0 {
		return nil, 0, nil
	}
	row, err := rows.Only(5)
	if err != nil {
		return nil, 0, err
	}
	const day = 24 * 60 * 60
	paused, left = &PausedError{Pause: Pause{Until: Endless(), By: row[2], Note: row[3]}}, day*time.Second
	if until, err := strconv.ParseInt(row[0], 10, 64); err == nil {
		paused.Until = time.Unix(until, 0)
	}
	if seconds, err := strconv.ParseInt(row[1], 10, 64); err == nil {
		left = time.Duration(min(max(seconds, 0), day)) * time.Second
	}
	return paused, left, nil
}

// ParsePausedAmong reads the rows of PausedAmongQuery for this many locks, and says of each whether
// it is paused.
func ParsePausedAmong(rows session.Rows, locks int) (paused []bool, err error) {
	paused = make([]bool, locks)
	for _, row := range rows {
		i, err := session.Rows{row}.Ints(1)
		if err != nil || i[0] < 0 || i[0] >= locks {
			return nil, session.NotPostgreSQL()
		}
		paused[i[0]] = true
	}
	return paused, nil
}

// PausedError says that a key may not start now.
type PausedError struct {
	Key string // the paused one of several keys, or empty
	Pause
}

func (e *PausedError) Error() string {
	text := "paused"
	if e.Key != "" {
		text = visible.Text(e.Key) + " is paused"
	}
	if e.Until.Before(Endless()) {
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

// FencedError says that a transaction of the last run is still open, and that the ledger's owner
// may not end it. The session itself is fine.
type FencedError struct{ error }

func (e *FencedError) Unwrap() error { return e.error }
