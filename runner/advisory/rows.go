package advisory

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
)

// This file is about the rows of pg_locks, or of pg_lock_status(), the function behind that view. A
// condition is SQL for a WHERE.

// AmongSQL is the condition that the lock has one of these numbers. A bigint has its halves in
// classid and objid, and objsubid 1; a pair has objsubid 2. Numbers in quotes need no conversion to
// the columns' types.
// https://www.postgresql.org/docs/current/view-pg-locks.html
//
// For very many numbers the condition compares the halves separately, since the server can
// hash those. Then the answers may include other locks.
func AmongSQL(ids []lockkey.ID) string {
	const many = 100
	var list, classes, objs []string
	for _, id := range ids {
		list = append(list, fmt.Sprintf("('%d', '%d', '%d')", id.ClassID(), id.ObjID(), id.ObjSubID()))
		classes = append(classes, fmt.Sprintf("'%d'", id.ClassID()))
		objs = append(objs, fmt.Sprintf("'%d'", id.ObjID()))
	}
	if len(ids) > many {
		return "classid IN (" + strings.Join(classes, ", ") + ") AND objid IN (" + strings.Join(objs, ", ") + ")"
	}
	return "(classid, objid, objsubid) IN (" + strings.Join(list, ", ") + ")"
}

// InThisDatabaseSQL is a condition: each database has its own advisory locks.
const InThisDatabaseSQL = "database = (SELECT datid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()))"

// InLinesSQL is the condition that the lock is a ticket, or a mark, in the line of one of these
// locks. IsTicketSQL and IsMarkSQL tell the two apart.
func InLinesSQL(lines ...lockkey.ID) string {
	var classes []string
	for _, line := range lines {
		classes = append(classes, fmt.Sprintf("'%d'", TicketClass(line)))
	}
	return "classid IN (" + strings.Join(classes, ", ") + ")"
}

// Conditions on the locks in a line: see InLinesSQL.
const (
	IsTicketSQL = "objsubid = 1"
	IsMarkSQL   = "objsubid = 2"
)

// ActivityOfLockSQL is SQL for what the server shows of the session of a row l. A prepared
// transaction has no session, and for NULL the function would return all sessions.
const ActivityOfLockSQL = "pg_catalog.pg_stat_get_activity(coalesce(l.pid, 0))"

// ParseBackend reads the column pid of a row. It is 0 for the lock of a prepared transaction.
func ParseBackend(text string) (pid uint32, err error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err
}

// The lower half of a ticket's number is the time at which its owner came, in units of 10 ms. It
// wraps around every 497 days.

// TicketNowSQL is an SQL expression for the current time in these units, not wrapped around, by the
// server's clock.
const TicketNowSQL = "(extract(epoch FROM pg_catalog.clock_timestamp()) * 100)::bigint"

func ticketTime(at time.Time) uint32 { return uint32(at.UnixMilli() / 10) }

// PlaceSQL is an SQL expression for a ticket's place in line: its distance from now, as a signed
// 32-bit number.
func PlaceSQL() string {
	return fmt.Sprintf("((objid::bigint - %d + 2147483648) & 4294967295)", ticketTime(time.Now()))
}

// TicketNumberSQL is an SQL expression for the number of a ticket in a line. time is SQL, too.
func TicketNumberSQL(line lockkey.ID, time string) string {
	return fmt.Sprintf("(%d)::bigint << 32 | (%s & %d)", int32(TicketClass(line)), time, math.MaxUint32)
}

// MarkNumberSQL is an SQL expression for the pair of numbers of the mark of the ticket that a row
// shows.
func MarkNumberSQL(line lockkey.ID) string {
	return fmt.Sprintf("%d, (objid::bigint << 32 >> 32)::int", int32(TicketClass(line)))
}

// TicketAge is how long the owner of a ticket has waited.
func TicketAge(objID uint32, now time.Time) time.Duration {
	return max(0, time.Duration(int32(ticketTime(now)-objID))*10*time.Millisecond)
}
