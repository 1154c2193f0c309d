package lock

import (
	"context"
	"fmt"
	"strings"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock/advisory"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// announcement is one of this run's.
func (cfg *Config) announcement(word evidence.Word) evidence.Announcement {
	return evidence.Announcement{Word: word, Lease: cfg.Session.Lease, LostGrace: cfg.LostGrace}
}

// startPayload is an SQL expression that announces the start under a lock. The token
// is an SQL expression, too.
func (cfg *Config) startPayload(l advisory.Lock, token string) string {
	a := cfg.announcement(evidence.Started)
	a.Shared = l.Shared
	return a.SQL(token)
}

// notify is an SQL expression that says something on a channel.
func notify(channel, payload string) string {
	return fmt.Sprintf("pg_catalog.pg_notify('%s', %s)", channel, payload)
}

// notWaitingForDisk is an SQL expression for a commit of words alone: after a crash nobody
// listens.
const notWaitingForDisk = "pg_catalog.set_config('synchronous_commit', 'off', true)"

// notifyQuery is a query that says something on a channel.
func notifyQuery(channel, payload string) string {
	return "SELECT " + notWaitingForDisk + ", " + notify(channel, payload)
}

// Tell says something on a channel.
func Tell(ctx context.Context, s *session.Session, what Said) error {
	_, err := s.Query(ctx, notifyQuery(what.Channel, "'"+what.Payload+"'"))
	return err
}

// listenersSQL is a condition for the sessions that listen to what is said of these locks:
// a waiter for one of them may want another one next. They are the sessions with marks,
// and those of older versions, which stand in the server's own queue. A session
// that waits for that number in another database is told in vain: to find out which
// database this is would take as long as all the rest.
func (c Claim) listenersSQL(locks []advisory.Lock) string {
	classes, ids := c.classes(locks)
	return fmt.Sprintf("locktype = 'advisory' AND pid <> pg_catalog.pg_backend_pid() AND (classid IN (%s) AND objsubid = 2 OR NOT granted AND %s)", classes, inspect.Among(ids))
}

// audienceQuery says whether anybody listens to what is said of these locks, and how many
// in line don't.
func (c Claim) audienceQuery(locks []advisory.Lock) string {
	classes, ids := c.classes(locks)
	return fmt.Sprintf(`SELECT count(*) FILTER (WHERE objsubid = 2 OR NOT granted) > 0 AS listens,
		count(*) FILTER (WHERE objsubid = 1 AND granted) - count(*) FILTER (WHERE objsubid = 2 AND objid <> '%d') AS dormant
	FROM pg_catalog.pg_lock_status() WHERE locktype = 'advisory' AND pid <> pg_catalog.pg_backend_pid() AND (classid IN (%s) OR NOT granted AND %s)`,
		advisory.CommonTicket, classes, inspect.Among(ids))
}

// classes are the upper halves of the tickets for these locks, and the numbers of the
// locks for which older versions wait.
func (c Claim) classes(locks []advisory.Lock) (list string, ids []lockkey.ID) {
	ids = idsOf(locks)
	lines := ids
	if c.takesAny() {
		lines = []lockkey.ID{*c.Gate}
		ids = append(ids, *c.Gate)
	}
	var classes []string
	for _, line := range lines {
		classes = append(classes, fmt.Sprintf("'%d'", lockkey.Ticket(line)))
	}
	return strings.Join(classes, ", "), ids
}
