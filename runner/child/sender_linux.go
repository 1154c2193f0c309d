//go:build amd64 || arm64

package child

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The terminal sends SIGINT, SIGQUIT and SIGWINCH to its whole foreground group;
// kill(1) sends them to one process. os/signal doesn't tell the two apart. So a handler
// of a few instructions notes the si_code, and then jumps to the handler of Go's runtime.
// It calls nothing and touches no stack.

// senders has the si_code of the last signal of each kind. noteSender jumps to goHandler.
// A signal handler can reach only globals.
//
//nolint:gochecknoglobals // see above
var (
	senders   [65]int32
	goHandler uintptr
	installed atomic.Bool
)

// noteSenderAddress is where noteSender begins (sender_linux_*.s).
var noteSenderAddress uintptr //nolint:gochecknoglobals // set by the linker

// installSenderHandlers puts noteSender before the runtime's handler, for signals that are caught.
func installSenderHandlers(signals ...unix.Signal) {
	for _, sig := range signals {
		if !installSenderHandler(sig) {
			return
		}
	}
	installed.Store(true)
}

func installSenderHandler(sig unix.Signal) bool {
	var action [64]byte
	if sigaction(sig, nil, &action) != nil {
		return false
	}
	handler := (*uintptr)(unsafe.Pointer(&action))
	switch {
	case *handler <= ignore || *handler == noteSenderAddress:
		return true // not caught (nohup), or already done
	case goHandler != 0 && goHandler != *handler: // there is room for one
		return false
	}
	goHandler = *handler
	*handler = noteSenderAddress
	return sigaction(sig, &action, nil) == nil
}

// byTerminal says whether the kernel sent a caught signal to the terminal's foreground
// group (SI_KERNEL), rather than a process.
func byTerminal(sig unix.Signal) bool {
	if !installed.Load() {
		return inForeground()
	}
	return atomic.LoadInt32(&senders[sig]) > 0 // SI_USER is 0, and other calls have codes below it (sigaction(2))
}
