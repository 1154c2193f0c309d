package inspect

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/describe"
)

// Lock is a lock with all its holders and waiters. Slots of one key are separate locks,
// and a waiter for any of them waits for the gate.
type Lock struct {
	Database string  `json:"database"`
	Key      *string `json:"key"` // null if no session says it
	Scheme   string  `json:"scheme,omitempty"`
	ID       int64   `json:"id"`
	IDText   string  `json:"id_text"` // for programs that read numbers as float64
	ClassID  uint32  `json:"classid"`
	ObjID    uint32  `json:"objid"`
	ObjSubID int     `json:"objsubid"`
	Mode     string  `json:"mode"`
	Slot     int     `json:"slot,omitempty"`
	Slots    int     `json:"slots,omitempty"`
	Holders  []View  `json:"holders"`
	Waiters  []View  `json:"waiters"`
	Paused   *Pause  `json:"paused,omitempty"` // the pause of the key in a ledger

	number  lockkey.ID
	holding map[uint32]int // the indexes, from 1, of backends in Holders
	waiting map[uint32]bool
}

// Pause keeps a key from starting.
type Pause struct {
	Key   string     `json:"-"`
	Text  string     `json:"-"`     // until when and by whom, for people
	Until *time.Time `json:"until"` // null: until it is resumed
	By    string     `json:"by"`
	Note  string     `json:"note"`
}

// Number is the lock's number.
func (l *Lock) Number() lockkey.ID { return l.number }

// Free is a lock that nobody holds or waits for.
func Free(database, key string, id lockkey.ID) *Lock {
	l := newLock(View{Database: database, ID: id})
	l.Key, l.Mode = &key, "free"
	return l
}

func newLock(v View) *Lock {
	l := &Lock{
		Database: v.Database, ID: v.ID.Number, IDText: strconv.FormatInt(v.ID.Number, 10),
		ClassID: v.ID.ClassID(), ObjID: v.ID.ObjID(), ObjSubID: v.ID.ObjSubID(),
		Mode: "exclusive", Holders: []View{}, Waiters: []View{}, number: v.ID, holding: map[uint32]int{}, waiting: map[uint32]bool{},
	}
	if v.Shared {
		l.Mode = "shared"
	}
	return l
}

// Locks groups the views by lock. The first in line for slots holds their
// gate, but counts as a waiter. A session that has a lock in both modes is one holder, an
// exclusive one.
func Locks(views []View) []*Lock {
	type number struct {
		database string
		id       lockkey.ID
	}
	locks := []*Lock{}
	of := map[number]*Lock{}
	for _, v := range views {
		l := of[number{v.Database, v.ID}]
		if l == nil {
			l = newLock(v)
			locks = append(locks, l)
			of[number{v.Database, v.ID}] = l
		}
		if key, slot, known := v.Key(); known && l.Key == nil {
			l.Key, l.Scheme, l.Slots, l.Slot = &key, cmp.Or(v.Scheme, lockkey.DefaultScheme), v.Slots, slot
		}
		l.add(v)
	}
	Sort(locks)
	return locks
}

// add counts a session's part in the lock.
func (l *Lock) add(v View) {
	gate := l.Slots > 0 && l.Slot == 0
	switch {
	case !v.Granted || gate:
		if !l.waiting[v.Backend] {
			l.waiting[v.Backend] = true
			l.Waiters = append(l.Waiters, v)
		}
	case l.holding[v.Backend] > 0:
		l.Mode, l.Holders[l.holding[v.Backend]-1].Shared = "exclusive", false
	default:
		l.Holders = append(l.Holders, v)
		l.holding[v.Backend] = len(l.Holders)
	}
}

// InLine returns the holders of the locks, how many waiters stand before this backend in
// its line (-1 if it doesn't wait), and the number of all waiters.
func InLine(views []View, backend uint32) (holders []View, before, waiters int) {
	var own *View
	var line []View
	for _, l := range Locks(views) {
		holders = append(holders, l.Holders...)
		line = append(line, l.Waiters...)
		for _, w := range l.Waiters {
			if w.Backend == backend {
				own = &w
			}
		}
	}
	holders = slices.DeleteFunc(holders, func(h View) bool { return h.Backend == backend })
	if own == nil {
		return holders, -1, len(line)
	}
	for _, w := range line {
		if w.ID == own.ID && w.Waiting > own.Waiting {
			before++
		}
	}
	return holders, before, len(line)
}

// Sort puts the locks of one key together, with its slots in order. Locks whose key
// no session names come last.
func Sort(locks []*Lock) { slices.SortStableFunc(locks, compare) }

func compare(a, b *Lock) int {
	const last = describe.MostSlots + 1
	order := func(l *Lock) (unnamed int, key string, slot int) {
		if l.Key == nil {
			return 1, "", l.Slot
		}
		if l.Slots > 0 && l.Slot == 0 { // the line for any slot
			return 0, *l.Key, last
		}
		return 0, *l.Key, l.Slot
	}
	unnamedA, keyA, slotA := order(a)
	unnamedB, keyB, slotB := order(b)
	return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(unnamedA, unnamedB), cmp.Compare(keyA, keyB),
		cmp.Compare(a.Scheme, b.Scheme), cmp.Compare(slotA, slotB))
}
