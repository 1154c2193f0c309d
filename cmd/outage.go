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

// outage is a database that is away, as a log and cron's mail are told of it: a
// line when that begins, when there is another reason, rarely while it lasts, and
// at its end.
type outage struct {
	u *ui

	mu      sync.Mutex
	began   time.Time
	back    time.Time // when it answered last, or zero since it went away
	vain    int       // attempts
	said    []string  // the reasons that a log was told
	reminds int
	spoken  bool   // since it answered last
	been    string // what a message says of it for as long as it lasts
	there   bool   // it answers, but its ledger or its standbys keep the command from starting
}

const (
	// outageApart is how long a database that is back has to answer for the next
	// outage to be another one: one that comes and goes is told of rarely, too.
	outageApart = time.Minute
	// mostReasons bounds the lines of reasons that alternate.
	mostReasons = 4
)

// away is told of an attempt that was in vain. A session that ended and is
// followed by another at once is not worth a line.
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
		if e := (*session.Error)(nil); !errors.As(obstacle, &e) || !e.Full { // whose hint is to wait
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

// due is how long an outage has lasted when a log is told of it again.
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

// answers is told that there is nothing in the way any more.
func (o *outage) answers() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() || !o.back.IsZero() {
		return
	}
	o.back = time.Now()
	if o.spoken {
		o.spoken = false
		if !o.there { // which the database's answer is no end of
			o.u.setAway(lament{})
			o.u.log.Warn("the database is back after "+brief(o.back.Sub(o.began)), "event", "back")
		}
	}
}
