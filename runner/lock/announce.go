package lock

import (
	"context"
	"fmt"
	"strconv"

	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// announcement is one of this run's.
func (cfg *Config) announcement(word evidence.Word) evidence.Announcement {
	return evidence.Announcement{Word: word, Lease: cfg.Session.Lease, LostGrace: cfg.LostGrace}
}

// startPayload is an SQL expression that announces the start under a lock. The token
// is an SQL expression, too.
func (cfg *Config) startPayload(l Lock, token string) string {
	a := cfg.announcement(evidence.Started)
	a.Shared = l.Shared
	return a.SQL(token)
}

// endPayload is an SQL expression that announces the end of a tenure by one of the
// other words. More SQL expressions are added to its text.
func (h *Held) endPayload(word evidence.Word, more ...string) string {
	a := h.cfg.announcement(word)
	a.CoversEarlier = h.coversEarlier
	return a.SQL(strconv.FormatInt(h.Token, 10), more...)
}

// notifySQL is a query that says something on a channel. Its commit does not wait for the
// disk: after a crash nobody listens.
func notifySQL(channel, payload string) string {
	return fmt.Sprintf("SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('%s', %s)", channel, payload)
}

// Tell says something on a channel. Neither argument may contain quotes.
func Tell(ctx context.Context, s *session.Session, channel, payload string) error {
	_, err := s.Query(ctx, notifySQL(channel, "'"+payload+"'"))
	return err
}
