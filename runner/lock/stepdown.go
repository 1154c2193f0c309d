package lock

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// A request to step down is a lock that the asking session takes: the holder's heartbeat
// finds that it can't take that lock shared. So holders need not listen, which would cost
// the database more than everything else that they do. The asking session's name says who
// asks, and which host should get the lock.

// StepDownRequest is a request to step down, which lasts until it is closed, or until the server
// has heard nothing from here for mostSilence.
type StepDownRequest struct {
	client *session.Client // keepUp's alone until done is closed
	stop   context.CancelFunc
	done   chan struct{} // closed at keepUp's end
	err    error         // why the request ended, once done is closed
}

// askAgain is how often a request tries its locks: a heartbeat may hold them for an
// instant, or somebody else may ask, too.
const askAgain = 50 * time.Millisecond

const (
	// keepUpEvery is how often the server hears from a request.
	keepUpEvery = time.Second
	// mostSilence is how long the server keeps a request of which it hears nothing. Without that
	// bound, a stopped process or a dead host would have each later holder's command ended. It
	// leaves a slow network some seconds.
	mostSilence = 5 * keepUpEvery
)

// AskToStepDown asks the holders of these locks to step down. If to isn't empty, their release
// names a waiter on that host, if there is one. Holders look every fifth of their lease.
//
// A transaction holds the request's locks, so that a pooler can't leave them with another
// client.
func AskToStepDown(ctx context.Context, cfg session.Config, locks []lockkey.ID, by, to string) (*StepDownRequest, error) {
	cfg.ApplicationName = askerName(by, to)
	client, err := session.OpenClient(ctx, cfg)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	r := &StepDownRequest{client: client, stop: stop, done: make(chan struct{})}
	var tries []string
	for _, id := range locks {
		tries = append(tries, advisory.StepDownOf(id).TryXactSQL()+"::int") // an AND would stop at the first that is taken
	}
	if err := r.take(ctx, tries); err != nil {
		stop()
		client.Close()
		return nil, err
	}
	go r.keepUp(ctx)
	return r, nil
}

// take takes the request's locks. A lock that stays taken belongs to another request, which asks
// the same.
func (r *StepDownRequest) take(ctx context.Context, tries []string) error {
	if _, err := r.client.Query(ctx, "BEGIN", session.EndSilentQuery(mostSilence)); err != nil {
		return err
	}
	for began := time.Now(); ; {
		rows, err := r.client.Query(ctx, "SELECT "+strings.Join(tries, " + "))
		if err != nil || rows.Is(strconv.Itoa(len(tries))) || time.Since(began) > time.Second {
			return err
		}
		if !pace.Sleep(ctx, askAgain) {
			return context.Cause(ctx)
		}
	}
}

// keepUp has the server hear from the request. It is a goroutine of its own, since the caller may
// wait for other answers for longer than mostSilence.
func (r *StepDownRequest) keepUp(ctx context.Context) {
	defer close(r.done)
	for r.err == nil {
		wait, cancel := context.WithTimeout(ctx, keepUpEvery)
		err := r.client.AwaitEnd(wait)
		cancel()
		if err != nil {
			r.err = r.client.Ended(err)
		} else {
			_, r.err = r.client.Query(ctx, session.PlainBeatQuery)
		}
	}
}

// Check returns an error if the request's session, and with it the request, has ended.
func (r *StepDownRequest) Check() error {
	select {
	case <-r.done:
	default:
		return nil
	}
	if session.HasCode(r.err, session.IdleInTransactionSessionTimeout) {
		return session.Errorf(session.Unreachable, "ask again",
			"keep up the request: the server has ended it, having heard nothing from here for %v", mostSilence)
	}
	return fmt.Errorf("keep up the request: %w", r.err)
}

// Close ends the request.
func (r *StepDownRequest) Close() {
	r.stop()
	<-r.done
	r.client.Close()
}

// stepDownSQL is an SQL expression that is false if somebody asks for a step-down.
func (h *Held) stepDownSQL() string {
	var probes []string
	for _, l := range h.Locks() {
		probes = append(probes, advisory.AsShared(advisory.StepDownOf(l.ID).ID).ProbeSQL())
	}
	return strings.Join(probes, " AND ")
}

// checkForStepDown makes the heartbeat look for requests to step down. The first heartbeat comes
// soon, since its comment shows what the session holds. It doesn't come so soon that a brief
// command would need one, which is over before anybody looks. With it the session warms up for its
// announcement. If the server is slow, the deadline, which counts from the sending of the last
// answered request, wants it sooner.
func (h *Held) checkForStepDown() {
	h.Session.SetHeartbeat(session.Heartbeat{
		Request: session.Request{SQL: []string{"SELECT " + h.stepDownSQL()}, Then: h.readStepDown},
		Once:    h.endWarmupQueries(),
	})
	soon := boottime.Now().Add(min(crowd.FirstBeat, leasetime.BeatEvery(h.cfg.Session.Lease)))
	h.Session.BeatAt(min(soon, h.Session.Deadline().Add(-leasetime.SteadyAnswer(h.cfg.Session.Lease))))
}

// readStepDown reads the value of stepDownSQL, which is the last answer.
func (h *Held) readStepDown(answers []session.Rows) {
	if answers[len(answers)-1].Is("f") {
		h.noteStepDown()
	}
}

// StepDown is a request to a holder, as far as the asking session's name tells.
type StepDown struct {
	By string // the person who asks
	To string // the host that should have the lock next (describe.ShortHost), or nothing
}

// StepDowns delivers the first request to step down, once it is known who asks.
func (h *Held) StepDowns() <-chan StepDown { return h.stepDowns }

// StepDownPending says whether somebody has asked to step down, even if it isn't known yet who did.
func (h *Held) StepDownPending() bool { return h.stepDownPending.Load() }

// noteStepDown notes a request to step down, and finds out who asks. The session's reader calls it,
// and the server may be slow or silent, so the answer comes later.
func (h *Held) noteStepDown() {
	if h.stepDownPending.Swap(true) {
		return
	}
	go func() {
		by, to := h.asker(context.Background()) // the end of the session ends this, too
		if by != "" || h.Err() == nil {
			h.stepDowns <- StepDown{By: cmp.Or(by, "somebody"), To: to}
		}
	}()
}

// asker is the name of the person who asks, and the host that should have the lock next.
func (h *Held) asker(ctx context.Context) (by, to string) {
	var requests []lockkey.ID
	for _, l := range h.Locks() {
		requests = append(requests, advisory.StepDownOf(l.ID).ID)
	}
	rows, err := h.Session.Query(ctx, `SELECT application_name FROM pg_catalog.pg_lock_status() AS l, LATERAL `+advisory.ActivityOfLockSQL+` AS a
WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock' AND `+advisory.AmongSQL(requests)+" LIMIT 1")
	if err != nil {
		return "", ""
	}
	row, err := rows.Only(1)
	if err != nil {
		return "", ""
	}
	return parseAsker(row[0])
}

// Prefer makes the release name a waiter on this host, a describe.ShortHost, if there is one.
func (h *Held) Prefer(host string) { h.prefers = host }

// askerPrefix begins the name of an asking session. The host comes before the person,
// since the server cuts a long name off at its end.
const askerPrefix = "pglead stepdown"

func askerName(by, to string) string {
	if to != "" {
		to = " to " + describe.ShortHost(to)
	}
	return askerPrefix + to + " by " + by
}

func parseAsker(name string) (by, to string) {
	rest, ok := strings.CutPrefix(name, askerPrefix)
	if !ok {
		return "", ""
	}
	if named, ok := strings.CutPrefix(rest, " to "); ok { // the host may be named by
		to, rest, _ = strings.Cut(named, " ")
		rest = " " + rest
	}
	_, by, _ = strings.Cut(rest, " by ")
	return by, to
}
