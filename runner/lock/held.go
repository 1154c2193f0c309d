package lock

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// Held is a bid that has settled: locks under which a command may be started, and the session that
// they depend on. Its bid has the Session, which they are lost with, the fencing Token, and the
// SystemID of the cluster that the token belongs to.
type Held struct {
	*bid
	settledAt time.Time    // when bid.settle was done, and the command could start
	toCall    crowd.ToCall // whom in line it may have to call when it is done

	stepDownPending atomic.Bool
	stepDowns       chan StepDown           // the first request
	renewed         <-chan boottime.Instant // the session's deadlines; in a list, the attempt's copy of them

	staysUntil time.Time // after the release
}

// Slot is, with a gate, the index of the lock in the claim, from 1; otherwise it is 0.
func (h *Held) Slot() int {
	if !h.cfg.Claim.takesAny() {
		return 0
	}
	return 1 + slices.Index(h.cfg.Claim.IDs, h.grants[0].ID)
}

// Lost is closed when the session has ended, and its locks with it. Unless Close has ended it, Err
// then says why.
func (h *Held) Lost() <-chan struct{} { return h.Session.Done() }

// Err is the cause of the loss, or nil. It notices a deadline that has passed: after this host was
// frozen, the command may be seen to end before the session has looked at its clock.
func (h *Held) Err() error {
	h.Session.ExpireIfDue()
	return h.Session.Err()
}

// Renewed delivers the session's latest deadline, after each answer of the server.
func (h *Held) Renewed() <-chan boottime.Instant { return h.renewed }

// Release frees the locks: when it returns nil another session can have them. The command has to be
// dead, or never started. If anybody waits, Release announces the end in a transaction before the
// one that frees the locks, so that the next holder has heard it. If nobody waits it announces
// nothing, since a NOTIFY costs the whole server; only a session that works on a list announces
// each end. The caller calls Held.Call first, if somebody in line may not listen. A session that
// nobody else uses ends with the release, unless the waiters in line may still have to look up its
// role (Close).
//
// A release has a holder's share of the lease (HolderShare) for its answers. Once that time is
// over, or ctx has ended, each request still has releasePatience. In a list ctx does not matter,
// and a release also waits for other items' requests: the session goes on, so the lock has to be
// freed.
func (h *Held) Release(ctx context.Context) error { return h.release(ctx, nil) }

// release is Release, which also sends these queries with the end. They tell it to others on a list.
func (h *Held) release(ctx context.Context, tell []string) error {
	if h.cfg.ofList {
		ctx = context.WithoutCancel(ctx)
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, leasetime.HolderShare(h.cfg.Session.Lease), ErrNoAnswer)
		defer cancel()
	}
	tidy := h.tidyQueries()
	if len(tidy) > 0 {
		defer func() { _, _ = h.Session.Query(ctx, tidy...) }()
	}
	if h.cfg.Session.Transaction {
		return h.endTransaction(ctx)
	}
	var record []string
	var recordErr error
	if h.recordsApart() {
		recordErr = retryCanceledFunc(func() error { return h.recordEach(ctx) })
	} else {
		record = h.record.queries(h.record.end, h.endCommit())
	}
	stays := h.staysForRole()
	answers, err := h.askAtEnd(ctx, session.Request{SQL: append(record, h.releaseQueries(tell)...), Last: !h.cfg.ofList && !stays && len(tidy) == 0})
	if err != nil && session.AnsweredError(err) == nil {
		return err // ReportEnded records what is left
	}
	if recordErr != nil {
		h.warnUnrecorded(recordErr)
	}
	if stays {
		h.staysUntil = time.Now().Add(stayForRole)
	}
	return h.judgeRelease(ctx, answers, err, recordErr)
}

// After a brief run, or if the holder had to call those in line, the session stays for
// stayForRole after the release. In this time the waiters look up the session's role: without its
// role its announcements don't count (Evidence.Trusts), and just after the release many waiters are
// busy with their own tries. During a longer run they have had the time for that.
const (
	stayForRole = 100 * time.Millisecond
	briefRun    = time.Second
)

func (h *Held) staysForRole() bool {
	return h.showsEnd() && (h.toCall != crowd.NoneToCall || time.Since(h.settledAt) < briefRun)
}

// askAtEnd sends a request of a release.
func (h *Held) askAtEnd(ctx context.Context, r session.Request) ([]session.Rows, error) {
	ctx, cancel := lateBy(ctx, releasePatience)
	defer cancel()
	return h.Session.Ask(ctx, r)
}

// judgeRelease says whether the locks are free, and warns of what else the server has rejected.
// Each query was a transaction of its own, so an error of the others does not keep the server from
// carrying out the unlock, which is the last. If an end was recorded before, in vain, recordErr says
// why, and a warning has said so.
func (h *Held) judgeRelease(ctx context.Context, answers []session.Rows, err, recordErr error) error {
	last := len(answers) - 1
	released := answers[last].Is(strconv.Itoa(len(h.grants)))
	if !released && h.cfg.mayHoldUnused(err) && h.cfg.freeUnused(ctx, h.Session, h.Locks()) == nil {
		released = true
		if !slices.ContainsFunc(answers[:last], func(rows session.Rows) bool { return len(rows) == 0 }) {
			err = nil // only the unlock was rejected
		}
	}
	switch {
	case !released && err != nil:
		return h.cfg.Claim.rejected(err)
	case !released:
		return session.Errorf(session.Unsafe, "", "release lock %s: the server says that the session did not hold it", h.cfg.Claim)
	case err != nil && recordErr == nil && h.record.owes(answers...): // it has rejected the record of an end
		h.recordAgain(ctx, err)
	case err != nil && !h.isArrivalTimeout(err, answers):
		h.warnUnannounced(err)
	case err == nil && recordErr == nil:
		h.checkRecorded(answers...)
	}
	return nil
}

func (b *bid) warnUnannounced(err error) {
	err = session.Rejected(err, "announce that the command has ended")
	b.cfg.Log.Warn("those who wait could not be told that the command has ended, and may wait for the lock-delay: "+err.Error(), "event", "unheard", "reason", err.Error())
}

// Close ends the session, unless others on a list use it, and frees with it what is still held. If
// the session has to stay for a while (stayForRole), Close first waits for the rest of that.
func (h *Held) Close() {
	if !h.cfg.ofList {
		time.Sleep(time.Until(h.staysUntil))
		h.Session.Close()
	}
}

// releaseQueries are the queries that await arriving waiters, show and announce the end, tell the
// others on a list, end the call and, as the last one, free the locks.
func (h *Held) releaseQueries(tell []string) []string {
	queries := h.awaitArrivalsQueries()
	if h.showsEnd() && !h.cfg.Claim.Shared {
		queries = append(queries, h.showEndQuery())
	}
	return slices.Concat(queries, h.announceEndQueries(), tell, selectQueries(h.leaveSQL()), []string{h.unlockQuery()})
}

func (b *bid) unlockQuery() string { return "SELECT " + advisory.UnlockAllSQL(b.Locks()) }

// EncodedRelease is the request by which the guard, which shares the socket, records the end in the
// ledger, announces it, and releases the locks, when the command is dead, and this process gone,
// stopped or cut off. It is nil on an encrypted connection, to which nobody else can write, and in
// a transaction without a ledger, where there is nothing to say. The session ends with the request,
// unless it has other locks or may be a pooler's (session.Request.Last).
//
// These commits wait for no standby and for no disk, since the lock's session must not hang in a
// commit. If they are lost, the next start waits as if nothing had been recorded.
func (h *Held) EncodedRelease() (request []byte, endsSession bool) {
	queries, ends := h.record.queries(ledger.End{Outcome: ledger.Killed}, "off"), !h.cfg.ofList
	switch {
	case !h.cfg.Session.Transaction:
		queries = slices.Concat(queries, h.releaseQueries(nil), h.tidyQueries())
	case len(queries) > 0:
		queries, ends = append(queries, "COMMIT"), false
	default:
		return nil, false
	}
	request, possible := h.Session.Encoded(session.Request{SQL: queries, Last: ends})
	if !possible {
		return nil, false
	}
	return request, ends
}
