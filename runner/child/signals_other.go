//go:build unix && !linux

package child

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// defaultAction: signal.Reset, which comes before, has to do.
func defaultAction(unix.Signal) error { return nil }

// ignoreStop has SIGTSTP caught, for nobody. In a new process that has its default
// action.
func ignoreStop() (reset func()) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGTSTP)
	return func() {}
}

// discardSignals catches, for nobody, the signals that would end this process,
// but for those that are ignored (nohup).
func discardSignals() {
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

func realTimeSignals() []os.Signal { return nil }

func dumpNoCore() { _ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}) }
