//go:build amd64 || arm64

package child

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The terminal sends SIGINT, SIGQUIT and SIGWINCH to its whole foreground group,
// kill(1) to one process. os/signal does not tell, so a handler of a few
// instructions comes before that of Go's runtime and takes down the si_code. It
// calls nothing, touches no stack, and goes on to the runtime's.

// senders has, for each signal, the si_code of the last one that came, and
// goHandler what noteSender goes on to. They belong to the signal handler, which
// knows no other place.
//
//nolint:gochecknoglobals // see above
var (
	senders   [65]int32
	goHandler uintptr
	noted     atomic.Bool
)

// noteSenderAddress is where noteSender begins (sender_linux_*.s).
var noteSenderAddress uintptr //nolint:gochecknoglobals // set by the linker

// noteSenders puts the handler before the runtime's, for signals that are caught.
func noteSenders(signals ...unix.Signal) {
	for _, sig := range signals {
		if notesSender(sig) != nil {
			return
		}
	}
	noted.Store(true)
}

var errOtherHandler = errors.New("the signals have different handlers")

func notesSender(sig unix.Signal) error {
	var action [64]byte
	if err := getAction(sig, &action); err != nil {
		return err
	}
	handler := (*uintptr)(unsafe.Pointer(&action))
	switch {
	case *handler <= ignore || *handler == noteSenderAddress:
		return nil // not caught (nohup), or done already
	case goHandler != 0 && goHandler != *handler:
		return errOtherHandler
	}
	goHandler = *handler
	*handler = noteSenderAddress
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func getAction(sig unix.Signal, action *[64]byte) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(action)), 8, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// byTerminal says of a signal that has been caught whether the kernel has sent it
// to the terminal's foreground group (SI_KERNEL), and not a process.
func byTerminal(sig unix.Signal) bool {
	if !noted.Load() {
		return inForeground()
	}
	return atomic.LoadInt32(&senders[sig]) > 0 // SI_USER is 0, those of other calls are below (sigaction(2))
}
