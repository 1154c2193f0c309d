package evidence

import (
	"cmp"

	"github.com/pglead/pglead/runner/boottime"
)

// peer is what is known of another session.
type peer struct {
	role   uint32 // 0: not known
	heldAt int    // seq when a look last showed that it holds the lock; 0: none did
	// missed is since when it has had no lock: a look didn't show it, or the waiter got the lock;
	// or 0.
	missed boottime.Instant
}

// meet notes a session that a look shows. If it has another role than the known one, the server
// has given the number to another session. A session that is ending has no role any more.
func (e *Evidence) meet(pid, role uint32) peer {
	if known := e.peers[pid].role; known != 0 && role != 0 && role != known {
		e.retire(pid)
	}
	p := e.peers[pid]
	p.role, p.missed = cmp.Or(role, p.role), 0
	e.peers[pid] = p
	return p
}

// NoteGranted notes that the waiter has the lock, so that no known session has it any more, except
// other readers.
func (e *Evidence) NoteGranted() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for pid := range e.peers {
		if !e.waiter.Shared {
			e.miss(pid, boottime.Now())
		}
	}
}

// miss notes that a known session has no lock since this time or earlier.
func (e *Evidence) miss(pid uint32, since boottime.Instant) {
	if p := e.peers[pid]; p.missed == 0 && p != (peer{}) {
		p.missed = since
		e.peers[pid] = p
	}
}

// retireMissed is called when a session speaks. If the known session of that number has been missed
// for a while, and so has not just freed the lock, the speaker may be another one: the server
// reuses the numbers. Then its role is asked for.
func (e *Evidence) retireMissed(pid uint32) {
	if p := e.peers[pid]; p.missed != 0 && boottime.Now().Sub(p.missed) > freeAfterClean {
		e.retire(pid)
	}
}

// retire gives a known session, which is gone, a number that no session has, so that its starts
// stay open when another session has its own. Its words go: by now they have ended what they could,
// and with that number the server would be asked for their speaker's role.
func (e *Evidence) retire(pid uint32) {
	retired := pid | 1<<31 // the system's numbers are smaller
	for e.peers[retired] != (peer{}) {
		retired++
	}
	e.peers[retired] = e.peers[pid]
	delete(e.peers, pid)
	for i := range e.starts {
		if e.starts[i].pid == pid {
			e.starts[i].pid = retired
		}
	}
	e.dropWords(pid)
}
