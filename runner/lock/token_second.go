package lock

import (
	"context"

	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// With a quorum, and in a transaction, a second session draws the token, beside the lock's own.

// drawOnSecond draws the token on a second connection. With a quorum the lock's own session
// must never hang in a commit. In the transaction that holds the lock, a transaction number would
// hold back vacuum for as long as the command runs. Afterwards it asks the lock's own session
// whether it still has the lock: the draw may take more time than the lock's session
// has left.
func (b *bid) drawOnSecond(ctx context.Context) error {
	row, err := b.tokenOnSecond(ctx)
	if err != nil {
		return err
	}
	if err := b.keepToken(row[0], row[1]); err != nil { // from now on the start may have been announced
		return err
	}
	var queries []string
	if b.cfg.announces() {
		for _, l := range b.Locks() {
			queries = append(queries, notifyQuery(evidence.Channel(l.ID), b.cfg.startPayloadSQL(l, row[0])))
		}
		if b.cfg.showsToken() {
			queries = append(queries, "SELECT "+describe.ShowTokenSQL(b.cfg.Session.ApplicationName, row[0], false))
		}
		queries = append(queries, b.leaveQueries()...)
	}
	ctx, cancel := untilAnswered(ctx)
	defer cancel()
	answers, err := b.Session.Ask(ctx, session.Request{SQL: append(queries, "SELECT "+lockColumnsSQL+fromLocksSQL+areOwnSQL)})
	b.forgetPlace()
	if err != nil {
		return b.cfg.Claim.rejected(err)
	}
	return b.checkListed(answers[len(answers)-1])
}

// tokenOnSecond draws the token on the second connection. With a quorum its commit waits for the
// standbys. It announces nothing: while a commit with a NOTIFY waits, every other NOTIFY
// on the server waits, too.
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/backend/commands/async.c (PreCommit_Notify)
func (b *bid) tokenOnSecond(ctx context.Context) ([]string, error) {
	columns, width := tokenSQL+", "+systemSQL, 2
	if !b.cfg.Session.Quorum {
		columns, width = columns+", pg_catalog.set_config('synchronous_commit', 'local', true), pg_catalog.pg_logical_emit_message(true, 'pglead', '')", 4
	}
	row, err := b.Session.AskSecond(ctx, columns)
	switch {
	case err != nil:
		return nil, err
	case len(row) != width:
		return nil, session.NotPostgreSQL()
	}
	return row, nil
}
