package child

import (
	"os"
	"os/signal"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ignore is SIG_IGN.
const ignore = 1

// setAction sets a signal's action for the whole process, unknown to Go's runtime,
// and returns the previous action.
func setAction(sig unix.Signal, handler uintptr) (old uintptr, err error) {
	var action, before [64]byte
	*(*uintptr)(unsafe.Pointer(&action)) = handler
	err = sigaction(sig, &action, &before)
	return *(*uintptr)(unsafe.Pointer(&before)), err
}

// sigaction is rt_sigaction(2). Either action may be nil.
func sigaction(sig unix.Signal, action, before *[64]byte) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(action)), uintptr(unsafe.Pointer(before)), 8, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// defaultAction gives a signal its default action again. signal.Reset doesn't do that for
// signals that Go's runtime treats specially, such as SIGPIPE and SIGQUIT. All zeros is
// SIG_DFL with no flags and an empty mask on every Linux (rt_sigaction(2)).
func defaultAction(sig unix.Signal) error {
	_, err := setAction(sig, 0)
	return err
}

// ignoreStop keeps the terminal, or anyone else, from stopping this process with its group, by
// SIGTSTP or SIGTTOU. reset undoes that. Call reset before the command starts: Go's runtime has no
// handler for these, and so would not restore the default action in a new process.
func ignoreStop(sig unix.Signal) (reset func()) {
	old, err := setAction(sig, ignore)
	if err != nil {
		return func() {}
	}
	return func() { _, _ = setAction(sig, old) }
}

// These are the requests to get and set a terminal's modes.
const (
	getModes = unix.TCGETS
	setModes = unix.TCSETS
)

// discardSignals makes this process, but not the command, ignore the signals that would end it.
// Go's runtime has a handler for all of them, except for a SIGHUP or SIGINT that was ignored at the
// start. Where it has a handler, it restores the default action in a new process
// (runtime.clearSignalHandlers; TestDispositions checks that). For SIGUSR1, SIGALRM and the like
// its handler does nothing.
//
// os/signal could do this, too, but switches to a thread of its own and back for each
// signal, which would delay the guard's start by half a millisecond.
func discardSignals() {
	for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
		if _, err := setAction(sig, ignore); err != nil && !signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

func realTimeSignals() []os.Signal {
	var list []os.Signal
	// glibc keeps 32 and 33 for itself (signal(7)).
	for n := 34; n <= 64; n++ {
		list = append(list, unix.Signal(n))
	}
	return list
}

// dumpNoCore keeps this process from leaving a core file: the limit keeps the kernel
// from writing one, the flag from piping it to a program (core(5)).
func dumpNoCore() {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
