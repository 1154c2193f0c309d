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

// itemList is a list of items that has been read whole. What happens to its file later does not
// change the list that check has seen.
type itemList struct {
	copy    io.ReadSeeker // of the list, if it is not on the command line
	name    string
	null    bool
	given   []string // the items on the command line, if there are any
	nulls   bool     // a NUL byte has ended an item
	checked int      // how many items check has seen
	err     error    // why items ended early
}

func (f *eachFlags) list(given []string) (*itemList, error) {
	l := &itemList{name: f.argFile, null: f.null, given: given}
	if len(given) > 0 {
		return l, nil
	}
	file := os.Stdin
	if l.name == "" || l.name == "-" {
		l.name = "standard input"
	} else {
		var err error
		if file, err = os.Open(l.name); err != nil {
			return nil, usagef("", "--arg-file: %w", err)
		}
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.IsDir() {
		return nil, usagef("", "--arg-file: %s is a directory", l.name)
	}
	return l, l.keep(file)
}

// mostInMemory is how many bytes of a list are kept in memory: ten thousand items or more.
const mostInMemory = 256 << 10

// keep copies a file, from its present position on, into memory or, if it is long, into a file
// without a name. It copies no more after an item that is too long, at which read fails.
func (l *itemList) keep(file io.Reader) error {
	from := &untilTooLong{file: file, end: '\n'}
	if l.null {
		from.end = 0
	}
	var head bytes.Buffer
	switch _, err := io.CopyN(&head, from, mostInMemory); {
	case errors.Is(err, io.EOF):
		l.copy = bytes.NewReader(head.Bytes())
		return nil
	case err != nil:
		return fmt.Errorf("read the items from %s: %w", l.name, err)
	}
	long, err := os.CreateTemp("", "pglead-each")
	if err == nil {
		l.copy = long
		_ = os.Remove(long.Name())
		_, err = io.Copy(long, io.MultiReader(&head, from))
	}
	if err != nil {
		return explain(fmt.Errorf("copy the items from %s: %w", l.name, err), "", "TMPDIR names the directory for a copy of a long list")
	}
	return nil
}

func (l *itemList) Close() {
	if file, ok := l.copy.(io.Closer); ok {
		_ = file.Close()
	}
}

// longestItem is more than a command line has room for in one argument (128
// KiB on Linux).
const longestItem = 128 << 10

// untilTooLong reads a list up to the first item that is too long: /dev/zero would never end.
type untilTooLong struct {
	file   io.Reader
	end    byte // of an item
	length int  // of the item that is being read
}

func (u *untilTooLong) Read(p []byte) (n int, err error) {
	if u.length > longestItem {
		return 0, io.EOF
	}
	n, err = u.file.Read(p[:min(len(p), longestItem)])
	switch first := bytes.IndexByte(p[:n], u.end); {
	case first < 0:
		u.length += n
	case u.length+first > longestItem: // that item ends here
		u.length += first
	default:
		u.length = n - 1 - bytes.LastIndexByte(p[:n], u.end)
	}
	return n, err
}

// items reads the list from its start. Empty lines don't count.
func (l *itemList) items() iter.Seq[string] {
	return func(yield func(string) bool) {
		n, wanted := 0, true
		err := l.read(func(item string) bool {
			n++
			wanted = yield(item)
			return wanted
		})
		if err == nil && wanted && n < l.checked {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			l.err = fmt.Errorf("read the items from the copy of %s: %w", l.name, err)
		}
	}
}

func (l *itemList) read(yield func(string) bool) error {
	if l.copy == nil {
		for _, item := range l.given {
			if item != "" && !yield(item) {
				break
			}
		}
		return nil
	}
	if _, err := l.copy.Seek(0, io.SeekStart); err != nil {
		return err
	}
	scanner := bufio.NewScanner(l.copy)
	scanner.Buffer(nil, longestItem)
	if l.null {
		scanner.Split(l.scanNull)
	}
	mark := byteOrderMark
	for scanner.Scan() {
		item := strings.TrimPrefix(scanner.Text(), mark)
		mark = ""
		if item != "" && !yield(item) {
			break
		}
	}
	if errors.Is(scanner.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("it is longer than %d KiB", longestItem>>10)
	}
	return scanner.Err()
}

// byteOrderMark is at the beginning of what some editors write. It is no part of the first item.
const byteOrderMark = "\ufeff"

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
			bad = usagef("", "item %d, %s: %w", n, printable(shorten(item, mostShown)), bad)
		}
		return bad == nil
	}); err != nil {
		return n, usagef("", "read item %d from %s: %w", n+1, l.name, err)
	}
	switch {
	case bad != nil:
		return n, bad
	case n == 0 && l.copy == nil:
		return n, usagef("", "the items on the command line are all empty")
	}
	l.checked = n
	return n, nil
}
