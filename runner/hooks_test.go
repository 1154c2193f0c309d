package runner

import (
	"os"
	"testing"
	"time"
)

// TestStoppedHook: a hook that has stopped its guard, and takes too long, is killed like any other. It
// leaves the guard some time to say that the hook runs; on a busy machine the guard may take longer.
func TestStoppedHook(t *testing.T) {
	p, _ := signalsTo(t)
	ended := make(chan error, 1)
	go func() {
		const hook = "sleep 0.5; kill -STOP $PPID; exec sleep 3600"
		ended <- p.runHook([]string{"PATH=" + os.Getenv("PATH")}, hook, func(what string) { t.Error(what) })
	}()
	select {
	case err := <-ended:
		if err == nil || err.Error() != "killed, since it took longer than 10s" && err.Error() != "the guard process did not start the command in time" {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on for ever")
	}
}
