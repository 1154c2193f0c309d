package child

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/checkup"
)

// ownProgram is this program, even if its file has been replaced or removed since it started.
// NewParent has seen to it that there is a /proc.
const ownProgram = "/proc/self/exe"

// mayHang says whether a file system may hang with the network, by statfs(2)'s f_type. The list has
// those that don't, as far as that shows: an overlay shows nothing of what is below it. Any other
// may, such as one that has come since.
func mayHang(kind uint32) bool {
	switch kind {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC,
		unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, unix.SQUASHFS_MAGIC,
		unix.EROFS_SUPER_MAGIC_V1, unix.REISERFS_SUPER_MAGIC, 0x2FC12FC1, 0xCA451A4E: // zfs, bcachefs
		return false
	}
	return true
}

// guardPrograms are the files of which a guard executes the first that the kernel lets it. If this
// program is on a file system that may hang with the network, the first is a copy in memory: when
// memory is short, the kernel drops parts of a program that it can read from a file again. A guard
// that needs such a part after its deadline would hang, and kill nothing.
func guardPrograms() []string {
	if !programMayHang() {
		return []string{ownProgram}
	}
	fd, err := copyToMemory(ownProgram)
	if err != nil { // doctor says so: examineProgram
		return []string{ownProgram}
	}
	return []string{fmt.Sprintf("/proc/self/fd/%d", fd), ownProgram}
}

func programMayHang() bool {
	var fs unix.Statfs_t
	return unix.Statfs(ownProgram, &fs) != nil || mayHang(uint32(fs.Type))
}

// examineProgram says whether a guard can hang with the network, since its program is there.
func examineProgram() checkup.Check {
	if !programMayHang() {
		return checkup.Okf("not on a file system of the network")
	}
	fd, err := copyToMemory(ownProgram)
	if err != nil {
		return checkup.Warningf("install pglead on a local file system, or let the kernel execute what is in memory: sysctl vm.memfd_noexec=1",
			"on a file system that may hang with the network, and can't be copied to memory (%s): a guard that hangs with it kills nothing", err)
	}
	_ = unix.Close(fd)
	return checkup.Okf("on a file system that may hang with the network: guards run from a copy in memory")
}

// copyToMemory makes a copy of a file that nobody can change, and returns its descriptor.
func copyToMemory(name string) (int, error) {
	file, err := os.Open(name)
	if err != nil {
		return -1, err
	}
	defer file.Close()
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(guardName, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3, where each may be executed
		fd, err = unix.MemfdCreate(guardName, flags)
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	for n := 1; n > 0 || errors.Is(err, unix.EINTR); {
		n, err = unix.Sendfile(fd, int(file.Fd()), nil, 1<<30)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
