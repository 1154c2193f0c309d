package lock

import (
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// TestEnoughSilence: a holder is silent for long enough once no command is alive, by its own settings,
// by the waiter's lock-delay, and by those of an earlier holder whose end is not known; and a busy
// machine has had time for the kill.
func TestEnoughSilence(t *testing.T) {
	const ours, holder, earlier = 1, 2, 3 // sessions
	const role, other, forKill = 10, 11, time.Second
	id := lockkey.ID{Number: 7}
	for name, tt := range map[string]struct {
		lockDelay, outlives time.Duration
		role                uint32 // the holder's
		heard               string // of the earlier holder
		want                time.Duration
	}{
		"the holder's settings":              {10 * time.Second, 20 * time.Second, role, "", 20*time.Second + forKill},
		"those of another role's holder":     {10 * time.Second, 20 * time.Second, other, "", 20*time.Second + forKill},
		"the waiter's lock-delay":            {30 * time.Second, 20 * time.Second, role, "", 30*time.Second + forKill},
		"those of an earlier holder":         {10 * time.Second, 20 * time.Second, role, "started 5 60000 0", 40*time.Second + forKill},
		"an earlier one that is dead before": {10 * time.Second, 20 * time.Second, role, "started 5 15000 0", 20*time.Second + forKill},
	} {
		cfg := Config{Claim: Claim{IDs: []lockkey.ID{id}}, LockDelay: tt.lockDelay, Session: session.Config{Lease: 15 * time.Second}}
		w := &waiter{bid: NewBid(nil, cfg, false)}
		w.watched.bestRank = 1
		e := evidence.New(evidence.Waiter{LockDelay: tt.lockDelay, Lease: cfg.Session.Lease})
		w.listener.evidence[id] = e
		e.NoteMark(1)
		seat := evidence.Seat{ID: id, PID: holder, Role: tt.role, Outlives: tt.outlives}
		found := &evidence.Look{Holders: []evidence.Seat{seat}, Line: []evidence.Seat{{ID: id, PID: earlier, Role: role}, {ID: id, PID: ours, Role: role}}, Role: role}
		if tt.heard != "" {
			e.Hear(earlier, tt.heard)
		}
		e.LookSent()
		e.Saw(found, id)
		if got := w.enoughSilence(seat, found); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
