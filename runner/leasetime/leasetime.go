// Package leasetime has the times that follow from the length of a lease. They count from the
// moment at which a holder sent its last request that the server answered:
//
//	0        1/5       1/3               3/5   2/3           9/10   1
//	├─────────┼─────────┼─────────────────┼─────┼──────────────┼─────┤
//	│         │         │                 │     │              │     the server frees the lock
//	│         │         │                 │     │              the command gets SIGKILL, whatever its lost-grace
//	│         │         │                 │     the command is dead, without a lost-grace
//	│         │         │                 the holder ends its command
//	│         │         (a waiter's heartbeat, after its own last one)
//	a holder's heartbeat
//
// The server counts from the request's arrival, which is later, so the holder's command is dead
// first, however long requests travel.
package leasetime

import "time"

// Most is the longest lease. The ledger shortens a longer one to this. A third of the lease is also
// the idle time before our TCP's first keep-alive, which Linux limits to 32,767 s. The server's
// settings have the lease in milliseconds, as an int.
const Most = 24 * time.Hour

// BeatEvery is how often the holder of a lock asks the server for a sign of life. A single
// answer may take two fifths of the lease. If every answer is slow, each may take SteadyAnswer.
func BeatEvery(lease time.Duration) time.Duration { return lease / 5 }

// SteadyAnswer is how long each answer may take if all are slow: while one is awaited, the next
// request waits.
func SteadyAnswer(lease time.Duration) time.Duration { return HolderShare(lease) / 2 }

// WaiterBeat is how often a waiter in line that watches nobody asks for a sign of life.
func WaiterBeat(lease time.Duration) time.Duration { return lease / 3 }

// HolderShare is how long a holder may go on without an answer.
func HolderShare(lease time.Duration) time.Duration { return lease * 3 / 5 }

// DeadAfter is when the holder's command is certainly dead. With the default lease that leaves one
// second for the kill, for a busy machine. However long the lost-grace is, no command outlives the
// lease (MostGrace).
func DeadAfter(lease, lostGrace time.Duration) time.Duration {
	return min(lease*2/3+lostGrace, lease)
}

// ForKill is the time for the kill, which ends at DeadAfter without a lost-grace.
func ForKill(lease time.Duration) time.Duration { return DeadAfter(lease, 0) - HolderShare(lease) }

// MostGrace is the longest grace after the holder's share. It leaves a tenth of the lease, so the
// command is dead before the server, if it hears nothing, frees the lock for a newcomer's first
// try.
func MostGrace(lease time.Duration) time.Duration { return ProbeAfter(lease) - HolderShare(lease) }

// ProbeAfter is the idle time before the server may send a keep-alive. If another host has got the
// address of a holder that is cut off, its kernel answers that with a reset, and the server frees the
// lock. (With a lease of more than 10 h it comes sooner: Linux can't wait for longer.)
func ProbeAfter(lease time.Duration) time.Duration { return lease * 9 / 10 }
