package lock

import (
	"fmt"
	"strconv"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/lock/evidence"
)

// Holders and guards announce what becomes of a lock by NOTIFY, on a channel of its own. This file
// writes the SQL for that, and knows to whom it is said. Package evidence reads the announcements.
//
//	word     says                           sent by
//	started  a command is about to start    bareDrawQuery or, with a second session, drawOnSecond
//	clean    it has ended, and so has all   Held.Release, the guard (Held.EncodedRelease) and
//	         that it started                bid.unlock, with announceEndQuery; exchange, with
//	                                        announceQueries
//	left     the same, of a reader          Held.Release, the guard and bid.unlock, with
//	                                        announceEndQuery
//	dead     its session was lost, and it   a report, on a new session, with announceDeathQueries
//	         is dead

// announcement is an announcement of this run.
func (cfg *Config) announcement(word evidence.Word) evidence.Announcement {
	return evidence.Announcement{Word: word, Lease: cfg.Session.Lease, LostGrace: cfg.LostGrace}
}

// startPayloadSQL is an SQL expression that announces the start under a lock. The token
// is an SQL expression, too.
func (cfg *Config) startPayloadSQL(l advisory.Lock, token string) string {
	a := cfg.announcement(evidence.Started)
	a.Shared = l.Shared
	return a.PayloadSQL(token)
}

// notifySQL is an SQL expression that announces a payload, itself an SQL expression, on a channel.
func notifySQL(channel, payload string) string {
	return fmt.Sprintf("pg_catalog.pg_notify('%s', %s)", channel, payload)
}

// asyncCommitSQL is an SQL expression by which the commit doesn't wait for the disk. It is for
// transactions that only announce: after a crash of the server nobody listens.
const asyncCommitSQL = "pg_catalog.set_config('synchronous_commit', 'off', true)"

// notifyQuery is a query that announces a payload on a channel.
func notifyQuery(channel, payload string) string {
	return "SELECT " + asyncCommitSQL + ", " + notifySQL(channel, payload)
}

// listenersSQL is an SQL condition for the sessions that listen to announcements about any of the
// claim's locks: a waiter for one of them may want another one next. Sessions that wait for a lock of
// the same number in another database count, too. That is needless, but finding out which database
// this is would take as long as all the rest.
func (c Claim) listenersSQL() string { return c.othersInLinesSQL() + " AND " + advisory.IsMarkSQL }

// audienceQuery asks whether anybody listens to announcements about the claim's locks, and how many
// in line don't listen. It reads from locks, which onceSQL defines.
func (c Claim) audienceQuery() string {
	return fmt.Sprintf(`SELECT count(*) FILTER (WHERE %[1]s) > 0 AS listens,
		count(*) FILTER (WHERE %[2]s) - count(*) FILTER (WHERE %[1]s AND objid <> '%[3]d') AS dormant
	FROM locks WHERE %[4]s`,
		advisory.IsMarkSQL, advisory.IsTicketSQL, advisory.CommonTicket, c.othersInLinesSQL())
}

// onceSQL goes before a query that reads FROM locks, and has the server copy its table of locks once.
// Each copy takes milliseconds if others hold 8,000 locks.
const onceSQL = "WITH locks AS MATERIALIZED (SELECT locktype, granted, pid, classid, objid, objsubid FROM pg_catalog.pg_lock_status() " +
	"WHERE locktype = 'advisory' AND granted)\n"

// othersInLinesSQL is an SQL condition for the locks that other sessions have for their places in
// the claim's lines: tickets and marks.
func (c Claim) othersInLinesSQL() string {
	return "locktype = 'advisory' AND granted AND pid <> pg_catalog.pg_backend_pid() AND " + advisory.InLinesSQL(c.lines()...)
}

// announceEndQueries are the queries that announce the end under each lock to those in line. The end
// of a list's item is announced even if nobody listens now, since others on the list may come back to
// it; a reader's end proves nothing to them.
func (b *bid) announceEndQueries() (queries []string) {
	for _, l := range b.Locks() {
		if b.cfg.ofList && !l.Shared && b.prefers == "" {
			queries = append(queries, notifyQuery(evidence.Channel(l.ID), b.endPayloadSQL(evidence.Clean, endPositionSQL)))
		} else {
			queries = append(queries, b.announceEndQuery(l, b.cfg.Claim.listenersSQL()))
		}
	}
	return queries
}

// announceEndQuery is the query that announces the end of a run, if any session in line fulfils the SQL
// condition listeners. It names the first of these sessions, or one on the preferred host.
func (b *bid) announceEndQuery(l advisory.Lock, listeners string) string {
	word := evidence.Clean
	if l.Shared {
		word = evidence.Left
	}
	// In a new backend, sorting by places, as a look does, would take as long
	// as all the rest. This order names the wrong session when the tickets' time has
	// wrapped around; then the right one tries a little later.
	order := "objid"
	if len(b.grants) > 1 { // waiters for this lock come before those for another
		order = fmt.Sprintf("classid <> '%d', objid", advisory.TicketClass(l.ID))
	}
	if b.prefers != "" {
		order = fmt.Sprintf("(SELECT %s FROM pg_catalog.pg_stat_get_activity(pid)), %s", describe.HostRankSQL(b.prefers), order)
	}
	say := notifyQuery(evidence.Channel(l.ID), b.endPayloadSQL(word, endPositionSQL, "' "+evidence.ToField+"'", "pid"))
	return say + " FROM pg_catalog.pg_lock_status() WHERE " + listeners + " ORDER BY " + order + " LIMIT 1"
}

// endPositionSQL are SQL expressions by which a clean end shows the position of the write-ahead
// log. They write to the log, so that no other end has the same position.
const endPositionSQL = "' " + evidence.LSNField + "', pg_catalog.pg_logical_emit_message(false, 'pglead', '')"

// endPayloadSQL is an SQL expression for the text that announces the end of a run by this word.
// The SQL expressions more are appended to the text.
func (b *bid) endPayloadSQL(word evidence.Word, more ...string) string {
	a := b.cfg.announcement(word)
	a.CoversEarlier = b.coversEarlier
	return a.PayloadSQL(strconv.FormatInt(b.Token, 10), more...)
}

// showsEnd says whether the session's name will show the end. Only a holder that has waited shows
// it: it is likely to have a line behind it.
func (h *Held) showsEnd() bool { return h.place.everJoined() && h.cfg.showsToken() }

// showEndQuery is the query that makes a session's name show that its command is dead. A waiter
// that starts to listen after the announcement of the end, and looks before the unlock, sees the
// end there.
func (h *Held) showEndQuery() string {
	return "SELECT " + describe.ShowTokenSQL(h.cfg.Session.ApplicationName, strconv.FormatInt(h.Token, 10), true)
}
