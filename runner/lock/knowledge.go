package lock

import (
	"context"
	"fmt"
	"strconv"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/lock/advisory"
	"github.com/pglead/pglead/runner/lock/evidence"
)

// knowledge is what a bid knows of others that have its locks, or had them. The verdict on a grant
// follows from it. The session's reader writes to heard, mailbox and news.
type knowledge struct {
	// contested are the locks that another session has, or may have had while this bid did not listen.
	// A start under one of them needs evidence.
	contested map[lockkey.ID]bool
	// unknownHolder: a try was refused, and the evidence names no holder. The next step is a look.
	unknownHolder bool

	heard   map[lockkey.ID]*evidence.Evidence // from the time at which it listens
	mailbox mailbox                           // for the line
	news    chan struct{}                     // there is something in it
	marks   []lockkey.ID                      // the locks whose common marks it has
}

func newKnowledge() knowledge {
	return knowledge{contested: map[lockkey.ID]bool{}, heard: map[lockkey.ID]*evidence.Evidence{}, news: make(chan struct{}, 1)}
}

// contest notes that others have, or may have had, these locks.
func (k *knowledge) contest(locks []advisory.Lock) {
	for _, l := range locks {
		k.contested[l.ID] = true
	}
}

// noteRefusal notes that another session has what the last try did not get: the first missing
// lock, since the try stopped there. In a transaction, or with a gate, it notes all the missing
// locks.
func (b *Bid) noteRefusal() {
	refused := b.missing()
	if !b.cfg.Claim.takesAny() && !b.cfg.Session.Transaction && len(refused) > 0 {
		refused = refused[:1]
	}
	b.knowledge.contest(refused)
	for _, l := range refused {
		if h := b.knowledge.heard[l.ID]; h != nil {
			b.knowledge.unknownHolder = h.NoteRefusal(boottime.Now()) || b.knowledge.unknownHolder
		}
	}
}

// listens says whether the bid collects what happens to the locks.
func (k *knowledge) listens() bool { return len(k.heard) > 0 }

// trusts says whether a session's words count.
func (k *knowledge) trusts(pid uint32) bool {
	for _, h := range k.heard {
		if h.Trusts(pid) {
			return true
		}
	}
	return false
}

// verify asks for the roles of sessions whose words may count.
func (b *Bid) verify(ctx context.Context) error {
	for _, h := range b.knowledge.heard {
		for _, pid := range h.Unverified() {
			rows, err := b.s.Query(ctx, fmt.Sprintf("SELECT usesysid FROM pg_catalog.pg_stat_get_activity(%d)", pid))
			if err != nil {
				return b.error(err)
			}
			role := uint64(0)
			if row, err := rows.Only(1); err == nil {
				role, _ = strconv.ParseUint(row[0], 10, 32)
			}
			h.NoteRole(pid, uint32(role))
		}
	}
	return nil
}

// verdict is how long a granted lock has to be held before the command may
// start.
//
// A bid that gets the lock at the first try starts at once, unless the server
// is too young to tell, or the bid has heard something of the lock. A bid that has
// waited, in this session or in one that was lost, goes by what it has heard, which may
// be nothing.
func (b *Bid) verdict(id lockkey.ID) evidence.Verdict {
	h := b.knowledge.heard[id]
	switch {
	case h != nil && (h.State() != evidence.Quiet || b.knowledge.contested[id]):
		return h.Verdict()
	case b.knowledge.contested[id]:
		return evidence.None(b.cfg.LockDelay)
	}
	return evidence.Verdict{Delay: b.s.FirstTryDelay(b.cfg.LockDelay)}
}

// verdictOnAll is the current verdict on all of these locks.
func (b *Bid) verdictOnAll(locks []advisory.Lock) evidence.Verdict {
	all := evidence.Verdict{CoversEarlier: true}
	for _, l := range locks {
		v := b.verdict(l.ID)
		all.Delay = max(all.Delay, v.Delay)
		all.CoversEarlier = all.CoversEarlier && v.CoversEarlier
	}
	return all
}
