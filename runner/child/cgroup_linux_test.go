package child_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/child"
)

// TestNoSubgroupStays: nothing is left of the command's control group, even if the command has made
// groups in it, and whether the guard or this process ends the processes there.
func TestNoSubgroupStays(t *testing.T) {
	const job = `group=$(sed -n 's/^0:://p' /proc/self/cgroup)
		for mount in $(awk '/ - cgroup2 /{print $5}' /proc/self/mountinfo); do
			test -e $mount$group/cgroup.procs && group=$mount$group && break
		done
		case $group in */pglead-*) ;; *) group=;; esac
		test -z "$group" || {
			mkdir -p "$group/a/b/c" "$group/d"
			sleep 1000 & echo $! >"$group/a/b/c/cgroup.procs"
		}
		echo $group >"$0.new"; mv "$0.new" "$0"
		eval "$1"`
	for name, end := range map[string]string{"the guard": "", "this process": "kill -KILL $PPID; sleep 1000"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "group")
			c, err := newGuard(t, nil).StartCommand(t.Context(), child.Spec{
				Path: "/bin/sh", Args: []string{"sh", "-c", job, file, end}, Env: []string{"PATH=" + os.Getenv("PATH")}, Deadline: far(),
			})
			if err == nil {
				await(t, c)
			}
			text, _ := os.ReadFile(file)
			group := strings.TrimSpace(string(text))
			switch {
			case len(text) == 0:
				t.Fatalf("it does not say its group: %v", err)
			case group == "":
				t.Skip("NOT TESTED: groups in a control group, which the command does not have")
			}
			for began := time.Now(); unix.Access(group, unix.F_OK) != unix.ENOENT; time.Sleep(time.Millisecond) {
				if time.Since(began) > patience {
					t.Fatalf("%s is left", group)
				}
			}
		})
	}
}

// TestGroupOfScript: a script without #!, which a shell runs, is in a control group like any other
// command.
func TestGroupOfScript(t *testing.T) {
	skipWithoutGroup(t)
	dir := t.TempDir()
	script, file := filepath.Join(dir, "script"), filepath.Join(dir, "group")
	if err := os.WriteFile(script, []byte("grep ^0: /proc/self/cgroup >"+file), 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := newGuard(t, nil).StartCommand(t.Context(), child.Spec{Path: script, Args: []string{script}, Env: []string{"PATH=" + os.Getenv("PATH")}, Deadline: far()})
	if err != nil {
		t.Fatal(err)
	}
	await(t, c)
	if group, err := os.ReadFile(file); err != nil || !strings.Contains(string(group), "/pglead-") {
		t.Errorf("it is in %q; %v", group, err)
	}
}

// skipWithoutGroup skips a test where no guard may make a control group.
func skipWithoutGroup(t *testing.T) {
	t.Helper()
	for _, c := range child.Examine() {
		if c.Name == "cgroup" && c.Status != checkup.OK {
			t.Skip("NOT TESTED: the control group of a command, since a guard may not make one here")
		}
	}
}
