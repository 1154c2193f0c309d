package runner

import (
	"context"
	"testing"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// TestExchangeAfterTheEnd: a worker whose list has ended learns whether its session got the lock
// that it was trying for. Other workers may use the session for hours, and keep the lock with it.
func TestExchangeAfterTheEnd(t *testing.T) {
	server := testserver.Start(t, nil)
	locking := lockOn(t, server)
	locking.OfList = true
	s, err := session.Open(t.Context(), locking.Session)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	w := &worker{each: &each{}, session: s}
	for number := range int64(50) {
		// A reader's try does not join an exchange.
		locking.Claim = lock.Claim{IDs: []lockkey.ID{{Number: number}}, Shared: true}
		j := &job{session: s, bid: lock.NewBid(s, locking, false)}
		granted, err := w.exchange(ended, nil, j)
		if err != nil || !granted || !j.bid.Complete() {
			t.Fatalf("try %d: granted %t, %v", number, granted, err)
		}
	}
}
