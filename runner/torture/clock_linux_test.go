package torture

import "time"

// clockFaults set the server's clock by more than any lease, and back. A server
// whose clock is set back is late with its time-outs by that much: then only the
// first in line, by its own clock, can end the session of a holder that is cut off.
func clockFaults(a *arena) []fault {
	if a.setClock == nil || !a.mode.heeds {
		return nil
	}
	const set = 100
	// A clock that goes forward to the true time again may end, within a lease, a session that is
	// cut off in that time, as a clock that is set forward does: a fault that tears.
	restore := func(a *arena, _ leader) {
		a.setClock(0)
		time.Sleep(a.lease)
	}
	back := func(a *arena, _ leader) { a.setClock(0) }
	return []fault{
		{name: "server's clock set back, partition", unseats: true, end: silent, strike: func(a *arena, l leader) {
			a.setClock(-set)
			a.net.cut(l.host, true, true)
		}, mend: func(a *arena, l leader) {
			a.net.heal(l.host)
			restore(a, l)
		}},
		// The server's time-outs may come early, those of the ones in line, too.
		{name: "server's clock set forward, partition", unseats: true, tears: true, strike: func(a *arena, l leader) {
			a.setClock(set)
			a.net.cut(l.host, true, true)
		}, mend: func(a *arena, l leader) {
			a.net.heal(l.host)
			a.setClock(0)
		}},
		// A newcomer's first try takes the server for a young one.
		{name: "server's clock set back, clean end", unseats: true, pauses: true, within: slack + a.lockDelay, strike: func(a *arena, l leader) {
			a.setClock(-set)
			faults()[0].strike(a, l)
		}, mend: restore},
		{name: "server's clock set forward, terminate", unseats: true, end: said, strike: func(a *arena, _ leader) {
			a.setClock(set)
			a.terminate()
		}, mend: back},
	}
}
