// Package advisory defines the advisory locks that pglead takes (the ledger's functions take others
// for themselves: marker_1 in package ledger), and writes the SQL that tries for, waits for, probes
// and frees such locks, or finds them in pg_locks (rows.go). It sends nothing: each function whose
// name ends in SQL returns an SQL expression.
//
// These locks belong to the lock L of a key. Their numbers are derived from that of L, whichever
// scheme that comes from. Only L itself keeps the promise; the others are for order and speed.
//
//	lock        who has it                                      what it does
//	L           the holder; readers share it                    keeps the promise
//	ticket      a waiter in the line of L, one each             shows since when its owner waits
//	mark        a listener, under its ticket's number           makes holders announce what happens
//	common      all listeners without a place in the line       the same: they share one mark
//	arrival     refused waiters that don't listen yet           a holder that is done waits for them
//	call        a holder that is done, or listening waiters     makes the dormant waiters listen
//	gate        the first in line                               keeps newcomers and readers out
//	step down   whoever asks the holder to step down            the holder's heartbeat finds it taken
package advisory

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/pglead/pglead/lockkey"
)

// Lock is an advisory lock in one of its two modes.
type Lock struct {
	lockkey.ID
	Shared bool // many sessions may have it at once; otherwise only one
}

// Exclusive is a lock that one session has alone.
func Exclusive(id lockkey.ID) Lock { return Lock{ID: id} }

// AsShared is a lock that many sessions may have at once.
func AsShared(id lockkey.ID) Lock { return Lock{ID: id, Shared: true} }

// derived is the number of a lock that belongs to another one. The first NUL byte keeps it apart from
// the number of any key and of any slot (lockkey.Scheme.Slot), which begins with the key.
func derived(what string, of lockkey.ID) lockkey.ID {
	return lockkey.SipHash24("\x00" + what + "\x00" + of.String())
}

// TicketClass is the upper half of the numbers of the tickets in a lock's line. The lower half says
// who came first.
func TicketClass(line lockkey.ID) uint32 { return derived("ticket", line).ClassID() }

// CommonTicket is the lower half of the number of the ticket that nobody takes.
const CommonTicket uint32 = math.MaxUint32

// TicketOf is a ticket in a lock's line. Readers may share one.
func TicketOf(line lockkey.ID, ticket uint32, shared bool) Lock {
	return Lock{ID: lockkey.ID{Number: int64(TicketClass(line))<<32 | int64(ticket)}, Shared: shared}
}

// MarkOf is the mark of a ticket: the same number as a pair.
func MarkOf(ticket Lock) Lock {
	ticket.Pair = true
	return ticket
}

// CommonMarkOf is the mark in a lock's line that many can share.
func CommonMarkOf(line lockkey.ID) Lock { return MarkOf(TicketOf(line, CommonTicket, true)) }

// ArrivalOf is the lock of the waiters that join a lock's line and don't listen yet.
func ArrivalOf(line lockkey.ID) Lock { return AsShared(derived("arrival", line)) }

// CallOf is the lock of a call to those in a lock's line. Many may call at once.
func CallOf(line lockkey.ID) Lock { return AsShared(derived("call", line)) }

// GateOf is held by the writer whose turn is next, and tried by each reader: otherwise new readers
// could keep the lock for ever.
func GateOf(id lockkey.ID) Lock { return Exclusive(derived("gate", id)) }

// StepDownOf is the lock of a request to a lock's holder.
func StepDownOf(id lockkey.ID) Lock { return Exclusive(derived("step down", id)) }

// functionSQL is SQL that calls one of the server's lock functions. arguments are SQL, too.
func functionSQL(function string, shared bool, arguments string) string {
	if shared {
		function += "_shared"
	}
	return fmt.Sprintf("pg_catalog.pg_%s(%s)", function, arguments)
}

// TrySQL takes the lock for the session, and says whether it did.
func (l Lock) TrySQL() string { return TryNumberSQL(l.Shared, l.String()) }

// TryNumberSQL is TrySQL for a lock whose number, or pair of numbers, the server computes.
func TryNumberSQL(shared bool, number string) string {
	return functionSQL("try_advisory_lock", shared, number)
}

// TryXactSQL takes the lock until the end of the transaction, and says whether it did.
func (l Lock) TryXactSQL() string { return functionSQL("try_advisory_xact_lock", l.Shared, l.String()) }

// AwaitXactSQL waits for the lock, which the transaction's end frees. lock_timeout limits the wait.
func (l Lock) AwaitXactSQL() string { return functionSQL("advisory_xact_lock", l.Shared, l.String()) }

// UnlockSQL frees the lock once, and says whether the session had it.
func (l Lock) UnlockSQL() string { return functionSQL("advisory_unlock", l.Shared, l.String()) }

// ProbeSQL says whether the lock is free: it takes the lock if it can, and frees it at once.
func (l Lock) ProbeSQL() string { return ProbeNumberSQL(l.Shared, l.String()) }

// ProbeNumberSQL is ProbeSQL for a lock whose number the server computes.
func ProbeNumberSQL(shared bool, number string) string {
	return fmt.Sprintf("CASE WHEN %s THEN %s ELSE false END", TryNumberSQL(shared, number), functionSQL("advisory_unlock", shared, number))
}

// TryInTurnSQL is TrySQL, except that readers also try the gate, for the length of the statement. A
// writer whose turn is next has the gate, and so keeps them out.
func (l Lock) TryInTurnSQL() string {
	if !l.Shared {
		return l.TrySQL()
	}
	return ThroughSQL(GateOf(l.ID), l.TrySQL(), "false")
}

// ThroughSQL evaluates passed if the gate is free, otherwise stopped.
func ThroughSQL(gate Lock, passed, stopped string) string {
	gate.Shared = true // so that those that pass don't block each other
	return fmt.Sprintf("CASE WHEN %s THEN %s ELSE %s END", gate.TryXactSQL(), passed, stopped)
}

// TryAllSQL takes the locks up to the first that is not free, and counts them. try takes
// one lock.
func TryAllSQL(locks []Lock, try func(Lock) string) string {
	return tryAllOrSQL(locks, try, strconv.Itoa)
}

// tryAllOrSQL is TryAllSQL, except that its value is refused(i) if lock i is not free.
func tryAllOrSQL(locks []Lock, try func(Lock) string, refused func(i int) string) string {
	var cases strings.Builder
	for i, l := range locks {
		fmt.Fprintf(&cases, " WHEN NOT %s THEN %s", try(l), refused(i))
	}
	return fmt.Sprintf("CASE%s ELSE %d END", cases.String(), len(locks))
}

// TryAllOrNoneSQL is TryAllSQL, except that it frees the locks that it got if it did not get
// all. Otherwise two runs that don't wait could refuse each other, and neither would start.
func TryAllOrNoneSQL(locks []Lock) string {
	var cases, back strings.Builder
	for _, l := range locks {
		fmt.Fprintf(&cases, " WHEN NOT %s THEN 0%s", l.TryInTurnSQL(), back.String())
		fmt.Fprintf(&back, " OPERATOR(pg_catalog.*) %s::int", l.UnlockSQL())
	}
	return fmt.Sprintf("CASE%s ELSE %d END", cases.String(), len(locks))
}

// TryEachSQL takes one of the locks. Its value is the lock's index in the list, from 1, or 0.
func TryEachSQL(locks []Lock, try func(Lock) string) string { return tryEachOrSQL(locks, try, "0") }

// tryEachOrSQL is TryEachSQL, except that its value is none if it takes no lock.
func tryEachOrSQL(locks []Lock, try func(Lock) string, none string) string {
	var cases strings.Builder
	for i, l := range locks {
		fmt.Fprintf(&cases, " WHEN %s THEN %d", try(l), i+1)
	}
	return fmt.Sprintf("CASE%s ELSE %s END", cases.String(), none)
}

// TryOrArriveSQL is a first try that may be followed by a wait. It takes all of the locks or, if
// there is a gate, one of them. If it is refused it takes the arrival lock of the line for that
// wait. SplitArrival reads its value.
func TryOrArriveSQL(locks []Lock, gate *lockkey.ID) string {
	if gate != nil {
		arrive := arriveSQL(*gate, 0)
		return ThroughSQL(Exclusive(*gate), tryEachOrSQL(locks, Lock.TryInTurnSQL, arrive), arrive)
	}
	return tryAllOrSQL(locks, Lock.TryInTurnSQL, func(i int) string { return arriveSQL(locks[i].ID, i) })
}

// arriveSQL takes the arrival lock of a line. n is the try's result without it.
func arriveSQL(line lockkey.ID, n int) string {
	return fmt.Sprintf("CASE WHEN %s THEN %d ELSE %d END", ArrivalOf(line).TrySQL(), -n-1, n)
}

// SplitArrival returns the result n of a try, as TryAllSQL or TryEachSQL gives it, and whether the
// arrival lock was taken.
func SplitArrival(value int) (n int, arrived bool) {
	if value < 0 {
		return -value - 1, true
	}
	return value, false
}

// UnlockAllSQL frees all the locks, and counts those that the session had. The expression is a
// sum, so that the server evaluates every call.
func UnlockAllSQL(locks []Lock) string {
	var unlocks []string
	for _, l := range locks {
		unlocks = append(unlocks, l.UnlockSQL()+"::int")
	}
	return strings.Join(unlocks, " + ")
}
