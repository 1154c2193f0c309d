package child

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LookupError says why a command can't be run.
type LookupError struct {
	Name string
	// NotFound says that there is no such command (status 127); otherwise there is one,
	// and it can't be executed (126).
	NotFound bool
	err      error
}

func (e *LookupError) Error() string {
	name := e.Name
	if strings.ContainsAny(name, " \t\n") {
		name = strconv.Quote(name)
	}
	return fmt.Sprintf("run %s: %s", name, e.err)
}
func (e *LookupError) Unwrap() error { return e.err }

// ExitStatus is the exit status that a shell gives for this error.
func (e *LookupError) ExitStatus() int {
	const notFound, notExecutable = 127, 126
	if e.NotFound {
		return notFound
	}
	return notExecutable
}

// defaultPath is what execvp searches if PATH is not set, as under some init systems
// (exec(3)).
const defaultPath = "/bin:/usr/bin"

// Lookup finds the file that execvp would run. Errors are of type
// *LookupError.
func Lookup(name string) (string, error) {
	if name == "" {
		return "", &LookupError{Name: `""`, NotFound: true, err: errors.New("the command is empty")}
	}
	if strings.ContainsRune(name, '/') {
		if _, err := executable(name); err != nil {
			return "", &LookupError{Name: name, NotFound: missing(err), err: cause(err)}
		}
		return name, interpreted(name)
	}
	path, ok := os.LookupEnv("PATH")
	if !ok {
		path = defaultPath
	}
	failed := &LookupError{Name: name, NotFound: true, err: errors.New("command not found")}
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			dir = "." // POSIX: an empty element is the working directory
		}
		file := dir + "/" + name
		there, err := executable(file)
		if err == nil {
			return file, interpreted(file)
		}
		// A directory that can't be searched says nothing about the command. Only a file
		// that exists counts as one that can't be executed.
		if there && failed.NotFound {
			failed = &LookupError{Name: file, err: cause(err)}
		}
	}
	return "", failed
}

func executable(file string) (there bool, err error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return false, err
	case info.IsDir():
		return true, unix.EISDIR
	}
	return true, unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
}

// interpreted returns an error for a script whose interpreter is missing. exec's error
// would say that the script is missing, which misleads.
func interpreted(file string) error {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil { // a file that can be executed need not be readable
		return nil
	}
	defer f.Close()
	const most = 256 // Linux reads no more
	start := make([]byte, most)
	n, _ := io.ReadFull(f, start)
	line, _, whole := strings.Cut(string(start[:n]), "\n")
	rest, script := strings.CutPrefix(line, "#!")
	if !script || !whole && n == most {
		return nil
	}
	name, _, _ := strings.Cut(strings.Trim(rest, " \t"), " ")
	name, _, _ = strings.Cut(name, "\t")
	if _, err := os.Stat(name); name == "" || !missing(err) {
		return nil
	}
	text := "its interpreter " + strings.TrimSuffix(name, "\r") + " is missing"
	if strings.HasSuffix(name, "\r") {
		text = "its lines end as on Windows, so that its interpreter " + strconv.Quote(name) + " is missing"
	}
	return &LookupError{Name: file, NotFound: true, err: errors.New(text)}
}

func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

func cause(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}
