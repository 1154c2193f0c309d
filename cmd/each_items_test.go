package cmd

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCopyOfListFails: if the copy of a list can't be read to its end, the list is not done.
func TestCopyOfListFails(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(copy *os.File) error
		want  error
	}{
		"cut off": {func(copy *os.File) error { return copy.Truncate(2) }, io.ErrUnexpectedEOF},
		"closed":  {(*os.File).Close, os.ErrClosed},
	} {
		t.Setenv("TMPDIR", t.TempDir())
		path := filepath.Join(t.TempDir(), "list")
		if err := os.WriteFile(path, []byte("1\n2\n"+strings.Repeat("\n", mostInMemory)+"3\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := (&eachFlags{argFile: path}).list(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer list.Close()
		if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
			t.Errorf("%s: the copy has a name: %v", name, left)
		}
		if n, err := list.check(func(string) error { return nil }); n != 3 || err != nil {
			t.Fatalf("%s: %d items, %v", name, n, err)
		}
		for item := range list.items() { // a reader that stops early has not seen the end
			if item != "1" {
				t.Errorf("%s: the first item is %q", name, item)
			}
			break
		}
		if got := slices.Collect(list.items()); !slices.Equal(got, []string{"1", "2", "3"}) || list.err != nil {
			t.Errorf("%s: %q, %v", name, got, list.err)
		}
		if err := tt.spoil(list.copy.(*os.File)); err != nil {
			t.Fatal(err)
		}
		if got := slices.Collect(list.items()); len(got) > 1 || !errors.Is(list.err, tt.want) || !strings.HasPrefix(list.err.Error(), "read the items from the copy of "+path+": ") {
			t.Errorf("%s: %q, %v", name, got, list.err)
		}
	}
}

// TestListThatNeverEnds: nothing is copied after an item that is too long, however the list comes in
// pieces.
func TestListThatNeverEnds(t *testing.T) {
	for size := 1; size <= longestItem; size += 997 {
		for _, long := range []int{longestItem + 1, longestItem + 5000} {
			read := 0
			text := strings.NewReader("a\nb\n" + strings.Repeat("x", long) + "\n" + strings.Repeat("y\n", 2*longestItem))
			l := itemList{name: "a list"}
			if err := l.keep(pieces{text, size, &read}); err != nil {
				t.Fatal(err)
			}
			if most := long + 2*size + 100; read > most {
				t.Errorf("in pieces of %d: it reads %d bytes after an item of %d", size, read, long)
			}
			if _, err := l.check(func(string) error { return nil }); err == nil || !strings.HasSuffix(err.Error(), "read item 3 from a list: it is longer than 128 KiB") {
				t.Errorf("in pieces of %d: %v", size, err)
			}
			l.Close()
		}
	}
	whole := strings.Repeat("a\n", mostInMemory) + strings.Repeat("x", longestItem-1) + "\nlast"
	l := itemList{name: "a list"}
	read := 0
	if err := l.keep(pieces{strings.NewReader(whole), 1000, &read}); err != nil || read != len(whole) {
		t.Errorf("of %d bytes %d are read: %v", len(whole), read, err)
	}
	l.Close()
}

// pieces is a file that is read in pieces.
type pieces struct {
	io.Reader
	size int
	read *int
}

func (p pieces) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b[:min(len(b), p.size)])
	*p.read += n
	return n, err
}
