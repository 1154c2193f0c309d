package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// A holder whose host is dead or cut off sends no more requests. The first in line sees the number
// of its last request. If two looks show the same number, the server has taken up no other request
// between the receipt of the first look and the sending of the second: whatever it had answered by
// then was sent before the first look was received. A command lives for a known time after the
// sending of its holder's last answered request. Once the waiter's boot time clock has counted that
// time between the two looks, the command is dead by the holder's clock, too. So the first in line
// ends the session. The server would do that as well, a third of the lease later and by a clock
// that may be set. The next two in line do so a little later, in case the first is frozen itself.

// watchHolder compares a look with earlier ones, and ends a silent holder's session. Until
// the next look the heartbeat watches the holder (line_watch.go).
//
// When a holder falls silent, this happens, in this order:
//
//	waiter.startWatch        a look has shown the holder: the heartbeat asks for its latest request from now on
//	watch.judge              the heartbeat's answers show one request for as long as enoughSilence says: shouldLook
//	waiter.actOnWatch        ends the watch, and makes it time for a look
//	bid.look, watchHolder    the look shows the same request: the holder has been silent for long enough
//	waiter.endSilent         ends the session in a statement that finds the same request once more
//	Evidence.NoteSilence     no command is alive that had started by then; recordSilence tells the ledger
//	waiter.tryNow            takes the lock once the server has freed it: by many tries if the session was ended
//	bid.settle               starts without a delay
func (w *waiter) watchHolder(ctx context.Context, found *evidence.Look) error {
	if !w.cfg.Claim.hasOneHolder() { // one that is silent tells nothing of the others
		return nil
	}
	s := found.HolderOf(w.place.line)
	if s.Request == 0 {
		w.watched.forgetRequest()
		w.unwatch()
		return nil
	}
	silent, again := w.watched.noteLooked(s, found)
	// A newcomer that sorts before this waiter, since the server's clock was set back, has seen
	// less of the silence. So the best rank counts.
	if !again || found.Rank < w.watched.bestRank {
		w.watched.bestRank = found.Rank
	}
	enough := w.enoughSilence(s, found)
	if again && silent >= enough {
		w.unwatch()
		return w.endSilent(ctx, s, found)
	}
	if err := w.startWatch(ctx, s, enough); err != nil {
		return err
	}
	if s.Token == 0 && !again { // in `each` holders never show a token
		w.turn.LookAt(time.Now().Add(lookForTokenAfter))
	}
	return nil
}

// lookForTokenAfter is how soon a holder that shows no token is looked at again. It may be about to
// draw one, which the announcement of its death will name.
const lookForTokenAfter = 20 * time.Millisecond

// enoughSilence is how long a holder must have been silent until its own command is dead, and so
// are all earlier ones that may have been alive. A busy machine may kill late: for that it adds as
// much again as the holder itself leaves for the kill, but at most a second. Each place in line
// adds to it, so that the waiters before this one get their turn.
func (w *waiter) enoughSilence(s evidence.Seat, found *evidence.Look) time.Duration {
	delay := max(s.Outlives, w.cfg.LockDelay)
	for _, id := range found.HeldBy(s.PID) {
		delay = max(delay, w.listener.evidence[id].Verdict(0).Delay)
	}
	lease := w.cfg.Session.Lease
	forKill := min(leasetime.ForKill(lease), time.Second)
	perPlace := max(lease/10, crowd.TurnPatience)
	return delay + forKill + time.Duration(w.watched.bestRank-1)*perPlace
}

// endSilent ends the session if it is still silent and this role may end it. If the role may
// not, the server will end it later, and the command is just as dead.
//
// The look proves that the session had the lock when the look was sent, and no longer: a server
// that is ending a session frees its lock first, and shows the session for a moment longer. So a
// start that was heard after that may be another holder's, and still counts.
func (w *waiter) endSilent(ctx context.Context, s evidence.Seat, found *evidence.Look) error {
	ask := func(end string) (session.Rows, error) {
		return w.Session.Query(ctx, fmt.Sprintf("SELECT %s\nFROM pg_catalog.pg_stat_get_activity(%d) WHERE backend_start = '%s' AND state_change = '%s' AND %s",
			end, s.PID, s.Opened, s.Changed, describe.RequestSQL(s.Request)))
	}
	rows, err := ask(`CASE
		WHEN (pg_catalog.pg_has_role(usesysid, 'USAGE') OR pg_catalog.pg_has_role('pg_signal_backend', 'USAGE'))
		AND (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) >= (SELECT rolsuper FROM pg_catalog.pg_roles WHERE oid = usesysid)
		THEN pg_catalog.pg_terminate_backend(pid) ELSE false END`)
	if session.HasCode(err, session.InsufficientPrivilege) { // somebody has revoked the function itself
		rows, err = ask("false")
	}
	if err != nil {
		return w.cfg.Claim.rejected(err)
	}
	w.watched.forgetRequest()
	if len(rows) == 0 { // the session has spoken after all, or is gone
		return nil
	}
	message := "the holder has been silent for as long as its command can live: "
	if rows.Is("t") {
		message += "its session is ended"
		w.turn.Freed(time.Now())
	} else {
		message += "its session, which this role may not end, is left to the server"
	}
	w.cfg.Log.Info(message, "event", "silent", "backend", s.PID)
	for _, id := range found.HeldBy(s.PID) { // its silence counts for all of them
		w.listener.evidence[id].NoteSilence(s)
	}
	if w.usesLedger() {
		w.recordSilence(ctx, s, found)
	}
	return nil
}

// recordSilence closes, in the ledger, the run of a holder that was silent for as long as its
// command can live. This helps the waiters that have not seen the silence.
func (b *bid) recordSilence(ctx context.Context, of evidence.Seat, found *evidence.Look) {
	if of.Token == 0 {
		return
	}
	var queries []string
	for _, id := range found.HeldBy(of.PID) {
		queries = append(queries, "SELECT "+ledger.End{Outcome: ledger.Lost}.RecordSQL(id, of.Token, "local"))
	}
	if _, err := b.Session.Query(ctx, queries...); err != nil { // then those waiters wait for their lock-delay
		b.cfg.Log.Info("the ledger was not told of it: "+err.Error(), "event", "ledger")
	}
}
