package lock

import (
	"context"
	"fmt"
	"strconv"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// knowledge is what a bid knows of others that have its locks, or had them. The verdict on a grant
// follows from it. The session's reader writes to evidence, mailbox, news and commonMarks.
type knowledge struct {
	s   *session.Session
	cfg *Config // the bid's

	// contested are the locks that another session has, or may have had while this bid did not
	// listen. To start at once under one of them takes evidence.
	contested map[lockkey.ID]bool
	// unknownHolder: a try was refused, and the evidence names no holder. The next step is a look.
	unknownHolder bool

	evidence    map[lockkey.ID]*evidence.Evidence // of the locks to which it listens
	mailbox     mailbox                           // what it has heard, for the line
	news        chan struct{}                     // something new may have to be acted on
	commonMarks []lockkey.ID                      // the locks whose common marks it has
}

func newKnowledge(s *session.Session, cfg *Config) knowledge {
	return knowledge{s: s, cfg: cfg, contested: map[lockkey.ID]bool{}, evidence: map[lockkey.ID]*evidence.Evidence{}, news: make(chan struct{}, 1)}
}

// contest notes that others have, or may have had, these locks.
func (k *knowledge) contest(locks []advisory.Lock) {
	for _, l := range locks {
		k.contested[l.ID] = true
	}
}

// noteRefusal notes that another session has these locks, since a try was refused.
func (k *knowledge) noteRefusal(refused []advisory.Lock) {
	k.contest(refused)
	for _, l := range refused {
		if e := k.evidence[l.ID]; e != nil {
			k.unknownHolder = e.NoteRefusal(boottime.Now()) || k.unknownHolder
		}
	}
}

// listens says whether the bid collects what happens to the locks.
func (k *knowledge) listens() bool { return len(k.evidence) > 0 }

// trusts says whether a session's words count.
func (k *knowledge) trusts(pid uint32) bool {
	for _, e := range k.evidence {
		if e.Trusts(pid) {
			return true
		}
	}
	return false
}

// askRoles asks for the roles of sessions whose words may count.
func (k *knowledge) askRoles(ctx context.Context) error {
	for _, e := range k.evidence {
		for _, pid := range e.RolesWanted() {
			rows, err := k.s.Query(ctx, fmt.Sprintf("SELECT usesysid FROM pg_catalog.pg_stat_get_activity(%d)", pid))
			if err != nil {
				return k.cfg.rejected(err)
			}
			role := uint64(0)
			if row, err := rows.Only(1); err == nil {
				role, _ = strconv.ParseUint(row[0], 10, 32)
			}
			e.NoteRole(pid, uint32(role))
		}
	}
	return nil
}

// verdict says how long a granted lock has to be held before the command may start.
//
// A bid that gets the lock at the first try starts at once, unless the server came up less than a
// lock-delay ago, or the bid has heard something of the lock. A bid that has waited, in this
// session or in one that was lost, goes by what it has heard, which may be nothing.
func (k *knowledge) verdict(id lockkey.ID) evidence.Verdict {
	e := k.evidence[id]
	switch {
	case e != nil && (e.State() != evidence.Quiet || k.contested[id]):
		return e.Verdict()
	case k.contested[id]:
		return evidence.None(k.cfg.LockDelay, k.cfg.Session.Lease)
	}
	return evidence.Verdict{Delay: k.s.FirstTryDelay(k.cfg.LockDelay)}
}

// verdictOnAll is the current verdict on all of these locks.
func (k *knowledge) verdictOnAll(locks []advisory.Lock) evidence.Verdict {
	all := evidence.Verdict{CoversEarlier: true}
	for _, l := range locks {
		v := k.verdict(l.ID)
		all.Delay = max(all.Delay, v.Delay)
		all.CoversEarlier = all.CoversEarlier && v.CoversEarlier
	}
	return all
}
