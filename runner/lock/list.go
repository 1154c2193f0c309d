package lock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// List is the work on a list, whose items each have a lock, in one session. Commands run in that
// session beside each other, in a transaction one at a time.
//
//	OpenList                   opens the session, and hears which items others on the list run
//	  Attempt                  begins an attempt at an item (list_attempt.go)
//	  Exchange                 releases the last item's lock, and tries for the next one's
//	    Attempt.Settle         if it was granted: returns when the command may start
//	    Attempt.KeepListening  if others have it, and the list comes back to the item
//	  Attempt.Close            ends it
type List struct {
	Session *session.Session

	cfg        Config
	number     lockkey.ID // of the key as it was given, including {}
	exchanging sync.Mutex // for the round trip of an exchange

	mu           sync.Mutex
	underWay     map[lockkey.ID]*Attempt
	kept         map[lockkey.ID]*listener // of the items to which the list comes back
	nextExchange *exchange                // which workers may still join, or nil
}

// mostKept limits the items to whose locks a list listens: each takes two of the server's locks,
// and all sessions share some thousands of those.
const mostKept = 64

// OpenList opens a session for the list of this number. It waits as Acquire does. With each end of
// an item that another session tells from then on, the session's reader calls heard, which must not
// block, with the SipHash of the item's key; through a pooler none is heard.
func OpenList(ctx context.Context, cfg Config, number lockkey.ID, heard func(item lockkey.ID, ok bool)) (*List, error) {
	cfg.ofList = true
	c := NewCandidate(cfg)
	l := &List{cfg: cfg, number: number, underWay: map[lockkey.ID]*Attempt{}, kept: map[lockkey.ID]*listener{}}
	err := c.persist(ctx, func() (err error) {
		if l.Session, err = c.openSession(ctx, ""); err != nil {
			return err
		}
		if cfg.announces() {
			err = l.listenForEnds(ctx, heard)
		}
		if err != nil {
			l.Session.Close()
			return err
		}
		cfg.Observer.away(nil)
		return nil
	})
	if err != nil {
		return nil, err
	}
	l.Session.StartHeartbeat()
	go l.passOnDeadlines()
	return l, nil
}

// Close ends the session.
func (l *List) Close() { l.Session.Close() }

// passOnDeadlines passes the session's deadlines on to its commands.
func (l *List) passOnDeadlines() {
	for {
		select {
		case deadline := <-l.Session.Renewed():
			l.passOn(deadline)
		case <-l.Session.Done():
			return
		}
	}
}

func (l *List) passOn(deadline boottime.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.underWay {
		select {
		case <-a.renewed: // an older one
		default:
		}
		a.renewed <- deadline
	}
}

// Paused asks the ledger whether each of these claims, to one lock each, is paused.
func (l *List) Paused(ctx context.Context, claims []Claim) ([]bool, error) {
	var locks []ledger.Lock
	for _, c := range claims {
		locks = append(locks, ledger.Lock{ID: c.IDs[0], Key: c.Key(0)})
	}
	rows, err := l.Session.Query(ctx, ledger.PausedAmongQuery(locks))
	if err != nil {
		return nil, err
	}
	return ledger.ParsePausedAmong(rows, len(locks))
}

// showKeys puts into the session's description the current keys, up to a maximum, and the longest
// delay under way. Whoever sees that the session is silent waits for that, too. The caller holds
// mu.
func (l *List) showKeys() {
	const most = 8 // the server cuts off what is too long
	d := l.cfg.describe()
	d.Since, d.Keys = time.Now(), nil
	for _, a := range l.underWay {
		d.Delay = max(d.Delay, a.delay)
		d.Keys = append(d.Keys, a.bid.cfg.Claim.Key(0))
	}
	slices.Sort(d.Keys) // so that of many keys it shows the same ones again
	d.Keys = d.Keys[:min(len(d.Keys), most)]
	l.Session.SetComment(d.Comment())
}

// checkAfter is how long an item is held before requests that it step down are looked for, and its
// key is shown. A brief command is over sooner, and so costs the server nothing.
const checkAfter = crowd.FirstBeat

// checkForStepDowns makes the heartbeat look for requests to all items that are held for long.
// Whatever their number, pg_stat_statements sees a single statement. The caller holds mu.
func (l *List) checkForStepDowns() {
	of := map[string]*Held{}
	for id, a := range l.underWay {
		if a.checks {
			of[advisory.StepDownOf(id).String()] = a.held
		}
	}
	beat := session.Heartbeat{Request: session.Request{SQL: []string{session.PlainBeatQuery}}}
	if len(of) > 0 {
		beat.SQL = []string{fmt.Sprintf(`SELECT n FROM pg_catalog.unnest('{%s}'::bigint[]) AS n
WHERE NOT %s`,
			strings.Join(slices.Sorted(maps.Keys(of)), ","), advisory.ProbeNumberSQL(true, "n"))}
		beat.Then = func(answers []session.Rows) {
			for _, row := range answers[len(answers)-1] {
				if h := of[strings.Join(row, " ")]; h != nil {
					h.noteStepDown()
				}
			}
		}
	}
	l.Session.SetHeartbeat(beat)
}
