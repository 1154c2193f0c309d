package child

import (
	"runtime"
	"sync"
)

// threadsKept is how many idle threads reserveThreads leaves to Go's runtime. While this process
// ends a tree in a dead guard's place, up to three of its threads are in a system call: one waits
// for the server, one reads /proc, one writes to the log. Go's runtime wants one more at hand, and
// takes another for each thread that is just about to sleep. With fewer than three kept, pglead
// sometimes died of the limit (testdata/bench/README.md).
//
// Until the command runs, pglead, guard and command together need up to 30 processes and threads.
// With fewer pglead may crash before that: 20 were sometimes too few on a busy machine.
const threadsKept = 5

// reserveThreads has Go's runtime make threads, which it keeps, and closes the channel when they
// are there. The runtime makes a thread whenever a system call takes long and no thread is idle. If
// it can't, because a command has used up the processes of its user or control group, it ends the
// whole process.
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
