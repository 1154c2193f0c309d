package runner

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/lock"
)

// TestSignalTaker has signals come before the command starts, while it is being
// started, and when it runs.
func TestSignalTaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 64)
		ctx, taker := interruptible(signals)
		hears := func(sig unix.Signal, interrupted bool) {
			t.Helper()
			signals <- sig
			synctest.Wait()
			if (ctx.Err() != nil) != interrupted {
				t.Errorf("after %v: %v", sig, ctx.Err())
			}
		}
		for _, sig := range []unix.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT} {
			hears(sig, false)
		}
		taker.keep()
		hears(unix.SIGUSR2, false)
		hears(unix.SIGTERM, true)
		hears(unix.SIGINT, true)
		var cause *InterruptedError
		if !errors.As(context.Cause(ctx), &cause) || cause.Signal != unix.SIGTERM {
			t.Errorf("cause %v", context.Cause(ctx))
		}
		want := []unix.Signal{unix.SIGUSR2, unix.SIGTERM, unix.SIGINT}
		for range 2 {
			var kept []unix.Signal
			for _, sig := range taker.handOver() {
				kept = append(kept, sig.Signal)
			}
			if !slices.Equal(kept, want) {
				t.Errorf("kept %v", kept)
			}
		}
		signals <- unix.SIGHUP
		synctest.Wait()
		if len(signals) != 1 {
			t.Error("the signalTaker takes signals that are left to somebody else")
		}
	})
}

// TestUntilSignal: a report about a run that was never started ends with the next signal, though
// that run's own signalTaker was there first.
func TestUntilSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 64)
		ctx, taker := interruptible(signals)
		synctest.Wait()
		r := &run{taker: taker, signals: signals}
		taker.handOver()
		r.untilSignal(func(ctx context.Context) {
			synctest.Wait() // whoever listens waits for the signal
			signals <- unix.SIGTERM
			synctest.Wait()
			if ctx.Err() == nil {
				t.Error("the report goes on")
			}
		})
		if ctx.Err() != nil || r.asked != BySignal {
			t.Errorf("the run's context: %v; asked by %v", ctx.Err(), r.asked)
		}
	})
}

// TestUntilSignalAfterSignal: a signal that came before a report leaves it PatienceAtEnd, and the next
// one ends it.
func TestUntilSignalAfterSignal(t *testing.T) {
	for _, second := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			signals, began := make(chan os.Signal, 64), time.Now()
			r := &run{signals: signals, asked: BySignal}
			r.untilSignal(func(ctx context.Context) {
				if second {
					signals <- unix.SIGTERM
				}
				<-ctx.Done()
			})
			want := lock.PatienceAtEnd
			if second {
				want = 0
			}
			if took := time.Since(began); took != want {
				t.Errorf("second signal %t: the report ends after %v, want %v", second, took, want)
			}
		})
	}
}

// TestSignalIsKeptOrEnds: when keep returns while a signal comes, the signal has ended the context,
// or will be kept.
func TestSignalIsKeptOrEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals, stop, goOn := make(chan os.Signal, 64), make(chan struct{}), make(chan struct{})
		taker := newSignalTaker(stop)
		interrupted, kept := false, false
		go taker.take(signals, stop, func(error) {
			<-goOn
			interrupted = true
		})
		signals <- unix.SIGTERM
		synctest.Wait()
		go func() {
			taker.keep()
			kept = true
		}()
		synctest.Wait()
		if kept && !interrupted {
			t.Error("the command may start, and the signal before it is neither kept nor has it ended the context")
		}
		close(goOn)
		synctest.Wait()
		if !kept || !interrupted || len(taker.handOver()) != 0 {
			t.Errorf("kept %t, interrupted %t", kept, interrupted)
		}
	})
}
