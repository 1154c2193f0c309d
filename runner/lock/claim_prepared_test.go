package lock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/lock"
)

// TestPreparedTransaction: the lock of a prepared transaction has no session. A run waits for it as
// for any other holder, and is told that a prepared transaction has it.
func TestPreparedTransaction(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"max_prepared_transactions": "2"})
	plain(t, server.DSN("postgres"), "BEGIN; SELECT pg_advisory_xact_lock(7); PREPARE TRANSACTION 'away'")
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	cfg.LockDelay = time.Second
	waiter := contend(t, cfg)
	inLine(t, server, id(7), 1)
	at := cfg
	at.Wait = 0
	refused := contend(t, at)
	<-refused.done
	var held *lock.ConflictError
	if !errors.As(refused.err, &held) || len(held.Holders) != 1 || !strings.Contains(held.Holders[0].String(), "a prepared transaction") {
		t.Errorf("it is refused by %v, %+v", refused.err, held)
	}
	if said := waiter.said(); len(said) != 1 || said[0] != "waiting" {
		t.Errorf("the waiter said %v", said)
	}
	query(t, server, "ROLLBACK PREPARED 'away'")
	waiter.held(t)
}
