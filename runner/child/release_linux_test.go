package child_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// left is a command whose pglead is gone, and the server's end of its socket.
func left(t *testing.T, spec child.Spec, before func(here *net.TCPConn)) (guard int, there net.Conn) {
	t.Helper()
	here, there := socketPair(t)
	if before != nil {
		before(here)
	}
	dir := t.TempDir()
	c := startRoleWith(t, here, spec, "sleep", dir)
	awaitRecords(dir, 1)
	_ = here.Close()
	child.HangUp(c)
	return child.GuardPID(c), there
}

// TestReleasedOnce: a guard whose pglead is gone writes the release once, also if the session goes
// on, and then ends, whatever the server says.
func TestReleasedOnce(t *testing.T) {
	guard, there := left(t, child.Spec{Release: []byte("bye")}, nil)
	go func() {
		for err := error(nil); err == nil; {
			_, err = there.Write(make([]byte, 1<<20))
		}
	}()
	if err := there.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(there)
	if string(said) != "bye" || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the guard says %q, and then %v", said, err)
	}
	testserver.Eventually(t, "the guard ends", func() bool { return unix.Kill(guard, 0) == unix.ESRCH })
}

// TestReleaseWaits: a release for which the socket has no room is written when there is room. The
// guard waits for a second at most, so a busy machine may need several tries.
func TestReleaseWaits(t *testing.T) {
	for range 10 {
		before, said := releaseIntoFull(t)
		if len(said) == before+3 && strings.HasSuffix(string(said), "bye") {
			return
		}
		t.Logf("after %d bytes of this process's the server gets %d", before, len(said)-before)
	}
	t.Error("no release is written")
}

// releaseIntoFull fills a socket, and has a guard release the lock by it. It returns how many bytes
// fill the socket, and what the server gets.
func releaseIntoFull(t *testing.T) (before int, said []byte) {
	t.Helper()
	guard, there := left(t, child.Spec{Release: []byte("bye"), ReleaseEndsSession: true}, func(here *net.TCPConn) {
		for n := 1; n > 0; before += n {
			if err := here.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			n, _ = here.Write(make([]byte, 1<<20))
		}
	})
	testserver.Eventually(t, "the guard has no child, and waits or has ended", func() bool {
		list, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", guard))
		stat, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/stat", guard))
		return err != nil || err2 != nil || len(list) == 0 && strings.Contains(string(stat), ") S ")
	})
	if err := there.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	said, _ = io.ReadAll(there) // the connection is reset if the guard gives up
	return before, said
}

// TestReleaseStaysOpen: the guard does not close its direction of the connection after a release
// that ends the session, before the server has carried it out. It waits for that for a second, so a
// busy machine may need several tries.
func TestReleaseStaysOpen(t *testing.T) {
	for range 10 {
		_, there := left(t, child.Spec{Release: []byte("bye"), ReleaseEndsSession: true}, nil)
		if err := there.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		said := make([]byte, 3)
		_, sent := io.ReadFull(there, said)
		began := time.Now()
		_, err := there.Read(said)
		open := time.Since(began)
		if sent == nil && errors.Is(err, io.EOF) && open > 300*time.Millisecond {
			return
		}
		t.Logf("%q, %v; after %v: %v", said, sent, open, err)
	}
	t.Error("the connection is half closed")
}
