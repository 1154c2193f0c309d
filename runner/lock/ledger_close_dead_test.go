package lock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
)

// TestCloseDead: of several open runs in the ledger, as readers leave them, a start closes those that
// are dead, but none that is later than one that may be alive: it would close that, too.
func TestCloseDead(t *testing.T) {
	const lease, grace = 15 * time.Second, 4 * time.Second
	brief := func(token int64) ledger.OpenRun { return ledger.OpenRun{Token: token, Lease: lease} }
	long := func(token int64) ledger.OpenRun { return ledger.OpenRun{Token: token, Lease: lease, LostGrace: grace} }
	for name, tt := range map[string]struct {
		open   []ledger.OpenRun
		waited time.Duration
		rest   time.Duration
		closes int64
	}{
		"nothing is dead yet":          {[]ledger.OpenRun{brief(5)}, 9 * time.Second, time.Second, 0},
		"the lock-delay is longer":     {[]ledger.OpenRun{{Token: 5, Lease: lease / 5}}, 9 * time.Second, time.Second, 0},
		"one is dead":                  {[]ledger.OpenRun{brief(5)}, 10 * time.Second, 0, 5},
		"the later one may be alive":   {[]ledger.OpenRun{long(7), brief(5)}, 12 * time.Second, 2 * time.Second, 5},
		"the earlier one may be alive": {[]ledger.OpenRun{long(5), brief(7)}, 12 * time.Second, 2 * time.Second, 0},
		"both are dead":                {[]ledger.OpenRun{long(5), brief(7)}, 14 * time.Second, 0, 7},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := NewBid(nil, Config{Claim: Claim{IDs: []lockkey.ID{{Number: 7}}}, LockDelay: 10 * time.Second}, false)
				b.grants = []grant{{Lock: b.cfg.Claim.locks()[0], since: time.Now().Add(-tt.waited)}}
				l := ledgerStart{bid: b, proof: ledger.Proof{Closes: make([]int64, 1)}, open: tt.open}
				if rest, _ := l.closeDead(); rest != tt.rest || l.proof.Closes[0] != tt.closes {
					t.Errorf("it waits for %v and closes %d, want %v and %d", rest, l.proof.Closes[0], tt.rest, tt.closes)
				}
			})
		})
	}
}
