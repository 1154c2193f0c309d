package lock

import (
	"context"
	"strings"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// NoteEnd sets how the command ended, for the ledger. Without a call, the ledger has that the
// command was stopped.
func (h *Held) NoteEnd(end ledger.End) { h.end = end }

// finishSQL are the queries that note the end in the ledger, when the command is dead and
// before the locks are given back. A crash of the server may lose what they write, which
// costs the next start its lock-delay. With a tick it would repeat a success, so there the
// commit waits for the disk.
func (h *Held) finishSQL() (queries []string) {
	if !h.recorded {
		return nil
	}
	commit := "off"
	switch {
	case h.cfg.Session.Quorum:
		commit = "on"
	case h.cfg.Ledger.Tick != nil:
		commit = "local"
	}
	for _, l := range h.Locks {
		queries = append(queries, h.end.Finish(l.ID, h.Token, l.Shared, commit)...)
	}
	return queries
}

// finishBeside notes the end in a commit that the standbys confirm.
func (h *Held) finishBeside(ctx context.Context) {
	for _, query := range h.finishSQL() {
		_, err := h.Session.Commit(ctx, "SELECT "+session.StandbysNow+", "+strings.TrimPrefix(query, "SELECT "))
		if err != nil {
			h.unnoted(err)
			return
		}
	}
}

// excused reports whether an error concerns the ledger alone, and warns of it. The locks
// are given back in any case, and the next start waits for its lock-delay.
func (h *Held) excused(err error) bool {
	if !h.recorded || refusal(err) == nil {
		return false
	}
	h.unnoted(ledger.Refused(err))
	return true
}

func (h *Held) unnoted(err error) {
	h.cfg.Log.Warn("the end of the command could not be noted, so that the next start waits for its lock-delay: "+err.Error(), "event", "ledger")
}
