package cmd

import (
	"context"
	"slices"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// seek asks the server for the locks of a key. Without --slots it infers the number of slots:
// from what holders and waiters say, or else from the slots that are held. It returns the
// claim with as many.
func (f *lookFlags) seek(ctx context.Context, viewer *session.Viewer, claim lock.Claim) (lock.Claim, []*inspect.Lock, error) {
	sought := claim.Sought()
	slots := map[lockkey.ID]int{}
	if scheme, err := f.scheme(); err == nil && f.slots == 1 {
		if gate, err := scheme.Gate(f.keys[0]); err == nil {
			sought.Lines = append(slices.Clone(sought.Lines), gate)
			sought.Locks = append(slices.Clone(sought.Locks), gate)
			slots[gate] = 0
			for i := range inspect.MostSlots {
				id, _ := scheme.Slot(f.keys[0], i+1) // which has a gate
				sought.Locks = append(sought.Locks, id)
				slots[id] = i + 1
			}
		}
	}
	views, err := inspect.Views(ctx, viewer, sought)
	if err != nil {
		return claim, nil, err
	}
	if f.shared {
		views = slices.DeleteFunc(views, func(v inspect.View) bool { return v.Granted && v.Shared })
	}
	locks := slices.DeleteFunc(inspect.Locks(views), func(l *inspect.Lock) bool { return !slices.Contains(sought.Locks, l.Number()) })
	most := 0
	for _, l := range locks {
		if slot, ok := slots[l.Number()]; ok {
			l.Slot = slot // though its holder may not be seen to say so
			most = max(most, slot, l.Slots)
		}
	}
	if most > 1 {
		inspect.Sort(locks)
		f.slots = most
		claim, err = f.claim()
	}
	return claim, locks, err
}
