package evidence

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
)

// Look is what the server shows of a lock: its holders and, up to mostSeats, those in line before
// this session, in order.
type Look struct {
	Holders []Seat
	Line    []Seat // this session's own seat is the last
	Role    uint32 // of this session

	Rank    int    // of this session's ticket, from 1; without a ticket it means nothing
	Ticket  uint32 // of this session, or 0
	Waiting int    // the number of all in line
	Marked  int    // the number of those in line that listen

	Sent     boottime.Instant // when the server was asked
	Received boottime.Instant // when the answer arrived
}

// Seat is a session's part in a lock, as far as a waiter needs it. (People are shown an
// inspect.View.)
type Seat struct {
	ID       lockkey.ID // of the lock it holds
	Shared   bool
	PID      uint32
	Role     uint32
	Token    int64         // of a holder that shows it, or 0
	Ended    bool          // it shows that this run's command is dead
	Outlives time.Duration // how long its command may outlive the lock, if it says so
	Opened   string        // when the session was opened, by the server's clock, if this role may see it

	// Request is the number of its latest request, from 1. It is 0 if the session numbers none, or
	// this role may not see it, or a transaction holds the lock: nobody watches such a session.
	Request uint64
	Changed string        // when the session's state last changed, by the server's clock
	Age     time.Duration // time since that change
}

// mostSeats is how many sessions a look lists besides the holder of each lock: those before this
// one in line, and readers.
const mostSeats = 72

// LookQuery asks for the holders of the locks ids. It also asks for those before this session in
// line if that is one of the first listeners, and for all in line if it has no ticket. It calls
// functions instead of the views that are made of them: the views are slower, and a session's first
// query would have to read their definitions. What a session shows of itself is asked for last, and
// of few sessions: with a hundred in line, asking it of all took three quarters of the time. If
// nobody has a lock or a ticket, the answer is one row without a seat, since a bid that stands in
// no line has to know its own role, too. Those in the server's own queue, of which there may be any
// number, are left out.
func LookQuery(ids []lockkey.ID, line lockkey.ID, listeners int) string {
	inLine, mark, ticket := advisory.InLinesSQL(line), advisory.IsMarkSQL, advisory.IsTicketSQL
	return `WITH l AS MATERIALIZED (
	SELECT *, ` + inLine + ` AND ` + mark + ` AS mark, CASE WHEN ` + inLine + ` AND ` + ticket + ` THEN ` + advisory.PlaceSQL() + ` END AS place
	FROM pg_catalog.pg_lock_status()
	WHERE locktype = 'advisory' AND granted AND ` + advisory.InThisDatabaseSQL + `
		AND (` + inLine + ` AND objid <> '` + strconv.FormatUint(uint64(advisory.CommonTicket), 10) + `' OR ` + advisory.AmongSQL(ids) + `)),
own AS MATERIALIZED (SELECT place, pid, objid FROM l WHERE pid = pg_catalog.pg_backend_pid() AND place IS NOT NULL),
line AS MATERIALIZED (
	SELECT count(l.place) AS waiting, count(*) FILTER (WHERE (l.place, l.pid) < (own.place, own.pid)) AS before, count(*) FILTER (WHERE l.mark) AS marked
	FROM l LEFT JOIN own ON true)
SELECT l.place IS NOT NULL, l.classid, l.objid, l.objsubid, l.mode, l.pid, a.usesysid, a.application_name,
	a.backend_start, a.state_change, extract(epoch FROM pg_catalog.clock_timestamp() - a.state_change), pg_catalog.left(a.query, 1000),
	line.waiting, line.before, line.marked,
	coalesce(own.objid, '0'), (SELECT usesysid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()))
FROM line LEFT JOIN own ON true
	LEFT JOIN l ON NOT l.mark AND (l.place IS NULL OR own.place IS NULL OR l.pid = own.pid
		OR line.before < ` + strconv.Itoa(listeners) + ` AND (l.place, l.pid) < (own.place, own.pid))
	LEFT JOIN LATERAL ` + advisory.ActivityOfLockSQL + ` AS a ON true
ORDER BY l.place NULLS FIRST, l.pid LIMIT ` + strconv.Itoa(len(ids)+mostSeats)
}

// showsAll says whether the look lists every holder of its locks.
func (l *Look) showsAll() bool { return len(l.Holders)+len(l.Line) < mostSeats }

// The columns of a row of LookQuery: those of a seat, and then those that are the same in every
// row. lookWidth is their number.
const (
	seatPlaced = iota // it is a ticket
	seatClass
	seatObj
	seatSub
	seatMode
	seatPID
	seatRole
	seatName
	seatOpened
	seatChanged
	seatAge
	seatQuery
	lookWaiting
	lookBefore // how many are before this session
	lookMarked
	lookTicket
	lookOwnRole
	lookWidth
)

// Parse reads the rows of LookQuery for the session pid, and says whether they are its answer.
func (l *Look) Parse(rows [][]string, pid uint32) (ok bool) {
	for _, row := range rows {
		if len(row) != lookWidth {
			return false
		}
		waiting, err1 := strconv.Atoi(row[lookWaiting])
		before, err2 := strconv.Atoi(row[lookBefore])
		marked, err3 := strconv.Atoi(row[lookMarked])
		own, err4 := strconv.ParseUint(row[lookTicket], 10, 32)
		role, err5 := strconv.ParseUint(row[lookOwnRole], 10, 32)
		if err1 != nil || err2 != nil || err3 != nil || err4 != nil || err5 != nil {
			return false
		}
		l.Waiting, l.Rank, l.Marked, l.Ticket, l.Role = waiting, before+1, marked, uint32(own), uint32(role)
		if row[seatClass] == "" {
			continue // the row has no seat
		}
		s, ok := parseSeat(row)
		switch {
		case !ok:
			return false
		case row[seatPlaced] == "t":
			l.Line = append(l.Line, s)
		case s.PID != pid: // this session is no holder for itself
			l.Holders = append(l.Holders, s)
		}
	}
	return true
}

// parseSeat reads a row's seat. It bounds what other sessions say of themselves.
func parseSeat(row []string) (s Seat, ok bool) {
	class, err1 := strconv.ParseUint(row[seatClass], 10, 32)
	obj, err2 := strconv.ParseUint(row[seatObj], 10, 32)
	pid, err3 := advisory.ParseBackend(row[seatPID])
	if err1 != nil || err2 != nil || err3 != nil {
		return s, false
	}
	role, _ := strconv.ParseUint(row[seatRole], 10, 32)
	s = Seat{
		ID:     lockkey.ID{Number: int64(class<<32 | obj), Pair: row[seatSub] == "2"},
		Shared: strings.HasPrefix(row[seatMode], "Share"), PID: pid, Role: uint32(role), Opened: row[seatOpened],
	}
	if name, ok := describe.ParseName(row[seatName]); ok {
		s.Token, s.Ended = name.Token, name.Ended
	}
	if d, ok := describe.Parse(row[seatQuery]); ok && d.Request > 0 {
		// A holder in its own delay waits for earlier commands, which may live longer.
		s.Outlives = min(max(leasetime.DeadAfter(d.Lease, d.LostGrace), d.Delay), longestAnnounced)
		if s.Opened != "" && !d.Transaction {
			s.Request, s.Changed, s.Age = d.Request, row[seatChanged], RequestAge(row[seatAge])
		}
	}
	return s, true
}

// RequestAge reads how old a request is, in seconds by the server's clock. If that clock was set
// back since, the request seems to come from the future, and counts as new.
func RequestAge(seconds string) time.Duration {
	age, _ := strconv.ParseFloat(seconds, 64)
	return time.Duration(max(0, age) * float64(time.Second))
}

// SameRequest says whether both seats show the same request of the same session.
func (s Seat) SameRequest(other Seat) bool {
	return s.PID == other.PID && s.Opened == other.Opened && s.Request == other.Request && s.Changed == other.Changed
}

// HolderOf is the one session that holds a lock exclusively, or the zero Seat.
func (l *Look) HolderOf(id lockkey.ID) Seat {
	i := slices.IndexFunc(l.Holders, func(s Seat) bool { return s.ID == id && !s.Shared })
	if i < 0 {
		return Seat{}
	}
	return l.Holders[i]
}

// Holds says whether anybody but this session holds a lock.
func (l *Look) Holds(id lockkey.ID) bool {
	return slices.ContainsFunc(l.Holders, func(s Seat) bool { return s.ID == id })
}

// HeldBy are the locks that a session holds.
func (l *Look) HeldBy(pid uint32) (ids []lockkey.ID) {
	for _, s := range l.Holders {
		if s.PID == pid {
			ids = append(ids, s.ID)
		}
	}
	return ids
}
