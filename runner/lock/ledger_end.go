package lock

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// The end of a run is recorded in the ledger before its lock is released. Then the next start need
// not wait for a lock-delay, even on a node that has heard nothing.

// record is what the ledger has, and still needs, of a run.
type record struct {
	token      int64           // of the run; 0: the ledger has none
	owed       []advisory.Lock // the locks for which the ledger still needs the end
	end        ledger.End      // of the command
	missing    bool            // the ledger lacks the run under a lock, and no warning has said so yet
	unanswered bool            // an end got no answer, and the ledger may have it
}

// begun says whether the run has started in the ledger: with the draw, or after it (noteStarted).
func (r *record) begun() bool { return r.token != 0 }

// queries are the queries that record an end in the ledger, for the locks for which that isn't done
// yet. They are sent when the command is dead, before the locks are released. commit is their
// synchronous_commit.
func (r *record) queries(end ledger.End, commit string) (queries []string) {
	for _, l := range r.owed {
		queries = append(queries, "SELECT "+r.sql(l, end, commit))
	}
	return queries
}

// sql are the SQL expressions of such a query.
func (r *record) sql(l advisory.Lock, end ledger.End, commit string) string {
	end.Outcome = cmp.Or(end.Outcome, ledger.Stopped)
	return end.RecordSQL(l.ID, r.token, commit)
}

// owes says whether the ledger still needs the end for any lock, after these answers.
func (r *record) owes(answers ...session.Rows) bool {
	left := len(r.owed)
	for _, rows := range answers {
		if r.isNoted(rows) {
			left--
		}
	}
	return left > 0
}

// isNoted says whether the rows show that the ledger has the end for one lock.
func (r *record) isNoted(rows session.Rows) bool {
	return len(rows) == 1 && len(rows[0]) == 2 && rows[0][1] == strconv.FormatInt(r.token, 10)
}

// SetEnd sets how the command ended, for the ledger. Without a call, the ledger says that the
// command was stopped or, after ReportLost, that it was lost.
func (h *Held) SetEnd(end ledger.End) { h.record.end = end }

// RecordEnd records in the ledger how the command ended, for a holder that keeps the lock a while:
// otherwise the end would be unknown if this process died meanwhile. When it has tried that, it
// closes done; only then may the lock be released. Once ctx has ended, it waits for each answer for
// releasePatience. If the try fails, it says nothing, and the release tries again. In a transaction
// nothing is recorded before the commit. With a lease so short that the session would be lost while
// the ledger waits for its tables, only the release records the end.
func (h *Held) RecordEnd(ctx context.Context) (done <-chan struct{}) {
	const ledgerWaits = 4 * time.Second // its functions have a lock_timeout of 3 s
	lease := h.cfg.Session.Lease
	silence := leasetime.HolderShare(lease) - leasetime.BeatEvery(lease) // the last answer may be as old as a heartbeat
	tried := make(chan struct{})
	go func() {
		defer close(tried)
		if !h.cfg.Session.Transaction && silence >= ledgerWaits {
			_ = h.recordEach(ctx)
		}
	}()
	return tried
}

// recordsApart says whether the ends are recorded before the release, each by a request of its own.
// So it is with a quorum, where they are commits on the second session, and for several locks: if
// the ledger's tables are locked, each record waits for 3 s, and all of them would wait for longer
// than an answer may take.
func (h *Held) recordsApart() bool { return h.cfg.Session.Quorum || len(h.record.owed) > 1 }

// recordEach records the end for one lock after the other, and returns the first error. Each query
// may wait for the ledger's tables, so it is a request by itself, whose answer renews the lease.
func (h *Held) recordEach(ctx context.Context) error {
	for len(h.record.owed) > 0 {
		rows, err := h.evaluate(ctx, h.record.sql(h.record.owed[0], h.record.end, h.endCommit()))
		if err != nil {
			return err
		}
		h.record.missing = h.record.missing || !h.record.isNoted(rows)
		h.record.owed = h.record.owed[1:]
	}
	h.checkRecorded()
	return nil
}

// evaluate evaluates columns in a commit that the standbys confirm, if there is a quorum. If no
// answer comes, it notes that in the record.
func (h *Held) evaluate(ctx context.Context, columns string) (rows session.Rows, err error) {
	ctx, cancel := lateBy(ctx, releasePatience)
	defer cancel()
	defer func() { h.record.unanswered = h.record.unanswered || err != nil && session.AnsweredError(err) == nil }()
	if !h.cfg.Session.Quorum {
		return h.Session.Query(ctx, "SELECT "+columns)
	}
	row, err := h.Session.AskSecond(ctx, columns)
	return session.Rows{row}, err
}

// tidyQueries are the queries that tidy up in the ledger behind this run, or none. They come after
// the unlock, so that no other run waits for them, and what becomes of them doesn't matter. They
// don't go by what is owed: RecordEnd may have recorded the ends long before.
func (b *bid) tidyQueries() (queries []string) {
	if !b.record.begun() {
		return nil
	}
	for _, l := range b.Locks() {
		queries = append(queries, ledger.TidyQueries(l.ID, l.Shared)...)
	}
	return b.cfg.toWrite(queries)
}

// toWrite prepares queries that write outside the transaction of the lock, if that is a
// transaction's: a pooler's connection may have any defaults.
func (cfg *Config) toWrite(queries []string) []string {
	for i := range queries {
		if cfg.Session.Transaction {
			queries[i] = session.ToWrite + queries[i]
		}
	}
	return queries
}

// endCommit is the synchronous_commit of an end that this process records. If a crash of the server
// loses it, the next start waits for its lock-delay. With a tick (--once-per) it would also repeat
// a success, so then the commit waits for the disk.
func (b *bid) endCommit() string {
	switch {
	case b.cfg.Session.Quorum:
		return "on"
	case b.cfg.Ledger.Tick != nil:
		return "local"
	}
	return "off"
}

// checkRecorded warns if the answers to record.queries, and maybe to others, don't show that the
// ledger has the end for each lock, or if recordEach has found that out and not yet said so.
func (h *Held) checkRecorded(answers ...session.Rows) {
	if (h.record.missing || h.record.owes(answers...)) && !h.record.unanswered {
		h.warnUnrecorded(errNoRun)
		h.record.missing = false
	}
}

var errNoRun = errors.New("the ledger has no such run of this role under way")

// recordAgain is for the record of an end that the server has rejected with err in a release. If
// somebody has canceled it, a new session repeats it: that of the lock may have ended with the
// release. The locks are free by now. A start that comes before the record waits for it.
func (h *Held) recordAgain(ctx context.Context, err error) {
	if !session.HasCode(err, session.QueryCanceled) {
		h.warnUnrecorded(h.rejectedByLedger(err))
		return
	}
	ctx, cancel := lateAfter(ctx)
	defer cancel()
	r := newReport(h.bid)
	r.announces = false
	r.send(ctx)
}

// warnUnrecorded warns that the ledger was not told how the command ended, or probably not. If the
// ledger is gone, or has no such run, the next start may have nothing to wait for, and the warning
// doesn't say that it waits. A waiter that has heard the end doesn't wait either.
func (b *bid) warnUnrecorded(err error) {
	text := "the end of the command could not be noted"
	if !session.Undefined(err) && !errors.Is(err, errNoRun) {
		text += ", so that the next start may wait for its lock-delay"
	}
	b.cfg.Log.Warn(text+": "+err.Error(), "event", "ledger")
}
