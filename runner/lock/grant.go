package lock

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/lock/evidence"
)

// grant is what a bid has been granted.
type grant struct {
	cfg   *Config // the bid's
	Locks []advisory.Lock
	Slot  int           // with a gate: the index of the lock in the claim, from 1
	delay time.Duration // how long the locks are held before the command may start
	// coversEarlier says that a clean end of this run means that the commands of all earlier
	// holders are dead, too (see verdict).
	coversEarlier bool

	// From the draw on:

	// Token grows with every grant in this cluster: the timeline in the upper
	// 16 bits, the transaction number that this grant used up in the lower 48.
	Token int64
	// SystemID names the cluster that the token belongs to.
	SystemID string
	recorded bool // in the ledger
	dormant  bool // somebody in line was dormant
	listened bool // somebody in line listened
}

func noGrant(cfg *Config) grant { return grant{cfg: cfg, coversEarlier: true} }

// drawn says whether the token has been drawn.
func (g *grant) drawn() bool { return g.Token != 0 }

// startsAtOnce says whether the command may start without a delay: the evidence says that no
// earlier command is alive.
func (g *grant) startsAtOnce() bool { return g.delay == 0 }

// mayAnnounceEnd says whether a grant under which no command was started may announce its end. Its
// start must have been announced, and no earlier command may be alive, since a waiter that hears of
// the end starts at once.
func (g *grant) mayAnnounceEnd() bool { return g.drawn() && g.startsAtOnce() }

// undraw forgets the token, and what the ledger may have noted under it.
func (g *grant) undraw() { g.Token, g.SystemID, g.recorded = 0, "", false }

// naming says whether the words at an end name the session that is to hold the lock next.
type naming int

// Without a name those in line act by their places, as far as they know them. In a new backend the
// order of the listeners takes 0.25 ms, as much as all the rest (medians of 300 logins in turns).
// So an end names nobody if probably nobody listens.
const (
	namesNext naming = iota
	namesNobody
)

// endQueries are the queries that announce, for each lock, that its command is dead, and the
// query that gives all locks back. prefers is the host that should hold them next, or empty.
func (g *grant) endQueries(names naming, prefers string) (words []string, unlock string) {
	for _, l := range g.Locks {
		words = append(words, g.wordQuery(l, g.cfg.Claim.listenersSQL(g.Locks), names, prefers))
	}
	return words, "SELECT " + advisory.UnlockAllSQL(g.Locks)
}

// rehearsalQuery is a query that announces the end of a tenure, but finds no listener. A session's
// first announcement makes it read the server's catalogs, which takes half a millisecond: with the
// rehearsal it has done so before its command ends.
func (g *grant) rehearsalQuery() (query []string) {
	if !g.cfg.hasLine() || g.cfg.OfList {
		return nil
	}
	return []string{g.wordQuery(g.Locks[0], g.cfg.Claim.listenersSQL(g.Locks)+" AND pid IS NULL", namesNext, "")}
}

// wordQuery is the query that announces the end of a tenure, if any session in line fulfils the SQL
// condition listeners. With namesNext it names the first of these sessions, or one on the preferred
// host.
func (g *grant) wordQuery(l advisory.Lock, listeners string, names naming, prefers string) string {
	word := evidence.Clean
	if l.Shared {
		word = evidence.Left
	}
	unnamed := notifyQuery(evidence.Channel(l.ID), g.endPayloadSQL(word, endPositionSQL))
	from := " FROM pg_catalog.pg_lock_status() WHERE " + listeners
	switch {
	case prefers != "":
	case g.cfg.OfList && !l.Shared: // others may come back for the item without standing in line
		return unnamed
	case names == namesNobody:
		return unnamed + from + " LIMIT 1"
	}
	// In a new backend, sorting by places, as a look does, would take as long
	// as all the rest. This order names the wrong session when the tickets' time has
	// wrapped around; then the right one tries a little later.
	order := "objid"
	if len(g.Locks) > 1 { // waiters for this lock come before those for another
		order = fmt.Sprintf("classid <> '%d', objid", advisory.TicketClass(l.ID))
	}
	if prefers != "" {
		order = fmt.Sprintf("(SELECT application_name NOT LIKE '%%@%s' FROM pg_catalog.pg_stat_get_activity(pid)), %s", likeable(prefers), order)
	}
	say := notifyQuery(evidence.Channel(l.ID), g.endPayloadSQL(word, endPositionSQL, "' "+evidence.ToField+"'", "pid"))
	return say + from + " ORDER BY " + order + " LIMIT 1"
}

// endPositionSQL are SQL expressions by which a clean end shows the position of the write-ahead
// log. They write to the log, so that no other end has the same position.
const endPositionSQL = "' " + evidence.LSNField + "', pg_catalog.pg_logical_emit_message(false, 'pglead', '')"

// endPayloadSQL is an SQL expression for the text that announces the end of a tenure by this word.
// The SQL expressions more are appended to the text.
func (g *grant) endPayloadSQL(word evidence.Word, more ...string) string {
	a := g.cfg.announcement(word)
	a.CoversEarlier = g.coversEarlier
	return a.PayloadSQL(strconv.FormatInt(g.Token, 10), more...)
}

// showEndQuery is the query that makes a session's name show that its command is dead. A waiter
// that starts to listen after the announcement of the end, and looks before the unlock, sees the
// end there.
func (g *grant) showEndQuery() string {
	return "SELECT " + g.cfg.showSQL(strconv.FormatInt(g.Token, 10), endedSuffix)
}

// likeable makes a host's name safe in a quoted pattern for LIKE.
func likeable(host string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '_'
	}, host)
}
