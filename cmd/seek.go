package cmd

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// seek asks the server for the locks of a key. Where --slots doesn't say how many
// slots it has, that is found out: from what holders and waiters say, or else from
// the slots that somebody has. The claim is what there turns out to be.
func (f *viewFlags) seek(ctx context.Context, viewer *session.Viewer, claim lock.Claim) (lock.Claim, []*lockView, error) {
	sought := claim.Sought()
	slots := map[lockkey.ID]int{}
	if scheme, err := f.scheme(); err == nil && f.slots == 1 {
		if gate, err := scheme.Gate(f.keys[0]); err == nil {
			sought.Lines = append(slices.Clone(sought.Lines), gate)
			sought.Locks = append(slices.Clone(sought.Locks), gate)
			slots[gate] = 0
			for i := range mostSlots {
				id, _ := scheme.Slot(f.keys[0], i+1) // which has a gate
				sought.Locks = append(sought.Locks, id)
				slots[id] = i + 1
			}
		}
	}
	views, err := viewer.Locks(ctx, false, sought)
	if err != nil {
		return claim, nil, err
	}
	if f.shared {
		views = slices.DeleteFunc(views, func(v session.View) bool { return v.Granted && v.Shared })
	}
	locks := slices.DeleteFunc(locksOf(views), func(l *lockView) bool { return !slices.Contains(sought.Locks, l.id) })
	most := 0
	for _, l := range locks {
		if slot, ok := slots[l.id]; ok {
			l.Slot = slot // though its holder may not be seen to say so
			most = max(most, slot, l.Slots)
		}
	}
	if most > 1 {
		slices.SortStableFunc(locks, compareLocks)
		f.slots = most
		claim, err = f.claim()
	}
	return claim, locks, err
}

// wanted are the locks of keys that match one of the patterns, or all.
func wanted(ctx context.Context, viewer *session.Viewer, all bool, matches func(key string) bool) ([]*lockView, error) {
	views, err := viewer.Locks(ctx, all, session.Sought{})
	if err != nil || matches == nil {
		return locksOf(views), err
	}
	return slices.DeleteFunc(locksOf(views), func(l *lockView) bool { return l.Key == nil || !matches(*l.Key) }), nil
}

// matcher says of a key whether it matches one of the patterns; nil if there are none.
func matcher(patterns []string) (func(key string) bool, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	var expressions []string
	for _, p := range patterns {
		expressions = append(expressions, strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(p)))
	}
	matches, err := regexp.Compile("(?s)^(" + strings.Join(expressions, "|") + ")$")
	if err != nil { // it is not UTF-8
		return nil, usagef("the pattern can't be read: %w", err)
	}
	return matches.MatchString, nil
}

// compareLocks puts the locks of one key together, its slots in their order, before
// those whose keys nobody says.
func compareLocks(a, b *lockView) int {
	const last = mostSlots + 1
	place := func(l *lockView) (unnamed int, key string, slot int) {
		if l.Key == nil {
			return 1, "", l.Slot
		}
		if l.Slots > 0 && l.Slot == 0 { // those who are in line for any
			return 0, *l.Key, last
		}
		return 0, *l.Key, l.Slot
	}
	unnamedA, keyA, slotA := place(a)
	unnamedB, keyB, slotB := place(b)
	return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(unnamedA, unnamedB), cmp.Compare(keyA, keyB),
		cmp.Compare(a.Scheme, b.Scheme), cmp.Compare(slotA, slotB))
}
