package cmd

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
)

// itemList reads items from a file that can be read again from its start.
type itemList struct {
	*os.File
	name  string
	null  bool
	given []string // on the command line, if there is no file
	nulls bool     // a NUL byte has ended an item
}

func (f *eachFlags) list(given []string) (*itemList, error) {
	l := &itemList{name: f.argFile, null: f.null, given: given}
	if len(given) > 0 {
		return l, nil
	}
	l.File = os.Stdin
	if l.name == "" || l.name == "-" {
		l.name = "standard input"
	} else {
		file, err := os.Open(l.name)
		if err != nil {
			return nil, &usageError{err: fmt.Errorf("--arg-file: %w", err)}
		}
		l.File = file
	}
	switch info, err := l.Stat(); {
	case err == nil && info.Mode().IsRegular():
		return l, nil
	case err == nil && info.IsDir():
		return nil, usagef("--arg-file: %s is a directory", l.name)
	}
	return l, l.spool()
}

// spool copies a list that can be read only once to a file without a name, since check reads all
// of it before the first command runs, and it may not fit in memory.
func (l *itemList) spool() error {
	file, err := os.CreateTemp("", "pglead-each")
	if err != nil {
		return err
	}
	_ = os.Remove(file.Name())
	if _, err := io.Copy(file, l.File); err != nil {
		return fmt.Errorf("read the items from %s: %w", l.name, err)
	}
	_ = l.Close()
	l.File = file
	return nil
}

// longestItem is more than a command line has room for in one argument (128
// KiB on Linux).
const longestItem = 128 << 10

// items reads the list from its start. Empty lines don't count.
func (l *itemList) items() iter.Seq[string] {
	return func(yield func(string) bool) { _ = l.read(func(item string) bool { return yield(item) }) }
}

func (l *itemList) read(yield func(string) bool) error {
	if l.File == nil {
		for _, item := range l.given {
			if item != "" && !yield(item) {
				break
			}
		}
		return nil
	}
	if _, err := l.Seek(0, io.SeekStart); err != nil {
		return err
	}
	scanner := bufio.NewScanner(l.File)
	scanner.Buffer(nil, longestItem)
	if l.null {
		scanner.Split(l.scanNull)
	}
	for scanner.Scan() {
		if item := scanner.Text(); item != "" && !yield(item) {
			break
		}
	}
	if errors.Is(scanner.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("it is longer than %d KiB", longestItem>>10)
	}
	return scanner.Err()
}

// scanNull splits at NUL bytes; the last one may be missing.
func (l *itemList) scanNull(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		l.nulls = true
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// mostShown is how much of an item a message shows.
const mostShown = 60

// check counts the items, and fails if one is not good.
func (l *itemList) check(good func(item string) error) (n int, err error) {
	var bad error
	if err := l.read(func(item string) bool {
		n++
		bad = good(item)
		if bad == nil && !l.nulls && strings.Contains(item, "\n") { // as with "$(cat list)", or -0 and a list of lines
			bad = errors.New("it contains a line's end")
		}
		if bad != nil {
			bad = usagef("item %d, %s: %w", n, printable(shorten(item, mostShown)), bad)
		}
		return bad == nil
	}); err != nil {
		return n, &usageError{err: fmt.Errorf("read item %d from %s: %w", n+1, l.name, err)}
	}
	switch {
	case bad != nil:
		return n, bad
	case n == 0 && l.File == nil:
		return n, usagef("the items on the command line are all empty")
	}
	return n, nil
}
