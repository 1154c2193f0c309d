package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestEachShares: eight nodes with one list. Once all of them are at work no
// item is worked on twice.
func TestEachShares(t *testing.T) {
	const nodes, items = 8, 400
	dir := t.TempDir()
	var list strings.Builder
	for i := range items {
		fmt.Fprintf(&list, "%d\n", i)
	}
	if err := os.WriteFile(filepath.Join(dir, "list"), []byte(list.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	// The first command of each node waits until every node has one. While a
	// command runs there is a directory that only one can make.
	const job = `mkdir "run-$1" || exit 1; touch "at-$0"; until test -e go; do sleep 0.01; done; echo "$1" >> "done-$0"; rmdir "run-$1"`
	var wg sync.WaitGroup
	for node := range nodes {
		cmd := command(t, "each", "--key", "shares/{}", "-a", filepath.Join(dir, "list"), "--", "sh", "-c", job, strconv.Itoa(node), "{}")
		cmd.Dir = dir
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("node %d: %v: %s", node, err, out)
			}
		})
	}
	if !eventually(func() bool {
		at, _ := filepath.Glob(filepath.Join(dir, "at-*"))
		return len(at) == nodes
	}) {
		t.Error("not all nodes are at work")
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	times := map[string]int{}
	for node := range nodes {
		text, _ := os.ReadFile(filepath.Join(dir, "done-"+strconv.Itoa(node)))
		worked := strings.Fields(string(text))
		t.Logf("node %d: %d items", node, len(worked))
		for _, item := range worked {
			times[item]++
		}
	}
	for i := range items {
		if n := times[strconv.Itoa(i)]; n != 1 {
			t.Errorf("item %d was worked on %d times", i, n)
		}
	}
}
