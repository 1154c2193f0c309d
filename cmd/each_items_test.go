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
