package lock

import (
	"context"
	"slices"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/lock/evidence"
)

// grant is a lock that was granted.
type grant struct {
	advisory.Lock
	// verdict is that of the moment of the grant, until a later one calls for a longer delay, or
	// for none (review).
	verdict evidence.Verdict
	// since is the time after which nobody else can have held the lock. With a quorum it is zero
	// until the standbys have confirmed that.
	since time.Time
}

// Locks are the locks that the bid has got so far.
func (b *bid) Locks() (locks []advisory.Lock) {
	for _, g := range b.grants {
		locks = append(locks, g.Lock)
	}
	return locks
}

// verdictOn says how long a granted lock has to be held before the command may start.
//
// A bid that gets the lock at the first try starts at once, unless the server came up less than a
// lock-delay ago, or the bid has heard something of the lock. A bid that has waited, in this
// session or in one that was lost, goes by what it has heard, which may be nothing.
func (b *bid) verdictOn(id lockkey.ID) evidence.Verdict {
	return b.listener.evidence[id].Verdict(b.youngFor(b.cfg.LockDelay))
}

// youngFor is how much longer the server is young: how long a bid that got the lock at its first
// try has to wait before the start. If the server started, or was promoted, less than lockDelay
// ago, the bid waits for the rest of lockDelay, since the lock may have had a holder before. That
// applies to a server without TCP, too: the holder may have come to its socket through a pooler,
// ssh or a proxy. While the server's clock has not caught up after it was set back, each first try
// waits for up to a lock-delay. If only this machine can reach the server, each holder has seen at
// once that it went down, and has been killing its command since then, after the lost-grace.
//
// With a quorum, after a promotion, the former primary may have holders for as long as standbys
// follow it.
func (b *bid) youngFor(lockDelay time.Duration) time.Duration {
	if b.cfg.PrivateServer {
		lockDelay = min(lockDelay, b.cfg.LostGrace)
	}
	if lockDelay == 0 {
		return 0
	}
	if followed, promoted := b.Session.FollowedFor(); promoted && followed < lockDelay {
		return lockDelay
	}
	return max(0, lockDelay-b.Session.ServerAge())
}

// startsAtOnce says whether the current verdicts on these locks call for no delay.
func (b *bid) startsAtOnce(locks []advisory.Lock) bool {
	return !slices.ContainsFunc(locks, func(l advisory.Lock) bool { return b.verdictOn(l.ID).Delay > 0 })
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

// review is reviewGrants for one lock. It notes in the grant what has changed since: evidence that
// no earlier command is alive, or a longer delay, because a role was looked up. After a first try
// the current delay is already a rest, since the server has grown older (youngFor).
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

// heldFor is how long nobody else can have held any of the granted locks.
func (b *bid) heldFor() time.Duration {
	held := b.grants[0].heldFor()
	for _, g := range b.grants {
		held = min(held, g.heldFor())
	}
	return held
}

// confirmGrants has the standbys of a quorum confirm that this server is still the primary, unless
// they have done so since the grants. From then on the locks count as held.
func (b *bid) confirmGrants(ctx context.Context) error {
	if !b.grants[0].since.IsZero() {
		return nil
	}
	if err := b.Session.AwaitStandbys(ctx); err != nil {
		return err
	}
	for i := range b.grants {
		b.grants[i].since = time.Now()
	}
	return nil
}

// forgetGrants forgets the locks, once they are freed, and what followed from them.
func (b *bid) forgetGrants() { b.grants, b.drawn, b.delayed = nil, drawn{}, false }
