package child

import (
	"runtime"
	"sync"
)

// threadsKept are more threads than this process has in a system call at any moment while it ends a
// tree in a dead guard's place: one waits for the server, one reads /proc, one writes to the log.
// Go's runtime wants one more at hand, and takes another for each that is just about to sleep. With
// one kept, 23 of 150 died whose guard was killed at the limit, with two 3, with three or more
// none.
const threadsKept = 5

// reserveThreads has Go's runtime make threads, which it keeps, and closes the channel when they
// are there. The runtime makes one whenever a system call takes long and no thread is idle, and if
// it may not, as when a command has used up what its user or control group may have of processes,
// it ends the whole process.
func reserveThreads() (reserved <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		var all sync.WaitGroup
		all.Add(threadsKept)
		for range threadsKept {
			go func() {
				runtime.LockOSThread() // so each needs a thread of its own while it waits for the others
				defer runtime.UnlockOSThread()
				all.Done()
				all.Wait()
			}()
		}
		all.Wait()
		close(done)
	}()
	return done
}
