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
	back    time.Time // when it answered last, or zero since it went away
	vain    int       // how many attempts have failed
	said    []string  // the reasons in the log so far
	reminds int
	spoken  bool   // the log has a line since the database answered last
	been    string // the words of a message about it while it lasts
	there   bool   // the database answers, but its ledger or its standbys keep the command from starting
}

const (
	// outageApart is how long a database has to answer before the next outage counts as a
	// new one: a database that comes and goes shall not fill the log either.
	outageApart = time.Minute
	// mostReasons bounds the lines of reasons that alternate.
	mostReasons = 4
)

// away is called after an attempt that failed. A session that ended gets no line if
// another one follows at once.
func (o *outage) away(obstacle error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if o.began.IsZero() || !o.back.IsZero() && now.Sub(o.back) >= outageApart {
		o.began, o.vain, o.said, o.reminds, o.spoken = now, 0, nil, 0, false
	}
	o.back = time.Time{}
	o.vain++
	is, still := o.judge(obstacle)
	if o.vain == 1 && errors.As(obstacle, new(*session.LostError)) {
		return
	}
	reason, lasts := obstacle.Error(), now.Sub(o.began)
	known := slices.Contains(o.said, reason)
	var text string
	switch {
	case lasts >= o.due():
		text = o.been + " for " + brief(lasts) + ": " + reason
	case known || len(o.said) >= mostReasons:
		return
	case len(o.said) == 0:
		text = is + ": " + reason
	default:
		text = still + ": " + reason
	}
	for o.due() <= lasts {
		o.reminds++
	}
	hint := ""
	if !known {
		o.said = append(o.said, reason)
		if e := (*session.Error)(nil); !errors.As(obstacle, &e) || !e.Full { // there is nothing to do but to wait
			_, hint = status(obstacle)
		}
	}
	o.spoken = true
	o.u.say(slog.LevelWarn, text, hint, "event", "away", "reason", reason)
	o.u.setAway(lament{reason, still})
}

// judge says what is in the way: a database that is away, one that lets nobody in, or what
// it remembers or replicates to.
func (o *outage) judge(obstacle error) (is, still string) {
	e := (*session.Error)(nil)
	o.there = errors.As(obstacle, new(*lock.LedgerError)) || errors.As(obstacle, new(*ledger.FencedError)) || errors.Is(obstacle, session.ErrUnconfirmed)
	switch {
	case o.there:
		o.been = "the command could not start"
		return "the command can't start yet", "the command still can't start"
	case errors.As(obstacle, &e) && e.Kind == session.Denied:
		o.been = "the database has refused the login"
		return "the database refuses the login", "the database still refuses the login"
	}
	o.been = "the database has been away"
	return "the database is away", "the database is still away"
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
	return o.been, o.began
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
		if !o.there { // if it was, the database had answered all along
			o.u.setAway(lament{})
			o.u.log.Warn("the database is back after "+brief(o.back.Sub(o.began)), "event", "back")
		}
	}
}
