package localpg

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Where root starts a server, it runs as another account. Whatever that
// account may write to, it may also replace by a link to root's own files. So root
// opens nothing in a directory of the account, and no name that may be a
// link:
//
//	.        of the user: lock files and log
//	data     of the server's account
//	socket   the same

const (
	dataName   = "data"
	socketName = "socket"
	logName    = "log"

	unfinished = ".new" // appended to the name of what is being made
)

// makePlace makes or checks the directory that holds the others, and returns once
// nobody but the user can put anything there.
func makePlace(dir string) error {
	account, err := Account()
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o700)
	if account != nil {
		mode = 0o711 // the account passes through
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	d, err := openDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	owner, open, err := accessTo(d)
	switch {
	case err != nil:
		return err
	case owner != os.Geteuid():
		return &foreignError{dir, owner, "it is another's"}
	case open:
		return &foreignError{dir, owner, "others can write to it"}
	}
	return d.Chmod(mode)
}

// foreignError says that a directory is not the user's alone, so nothing is put into it.
type foreignError struct {
	dir   string
	owner int
	why   string
}

func (e *foreignError) Error() string {
	return fmt.Sprintf("%s (of user %d) can't hold the embedded server, since %s: remove it, or name another place by XDG_STATE_HOME", e.dir, e.owner, e.why)
}

// openDir opens a directory, but not a link to one.
func openDir(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// accessTo says who owns a directory and whether others can write to it.
func accessTo(dir *os.File) (owner int, open bool, err error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return 0, false, &fs.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	return int(stat.Uid), stat.Mode&0o022 != 0, nil
}

// accountsDir makes or checks a directory of the account in one that is the
// user's own.
func accountsDir(path string) error {
	account, err := Account()
	if err != nil {
		return err
	}
	want := os.Geteuid()
	if account != nil {
		want = int(account.Uid)
	}
	for {
		err := os.Mkdir(path, 0o700)
		if err == nil && account != nil {
			return os.Lchown(path, want, int(account.Gid))
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		d, err := openDir(path)
		if err != nil {
			return err
		}
		owner, open, err := accessTo(d)
		_ = d.Close()
		if err != nil || owner == want && !open {
			return err
		}
		// Its maker may have been killed before it was given to the account.
		if os.Remove(path) != nil {
			return &foreignError{path, owner, fmt.Sprintf("it should be the user %d's alone", want)}
		}
	}
}

// fileLock is the descriptor of a locked file. It is no os.File, since the garbage
// collector closes an os.File that nobody refers to any more.
type fileLock int

// lockFile locks a file in a directory of the user, and waits for it unless how says
// otherwise. The lock ends with the descriptor, which no child inherits.
func lockFile(dir, name string, how int) (fileLock, error) {
	path := filepath.Join(dir, name+".lock")
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(fd, how)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("lock %s: %w", path, err)
	}
	return fileLock(fd), nil
}

func (l fileLock) close() { _ = unix.Close(int(l)) }

// createLog makes a new log, in a directory of the user's.
func createLog(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
}

// longestPIDFile is more than postmaster.pid ever contains.
const longestPIDFile = 4096

// readPIDFile reads a file in the account's directory: it may be a link, endless,
// or one that nobody ever writes to.
func readPIDFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file: %w", path, err)
	}
	return io.ReadAll(io.LimitReader(file, longestPIDFile))
}

// rootsOwn makes a directory, and returns its path without links. It fails if anybody but root can
// replace the directory, or one above it.
func rootsOwn(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	there := dir
	for {
		if _, err := os.Lstat(there); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		there = filepath.Dir(there)
	}
	real, err := filepath.EvalSymlinks(there)
	if err != nil {
		return "", err
	}
	if err := checkTrusted(real); err != nil {
		return "", err
	}
	rest, err := filepath.Rel(there, dir)
	if err != nil || rest == "." {
		return real, err
	}
	real = filepath.Join(real, rest)
	if err := os.MkdirAll(real, 0o755); err != nil {
		return "", err
	}
	return real, os.Chmod(real, 0o755) //nolint:gosec // whatever the umask is: the server's account passes through
}

// checkTrusted fails if anybody but this user, and root, can replace a directory, or one above it.
func checkTrusted(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		others := info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0
		if !ok || stat.Uid != uint32(os.Geteuid()) || others {
			return fmt.Errorf("root's embedded server can't be in %s, since others can put something else in place of %s (mode %v): "+
				"name another place by XDG_STATE_HOME, or unset it", dir, at, info.Mode())
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}
