package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/leasetime"
)

// TestHungProgram: pglead's own program is on a file system of the network, and the kernel has
// dropped what it had of it. When that file system hangs, and pglead with it, the command dies by its
// deadline all the same.
func TestHungProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: a file system that hangs, since to mount one needs root")
	}
	const lease = 9 * time.Second
	fs := mountProgram(t)
	examineHungProgram(t, fs.dir)
	holder := command(t, "run", "--key", "hung", "--lease", lease.String(), "--", "sh", "-c", "echo $$; exec >&-; exec sleep 1000")
	holder.Path = filepath.Join(fs.dir, programName)
	said := &lockedBuffer{}
	holder.Stderr = said
	line, _ := start(t, holder)
	job, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	guard := guardOf(t, holder.Process.Pid)
	if !eventually(func() bool { return testbed.beats("hung") >= 2 }) {
		t.Fatal("there is no heartbeat")
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", guard)); err != nil || !strings.HasPrefix(exe, "/memfd:") {
		t.Errorf("the guard runs from %s, %v", exe, err)
	}
	fs.hang()
	hung := time.Now()
	for !dead(job) && time.Since(hung) < leasetime.DeadAfter(lease, 0) {
		time.Sleep(10 * time.Millisecond)
	}
	if !dead(job) {
		t.Errorf("the command lives %v after the file system hung, beyond its deadline", time.Since(hung))
	}
	if n := fs.heldReads(); n == 0 {
		t.Error("nothing hangs: the test shows nothing")
	}
	fs.goOn()
	_ = holder.Wait()
	if code := holder.ProcessState.ExitCode(); code != 76 || !dead(guard) {
		t.Errorf("exit status %d: %s", code, said.String())
	}
}

// examineHungProgram: doctor says whether the guard's program can be copied to memory. The setting
// that forbids it belongs to a PID namespace.
func examineHungProgram(t *testing.T, dir string) {
	t.Helper()
	for before, want := range map[string]string{
		"":                                   "ok program on a file system that may hang with the network: guards run from a copy in memory ok limits",
		"echo 2 >/proc/sys/vm/memfd_noexec;": "warn program on a file system that may hang with the network, and can't be copied to memory (memfd_create: permission denied)",
	} {
		doctor := command(t, "doctor", "--lease", "3s")
		script := before + `exec "$@"`
		args := append([]string{"unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script, "sh", filepath.Join(dir, programName)}, doctor.Args[1:]...)
		path, err := exec.LookPath("unshare")
		if err != nil {
			t.Fatal(err)
		}
		doctor.Path, doctor.Args = path, args
		out, err := doctor.CombinedOutput()
		if said := strings.Join(strings.Fields(string(out)), " "); !strings.Contains(said, want) {
			t.Errorf("%q: %v\n%s", before, err, out)
		}
	}
}

// programFS is a file system in user space (fuse(4)) with one file, pglead's program. It keeps what
// it needs of the protocol: https://docs.kernel.org/filesystems/fuse.html and linux/fuse.h.
type programFS struct {
	dir     string
	device  int
	program []byte

	mu    sync.Mutex
	hangs bool
	held  [][]byte // answers to reads
}

const programName = "pglead"

// mountProgram mounts the file system, and ends it with the test.
func mountProgram(t *testing.T) *programFS {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(testbed.dir, "pglead"))
	if err != nil {
		t.Fatal(err)
	}
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("NOT TESTED: a file system that hangs, since there is no fuse:", err)
	}
	fs := &programFS{dir: t.TempDir(), device: device, program: program}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device)
	if err := unix.Mount("program", fs.dir, "fuse", unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		unix.Close(device)
		t.Skip("NOT TESTED: a file system that hangs, since none can be mounted:", err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		fs.serve()
	}()
	t.Cleanup(func() {
		fs.goOn()
		_ = unix.Unmount(fs.dir, 0)
		_ = unix.Unmount(fs.dir, unix.MNT_DETACH|unix.MNT_FORCE)
		<-served
		unix.Close(device)
	})
	return fs
}

// The operations and the notice of linux/fuse.h that are needed.
const (
	fuseLookup, fuseForget, fuseGetattr, fuseOpen, fuseRead = 1, 2, 3, 14, 15
	fuseRelease, fuseFlush, fuseInit, fuseOpendir           = 18, 25, 26, 27
	fuseReleasedir, fuseInterrupt, fuseBatchForget          = 29, 36, 42
	fuseNotifyInvalInode                                    = 2
	rootInode, programInode                                 = 1, 2
)

// serve answers the kernel until the file system is unmounted.
func (fs *programFS) serve() {
	request := make([]byte, 1<<17)
	for {
		n, err := unix.Read(fs.device, request)
		switch {
		case err == unix.EINTR, err == unix.EAGAIN, err == unix.ENOENT:
			continue
		case err != nil || n < 40:
			return
		}
		header, body := request[:40], request[40:n]
		fs.answer(binary.NativeEndian.Uint32(header[4:]), binary.NativeEndian.Uint64(header[8:]), binary.NativeEndian.Uint64(header[16:]), body)
	}
}

func (fs *programFS) answer(operation uint32, unique, inode uint64, body []byte) {
	const forAnHour = 3600
	switch operation {
	case fuseInit: // version 7.31, with reads of 128 KiB
		fs.reply(unique, 0, []uint32{7, 31, 128 << 10, 0, 0, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	case fuseLookup:
		if string(bytes.TrimRight(body, "\x00")) != programName {
			fs.reply(unique, syscall.ENOENT)
			return
		}
		fs.reply(unique, 0, []uint64{programInode, 0, forAnHour, forAnHour, 0}, fs.attributes(programInode))
	case fuseGetattr:
		fs.reply(unique, 0, []uint64{forAnHour, 0}, fs.attributes(inode))
	case fuseOpen, fuseOpendir:
		const keepCache = 2
		fs.reply(unique, 0, []uint64{1, keepCache})
	case fuseRead:
		from := min(binary.NativeEndian.Uint64(body[8:]), uint64(len(fs.program)))
		to := min(from+uint64(binary.NativeEndian.Uint32(body[16:])), uint64(len(fs.program)))
		fs.reply(unique, 0, fs.program[from:to])
	case fuseRelease, fuseReleasedir, fuseFlush:
		fs.reply(unique, 0)
	case fuseForget, fuseBatchForget, fuseInterrupt:
	default:
		fs.reply(unique, syscall.ENOSYS)
	}
}

// attributes is a struct fuse_attr.
func (fs *programFS) attributes(inode uint64) []byte {
	mode, size := uint32(unix.S_IFREG|0o755), uint64(len(fs.program))
	if inode == rootInode {
		mode, size = unix.S_IFDIR|0o755, 0
	}
	b, _ := binary.Append(nil, binary.NativeEndian, []uint64{inode, size, (size + 511) / 512, 0, 0, 0})
	b, _ = binary.Append(b, binary.NativeEndian, []uint32{0, 0, 0, mode, 1, 0, 0, 0, 4096, 0})
	return b
}

// reply answers a request, or keeps the answer to a read back while the file system hangs.
func (fs *programFS) reply(unique uint64, failure syscall.Errno, parts ...any) {
	var body []byte
	for _, part := range parts {
		body, _ = binary.Append(body, binary.NativeEndian, part)
	}
	message, _ := binary.Append(nil, binary.NativeEndian, []uint32{uint32(16 + len(body)), uint32(-int32(failure))})
	message = append(binary.NativeEndian.AppendUint64(message, unique), body...)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.hangs {
		fs.held = append(fs.held, message)
		return
	}
	_, _ = unix.Write(fs.device, message)
}

// hang makes the kernel drop what it has of the program, and answers nothing until goOn. The kernel
// may take the notice only then, if a read is under way.
func (fs *programFS) hang() {
	fs.mu.Lock()
	fs.hangs = true
	fs.mu.Unlock()
	notice, _ := binary.Append(nil, binary.NativeEndian, []uint32{40, fuseNotifyInvalInode})
	notice, _ = binary.Append(notice, binary.NativeEndian, []uint64{0, programInode, 0, 0})
	go func() { _, _ = unix.Write(fs.device, notice) }()
}

func (fs *programFS) goOn() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.hangs = false
	for _, message := range fs.held {
		_, _ = unix.Write(fs.device, message)
	}
	fs.held = nil
}

func (fs *programFS) heldReads() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return len(fs.held)
}
