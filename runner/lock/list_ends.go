package lock

import (
	"context"
	"strings"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// Workers on one list tell each other which items they have run, before they free the item's lock.
//
// Channel: pglead.1.each.NUMBER, the number of the list.
// Payload: two fields separated by a space, the SipHash of the item's key and "ok" or "failed".
// More fields may be added at the end. It is not the number of the item's lock, since under some
// schemes two keys may have the same one.

func (l *List) channel() string { return "pglead.1.each." + l.number.String() }

// endSQL is an SQL expression that tells the other workers on the list how an item's command has
// ended.
func (l *List) endSQL(h *Held) string {
	end := "failed"
	if h.record.end.Outcome == ledger.OK {
		end = "ok"
	}
	return notifySQL(l.channel(), "'"+lockkey.SipHash24(h.cfg.Claim.Key(0)).String()+" "+end+"'")
}

// tellQueries tell the other workers on the list of an end, in a release. They come after the
// record in the ledger, if that succeeds: whoever takes an item as done must not leave one behind
// that the ledger calls lost. A release in a transaction leaves them out (endTransaction).
func (l *List) tellQueries(h *Held) []string {
	return selectQueries([]string{asyncCommitSQL, l.endSQL(h)})
}

// listenForEnds makes the session's reader call heard with each end of a list's item that another
// session tells from now on; item is the SipHash of its key.
func (l *List) listenForEnds(ctx context.Context, heard func(item lockkey.ID, ok bool)) error {
	l.Session.OnNotify(l.channel(), func(_ uint32, payload string) {
		fields := strings.Fields(payload)
		if len(fields) < 2 || fields[1] != "ok" && fields[1] != "failed" {
			return
		}
		if item, err := lockkey.Parse(fields[0]); err == nil {
			heard(item, fields[1] == "ok")
		}
	})
	_, err := l.Session.Query(ctx, `LISTEN "`+l.channel()+`"`)
	return session.Rejected(err, "listen for what others on the list run")
}
