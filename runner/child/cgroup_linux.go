package child

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Where this process may make a control group (as root, or in a subtree that
// has been delegated to the user), the command gets one of its own below
// pglead's. Its cgroup.kill kills everything in it at one stroke: faster than
// rounds, faster than a fork bomb, and without regard to setuid. What the
// command moves elsewhere is still a descendant, and the rounds' to kill.
// https://docs.kernel.org/admin-guide/cgroup-v2.html#core-interface-files

// cgroupPath is where the group of the guard with the given process number
// is, or empty where version 2 is not mounted.
func cgroupPath(guard int) string {
	own := ""
	groups, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(groups)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			own = path
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		// "36 35 98:0 /root /mount/point options… - type source …" (proc(5))
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if len(fields) < 5 || !strings.HasPrefix(after, "cgroup2 ") || own == "" {
			continue
		}
		relative, ok := strings.CutPrefix(own, strings.TrimSuffix(fields[3], "/"))
		if !ok {
			continue
		}
		return filepath.Join(fields[4], relative, "pglead-"+strconv.Itoa(guard))
	}
	return ""
}

// makeCgroup makes the group and opens its directory; nil where it may not.
func makeCgroup(path string) *os.File {
	if path == "" || os.Mkdir(path, 0o755) != nil {
		return nil
	}
	dir, err := os.Open(path)
	if err == nil {
		_, err = os.Stat(filepath.Join(path, "cgroup.kill")) // Linux 5.14
	}
	if err != nil {
		_ = os.Remove(path)
		return nil
	}
	return dir
}

// killCgroup kills all that is in the group, and removeCgroup removes it; both
// do nothing where there is none.
func killCgroup(path string) {
	if path != "" {
		_ = os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
	}
}

func removeCgroup(path string) {
	if path != "" {
		_ = os.Remove(path)
	}
}
