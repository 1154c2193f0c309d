//go:build unix

package child

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTellWholeOrNotAtAll: a message that the guard sends while pglead does not read arrives whole
// or not at all, and does not delay the guard.
func TestTellWholeOrNotAtAll(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	pglead := os.NewFile(uintptr(pair[0]), "pglead")
	defer pglead.Close()
	defer unix.Close(pair[1])
	if err := unix.SetNonblock(pair[1], true); err != nil {
		t.Fatal(err)
	}
	g := &guardProcess{fd: pair[1]}
	const said = 10_000 // more than a socket takes
	body := strings.Repeat("x", 200)
	began := time.Now()
	for range said {
		g.tell(msgLeftovers, []byte(body))
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("%d messages took %v", said, took)
	}
	heard := 0
	for ; ; heard++ {
		if heard == 1 { // there is room again
			g.tell(msgUnkillable, []byte(body))
		}
		k, got, err := readMessage(pglead)
		if err != nil || string(got) != body {
			t.Fatalf("after %d messages: %q, %v", heard, got, err)
		}
		if k == msgUnkillable {
			break
		}
	}
	if heard == 0 || heard >= said {
		t.Errorf("of %d messages %d are heard, and then the last", said, heard)
	}
}
