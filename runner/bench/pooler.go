//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/localpg"
)

// pooler compares a run and a refusal through PgBouncer, in the only way that works,
// with those without it.
func (b *bench) pooler() error {
	dsn, stop, err := b.server.Pooler(localpg.Superuser, map[string]string{
		"pool_mode": "transaction", "default_pool_size": "30", "idle_transaction_timeout": "0", "query_timeout": "0", // as cmd/RECIPES.md has them
	})
	if errors.Is(err, localpg.ErrNoPooler) {
		fmt.Fprintln(os.Stderr, "bench: left out:", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer stop()
	if err := warm(dsn, 4); err != nil {
		return err
	}
	const direct, through = "**pglead run**", "**pglead run** --transaction, through PgBouncer"
	flags := []string{"--transaction", "--dsn", dsn}
	f := &field{b: b}
	f.addPglead("", "", b.unix, "--", "true")
	f.addPglead(" --transaction, through PgBouncer", direct, b.unix, append(flags, "--", "true")...)
	if err := f.race(); err != nil {
		return err
	}
	f.print("Through PgBouncer: a free lock and `true`", " What lives on at the server is not counted there.")
	b.goal("run through PgBouncer against a direct one", f.against(through, direct), 1.1, " ×")

	release, err := b.holdKey()
	if err != nil {
		return err
	}
	defer release()
	f = &field{b: b}
	f.addRefused("", "", b.unix)
	f.addRefused(" --transaction, through PgBouncer", direct, b.unix, flags...)
	if err := f.race(); err != nil {
		return err
	}
	f.print("Through PgBouncer: a lock that is held elsewhere, `--wait 0`", "")
	b.goal("refused through PgBouncer against directly", f.against(through, direct), .6, " ×")
	return nil
}

// warm makes a pooler log in to the server as often as it will need to: from then on
// no run does.
func warm(dsn string, sessions int) error {
	ctx := context.Background()
	for range sessions {
		conn, err := pgconn.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		defer func() { _, _ = conn.Exec(ctx, "COMMIT").ReadAll() }() // a connection in a transaction would not be reused
		if _, err := conn.Exec(ctx, "BEGIN; SELECT 1").ReadAll(); err != nil {
			return err
		}
	}
	return nil
}
