package evidence

import "github.com/pglead/pglead/lockkey"

// ByLock is the evidence of each lock of a claim.
type ByLock map[lockkey.ID]*Evidence

// Contest notes that other sessions may have had these locks while the waiter did not listen.
func (m ByLock) Contest(ids ...lockkey.ID) {
	for _, id := range ids {
		m[id].Contest()
	}
}

// Untouched says whether nobody else is known to have, or to have had, any of the locks.
func (m ByLock) Untouched() bool {
	for _, e := range m {
		if !e.Untouched() {
			return false
		}
	}
	return true
}

// LookSent notes that a look is about to be sent.
func (m ByLock) LookSent() {
	for _, e := range m {
		e.LookSent()
	}
}

// Saw notes what the look that was sent last has shown. The session's reader calls it, in the order
// of the server's messages.
func (m ByLock) Saw(l *Look) {
	for id, e := range m {
		e.Saw(l, id)
	}
}

// Forget forgets what was heard and seen of all locks, except that others had them, or may have had
// them.
func (m ByLock) Forget() {
	for _, e := range m {
		e.Forget()
	}
}

// Trusts says whether a session is more than a stranger to the evidence of any lock. A word of it
// may not count for all that.
func (m ByLock) Trusts(pid uint32) bool {
	for _, e := range m {
		if e.Trusts(pid) {
			return true
		}
	}
	return false
}
