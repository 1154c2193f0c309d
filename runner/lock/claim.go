package lock

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/visible"
)

// Claim is what a run has to hold: the locks of all IDs or, with a Gate, of any one.
type Claim struct {
	// Keys are the names of IDs, in the same order, or one name for all of them.
	Keys []string
	// IDs are in the order of lockkey.ID's Compare, none of them twice, so
	// that no two sessions ever wait for each other.
	IDs []lockkey.ID
	// Shared says that the claim is a reader's: it shares each of its locks with other readers.
	Shared bool
	// Gate is the lock in whose line the waiters for any of the locks stand. The first in line
	// holds the gate and tries all locks; a newcomer that can't pass the gate tries none.
	Gate *lockkey.ID
}

// Key is the name of lock i, the one name for all locks, or empty if there are no names.
func (c Claim) Key(i int) string {
	switch {
	case len(c.Keys) == len(c.IDs):
		return c.Keys[i]
	case len(c.Keys) == 0:
		return ""
	}
	return c.Keys[0]
}

// String names the claim's locks for a message: by their keys or, if they have none of their own,
// by their numbers.
func (c Claim) String() string {
	const most = 3
	var list []string
	for i, id := range c.IDs[:min(most, len(c.IDs))] {
		name := id.String()
		if len(c.Keys) == len(c.IDs) {
			name = visible.Text(c.Keys[i])
		}
		list = append(list, name)
	}
	if more := len(c.IDs) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list, ", "), more)
	}
	return strings.Join(list, ", ")
}

// Sought are the locks to look at for a claim, and the locks whose lines lead to them.
func (c Claim) Sought() inspect.Sought {
	sought := inspect.Sought{Locks: c.IDs, Lines: c.lines()}
	if c.takesAny() {
		sought.Gates = c.lines()
		sought.Locks = append(slices.Clone(c.IDs), *c.Gate)
	}
	return sought
}

// locks are all locks of the claim.
func (c Claim) locks() (locks []advisory.Lock) {
	for _, id := range c.IDs {
		locks = append(locks, advisory.Lock{ID: id, Shared: c.Shared})
	}
	return locks
}

// with is a claim to the locks of both.
func (c Claim) with(other Claim) Claim {
	return Claim{Keys: append(c.Keys, other.Keys...), IDs: append(c.IDs, other.IDs...)}
}

// takesAny says whether any one of the locks will do.
func (c Claim) takesAny() bool { return c.Gate != nil }

// trySQL is an SQL expression that tries for these locks, each in this way: for all, up to the first
// that is not free or, with a gate, for any one.
func (c Claim) trySQL(locks []advisory.Lock, each func(advisory.Lock) string) string {
	if c.takesAny() {
		return advisory.TryEachSQL(locks, each)
	}
	return advisory.TryAllSQL(locks, each)
}

// fulfilledBy says whether these locks are enough: all or, with a gate, any one.
func (c Claim) fulfilledBy(locks []advisory.Lock) bool {
	return len(locks) == len(c.IDs) || c.takesAny() && len(locks) > 0
}

// hasOneHolder says whether one session at most has what the claim asks for. Readers share it, and
// slots have a holder each.
func (c Claim) hasOneHolder() bool { return !c.Shared && !c.takesAny() }

// lineFor is the lock in whose line the waiters for one of the claim's locks stand.
func (c Claim) lineFor(id lockkey.ID) lockkey.ID {
	if c.takesAny() {
		return *c.Gate
	}
	return id
}

// lines are the locks in whose lines the waiters for the claim's locks stand.
func (c Claim) lines() []lockkey.ID {
	if c.takesAny() {
		return []lockkey.ID{*c.Gate}
	}
	return c.IDs
}

// hasOneLine says whether all who wait for the claim stand in one line. Otherwise the bid also
// takes the common marks of the lines in which it has no ticket (missingMarks), and no waiter calls
// the dormant ones.
func (c Claim) hasOneLine() bool { return len(c.lines()) == 1 }

// needsGate says whether the first in line has to keep others out: newcomers, which could take one
// of the slots first, or readers, since there might always be another one.
func (c Claim) needsGate(hasReaders bool) bool { return c.takesAny() || !c.Shared && hasReaders }
