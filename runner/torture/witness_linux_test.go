package torture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The roles that the test binary plays when it is run by the test.
const (
	roleVariable = "TORTURE_ROLE"
	dirVariable  = "TORTURE_DIR"
	hostVariable = "TORTURE_HOST"
)

// play runs a role and never returns, if there is one.
func play() {
	switch role := os.Getenv(roleVariable); role {
	case "":
		return
	case "command":
		command()
	case "job":
		job()
	case "daemon":
		// A daemon as bad as they come: a session of its own, no descriptors,
		// deaf to all that can be ignored.
		signal.Ignore(unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1)
		for fd := range 3 {
			_ = unix.Close(fd)
		}
		stamp("daemon", time.Hour)
	case "fork":
		spawnRole("daemon")
	case "relay":
		relay(os.Args[1], os.Args[2], os.Args[3])
	default:
		fmt.Fprintln(os.Stderr, "unknown role", role)
		os.Exit(1)
	}
	os.Exit(0)
}

func spawnRole(role string) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	if role == "fork" {
		_ = cmd.Wait()
	}
}

// command is what pglead runs: it witnesses its own life, and so does the
// daemon that it leaves behind for pglead to end.
func command() {
	if os.Getenv("PGLEAD_TOKEN") == "" { // under a peer, which has none
		_ = os.Setenv("PGLEAD_TOKEN", strconv.FormatInt(int64(uptime()), 10))
	}
	done := make(chan os.Signal, 1)
	signal.Notify(done, unix.SIGUSR1)
	spawnRole("fork")
	go func() {
		<-done // and the command ends well, which takes its daemon with it
		daemons, _ := filepath.Glob(stampPath("daemon", "*"))
		for _, file := range daemons {
			if pid, err := strconv.Atoi(file[strings.LastIndexByte(file, '.')+1:]); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		os.Exit(0)
	}()
	stamp("command", time.Hour)
}

func stampPath(name, pid string) string {
	locks := strings.ReplaceAll(os.Getenv("PGLEAD_LOCK_KEY"), "\n", "+")
	if slot := os.Getenv("PGLEAD_SLOT"); slot != "" {
		locks += "#" + slot
	}
	return filepath.Join(os.Getenv(dirVariable), strings.Join([]string{os.Getenv("PGLEAD_TOKEN"), os.Getenv(hostVariable), locks, name, pid}, "."))
}

// stamp writes the boot time, every millisecond, over and over to one place:
// what stands there when the process is gone is when it was last alive.
func stamp(name string, length time.Duration) {
	path := stampPath(name, strconv.Itoa(os.Getpid()))
	file, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		panic(err)
	}
	var buf [16]byte
	first := uptime()
	binary.BigEndian.PutUint64(buf[:], uint64(first))
	for now := first; now < first+length; now = uptime() {
		binary.BigEndian.PutUint64(buf[8:], uint64(now))
		if _, err := file.WriteAt(buf[:], 0); err != nil {
			panic(err)
		}
		if now == first {
			_ = os.Rename(path+".new", path)
		}
		time.Sleep(time.Millisecond)
	}
}

// witnesses reads the time stamps in a directory. Of a process that is gone it keeps
// what it has read, and not the file, so that a look costs the same after hours.
type witnesses struct {
	dir     string
	mu      sync.Mutex
	lives   map[string]*life
	excused map[int64]bool // tokens
}

// memoryDir is a directory for time stamps, in memory where there is one: on a disk,
// a write may have to wait, and its witness looks dead meanwhile.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "torture")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func newWitnesses(dir string) *witnesses {
	return &witnesses{dir: dir, lives: map[string]*life{}, excused: map[int64]bool{}}
}

func (w *witnesses) excuse(token int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.excused[token] = true
}

// history is all lives that lasted beyond an instant.
func (w *witnesses) history(since time.Duration) (history, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if err := w.fold(entry.Name()); err != nil {
			return nil, err
		}
	}
	var h history
	for _, l := range w.lives {
		if l.last > since {
			h = append(h, *l)
			h[len(h)-1].excused = w.excused[l.token]
		}
	}
	return h, nil
}

// fold reads a file.
func (w *witnesses) fold(name string) error {
	parts := strings.Split(name, ".")
	if len(parts) != 5 {
		return nil
	}
	token, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(parts[4])
	if err != nil {
		return err
	}
	path := filepath.Join(w.dir, name)
	gone := errors.Is(unix.Kill(pid, 0), unix.ESRCH) // asked before its last word is read
	data, err := os.ReadFile(path)
	if err != nil || len(data) != 16 {
		return fmt.Errorf("%s: %d bytes, %w", name, len(data), err)
	}
	first := time.Duration(binary.BigEndian.Uint64(data))
	last := time.Duration(binary.BigEndian.Uint64(data[8:]))
	id := strings.Join(parts[:3], ".")
	l := w.lives[id]
	if l == nil {
		l = &life{token: token, host: parts[1], locks: strings.Split(parts[2], "+"), first: first, last: last}
		w.lives[id] = l
	}
	l.first, l.last = min(l.first, first), max(l.last, last)
	l.complete = l.complete || parts[3] == "daemon"
	if gone {
		return os.Remove(path)
	}
	return nil
}
