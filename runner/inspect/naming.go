package inspect

import (
	"cmp"
	"slices"

	"github.com/pglead/pglead/lockkey"
)

// naming finds out of which keys the locks of one view are. A session that has
// thousands of locks may say that each of its hundred keys has a thousand slots,
// and so may the next; so whatever many say is hashed once, and all together is
// limited. Of what is beyond that the numbers are known, and not the names.
type naming struct {
	left  int // what may still be hashed, in bytes
	meant map[meaning]map[lockkey.ID]int
	lines map[uint32]lockkey.ID // whose tickets have this upper half
}

// meaning is what a session says of one of its keys. Its locks are mapped to the
// numbers of their slots; the key's own and the gate have 0.
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

// spend says whether so many hashes of texts of this length are still to be had.
func (n *naming) spend(hashes, length int) bool {
	const each = 64 // of what a hash costs whatever its length is
	n.left -= hashes * (length + each)
	return n.left >= 0
}

// of is the key and the slot that a session has by this lock.
func (n *naming) of(v View) (key string, slot int, known bool) {
	scheme, ok := lockkey.SchemeByName(cmp.Or(v.Scheme, DefaultScheme))
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

// locks are those of a key.
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
		for slot := range slots + 1 {
			if id, err := scheme.Slot(key, slot); err == nil {
				locks[id] = slot
			}
		}
		if id, err = scheme.Gate(key); err != nil {
			return locks
		}
	}
	n.addLine(id)
	return locks
}

// addLine notes a lock in whose line somebody may stand.
func (n *naming) addLine(of lockkey.ID) {
	if n.spend(1, 0) {
		n.lines[lockkey.Ticket(of)] = of
	}
}

// line says for which lock this one is a ticket, if it is one.
func (n *naming) line(id lockkey.ID) (of lockkey.ID, known bool) {
	if id.Pair {
		return of, false
	}
	of, known = n.lines[id.ClassID()]
	return of, known
}
