// Package pace has the times between attempts.
package pace

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is a time that doubles with each attempt, so that a server that comes
// up again isn't overrun.
type Backoff struct{ next, most time.Duration }

// Doubling is a backoff from first to most.
func Doubling(first, most time.Duration) *Backoff { return &Backoff{first, most} }

// Next is the time for this attempt.
func (b *Backoff) Next() time.Duration {
	now := b.next
	b.next = min(2*now, b.most)
	return now
}

// Half is a random time from half of Next to all of it.
func (b *Backoff) Half() time.Duration { return Between(b.Halves()) }

// Halves are the bounds of Half, for this attempt.
func (b *Backoff) Halves() (least, most time.Duration) {
	most = b.Next()
	return most / 2, most
}

// Between is a random time from least to most.
func Between(least, most time.Duration) time.Duration {
	return least + rand.N(most-least+1)
}

// Sleep says whether the time passed before ctx ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
