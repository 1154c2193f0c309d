package child

import (
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that are passed on to the command, and so are the
// real-time signals. Signals that are not here do to pglead what they do to any
// process. Notify without such a list would also catch SIGURG, which Go's
// runtime sends to itself.
func forwarded() []os.Signal {
	return []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGWINCH, unix.SIGCONT,
	}
}

// realTimeAfter spares short commands what the real-time signals cost, of which
// there are 31. Go's runtime lets them come to nothing until then.
const realTimeAfter = time.Second

// Signals catches what is to be forwarded, from the closing of ready to the end
// of this process, and the real-time signals from a second later on. What was
// ignored when this process started (nohup) stays ignored, here and in the
// command.
//
// For each signal Go's runtime goes to a thread of its own and back, which takes
// some 50 µs of processor time. So they are caught while the connection is made;
// a signal that comes before does what it does to a process that has only just
// begun.
func Signals() (caught <-chan os.Signal, ready <-chan struct{}) {
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
		noteSenders(unix.SIGINT, unix.SIGQUIT, unix.SIGWINCH)
		time.AfterFunc(realTimeAfter, func() { catch(realTimeSignals()) })
	}()
	return c, all
}

// Interrupts says whether a signal is a request to end.
func Interrupts(sig unix.Signal) bool {
	switch sig {
	case unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT:
		return false
	}
	return true
}

// ReapOrphans makes the first process of a container, whose children all
// orphans in it become, collect them when they die. For others it does nothing.
func ReapOrphans() {
	if os.Getpid() != 1 {
		return
	}
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	go func() {
		for range died {
			for pid := 1; pid > 0; {
				pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			}
		}
	}()
}

// DieOf ends this process by a signal, so that whoever waits for it sees the
// death that the command died; a shell's loop ends on Ctrl-C only if it sees
// that. It returns where that is impossible, as for the first process of a
// container.
func DieOf(sig unix.Signal) {
	dumpNoCore() // the command's core file is the one that matters
	if sig != unix.SIGKILL {
		signal.Reset(sig)
		if defaultAction(sig) != nil {
			return
		}
	}
	if unix.Kill(os.Getpid(), sig) == nil && os.Getpid() != 1 {
		// A signal to oneself arrives on any thread, so not always before
		// kill(2) returns; one that is blocked never does.
		time.Sleep(time.Second)
	}
}
