package child

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

type process struct {
	pid, parent int
	state       byte // as ps and proc(5) have it: Z is a zombie, T is stopped
	name        string
}

// descendants lists the living processes below this one.
func descendants(skip []int) []process {
	byParent := map[int][]process{}
	for _, p := range processes() {
		byParent[p.parent] = append(byParent[p.parent], p)
	}
	var found []process
	queue := []int{os.Getpid()}
	for len(queue) > 0 {
		for _, p := range byParent[queue[0]] {
			if slices.Contains(skip, p.pid) {
				continue
			}
			queue = append(queue, p.pid)
			if p.state != 'Z' && p.state != 'X' {
				found = append(found, p)
			}
		}
		queue = queue[1:]
	}
	return found
}

// stopDescendants stops everything below this process, until there is nothing
// new: a tree that forks faster than it is killed holds still after that.
func stopDescendants(skip []int) {
	stopped := map[int]bool{}
	for progress := true; progress; {
		progress = false
		for _, p := range descendants(skip) {
			if !stopped[p.pid] {
				signalDescendant(p, unix.SIGSTOP)
				stopped[p.pid], progress = true, true
			}
		}
	}
}
