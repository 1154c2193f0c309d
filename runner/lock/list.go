package lock

import (
	"context"
	"strings"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

// Workers on one list tell each other which items they have run, before they free the
// item's lock.
//
// Channel: pglead.1.each.NUMBER, the number of the key as it was given, including {}.
// Payload: two fields separated by a space, the number of the item's lock and "ok"
// or "failed". More fields may be added at the end.

func listChannel(list lockkey.ID) string { return "pglead.1.each." + list.String() }

// SaidOfItem is the announcement that the command of a list's item has ended, well or not.
func SaidOfItem(list, item lockkey.ID, well bool) Said {
	end := "failed"
	if well {
		end = "ok"
	}
	return Said{Channel: listChannel(list), Payload: item.String() + " " + end}
}

// ListenToList makes the session's reader call heard with each end of a list's item that another
// session announces from now on. The function must not block.
func ListenToList(ctx context.Context, s *session.Session, list lockkey.ID, heard func(item lockkey.ID, well bool)) error {
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
	return err
}
