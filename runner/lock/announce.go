package lock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

// When PostgreSQL ends a session, or goes down, the session's lock is free at once,
// and its holder may not know it yet. The next holder has to know which kind of end it
// was. So holders announce, on a NOTIFY channel of the lock's own, when they start and
// when they end.
//
// Channel: pglead.1.NUMBER, where 1 is the version of what follows and NUMBER that
// of the lock. Payload: fields with a space between them,
//
//	started TOKEN LEASE GRACE [shared]
//	clean   TOKEN LEASE GRACE [all] [to=PID]
//	dead    TOKEN LEASE GRACE [all]
//	left    TOKEN LEASE GRACE [to=PID]
//
// the fencing token in decimal, the lease and the lost-grace in milliseconds.
// The numbers of the promise follow from LEASE and GRACE: a holder's command is dead
// at most 2/3 LEASE + GRACE after the holder could last be sure of its lock. More fields
// may be added at the end. A payload of another form is ignored.
//
//   - started is said if anyone waits, in the transaction that draws the token;
//   - clean is said by the lock's session, in a transaction before the one that
//     frees the lock: the command is dead. PID is the session that is first in line;
//   - dead is said by another session, of the same role, when the lock's own is
//     lost: the command is dead;
//   - left is said by a reader: others may be alive.
//
// clean and dead mean that no command of TOKEN is alive. The field all extends that to
// every earlier token. A holder adds it only if it made sure: it waited for the delay,
// or heard a word with that field from the holder before. A holder that got the lock at
// its first try did neither.

// word is the first field of an announcement. A new one needs a place in known, or it is
// ignored, in history.hear, history.counts (discharge.go) and line.decide, in the list above,
// and in runner/README.md.
type word string

const (
	wordStarted word = "started"
	wordClean   word = "clean"
	wordDead    word = "dead"
	wordLeft    word = "left"
)

// known says whether a word is one of this version's.
func (w word) known() bool {
	switch w {
	case wordStarted, wordClean, wordDead, wordLeft:
		return true
	}
	return false
}

// Announcement is an event of a lock's life.
type Announcement struct {
	Word      word
	Token     int64
	Lease     time.Duration
	LostGrace time.Duration
	Shared    bool   // the holder is one of many
	OwnOnly   bool   // it speaks for its own token only
	To        uint32 // the session that is to have the lock next, or 0
	PID       uint32 // the session that said it
}

const (
	sharedField = "shared"
	allField    = "all"
	toField     = "to="
)

func channel(id lockkey.ID) string { return "pglead.1." + id.String() }

// longestAnnounced bounds how long a holder's announcement can make others wait.
const longestAnnounced = 24 * time.Hour

func parseAnnouncement(payload string) (a Announcement, ok bool) {
	fields := strings.Split(payload, " ")
	if len(fields) < 4 || !word(fields[0]).known() {
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
	// A length that is too long is shortened. If the event were dropped, the one before
	// it would count as the last.
	most := longestAnnounced.Milliseconds()
	numbers[1], numbers[2] = min(numbers[1], most), min(numbers[2], most)
	a = Announcement{
		Word: word(fields[0]), Token: numbers[0], OwnOnly: true,
		Lease: time.Duration(numbers[1]) * time.Millisecond, LostGrace: time.Duration(numbers[2]) * time.Millisecond,
	}
	for _, field := range fields[4:] {
		to, named := strings.CutPrefix(field, toField)
		switch {
		case field == sharedField:
			a.Shared = true
		case field == allField:
			a.OwnOnly = false
		case named:
			pid, _ := strconv.ParseUint(to, 10, 32)
			a.To = uint32(pid)
		}
	}
	return a, true
}

// startPayload is an SQL expression that announces the start under a lock. The token
// is an SQL expression, too.
func (cfg *Config) startPayload(l Lock, token string) string {
	var fields []string
	if l.Shared {
		fields = []string{sharedField}
	}
	return cfg.payload(wordStarted, token, fields)
}

// endPayload is an SQL expression that announces the end of a tenure by one of the
// other words. More SQL expressions are added to its text.
func (h *Held) endPayload(first word, more ...string) string {
	var fields []string
	if h.coversEarlier {
		fields = []string{allField}
	}
	return h.cfg.payload(first, strconv.FormatInt(h.Token, 10), fields, more...)
}

// payload puts an announcement together. In a backend's first moments, concat costs
// half of what the operator || does.
func (cfg *Config) payload(first word, token string, fields []string, more ...string) string {
	own := fmt.Sprintf(" %d %d", cfg.Session.Lease.Milliseconds(), cfg.LostGrace.Milliseconds())
	own = strings.Join(append([]string{own}, fields...), " ")
	return fmt.Sprintf("pg_catalog.concat(%s)", strings.Join(append([]string{"'" + string(first) + " '", token, "'" + own + "'"}, more...), ", "))
}

// tell is a query that says something on a channel. Its commit does not wait for the
// disk: after a crash nobody listens.
func tell(channel, payload string) string {
	return fmt.Sprintf("SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('%s', %s)", channel, payload)
}

// Tell says something on a channel. Neither argument may contain quotes.
func Tell(ctx context.Context, s *session.Session, channel, payload string) error {
	_, err := s.Query(ctx, tell(channel, "'"+payload+"'"))
	return err
}
