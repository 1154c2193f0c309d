package leasetime

import (
	"testing"
	"time"
)

// TestDeadBeforeTheLockIsFree: what the promise rests on, for leases of every length.
func TestDeadBeforeTheLockIsFree(t *testing.T) {
	for lease := 3 * time.Second; lease <= Most; lease += lease/7 + 1 {
		if two := HolderShare(lease) - 3*BeatEvery(lease); two < -3 {
			t.Errorf("lease %v: the holder's share ends %v before the third heartbeat", lease, -two)
		}
		if ForKill(lease) <= 0 || DeadAfter(lease, 0) >= HolderShare(lease)+MostGrace(lease) {
			t.Errorf("lease %v: no time for the kill, or none for a grace", lease)
		}
		if grace := lease / 4; DeadAfter(lease, grace) != DeadAfter(lease, 0)+grace || DeadAfter(lease, 2*grace) != lease {
			t.Errorf("lease %v: the lost-grace does not count, or beyond the lease", lease)
		}
		if HolderShare(lease)+MostGrace(lease) >= lease {
			t.Errorf("lease %v: a command outlives it", lease)
		}
	}
}
