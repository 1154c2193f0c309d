package lock

import (
	"slices"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/lock/evidence"
)

// The verdict on a lock says how long it has to be held before the command may start. It follows
// from what the bid knows of others that have the lock, or had it.

// contest notes that others may have had these locks while the bid did not listen.
func (b *bid) contest(locks []advisory.Lock) {
	for _, l := range locks {
		b.evidence[l.ID].Contest()
	}
}

// untouched says whether nobody else is known to have, or to have had, any of the claim's locks.
func (b *bid) untouched() bool {
	return !slices.ContainsFunc(b.cfg.Claim.IDs, func(id lockkey.ID) bool { return !b.evidence[id].Untouched() })
}

// noteRefusal notes that another session has what the last try did not get: the first missing lock,
// since the try stopped there. In a transaction, or with a gate, it tried all that are missing.
func (b *bid) noteRefusal() {
	refused := b.missing()
	if b.cfg.keepsPart() {
		refused = refused[:1]
	}
	for _, l := range refused {
		b.unknownHolder = b.evidence[l.ID].NoteRefusal(boottime.Now()) || b.unknownHolder
	}
}

// verdictOn says how long a granted lock has to be held before the command may start.
//
// A bid that gets the lock at the first try starts at once, unless the server came up less than a
// lock-delay ago, or the bid has heard something of the lock. A bid that has waited, in this
// session or in one that was lost, goes by what it has heard, which may be nothing.
func (b *bid) verdictOn(id lockkey.ID) evidence.Verdict {
	return b.evidence[id].Verdict(b.firstTryDelay(b.cfg.LockDelay))
}

// firstTryDelay is how long a bid that got the lock at its first try has to wait before the start.
// If the server started, or was promoted, less than lockDelay ago, the bid waits for the rest of
// lockDelay, since the lock may have had a holder before. That applies to a server without TCP,
// too: the holder may have come to its socket through a pooler, ssh or a proxy. While the server's
// clock has not caught up after it was set back, each first try waits for up to a lock-delay.
//
// With a quorum, after a promotion, the former primary may have holders for as long as standbys
// follow it.
func (b *bid) firstTryDelay(lockDelay time.Duration) time.Duration {
	if b.cfg.PrivateServer {
		return 0
	}
	if followed, promoted := b.s.FollowedFor(); promoted && followed < lockDelay {
		return lockDelay
	}
	return max(0, lockDelay-b.s.ServerAge())
}

// delayOn is the longest delay that a current verdict on these locks calls for.
func (b *bid) delayOn(locks []advisory.Lock) (delay time.Duration) {
	for _, l := range locks {
		delay = max(delay, b.verdictOn(l.ID).Delay)
	}
	return delay
}
