package child

import (
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that pglead passes on to the command, besides the real-time
// signals. Other signals do to pglead what they do to any process. Without a list,
// signal.Notify would also catch SIGURG, which Go's runtime sends to itself.
func forwarded() []os.Signal {
	return []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGWINCH, unix.SIGCONT,
	}
}

// realTimeAfter is how much later this process catches the real-time signals. There are
// 31, and a short command need not pay for them. Until then Go's runtime ignores them.
const realTimeAfter = time.Second

// CatchSignals catches the signals that pglead forwards, from the moment at which ready is closed
// until this process ends. The real-time signals follow after realTimeAfter. Signals that were
// ignored when this process started (nohup) stay ignored, here and in the command.
//
// To catch a signal, Go's runtime switches to a thread of its own and back, which takes some 50 µs
// of processor time. So CatchSignals does that while the connection is made. A signal that comes
// earlier does what it does to any process.
func CatchSignals() (caught <-chan os.Signal, ready <-chan struct{}) {
	c, all := make(chan os.Signal, 64), make(chan struct{})
	catch := func(list []os.Signal) {
		for _, sig := range list {
			if !signal.Ignored(sig) {
				signal.Notify(c, sig)
			}
		}
	}
	go func() {
		defer close(all)
		catch(forwarded())
		installSenderHandlers(unix.SIGINT, unix.SIGQUIT, unix.SIGWINCH)
		time.AfterFunc(realTimeAfter, func() { catch(realTimeSignals()) })
	}()
	return c, all
}

// DieOf ends this process by the signal that the command died of, so that the parent
// sees that: only then does Ctrl-C end a shell's loop. DieOf returns if that is
// impossible, as in the first process of a container.
func DieOf(sig unix.Signal) {
	dumpNoCore() // the command's core file is the one that matters
	if sig != unix.SIGKILL {
		signal.Reset(sig)
		if defaultAction(sig) != nil {
			return
		}
	}
	if unix.Kill(os.Getpid(), sig) == nil && os.Getpid() != 1 {
		// A signal to this process may arrive on another thread, after kill(2)
		// has returned. A blocked signal never arrives.
		time.Sleep(time.Second)
	}
}
