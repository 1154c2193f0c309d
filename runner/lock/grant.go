package lock

import (
	"context"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/lock/evidence"
)

// grant is a lock that was granted.
type grant struct {
	advisory.Lock
	// verdict is that of the moment of the grant, until a later one calls for a longer delay, or for
	// none (review).
	verdict evidence.Verdict
	// since is the time after which nobody else can have held the lock. With a quorum it is zero until
	// the standbys have confirmed that.
	since time.Time
}

// granted are the locks that the bid has got so far.
func (b *bid) granted() (locks []advisory.Lock) {
	for _, g := range b.grants {
		locks = append(locks, g.Lock)
	}
	return locks
}

// reviewGrants brings the verdicts on the grants up to date, and says for how much longer the locks
// have to be held before a command may start. A lock that was granted without a delay needs none
// later.
func (b *bid) reviewGrants() (rest time.Duration) {
	for i := range b.grants {
		rest = max(rest, b.review(&b.grants[i]))
	}
	return rest
}

// review is reviewGrants for one lock. It notes in the grant what has changed since: evidence that no
// earlier command is alive, or a longer delay, because a role was looked up. After a first try the
// current verdict may have what is left of the delay (firstTryDelay).
func (b *bid) review(g *grant) time.Duration {
	now, held := b.verdictOn(g.ID), g.heldFor()
	longest := max(g.verdict.Delay, now.Delay)
	switch {
	case g.verdict.Delay == 0, held >= longest: // there was no delay, or it is over
		return 0
	case now.Delay == 0:
		g.verdict = now
		return 0
	}
	g.verdict.Delay = longest
	const step = 100 * time.Millisecond // rounded up, since others are shown it, and some time has passed since the grant
	return (min(longest-held, now.Delay) + step - 1).Truncate(step)
}

// heldFor is how long nobody else can have held the lock.
func (g grant) heldFor() time.Duration {
	if g.since.IsZero() {
		return 0
	}
	return time.Since(g.since)
}

// confirmGrants has the standbys of a quorum confirm that this server is still the primary, unless
// they have done so since the grants. From then on the locks count as held.
func (b *bid) confirmGrants(ctx context.Context) error {
	if !b.grants[0].since.IsZero() {
		return nil
	}
	if err := b.s.AwaitStandbys(ctx); err != nil {
		return err
	}
	for i := range b.grants {
		b.grants[i].since = time.Now()
	}
	return nil
}

// noteFreed notes that the bid has none of its locks any more.
func (b *bid) noteFreed() { b.grants, b.drawn, b.delayed = nil, drawn{}, false }
