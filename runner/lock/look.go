package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// look is what the server shows of a lock: its holders and, up to mostSeats, those in line before
// this session, in order.
type look struct {
	evidence.Look
	asOf     map[lockkey.ID]int     // Evidence.AsOf for each lock, when the server was asked
	received boottime.Instant       // when the answer arrived
	requests map[uint32]lastRequest // of the holders that number theirs, by pid
	rank     int                    // of this session's ticket, from 1; without a ticket it means nothing
	waiting  int                    // the number of all in line
	marked   int                    // the number of those in line that listen
	ticket   uint32                 // of this session, or 0
}

// lastRequest is the latest request of a session, if this role may see it and it has a number. A
// session whose transaction holds the lock has no lastRequest: nobody watches it.
type lastRequest struct {
	pid     uint32
	opened  string        // when the session was opened, by the server's clock
	changed string        // when its state last changed, by the same clock
	age     time.Duration // time since that change
	number  uint64        // from 1
}

// mostSeats is how many sessions a look lists besides the holder of each lock: those before this
// one in line, and readers.
const mostSeats = 72

// look asks the server, after other statements if there are any, and passes the answer to the
// evidence.
func (b *Bid) look(ctx context.Context, before ...string) (*look, error) {
	l := &look{Look: evidence.Look{Sent: boottime.Now()}, asOf: map[lockkey.ID]int{}}
	b.unknownHolder = false
	var parseErr error
	for id, e := range b.evidence {
		l.asOf[id] = e.AsOf()
	}
	marks, noteMarks := b.markQueries()
	queries := slices.Concat(before, marks, []string{b.lookQuery()}, b.arrivedQuery())
	_, err := b.s.Ask(ctx, session.Request{SQL: queries, Then: func(answers []session.Rows) {
		l.received = boottime.Now()
		if parseErr = l.parse(answers[len(before)+len(marks)], b.s.BackendPID()); parseErr != nil {
			return
		}
		noteMarks(answers[len(before):])
		for id, e := range b.evidence {
			e.Saw(&l.Look, id, l.asOf[id])
		}
	}})
	if err != nil {
		return nil, b.cfg.rejected(err)
	}
	b.place.arriving = false
	return l, parseErr
}

// lookQuery asks for the holders of the claim's locks. It also asks for those in line before this
// session if that is one of the first, and for all in line if it has no ticket. It calls functions
// instead of the views that are made of them: the views are slower, and a session's first query
// would have to read their definitions. What a session shows of itself is asked for last, and of
// few sessions: with a hundred in line, asking it of all took three quarters of the time. If nobody
// has a lock or a ticket, the answer is one row without a seat, since a bid that stands in no line
// has to know its own role, too.
func (b *Bid) lookQuery() string {
	ids := b.cfg.Claim.Sought().Locks
	return fmt.Sprintf(`WITH l AS MATERIALIZED (
	SELECT *, %[1]s AND %[7]s AS mark, CASE WHEN %[1]s AND %[8]s AND granted THEN %[2]s END AS place FROM pg_catalog.pg_lock_status()
	WHERE locktype = 'advisory' AND `+advisory.InThisDatabase+`
		AND (%[1]s AND objid <> '%[3]d' OR %[4]s)),
own AS MATERIALIZED (SELECT place, pid, objid FROM l WHERE pid = pg_catalog.pg_backend_pid() AND place IS NOT NULL),
line AS MATERIALIZED (
	SELECT count(l.place) AS waiting, count(*) FILTER (WHERE (l.place, l.pid) < (own.place, own.pid)) AS before, count(*) FILTER (WHERE l.mark) AS marked
	FROM l LEFT JOIN own ON true)
SELECT l.place IS NOT NULL, l.classid, l.objid, l.objsubid, l.mode, l.granted, l.pid, a.usesysid, a.application_name,
	a.backend_start, a.state_change, extract(epoch FROM pg_catalog.clock_timestamp() - a.state_change), pg_catalog.left(a.query, 1000),
	line.waiting, line.before, line.marked,
	coalesce(own.objid, '0'), (SELECT usesysid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()))
FROM line LEFT JOIN own ON true
	LEFT JOIN l ON NOT l.mark AND (l.place IS NULL OR own.place IS NULL OR l.pid = own.pid OR line.before < %[5]d AND (l.place, l.pid) < (own.place, own.pid))
	LEFT JOIN LATERAL `+advisory.ActivityOfLock+` AS a ON true
ORDER BY l.place NULLS FIRST, l.pid LIMIT %[6]d`,
		advisory.InLinesOf(b.nextLine()), advisory.PlaceSQL(), advisory.CommonTicket, advisory.Among(ids), crowd.MostListeners, len(ids)+mostSeats,
		advisory.IsMark, advisory.IsTicket)
}

// The columns of a row of lookQuery: those of a seat, and then those that are the same in every
// row. lookWidth is their number.
const (
	seatPlaced = iota // it is a ticket
	seatClass
	seatObj
	seatSub
	seatMode
	seatGranted
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

func (l *look) parse(rows session.Rows, pid uint32) error {
	l.requests = map[uint32]lastRequest{}
	for _, row := range rows {
		if len(row) != lookWidth {
			return session.NotPostgreSQL()
		}
		waiting, err1 := strconv.Atoi(row[lookWaiting])
		before, err2 := strconv.Atoi(row[lookBefore])
		marked, err3 := strconv.Atoi(row[lookMarked])
		own, err4 := strconv.ParseUint(row[lookTicket], 10, 32)
		role, err5 := strconv.ParseUint(row[lookOwnRole], 10, 32)
		if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
			return session.NotPostgreSQL()
		}
		l.waiting, l.rank, l.marked, l.ticket, l.Role = waiting, before+1, marked, uint32(own), uint32(role)
		if row[seatClass] == "" {
			continue // the row has no seat
		}
		s, last, err := parseSeat(row)
		if err != nil {
			return err
		}
		l.add(s, last, row[seatPlaced] == "t", row[seatGranted] == "t", pid)
	}
	return nil
}

// add adds a seat to the line, this session's own too, or to the holders. pid is this session,
// which is no holder for itself.
func (l *look) add(s evidence.Seat, last lastRequest, placed, granted bool, pid uint32) {
	switch {
	case placed:
		l.Line = append(l.Line, s)
	case !granted: // it stands in the server's own queue
	case s.PID != pid:
		l.Holders = append(l.Holders, s)
		if last.number > 0 {
			l.requests[s.PID] = last
		}
	}
}

// parseSeat reads a row: a seat, and its session's latest request. It bounds what other sessions
// say of themselves.
func parseSeat(row []string) (s evidence.Seat, last lastRequest, err error) {
	class, err1 := strconv.ParseUint(row[seatClass], 10, 32)
	obj, err2 := strconv.ParseUint(row[seatObj], 10, 32)
	pid, err3 := advisory.ParseBackend(row[seatPID])
	if err1 != nil || err2 != nil || err3 != nil {
		return s, last, session.NotPostgreSQL()
	}
	role, _ := strconv.ParseUint(row[seatRole], 10, 32)
	s = evidence.Seat{
		ID:     lockkey.ID{Number: int64(class<<32 | obj), Pair: row[seatSub] == "2"},
		Shared: strings.HasPrefix(row[seatMode], "Share"), PID: pid, Role: uint32(role), Opened: row[seatOpened],
	}
	if name, ok := describe.ParseName(row[seatName]); ok {
		s.Token, s.Ended = name.Token, name.Ended
	}
	if d, ok := describe.Parse(row[seatQuery]); ok && d.Request > 0 {
		// A holder in its own delay waits for earlier commands, which may live longer.
		s.Outlives = min(max(leasetime.DeadAfter(d.Lease, d.LostGrace), d.Delay), evidence.LongestAnnounced)
		if s.Opened != "" && !d.Transaction {
			last = lastRequest{s.PID, s.Opened, row[seatChanged], requestAge(row[seatAge]), d.Request}
		}
	}
	return s, last, nil
}

// requestAge reads how old a request is, in seconds by the server's clock. If that clock was set
// back since, the request seems to come from the future, and counts as new.
func requestAge(seconds string) time.Duration {
	age, _ := strconv.ParseFloat(seconds, 64)
	return time.Duration(max(0, age) * float64(time.Second))
}

// holderOf is the one session that holds a lock exclusively, or the zero Seat.
func (l *look) holderOf(id lockkey.ID) evidence.Seat {
	i := slices.IndexFunc(l.Holders, func(s evidence.Seat) bool { return s.ID == id && !s.Shared })
	if i < 0 {
		return evidence.Seat{}
	}
	return l.Holders[i]
}

// holds says whether anybody but this session holds a lock.
func (l *look) holds(id lockkey.ID) bool {
	return slices.ContainsFunc(l.Holders, func(s evidence.Seat) bool { return s.ID == id })
}
