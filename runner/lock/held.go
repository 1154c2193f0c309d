package lock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// Held are locks under which a command may be started, and the session that they
// depend on.
type Held struct {
	grant
	Session *session.Session
	Took    time.Duration // all of Acquire; 0 in each

	cfg      Config
	end      ledger.End    // of the command
	prefers  string        // the host that is to have the lock next
	requests chan struct{} // requests to step down
	next     succession
	showsEnd bool      // it was in line, and its session's name shows the token
	since    time.Time // when it was granted
	stays    time.Time // until when its session stays after the release
}

// After a tenure shorter than briefly the session stays for stayAfterBrief after the
// release. Those in line look up its role meanwhile: without that its words don't count
// (Evidence.Trusts), and just then many of them are busy with tries of their own. A longer
// tenure gave them the time.
const (
	stayAfterBrief = 100 * time.Millisecond
	briefly        = time.Second
)

// Lost is closed when the session is gone, and its locks with it. Err then says
// why.
func (h *Held) Lost() <-chan struct{} { return h.Session.Lost() }

// Err is the cause of the loss, or nil.
func (h *Held) Err() error { return h.Session.Err() }

// Release gives the locks back: when it returns nil another session can have them. The
// command is dead, or was never started. If anybody waits, Release announces that in a
// transaction before the one that frees the locks, so that the next holder has heard it.
// If nobody waits it says nothing, since a NOTIFY costs the whole server; only a session
// that works on a list announces each end. A session that nobody else uses ends with the
// release, unless the waiters in line may still have to look up its role (Close).
func (h *Held) Release(ctx context.Context) error {
	if h.cfg.Session.Transaction {
		h.Session.SetHolding(false)
		_, err := h.Session.Query(ctx, append(h.finishSQL(), "COMMIT")...)
		if h.excused(err) {
			return nil // the transaction is over in any case
		}
		return h.error(err)
	}
	if h.cfg.Session.Quorum {
		h.finishBeside(ctx)
	}
	if err := h.call(ctx); err != nil {
		return err
	}
	queries, unlock := h.releaseSQL()
	if !h.cfg.Session.Quorum {
		queries = append(h.finishSQL(), queries...)
	}
	queries = append(queries, h.next.endCallSQL()...)
	staysForRole := h.showsEnd && (h.next.who != NoneToCall || time.Since(h.since) < briefly)
	answers, err := h.Session.Ask(ctx, session.Request{SQL: append(queries, unlock), Last: !h.cfg.SharedSession && !staysForRole})
	if err != nil && !h.excused(err) {
		return h.error(err)
	}
	if staysForRole {
		h.stays = time.Now().Add(stayAfterBrief)
	}
	if !answers[len(answers)-1].Is(strconv.Itoa(len(h.Locks))) {
		return session.Errorf(session.Unsafe, "", "release lock %s: the server says that the session did not hold it", h.cfg.Claim)
	}
	return nil
}

// Close ends the session, and frees with it what is still held. After a brief tenure it
// first waits for the rest of stayAfterBrief.
func (h *Held) Close() {
	if !h.cfg.SharedSession {
		time.Sleep(time.Until(h.stays))
		h.Session.Close()
	}
}

func (h *Held) error(err error) error {
	return session.Refused(err, "lock "+h.cfg.Claim.String())
}

// releaseSQL are the queries that announce, for each lock, that its command is dead, and
// the query that gives all locks back.
func (h *Held) releaseSQL() (words []string, unlock string) {
	// A holder that did not wait was not followed by a line, so nobody is likely to start
	// listening now.
	if h.showsEnd && !h.Locks[0].Shared {
		words = append(words, h.showEndSQL())
	}
	for _, l := range h.Locks {
		words = append(words, h.endSQL(l))
	}
	return words, "SELECT " + h.unlockSQL()
}

// unlockSQL is an SQL expression that gives all locks back and counts them. It is a sum,
// so that the server evaluates every call.
func (h *Held) unlockSQL() string {
	var unlocks []string
	for _, l := range h.Locks {
		unlocks = append(unlocks, l.sql("advisory_unlock")+"::int")
	}
	return strings.Join(unlocks, " + ")
}

// endSQL is the query that announces the end of a tenure to those in line. It names
// the first of them, or one on the preferred host.
func (h *Held) endSQL(l Lock) string {
	word := evidence.Clean
	if l.Shared {
		word = evidence.Left
	}
	if h.cfg.SharedSession && !l.Shared && h.prefers == "" { // others may come back for the item without standing in line
		return notifySQL(evidence.Channel(l.ID), h.endPayload(word))
	}
	// In a backend's first moments an order by places, as in a look, would take as long
	// as all the rest. This order names the wrong session when the tickets' time has
	// wrapped; then the right one tries a little later.
	order := "objid"
	if len(h.Locks) > 1 { // waiters for this lock come before those for another
		order = fmt.Sprintf("classid <> '%d', objid", lockkey.Ticket(l.ID))
	}
	if h.prefers != "" {
		order = fmt.Sprintf("(SELECT application_name NOT LIKE '%%@%s' FROM pg_catalog.pg_stat_get_activity(pid)), %s", likeable(h.prefers), order)
	}
	columns := fmt.Sprintf("pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('%s', %s)",
		evidence.Channel(l.ID), h.endPayload(word, "' "+evidence.ToField+"'", "pid"))
	return fmt.Sprintf("SELECT %s FROM pg_catalog.pg_lock_status() AS w WHERE %s ORDER BY %s LIMIT 1", columns, h.cfg.Claim.listenersSQL(h.Locks), order)
}

// EncodedRelease is what the guard, which shares the socket, sends in place of this
// process when that is gone and the command is dead: the clean end, and the unlock. It
// is nil where that is impossible: other readers may be alive, a transaction announces
// nothing before its end, and nobody else can write to an encrypted connection. The
// session ends with the request, unless it has other locks.
func (h *Held) EncodedRelease() (request []byte, endsSession bool) {
	if h.cfg.Session.Transaction || h.Locks[0].Shared {
		return nil, false
	}
	words, unlock := h.releaseSQL()
	if h.recorded && !h.cfg.Session.Quorum {
		killed := *h
		killed.end = ledger.End{Outcome: ledger.Killed}
		words = append(killed.finishSQL(), words...)
	}
	ends := !h.cfg.SharedSession
	request, possible := h.Session.Encoded(session.Request{SQL: append(words, unlock), Last: ends})
	if !possible {
		return nil, false
	}
	return request, ends
}

// likeable makes a host's name safe in a quoted pattern for LIKE.
func likeable(host string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '_'
	}, host)
}
