package child_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pglead/pglead/runner/child"
)

func TestLookup(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"run": 0o755, "data": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "/nosuch:"+dir)
	for _, tt := range []struct {
		name, want string
		notFound   bool
	}{
		{"run", dir + "/run", false},
		{dir + "/run", dir + "/run", false},
		{"data", "", false},
		{"folder", "", false},
		{"nosuch", "", true},
		{dir + "/nosuch", "", true},
		{dir + "/data/x", "", true},
		{"", "", true},
	} {
		got, err := child.Lookup(tt.name)
		var lookup *child.LookupError
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("Lookup(%q) = %q, %v; want %q", tt.name, got, err, tt.want)
		} else if errors.As(err, &lookup) && lookup.NotFound != tt.notFound {
			t.Errorf("Lookup(%q): NotFound is %v", tt.name, lookup.NotFound)
		}
	}
}
