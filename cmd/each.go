package cmd

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/lock"
)

type eachFlags struct {
	options
	argFile  string
	null     bool
	parallel int
}

func newEachCmd(u *ui) *cobra.Command {
	f := eachFlags{options: newOptions(u), parallel: 1}
	cmd := &cobra.Command{
		Use:   "each --key 'PREFIX/{}' [flags] [ITEM...] -- COMMAND [ARG...]",
		Short: "Run a command for each item of a list, with a lock per item",
		Long: `Run a command for each item of a list, with a lock per item, so that one machine
at a time works on an item.

Items are arguments before --, the lines of a file, or those of standard input,
as for xargs. {} in the key and in the command's arguments stands for the item,
which is in PGLEAD_ITEM, too.

An item is skipped if it is held elsewhere, or if another pglead with the same
--key has run it since this one connected. So if it is started on several
machines, they share the list among them. An item that is in the list twice is
run once.

With --transaction no pglead hears which items others have run: each machine
runs the whole list, though each item runs on one machine at a time, unless
--once-per prevents that.

The exit status is 0 if no command failed or there are no items, 123 if a
command failed, 75 if some items were still held elsewhere, paused or kept from
starting when --wait was over, and 76 if a lock was lost while its command ran.
If the database is lost between commands, or ends a statement, it is 69.`,
		Example: `  pglead each --key 'import/{}' -a tenants.txt -P 4 -- ./import --tenant {}
  find inbox -type f -print0 | pglead each --key 'inbox/{}' -0 -- ./process {}`,
		DisableFlagsInUseLine: true,
		RunE:                  f.each,
	}
	flags := cmd.Flags()
	f.register(cmd, "key key-scheme shared")
	flags.StringVarP(&f.argFile, "arg-file", "a", "", "read the items from `FILE`, one a line; - is standard input")
	flags.BoolVarP(&f.null, "null", "0", false, "items end with a NUL byte, not with the line")
	flags.IntVarP(&f.parallel, "parallel", "P", f.parallel, "run up to `N` commands at once")
	f.register(cmd, `wait conflict-exit-code lease lock-delay lost-grace transaction quorum timeout kill-after
		leftovers note once-per ledger dsn pass-dsn connect-timeout quiet verbose log-format`)
	flags.Lookup("key").Usage = "lock this `KEY`, in which {} stands for the item (required)"
	flags.Lookup("shared").Usage = "share each lock with other --shared runs, and with no exclusive one"
	flags.Lookup("wait").Usage = "how long to retry items that are held elsewhere, or forever; 0 skips them"
	flags.Lookup("conflict-exit-code").Usage = "exit status `N` if --wait was over before all items could be had"
	return cmd
}

// mostParallel is more than a machine needs. A server with default settings has room for that many
// locks of one session.
const mostParallel = 1000

func (f *eachFlags) each(cmd *cobra.Command, args []string) error {
	given, args, err := f.split(cmd, args)
	if err != nil {
		return err
	}
	scheme, err := f.scheme()
	if err != nil {
		return err
	}
	list, err := f.list(given)
	if err != nil {
		return err
	}
	defer list.Close()
	items, err := list.check(func(item string) error {
		_, err := scheme.ID(fill(f.keys[0], item))
		return err
	})
	if err != nil {
		return err
	}
	f.configureUI(f.keys)
	if items == 0 { // often there is nothing to do, and cron should not mail that
		f.u.log.Info("there are no items", "event", "summary")
		return nil
	}
	cfg, err := f.config(cmd, lock.Claim{}, f.keys, args, "at an item")
	if err != nil {
		return err
	}
	if cfg.Stdin, err = os.Open(os.DevNull); err != nil {
		return err
	}
	defer cfg.Stdin.Close()
	f.warnOfRepeats()
	progress := f.progress(items)
	tally, err := runner.Each(runner.EachConfig{
		Config:   cfg,
		Items:    list.items(),
		Task:     func(item string) runner.Task { return f.task(scheme, args, item) },
		Parallel: f.parallel,
		List:     listNumber(scheme, f.keys[0]),
		Progress: progress.show,
	})
	progress.close()
	if err == nil {
		err = list.err
	}
	return f.summary(items, tally, unstarted(f.withWait(err), "a command", cfg.Lock.Session.Database))
}

// listNumber is the number of a list, whose items' keys are made of this one. With another scheme it
// is another list: the items of the two have different locks.
func listNumber(scheme lockkey.Scheme, key string) lockkey.ID {
	if scheme.Name != lockkey.DefaultScheme {
		key += "\x00" + scheme.Name
	}
	return lockkey.SipHash24(key)
}

// warnOfRepeats says that through a pooler nobody hears which items others have run. It is a
// warning only at a terminal: with a single node all is well, and cron would mail a warning.
func (f *eachFlags) warnOfRepeats() {
	if !f.transaction || f.oncePer != "" {
		return
	}
	const text = "--transaction: items that another pglead has run meanwhile are run again; --once-per prevents that, with a ledger"
	f.u.warnWatcher(text, "event", "repeats")
}

// task is the work on an item. The item's key was checked before.
func (f *eachFlags) task(scheme lockkey.Scheme, args []string, item string) runner.Task {
	key := fill(f.keys[0], item)
	id, _ := scheme.ID(key)
	command := []string{args[0]}
	for _, arg := range args[1:] {
		command = append(command, fill(arg, item))
	}
	return runner.Task{Key: key, ID: id, Shared: f.shared, Command: command, Env: []string{itemVariable + "=" + item}}
}

func fill(template, item string) string {
	return strings.ReplaceAll(template, describe.Placeholder, item)
}

// split checks the flags, and finds the items among the arguments before --.
func (f *eachFlags) split(cmd *cobra.Command, args []string) (items, command []string, err error) {
	const example = "pglead each --key 'import/{}' -a tenants.txt -- ./import --tenant {}"
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		items, args = args[:dash], args[dash:]
	} else if len(args) > 0 {
		return nil, nil, usagef(example, "-- is missing between the items and the command")
	}
	if err := f.check(cmd.Flags(), args, example); err != nil {
		return nil, nil, err
	}
	switch {
	case len(f.keys) > 1:
		err = usagef("", "--key is given %d times: {} in it stands for the item", len(f.keys))
	case !strings.Contains(f.keys[0], describe.Placeholder):
		err = usagef(example, "--key %s: {} is missing, which stands for the item", printable(f.keys[0]))
	case f.parallel < 1 || f.parallel > mostParallel:
		err = usagef("", "--parallel %d: from 1 to %d", f.parallel, mostParallel)
	case len(items) > 0 && f.argFile != "":
		err = usagef("", "items come from the command line or from %s, not from both", sourceOf(cmd.Flags().Lookup("arg-file")))
	}
	return items, args, err
}

const itemVariable = "PGLEAD_ITEM"

// summary says how many items ran, failed and were skipped: on a terminal, or
// if there is something to report.
func (f *eachFlags) summary(items int, t runner.Tally, err error) error {
	text := fmt.Sprintf("%s: %d ran, %d of them failed; %d skipped: %d held elsewhere, %d already done",
		plural(items, "item"), t.Ran, t.Failed, t.Skipped(), t.Held, t.Done)
	if t.Paused > 0 {
		text += fmt.Sprintf(", %d paused", t.Paused)
	}
	if t.Hindered > 0 {
		text += fmt.Sprintf(", %d kept from starting", t.Hindered)
	}
	if rest := items - t.Ran - t.Skipped(); rest > 0 { // the list has ended before these
		text += fmt.Sprintf("; %d not started", rest)
	}
	var code int
	switch {
	case t.Failed > 0:
		code = exitSomeFailed
	case t.ComeBack() > 0 && f.wait.value > 0:
		code = f.conflictCode
	}
	if code != 0 || err != nil {
		f.u.log.Warn(text, "event", "summary")
	} else {
		f.u.log.Info(text, "event", "summary")
	}
	if err != nil || code == 0 {
		return err
	}
	return &silentExit{code: code}
}

// progress is the status line of a list.
type progress struct {
	u       *ui
	items   int
	returns bool // the list comes back to items (runner.Tally.ComeBack)

	mu      sync.Mutex
	last    runner.Tally
	shown   time.Time
	pending bool // a timer will show the latest tally
	on      bool
}

func (f *eachFlags) progress(items int) *progress {
	return &progress{u: f.u, items: items, returns: f.wait.value > 0, on: f.u.hasStatus() && !f.quiet}
}

// progressInterval is as fast as an eye can follow.
const progressInterval = 100 * time.Millisecond

func (p *progress) show(t runner.Tally) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = t
	if p.on && !p.pending {
		p.pending = true
		time.AfterFunc(progressInterval-time.Since(p.shown), p.draw)
	}
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown, p.pending = time.Now(), false
	if p.on {
		p.u.setStatus(p.text())
	}
}

func (p *progress) text() string {
	t := p.last
	over, waits := t.Ran+t.Done, t.ComeBack()
	if !p.returns {
		over, waits = over+waits, 0
	}
	text := fmt.Sprintf("pglead: %d of %s: %d running, %d ran, %d failed, %d skipped", over, plural(p.items, "item"), t.Running, t.Ran, t.Failed, over-t.Ran)
	if waits > 0 {
		text += fmt.Sprintf(", %d waited for", waits)
	}
	return text
}

// close leaves the last tally in the terminal.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.returns = false
	if p.on {
		p.on = false
		p.u.clearStatus(statusHidden)
		fmt.Fprintln(p.u, p.text())
	}
}
