package lock

import (
	"context"
	"fmt"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// Holders and guards announce what becomes of a lock by NOTIFY, on a channel of its own: that a
// command starts, that it has ended clean, that it is dead. This file writes the SQL for that, and
// knows to whom it is said. Package evidence reads the announcements.

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

// Tell announces something on a channel.
func Tell(ctx context.Context, s *session.Session, what Said) error {
	_, err := s.Query(ctx, notifyQuery(what.Channel, "'"+what.Payload+"'"))
	return err
}

// listenersSQL is an SQL condition for the sessions that listen to announcements about any of these
// locks: a waiter for one of them may want another one next. The listeners are the sessions with
// marks, and those of older versions, which stand in the server's own queue. A session that waits
// for a lock of the same number in another database is told, too, for nothing: to find out which
// database this is would take as long as all the rest.
func (c Claim) listenersSQL(locks []advisory.Lock) string {
	lines, ids := c.audience(locks)
	return fmt.Sprintf("locktype = 'advisory' AND pid <> pg_catalog.pg_backend_pid() AND (%s AND %s OR NOT granted AND %s)",
		advisory.InLinesOf(lines...), advisory.IsMark, advisory.Among(ids))
}

// audienceQuery asks whether anybody listens to announcements about these locks, and how many in
// line don't listen.
func (c Claim) audienceQuery(locks []advisory.Lock) string {
	others, _ := c.audienceRowsSQL(locks)
	return fmt.Sprintf(`SELECT count(*) FILTER (WHERE %[1]s OR NOT granted) > 0 AS listens,
		count(*) FILTER (WHERE %[2]s AND granted) - count(*) FILTER (WHERE %[1]s AND objid <> '%[3]d') AS dormant
	FROM pg_catalog.pg_lock_status() WHERE locktype = 'advisory' AND %[4]s`,
		advisory.IsMark, advisory.IsTicket, advisory.CommonTicket, others)
}

// audienceRowsSQL are two SQL conditions, by which a session that doesn't stand in line itself asks
// for the same: the row of a lock is about another session in line, and that session listens.
func (c Claim) audienceRowsSQL(locks []advisory.Lock) (others, listens string) {
	lines, ids := c.audience(locks)
	const notOwn = "pid <> pg_catalog.pg_backend_pid()"
	return fmt.Sprintf("%s AND (%s OR NOT granted AND %s)", notOwn, advisory.InLinesOf(lines...), advisory.Among(ids)),
		fmt.Sprintf("(%s AND (%s OR NOT granted))", notOwn, advisory.IsMark)
}

// audience says where the sessions wait that want to hear of these locks: in the lines of the locks
// lines or, if they are older versions, in the server's own queue for the locks queues.
func (c Claim) audience(locks []advisory.Lock) (lines, queues []lockkey.ID) {
	queues = idsOf(locks)
	if c.takesAny() {
		return []lockkey.ID{*c.Gate}, append(queues, *c.Gate)
	}
	return queues, queues
}
