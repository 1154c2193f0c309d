package lock

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// The end of a run is noted in the ledger before its lock is given back. Then the next start need
// not wait for a lock-delay, even on a node that has heard nothing.

// SetEnd sets how the command ended, for the ledger. Without a call, the ledger says that the
// command was stopped or, after AnnounceDeaths, that it was lost.
func (h *Held) SetEnd(end ledger.End) { h.end = end }

// NoteEnd notes in the ledger how the command ended, for a holder that keeps the lock for a while:
// otherwise the end would be unknown if this process died meanwhile. It closes done when that has
// been tried; only then may the lock be released. If it fails, the release tries again. In a
// transaction nothing is noted before the commit. With a lease so short that the session would be
// lost while the ledger waits for its tables, only the release notes the end.
func (h *Held) NoteEnd(ctx context.Context) (done <-chan struct{}) {
	const ledgerWaits = 4 * time.Second // its functions have a lock_timeout of 3 s
	lease := h.cfg.Session.Lease
	tried := make(chan struct{})
	go func() {
		defer close(tried)
		switch {
		case !h.recorded || h.cfg.Session.Transaction:
		case leasetime.HolderShare(lease)-leasetime.BeatEvery(lease) < ledgerWaits: // the last answer may be as old as a heartbeat
		case h.cfg.Session.Quorum:
			h.endNoted = h.finishBeside(ctx)
		default:
			answers, err := h.Session.Ask(ctx, session.Request{SQL: h.finishQueries(h.end)})
			if err == nil {
				h.checkNoted(answers)
			}
			h.endNoted = err == nil
		}
	}()
	return tried
}

// finishQueries are the queries that note an end in the ledger.
func (h *Held) finishQueries(end ledger.End) (queries []string) {
	for _, columns := range h.finishColumns(end) {
		queries = append(queries, "SELECT "+columns)
	}
	return queries
}

// finishColumns are those queries without their SELECT. They are sent when the command is
// dead, before the locks are given back. If a crash of the server loses what they write, the
// next start waits for its lock-delay. With a tick it would repeat a success, so then the
// commit waits for the disk.
func (h *Held) finishColumns(end ledger.End) (list []string) {
	if !h.recorded || h.endNoted {
		return nil
	}
	end.Outcome = cmp.Or(end.Outcome, ledger.Stopped)
	commit := "off"
	switch {
	case h.cfg.Session.Quorum:
		commit = "on"
	case h.cfg.Ledger.Tick != nil:
		commit = "local"
	}
	for _, l := range h.Locks {
		list = append(list, end.FinishColumns(l.ID, h.Token, l.Shared, commit)...)
	}
	return list
}

// finishBeside notes the end in a commit that the standbys confirm, and says whether the server
// took it.
func (h *Held) finishBeside(ctx context.Context) bool {
	var answers []session.Rows
	for _, columns := range h.finishColumns(h.end) {
		row, err := h.Session.Commit(ctx, columns)
		if err != nil {
			h.unnoted(err)
			return false
		}
		answers = append(answers, session.Rows{row})
	}
	h.checkNoted(answers)
	return true
}

// checkNoted warns if the answers to finishQueries, and maybe to others, don't show that the ledger
// has noted the end for each lock.
func (h *Held) checkNoted(answers []session.Rows) {
	noted := 0
	for _, rows := range answers {
		if len(rows) == 1 && len(rows[0]) == 2 && rows[0][1] == strconv.FormatInt(h.Token, 10) {
			noted++
		}
	}
	if h.recorded && !h.endNoted && noted < len(h.Locks) {
		h.unnoted(errNoRun)
	}
}

var errNoRun = errors.New("the ledger has no such run of this role under way")

// forgives says whether the server has rejected a query about the end of a run that the ledger has.
// It warns that the ledger was not told, as is likely. The locks are given back in any case.
func (h *Held) forgives(err error) bool {
	if !h.recorded || h.endNoted || answeredError(err) == nil {
		return false
	}
	h.unnoted(ledger.Rejected(err))
	return true
}

// unnoted warns that the ledger was not told how the command ended. If the ledger is gone, or has
// no such run, there may be nothing that the next start could wait for.
func (h *Held) unnoted(err error) {
	text := "the end of the command could not be noted"
	if !session.Undefined(err) && !errors.Is(err, errNoRun) {
		text += ", so that the next start waits for its lock-delay"
	}
	h.cfg.Log.Warn(text+": "+err.Error(), "event", "ledger")
}
