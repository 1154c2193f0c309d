package child

import (
	"os"
	"strconv"
	"testing"
)

// TestNameProcs: a message names some of the processes, and says why each can't be killed.
func TestNameProcs(t *testing.T) {
	self := os.Getpid()
	waits := proc{pid: self, state: 'D', name: "dd\n"}
	pid := strconv.Itoa(self)
	for want, list := range map[string][]proc{
		"dd? (" + pid + ", state D)": {waits},
		"x (" + pid + ", dead)":      {{pid: self, state: 'Z', threads: 1, name: "x"}},
		"x (" + pid + ")":            {{pid: self, state: 'S', name: "x"}},
		"":                           nil,
	} {
		if got := nameProcs(list, proc.keptAlive); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
	if got := nameProcs([]proc{waits}, nil); got != "dd? ("+pid+")" {
		t.Errorf("of what may yet be killed it says %q", got)
	}
}
