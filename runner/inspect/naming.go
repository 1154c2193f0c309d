package inspect

import (
	"cmp"
	"slices"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
)

// naming finds out to which keys the locks in a list of views belong. A session with thousands of
// locks may say that each of its hundred keys has a thousand slots, and so may the next one. So
// what several sessions say in the same words is hashed only once, and there is a limit for all
// hashes together. Locks beyond the limit have numbers, but no names.
type naming struct {
	left  int // bytes that may still be hashed
	meant map[meaning]map[lockkey.ID]int
	lines map[uint32]lockkey.ID // the lock whose tickets have this upper half
}

// meaning is what a session says of one of its keys.
type meaning struct {
	scheme, key string
	slots       int
}

// mostHashed is enough for 300 keys with 1000 slots each.
const mostHashed = 32 << 20

func newNaming(asked []lockkey.ID) *naming {
	n := &naming{left: mostHashed, meant: map[meaning]map[lockkey.ID]int{}, lines: map[uint32]lockkey.ID{}}
	for _, id := range asked {
		n.addLine(id)
	}
	return n
}

// spend counts this many hashes of texts of this length, and says whether they are within the
// limit.
func (n *naming) spend(hashes, length int) bool {
	const each = 64 // what every hash costs besides its length
	n.left -= hashes * (length + each)
	return n.left >= 0
}

// of returns the key and the slot that its session means by this lock.
func (n *naming) of(v View) (key string, slot int, known bool) {
	scheme, ok := lockkey.SchemeByName(cmp.Or(v.Scheme, lockkey.DefaultScheme))
	if !ok {
		return "", 0, false
	}
	for _, key := range slices.Concat(v.Keys, v.applied()) {
		if slot, ok := n.locks(scheme, key, v.Slots)[v.ID]; ok {
			return key, slot, true
		}
	}
	return "", 0, false
}

// locks are the locks of a key, with the numbers of their slots. The key's own lock and
// the gate have 0.
func (n *naming) locks(scheme lockkey.Scheme, key string, slots int) map[lockkey.ID]int {
	of := meaning{scheme.Name, key, slots}
	if locks, ok := n.meant[of]; ok {
		return locks
	}
	if !n.spend(slots+2, len(key)) {
		return nil
	}
	locks := map[lockkey.ID]int{}
	n.meant[of] = locks
	id, err := scheme.ID(key)
	if err != nil {
		return locks
	}
	locks[id] = 0
	if slots > 0 {
		if id, err = scheme.Gate(key); err != nil {
			return locks
		}
		for slot := range slots + 1 {
			id, _ := scheme.Slot(key, slot) // the scheme has a gate, so it has slots
			locks[id] = slot
		}
	}
	n.addLine(id)
	return locks
}

// addLine notes a lock that may have a line.
func (n *naming) addLine(of lockkey.ID) {
	if n.spend(1, 0) {
		n.lines[advisory.TicketClass(of)] = of
	}
}
