package evidence

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
)

// When PostgreSQL ends a session, or goes down, the session's lock is free at once, and its holder
// may not know it yet. The next holder has to know whether the lock was freed in this way, or by a
// holder whose command is dead. So holders announce their starts and ends on a NOTIFY channel, one
// for each lock.
//
//	started TOKEN LEASE GRACE [shared]
//	clean TOKEN LEASE GRACE [all] [lsn=LSN] [to=PID]
//	dead TOKEN LEASE GRACE [all]
//	left, with the same fields as clean
//
// LEASE and GRACE tell how long the command can live: it is dead 2/3 LEASE + GRACE after the holder
// could last be sure of its lock, and after LEASE at the latest. More fields may be added at the
// end. A payload of any other form is ignored. In runner/README.md "On the wire" has the name of the
// channel and the units, and "Taking over" what clean, dead and all mean.
//
//   - started is said if anyone listens, in the transaction that draws the token. A list's session
//     says it even if nobody listens. So does a session with a quorum, which says it only after
//     the draw has been committed;
//   - clean is said by the lock's session, in a transaction before the one that frees the lock: the
//     command is dead. LSN is the position of the write-ahead log at that time, as PostgreSQL
//     shows it. PID is the session that should be next: the first in line, or one on the
//     preferred host;
//   - dead is said by another session, of the same role, when the session that had the
//     lock is lost: the command is dead. Readers, and runs with no lock-delay, don't say it;
//   - left is said by a reader: others may be alive. So it is evidence of nothing, and of its
//     fields only PID counts.

// Word is the first field of an announcement. A new word is ignored until known lists it.
// Its effect is where the words are compared: in this package (Hear, closing.go, sawHolder) and in
// waiter.actOnHeard (package lock). The list above and runner/README.md describe it.
type Word string

// The words, as described above.
const (
	Started Word = "started"
	Clean   Word = "clean"
	Dead    Word = "dead"
	Left    Word = "left"
)

// known says whether this version knows a word.
func (w Word) known() bool {
	switch w {
	case Started, Clean, Dead, Left:
		return true
	}
	return false
}

// Announcement is an event of a lock's life.
type Announcement struct {
	Word          Word
	Token         int64
	Lease         time.Duration
	LostGrace     time.Duration
	Shared        bool   // the holder is a reader
	CoversEarlier bool   // it speaks for all earlier tokens, too: "all" on the wire
	LSN           LSN    // of a clean end: a position of the write-ahead log while its session still had the lock, or 0
	To            uint32 // the session that should have the lock next, or 0
	PID           uint32 // the session that said it

	Lock lockkey.ID // for the listener's own use
}

const (
	sharedField = "shared"
	allField    = "all"
	// ToField comes before the number of the session that should have the lock next.
	ToField = "to="
	// LSNField comes before the LSN of a clean end.
	LSNField = "lsn="
)

// Channel is the NOTIFY channel of a lock.
func Channel(id lockkey.ID) string { return "pglead.1." + id.String() }

// longestAnnounced is the longest time for which a holder's announcement can make others wait.
const longestAnnounced = 24 * time.Hour

// parse reads a payload from a lock's channel.
func parse(payload string) (a Announcement, ok bool) {
	fields := strings.Split(payload, " ")
	if len(fields) < 4 || !Word(fields[0]).known() {
		return a, false
	}
	var numbers [3]int64
	for i := range numbers {
		n, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil || n < 0 {
			return a, false
		}
		numbers[i] = n
	}
	// A duration that is too long is shortened. If the announcement were dropped, the one
	// before it would count as the last.
	most := longestAnnounced.Milliseconds()
	numbers[1], numbers[2] = min(numbers[1], most), min(numbers[2], most)
	a = Announcement{
		Word: Word(fields[0]), Token: numbers[0],
		Lease: time.Duration(numbers[1]) * time.Millisecond, LostGrace: time.Duration(numbers[2]) * time.Millisecond,
	}
	for _, field := range fields[4:] {
		to, named := strings.CutPrefix(field, ToField)
		lsn, located := strings.CutPrefix(field, LSNField)
		switch {
		case field == sharedField:
			a.Shared = true
		case field == allField:
			a.CoversEarlier = true
		case named:
			a.To = uint32(parseNumber(to, 10))
		case located:
			a.LSN = ParseLSN(lsn)
		}
	}
	return a, true
}

// LSN is a position in the server's write-ahead log. It shows what came first: the position
// advances with everything that is written.
type LSN uint64

// ParseLSN reads an LSN as PostgreSQL shows it, two hexadecimal numbers. Any other text counts as
// 0.
func ParseLSN(text string) LSN {
	high, low, _ := strings.Cut(text, "/")
	return LSN(parseNumber(high, 16)<<32 | parseNumber(low, 16))
}

// parseNumber reads a number of 32 bits. Any other text counts as 0.
func parseNumber(digits string, base int) uint64 {
	n, err := strconv.ParseUint(digits, base, 32)
	if err != nil {
		return 0
	}
	return n
}

// PayloadSQL is an SQL expression for the announcement's text. The token is an SQL
// expression, too, and so is each part in more, which is added to the end of the text. In a new
// backend, concat costs half of what the operator || does.
func (a Announcement) PayloadSQL(token string, more ...string) string {
	own := fmt.Sprintf(" %d %d", a.Lease.Milliseconds(), a.LostGrace.Milliseconds())
	if a.Shared {
		own += " " + sharedField
	}
	if a.CoversEarlier {
		own += " " + allField
	}
	parts := append([]string{"'" + string(a.Word) + " '", token, "'" + own + "'"}, more...)
	return fmt.Sprintf("pg_catalog.concat(%s)", strings.Join(parts, ", "))
}
