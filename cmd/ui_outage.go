package cmd

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// outage tells a log and cron's mail about a database that is away: a line at the
// beginning, at each new reason, rarely while it lasts, and at the end.
type outage struct {
	u *ui

	mu      sync.Mutex
	began   time.Time
	since   time.Time // when the database last ceased to answer, as it may do several times in one outage
	back    time.Time // when the database began to answer again; zero while it is away
	said    []string  // the reasons in the log so far
	reminds int
	spoken  bool // the log has had a line since the database last answered
	words   outageWords
}

// outageWords say what is in the way.
type outageWords struct {
	now, still, been string // at the beginning, in a later line, and while it lasts
	over             string // says that it is over; empty if the database has answered all along
}

// wordsFor says what is in the way: a database that is away, is full, rejects this role
// or is no primary, or its ledger, its standbys or this host.
func wordsFor(err error) outageWords {
	e, known := errors.AsType[*session.Error](err)
	switch {
	case errors.As(err, new(*lock.LedgerError)), errors.As(err, new(*ledger.FencedError)), errors.Is(err, session.ErrUnconfirmed),
		known && e.Kind == session.NoStandbys,
		session.AnsweredError(err) != nil, // of a statement: an error of the login wraps none
		!known && !session.Passing(err):   // as where no guard can be started
		return outageWords{"the command can't start yet", "the command still can't start", "the command could not start", ""}
	case known && e.Kind == session.Denied:
		return outageWords{
			"the database refuses the login", "the database still refuses the login",
			"the database has refused the login", "the database accepts the login",
		}
	case known && e.Kind == session.Standby:
		return outageWords{"no primary answers", "still no primary answers", "no primary has answered", "a primary answers"}
	case known && e.Full:
		return outageWords{
			"no connection to the database is free", "still no connection to the database is free",
			"no connection to the database has been free", "a connection to the database is free",
		}
	}
	return outageWords{"the database is away", "the database is still away", "the database has been away", "the database is back"}
}

const (
	// outageApart is how long a database has to answer before the next outage counts as a
	// new one, so that a database that comes and goes does not fill the log.
	outageApart = time.Minute
	// mostReasons limits the lines about one outage whose reasons keep changing.
	mostReasons = 4
)

// away is called after an attempt that failed. The end of a session gets no line if another session
// follows at once.
func (o *outage) away(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	first := o.began.IsZero() || !o.back.IsZero() && now.Sub(o.back) >= outageApart
	if first {
		o.began, o.said, o.reminds, o.spoken = now, nil, 0, false
	}
	answered := first || !o.back.IsZero()
	if answered {
		o.since = now
	}
	o.back = time.Time{}
	before := o.words
	o.words = wordsFor(err)
	if answered && errors.As(err, new(*session.LostError)) {
		o.spoken = false
		return
	}
	reason, lasts := err.Error(), now.Sub(o.began)
	known := slices.Contains(o.said, reason)
	due := lasts >= o.due()
	var text string
	switch {
	case due && now.After(o.since):
		text = o.words.been + " for " + brief(now.Sub(o.since)) + ": " + reason
	case !due && (known || len(o.said) >= mostReasons):
		return
	case due, len(o.said) == 0, o.words != before:
		text = o.words.now + ": " + reason
	default:
		text = o.words.still + ": " + reason
	}
	for o.due() <= lasts {
		o.reminds++
	}
	hint := ""
	if !known {
		o.said = append(o.said, reason)
		if e, ok := errors.AsType[*session.Error](err); !ok || !e.Full { // there is nothing to do but wait
			_, hint = status(err)
		}
	}
	o.spoken = true
	o.u.say(slog.LevelWarn, text, hint, "event", "away", "reason", reason)
	o.u.setAway(reason, o.words.still)
}

// due is how long an outage lasts before the log's next line about it.
func (o *outage) due() time.Duration {
	minutes := [...]int{1, 5, 15}
	if o.reminds < len(minutes) {
		return time.Duration(minutes[o.reminds]) * time.Minute
	}
	return time.Duration(o.reminds-len(minutes)+1) * time.Hour
}

// state says what is in the way, and since when.
func (o *outage) state() (been string, since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.words.been, o.since
}

// answers is called when nothing is in the way any more.
func (o *outage) answers() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() || !o.back.IsZero() {
		return
	}
	o.back = time.Now()
	if o.spoken {
		o.spoken = false
		if o.words.over != "" {
			o.u.setAway("", "")
			o.u.log.Warn(o.words.over+" after "+brief(o.back.Sub(o.since)), "event", "back")
		}
	}
}
