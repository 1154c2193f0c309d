//go:build unix && !linux

package child

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// defaultAction leaves it at signal.Reset, which was called before.
func defaultAction(unix.Signal) error { return nil }

// ignoreStop catches SIGTSTP and does nothing about it. A new process has the default
// action for a signal that is caught here.
func ignoreStop() (reset func()) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGTSTP)
	return func() {}
}

// discardSignals catches the signals that would end this process and does nothing
// about them. Those that are ignored (nohup) stay so.
func discardSignals() {
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

func realTimeSignals() []os.Signal { return nil }

func dumpNoCore() { _ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}) }
