package testserver

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Index makes sure that an index of tests names each test file in a folder, without its suffix,
// and no file that isn't there. A line has the names first, and after two spaces what they test.
func Index(t *testing.T, index, folder string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of tests, %v", len(files), err)
	}
	var named []string
	for line := range strings.Lines(index) {
		names, _, _ := strings.Cut(line, "  ")
		named = append(named, strings.FieldsFunc(names, func(r rune) bool { return unicode.IsSpace(r) || r == ',' })...)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), "_test.go")
		if i := slices.Index(named, name); i >= 0 {
			named = slices.Delete(named, i, i+1)
		} else {
			t.Errorf("the index lacks %s", name)
		}
	}
	for _, name := range named {
		t.Errorf("the index names %s, which is not there", name)
	}
}
