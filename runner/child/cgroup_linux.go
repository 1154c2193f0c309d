package child

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// If this process may make a control group (as root, or in a subtree that was delegated
// to the user), the command gets its own group below pglead's. Its cgroup.kill kills
// everything in it at once: faster than rounds, faster than a fork bomb, and
// setuid programs too. If the command moves a process elsewhere, that is still a
// descendant, and the rounds kill it.
// https://docs.kernel.org/admin-guide/cgroup-v2.html#core-interface-files

// ownCgroup is the directory of this process's group, or empty if version 2 is not
// mounted.
func ownCgroup() string {
	own := ""
	groups, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(groups)) {
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			own = group
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
		return path.Join(fields[4], relative)
	}
	return ""
}

// newCgroup names a group that a guard may make below pglead's own. The name is random, so
// that it is never another guard's group, whose command would be killed. A process number
// would not do: in another PID namespace that shares pglead's group, another guard may
// have the same number.
func newCgroup(own string) string {
	if own == "" {
		return ""
	}
	return fmt.Sprintf("%s/pglead-%016x%016x", own, rand.Uint64(), rand.Uint64())
}

// makeCgroup makes a group, and opens its directory and its cgroup.kill. It returns nil if that is
// not permitted, or if the kernel can't kill a group.
func makeCgroup(group string) (dir *os.File, kill int) {
	if group == "" || os.Mkdir(group, 0o755) != nil {
		return nil, -1
	}
	dir, err := os.Open(group)
	if err == nil {
		if kill, err = openKill(group); err == nil { // Linux 5.14
			return dir, kill
		}
		_ = dir.Close()
	}
	_ = os.Remove(group)
	return nil, -1
}

// openKill opens a group's cgroup.kill. os.OpenFile would have Go's poller watch it.
func openKill(group string) (fd int, err error) {
	return unix.Open(group+"/cgroup.kill", unix.O_WRONLY|unix.O_CLOEXEC, 0)
}

// setCgroup makes the kernel start the command in a control group.
func setCgroup(attr *syscall.SysProcAttr, dir *os.File) {
	attr.UseCgroupFD, attr.CgroupFD = true, int(dir.Fd())
}

// killCgroup kills all that is in the group, if there is one.
func killCgroup(group string) {
	if group != "" {
		if fd, err := openKill(group); err == nil {
			_, _ = unix.Write(fd, []byte(killWord))
			_ = unix.Close(fd)
		}
	}
}

// mostSubgroups is how many groups that the command has made are removed with its own.
const mostSubgroups = 1000

// removeCgroup removes a group in which nothing is alive, and the groups that the command has made
// in it.
func removeCgroup(group string) {
	if group != "" {
		most := mostSubgroups
		removeGroups(group, &most)
	}
}

// removeGroups removes a group, after the groups in it. Of these it removes at most the given
// number.
func removeGroups(group string, most *int) {
	if err := os.Remove(group); !errors.Is(err, unix.EBUSY) {
		return
	}
	entries, _ := os.ReadDir(group)
	for _, e := range entries {
		if e.IsDir() && *most > 0 {
			*most--
			removeGroups(path.Join(group, e.Name()), most)
		}
	}
	_ = os.Remove(group)
}
