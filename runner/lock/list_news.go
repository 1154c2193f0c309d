package lock

import (
	"context"
	"strings"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

// Workers on one list tell each other which items they have run, before they free the item's lock.
//
// Channel: pglead.1.each.NUMBER, the number of the list.
// Payload: two fields separated by a space, the number of the item's lock and "ok" or "failed".
// More fields may be added at the end.

// ItemEnd says how the command of a list's item has ended.
type ItemEnd struct {
	List lockkey.ID // of the key as it was given, including {}
	Item lockkey.ID // its lock
	OK   bool
}

func listChannel(list lockkey.ID) string { return "pglead.1.each." + list.String() }

// notifySQL is an SQL expression that tells the other workers on the list.
func (e ItemEnd) notifySQL() string {
	end := "failed"
	if e.OK {
		end = "ok"
	}
	return notifySQL(listChannel(e.List), "'"+e.Item.String()+" "+end+"'")
}

// Tell tells the other workers on the list.
func (e ItemEnd) Tell(ctx context.Context, s *session.Session) error {
	_, err := s.Query(ctx, "SELECT "+asyncCommitSQL+", "+e.notifySQL())
	return err
}

// ListenToList makes the session's reader call heard with each end of a list's item that another
// session tells from now on. The function must not block.
func ListenToList(ctx context.Context, s *session.Session, list lockkey.ID, heard func(item lockkey.ID, ok bool)) error {
	channel := listChannel(list)
	s.OnNotify(channel, func(_ uint32, payload string) {
		fields := strings.Fields(payload)
		if len(fields) < 2 || fields[1] != "ok" && fields[1] != "failed" {
			return
		}
		if item, err := lockkey.Parse(fields[0]); err == nil {
			heard(item, fields[1] == "ok")
		}
	})
	_, err := s.Query(ctx, `LISTEN "`+channel+`"`)
	return session.Rejected(err, "listen for what others on the list run")
}
