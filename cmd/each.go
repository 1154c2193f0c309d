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
	"time"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/lock"
)

// placeholder stands for the item in the key and in the command.
const placeholder = "{}"

type eachFlags struct {
	options
	argFile  string
	null     bool
	parallel int
}

func newEachCmd(v *voice) *cobra.Command {
	f := eachFlags{options: newOptions(), parallel: 1}
	cmd := &cobra.Command{
		Use:   "each --key 'PREFIX/{}' [flags] [ITEM...] -- COMMAND [ARG...]",
		Short: "One lock per item of a list: work on every item that nobody else works on",
		Long: `One lock per item of a list: work on every item that nobody else works on.

Items are arguments before --, the lines of a file, or those of standard input,
as for xargs. {} in the key and in the command's arguments stands for the item,
which is in PGLEAD_ITEM too. An item that is held elsewhere is skipped, and so
is one that another pglead with the same list's key has been at since this one
began: started on several machines, they share the list among them.

The exit status is 0 if no command failed, 123 if one did, and 75 if --wait was
over before all items came free.`,
		Example: `  pglead each --key 'import/{}' -a tenants.txt -P 4 -- ./import --tenant {}
  find inbox -type f -print0 | pglead each --key 'inbox/{}' -0 -- ./process {}`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.each(v, cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&f.keys, "key", nil, "`KEY` of each item, with {} for the item (required)")
	f.schemeFlag(flags)
	flags.BoolVarP(&f.shared, "shared", "s", false, "hold each lock with others, none of whom holds it exclusively")
	flags.StringVarP(&f.argFile, "arg-file", "a", "", "read the items from `FILE`, one a line; - is standard input")
	flags.BoolVarP(&f.null, "null", "0", false, "items end with a NUL byte, not with the line")
	flags.IntVarP(&f.parallel, "parallel", "P", f.parallel, "run up to `N` commands at once")
	f.waitFlags(flags)
	f.leaseFlags(flags)
	f.commandFlags(flags)
	f.noteFlag(flags)
	f.onceFlag(flags)
	f.ledgerFlag(flags)
	f.databaseFlags(flags)
	f.voiceFlags(flags)
	flags.Lookup("wait").Usage = "how long to come back to items that are held elsewhere, or forever; 0 skips them"
	flags.Lookup("conflict-exit-code").Usage = "exit status `N` when --wait was over before all items came free"
	return cmd
}

// mostParallel is more than a machine has use for, and less than the locks of
// one session that a server with its defaults has room for.
const mostParallel = 1000

func (f *eachFlags) each(v *voice, cmd *cobra.Command, args []string) error {
	dsnOnCommandLine := cmd.Flags().Changed("dsn")
	if err := fromEnvironment(cmd.Flags()); err != nil {
		return err
	}
	const example = "pglead each --key 'import/{}' -a tenants.txt -- ./import --tenant {}"
	var given []string
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		given, args = args[:dash], args[dash:]
	} else if len(args) > 0 {
		return &usageError{err: errors.New("-- is missing between the items and the command"), hint: example}
	}
	if err := f.check(args, example); err != nil {
		return err
	}
	switch {
	case len(f.keys) > 1:
		return usagef("--key is given %d times: {} in it stands for the item", len(f.keys))
	case !strings.Contains(f.keys[0], placeholder):
		return &usageError{err: fmt.Errorf("--key %s: {} is missing, which stands for the item", printable(f.keys[0])), hint: example}
	case f.parallel < 1 || f.parallel > mostParallel:
		return usagef("--parallel %d: from 1 to %d", f.parallel, mostParallel)
	case len(given) > 0 && f.argFile != "":
		return usagef("items come from the command line or from --arg-file, not from both")
	}
	scheme, err := f.scheme()
	if err != nil {
		return err
	}
	list, err := f.list(given)
	if err != nil {
		return err
	}
	defer func() { _ = list.Close() }()
	template := f.keys[0]
	items, err := list.check(func(item string) error {
		_, err := scheme.ID(strings.ReplaceAll(template, placeholder, item))
		return err
	})
	if err != nil {
		return err
	}

	cfg, err := f.config(v, cmd, args, dsnOnCommandLine)
	if err != nil {
		return err
	}
	if cfg.Stdin, err = os.Open(os.DevNull); err != nil {
		return err
	}
	defer cfg.Stdin.Close()
	progress := newProgress(v, f.quiet, items)
	cfg.Watch = f.watch(v, cfg, "at an item")
	tally, err := runner.Each(runner.EachConfig{
		Config: cfg,
		Items:  list.items(),
		Task: func(item string) runner.Task {
			key := strings.ReplaceAll(template, placeholder, item)
			id, _ := scheme.ID(key) // checked before
			command := []string{args[0]}
			for _, arg := range args[1:] {
				command = append(command, strings.ReplaceAll(arg, placeholder, item))
			}
			return runner.Task{Key: key, Lock: lock.Lock{ID: id, Shared: f.shared}, Command: command, Env: []string{itemVariable + "=" + item}}
		},
		Parallel: f.parallel,
		List:     lockkey.SipHash24(template),
		Progress: progress.show,
	})
	progress.close()
	return f.summary(v, items, tally, err)
}

const itemVariable = "PGLEAD_ITEM"

// listError is the end of a list of which not all is as it should be.
type listError struct{ code int }

func (e *listError) Error() string { return "not all items are done" }

// summary says how many items ran, failed and were skipped: to a terminal, or
// if there is something to know.
func (f *eachFlags) summary(v *voice, items int, t runner.Tally, err error) error {
	text := fmt.Sprintf("%s: %d ran, %d of them failed; %d skipped: %d held elsewhere, %d done elsewhere",
		itemsText(items), t.Ran, t.Failed, t.Held+t.Done, t.Held, t.Done)
	var code int
	switch {
	case t.Failed > 0:
		code = exitSomeFailed
	case t.Held > 0 && f.wait.value > 0:
		code = f.conflictCode
	}
	if code != 0 || err != nil {
		v.log.Warn(text, "event", "summary")
	} else {
		v.log.Info(text, "event", "summary")
	}
	if err != nil || code == 0 {
		return err
	}
	return &listError{code}
}

// itemList reads items from a file that can be read again from its start.
type itemList struct {
	*os.File
	name  string
	null  bool
	given []string // in place of a file
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
	if info, err := l.Stat(); err == nil && info.Mode().IsRegular() {
		return l, nil
	}
	return l, l.spool()
}

// spool copies a list that can be read only once to a file without a name: it
// is checked whole before the first command runs, and may be longer than what
// fits in memory.
func (l *itemList) spool() error {
	file, err := os.CreateTemp("", "pglead-each")
	if err != nil {
		return err
	}
	_ = os.Remove(file.Name())
	if _, err := io.Copy(file, l.File); err != nil {
		return fmt.Errorf("read the items from %s: %w", l.name, err)
	}
	_ = l.File.Close()
	l.File = file
	return nil
}

func (l *itemList) Close() error {
	if l.File == nil {
		return nil
	}
	return l.File.Close()
}

// longestItem is more than a command line has room for in one argument (128
// KiB on Linux).
const longestItem = 128 << 10

// items reads the list from its start. Empty ones are none.
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
		scanner.Split(scanNull)
	}
	for scanner.Scan() {
		if item := scanner.Text(); item != "" && !yield(item) {
			break
		}
	}
	return scanner.Err()
}

// scanNull splits at NUL bytes; the last one may be missing.
func scanNull(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// check counts the items, all of which have to be good ones.
func (l *itemList) check(good func(item string) error) (n int, err error) {
	var bad error
	if err := l.read(func(item string) bool {
		n++
		bad = good(item)
		if bad == nil && strings.Contains(item, "\n") {
			bad = errors.New("it contains a line's end")
		}
		if bad != nil {
			bad = usagef("item %d, %s: %w", n, printable(shortened(item)), bad)
		}
		return bad == nil
	}); err != nil {
		return n, &usageError{err: fmt.Errorf("read item %d from %s: %w", n+1, l.name, err)}
	}
	switch {
	case bad != nil:
		return n, bad
	case n == 0:
		return n, usagef("the list of items is empty")
	}
	return n, nil
}

func itemsText(n int) string {
	if n == 1 {
		return "1 item"
	}
	return fmt.Sprintf("%d items", n)
}

func shortened(s string) string {
	const most = 60
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// progress is a living line on the terminal.
type progress struct {
	v     *voice
	items int
	shown time.Time
	last  runner.Tally
	on    bool
}

func newProgress(v *voice, quiet bool, items int) *progress {
	return &progress{v: v, items: items, on: v.canLive() && !quiet}
}

// progressInterval is as often as an eye can follow.
const progressInterval = 100 * time.Millisecond

func (p *progress) show(t runner.Tally) {
	p.last = t
	if p.on && time.Since(p.shown) >= progressInterval {
		p.shown = time.Now()
		p.v.live(p.text())
	}
}

func (p *progress) text() string {
	t := p.last
	return fmt.Sprintf("pglead: %d of %s: %d running, %d ran, %d failed, %d skipped",
		t.Ran+t.Held+t.Done, itemsText(p.items), t.Running, t.Ran, t.Failed, t.Held+t.Done)
}

// close leaves the last word standing.
func (p *progress) close() {
	if p.on {
		p.v.hush()
		fmt.Fprintln(p.v, p.text())
	}
}
