package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// viewFlags are the flags of the commands that look at locks.
type viewFlags struct {
	options
	output           string
	dsnOnCommandLine bool
	viewing          session.Config // how to connect, once that is known
}

func newViewFlags() viewFlags { return viewFlags{options: newOptions()} }

func (f *viewFlags) register(cmd *cobra.Command, outputs string) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.output, "output", "o", "", outputs)
	flags.StringVarP(&f.dsn, "dsn", "d", "", "`DSN` of the database: URI, keywords or name, as for psql; embedded: the private server")
	flags.Var(&f.connectTimeout, "connect-timeout", "for each attempt to connect")
}

// fromEnvironment reads the flags' variables.
func (f *viewFlags) fromEnvironment(cmd *cobra.Command) error {
	f.dsnOnCommandLine = cmd.Flags().Changed("dsn")
	return fromEnvironment(cmd.Flags())
}

// look connects to where the locks are, and looks until that is done or a
// signal ends it.
func (f *viewFlags) look(v *voice, cmd *cobra.Command, look func(ctx context.Context, viewer *session.Viewer, target string) error) error {
	if f.connectTimeout.value <= 0 {
		return usagef("--connect-timeout must be longer than 0")
	}
	warnOfVariables(v, cmd.Root())
	db, err := f.database(v, cmd.Flags(), f.dsnOnCommandLine)
	if err != nil {
		return err
	}
	if db.embedded != nil {
		defer db.embedded.Close()
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	f.viewing = session.Config{Database: db.config, ConnectTimeout: f.connectTimeout.value, ApplicationName: "pglead " + cmd.Name()}
	viewer, err := session.OpenViewer(ctx, f.viewing)
	if err != nil {
		return err
	}
	defer viewer.Close()
	return look(ctx, viewer, session.Target(db.config))
}

// name is what a table calls a lock.
func nameOf(l *inspect.Lock) string {
	name := "number " + l.Number().String()
	if l.Key != nil {
		name = printable(*l.Key)
	}
	switch {
	case l.Slot > 0:
		name += fmt.Sprintf(" (slot %d of %d)", l.Slot, l.Slots)
	case l.Slots > 0:
		name += " (in line)"
	}
	return name
}

func newLsCmd(v *voice, stdout io.Writer) *cobra.Command {
	f := newViewFlags()
	var all, watch bool
	cmd := &cobra.Command{
		Use:   "ls [PATTERN...] [flags]",
		Short: "Every lock: key, holder, since when, waiters",
		Long: `Every lock of the database: key, holder, since when, waiters. With patterns only
those of keys that match one; * in it stands for any characters, ? for one.

Locks that programs other than pglead hold are shown by their number; pglead key
--key-scheme all KEY prints what a key comes to. What this role may not see is
marked, with the grant that would show it.`,
		Example: `  pglead ls --watch
  pglead ls 'import/*'
  pglead ls --output prometheus >/var/lib/prometheus/node-exporter/pglead.prom`,
		RunE: func(cmd *cobra.Command, patterns []string) error {
			if err := f.fromEnvironment(cmd); err != nil {
				return err
			}
			write, err := f.writer(all, len(patterns) > 0)
			if err != nil {
				return err
			}
			screen := watch && isTerminal(os.Stdout)
			for {
				err := f.look(v, cmd, func(ctx context.Context, viewer *session.Viewer, target string) error {
					for {
						locks, err := wanted(ctx, viewer, all, patterns)
						if err == nil {
							err = list(locks, screen, target, write, stdout)
						}
						if err != nil || !watch {
							return err
						}
						select {
						case <-time.After(watchInterval):
						case <-ctx.Done():
							if screen { // ^C stands there
								_, _ = io.WriteString(stdout, "\r"+eraseRest)
							}
							return nil
						}
					}
				})
				if !screen || !session.Passing(err) {
					return err
				}
				// Who watches through an outage wants to see its end.
				if _, err := io.WriteString(stdout, onScreen(oneLine(err.Error())+"\n")); err != nil {
					return err
				}
				time.Sleep(watchInterval)
			}
		},
	}
	f.register(cmd, "`table`, wide (with scheme, number, user, role, client and note), json, or prometheus (for node_exporter's textfile collector)")
	cmd.Flags().BoolVar(&all, "all-databases", false, "the locks of every database of the server")
	cmd.Flags().BoolVar(&watch, "watch", false, "again every 2s")
	return cmd
}

const watchInterval = 2 * time.Second

// list writes the locks once, over what was written before on a screen.
func list(locks []*inspect.Lock, screen bool, target string, write lockWriter, stdout io.Writer) error {
	var text strings.Builder
	if err := write(&text, target, locks); err != nil {
		return err
	}
	out := text.String()
	if screen {
		out = onScreen(out)
	}
	_, err := io.WriteString(stdout, out)
	return err
}

// onScreen writes over what was written before: home, each line up to its end,
// and what is left of the last time.
func onScreen(text string) string {
	return "\x1b[H" + strings.ReplaceAll(text, "\n", eraseRest+"\n") + "\x1b[J"
}

type lockWriter func(w io.Writer, target string, locks []*inspect.Lock) error

func (f *viewFlags) writer(all, some bool) (lockWriter, error) {
	switch f.output {
	case "", "table", "wide":
		t := table{all: all, wide: f.output == "wide"}
		if some {
			t.of = "of these keys "
		}
		if !t.wide {
			t.width = foreground(os.Stdout)
		}
		return t.write, nil
	case "json":
		return func(w io.Writer, _ string, locks []*inspect.Lock) error { return writeJSON(w, locks) }, nil
	case "prometheus":
		return func(w io.Writer, _ string, locks []*inspect.Lock) error { return inspect.WriteMetrics(w, locks) }, nil
	}
	return nil, usagef("--output %s: table, wide, json or prometheus", printable(f.output))
}

func writeJSON(w io.Writer, value any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return err
	}
	_, err := w.Write(escapeJSON(b.Bytes()))
	return err
}

// escapeJSON escapes what has an effect on a terminal and that encoding/json
// leaves as it is: DEL, the control characters beyond ASCII, bidi overrides. In
// JSON such are in strings only.
func escapeJSON(encoded []byte) []byte {
	var b []byte
	for _, r := range string(encoded) {
		switch {
		case r == '\n' || visible.Rune(r):
			b = utf8.AppendRune(b, r)
		case r > 0xffff:
			first, second := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, first, second)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return b
}

// table is what ls shows to people.
type table struct {
	all, wide bool
	width     int // of the terminal; 0: as wide as it takes
	of        string
}

func (o table) write(w io.Writer, target string, locks []*inspect.Lock) error {
	if len(locks) == 0 {
		_, err := fmt.Fprintf(w, "no locks %sin %s\n", o.of, visible.Text(target))
		return err
	}
	heading := []string{"KEY", "MODE", "HOLDER", "FOR", "TOKEN", "WAIT"}
	if o.all {
		heading = append(heading, "DATABASE")
	}
	if o.wide {
		heading = append(heading, "SCHEME", "NUMBER", "USER", "ROLE", "CLIENT", "NOTE")
	}
	rows := [][]string{heading}
	hidden := false
	for _, l := range locks {
		holders := l.Holders
		if len(holders) == 0 {
			holders = []inspect.View{{}}
		}
		for i, h := range holders {
			hidden = hidden || h.Hidden
			row := []string{nameOf(l), l.Mode, holderCell(h), "", "", strconv.Itoa(len(l.Waiters))}
			if !h.Since.IsZero() {
				row[3] = brief(h.HeldFor())
			}
			if h.Token != 0 {
				row[4] = strconv.FormatInt(h.Token, 10)
			}
			if i > 0 {
				row[0], row[5] = "", ""
			}
			if o.all {
				row = append(row, l.Database)
			}
			if o.wide {
				row = append(row, l.Scheme, l.Number().String(), h.User, h.Role, h.Client, h.Note)
			}
			rows = append(rows, row)
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = visible.Text(cell)
		}
	}
	o.fit(rows)
	t := tabwriter.NewWriter(w, 0, 0, len(gap), ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if hidden {
		_, err := fmt.Fprintln(w, "\n* of another role: to see more, GRANT pg_read_all_stats TO this role")
		return err
	}
	return nil
}

// gap is what stands between two columns.
const gap = "  "

// fit shortens keys and holders, the longer of the two first, until the rows
// fit into the width.
func (o table) fit(rows [][]string) {
	if o.width == 0 {
		return
	}
	const key, holder, least = 0, 2, 8
	widths := make([]int, len(rows[0]))
	total := len(gap) * (len(widths) - 1)
	for i := range widths {
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		total += widths[i]
	}
	for ; total > o.width && max(widths[key], widths[holder]) > least; total-- {
		if widths[key] >= widths[holder] {
			widths[key]--
		} else {
			widths[holder]--
		}
	}
	for _, row := range rows {
		row[key], row[holder] = squeeze(row[key], widths[key]), shorten(row[holder], widths[holder])
	}
}

func holderCell(h inspect.View) string {
	text := fmt.Sprintf("backend %d %s", h.Backend, h.Application)
	switch {
	case h.Backend == 0:
		return "-"
	case h.PID != 0:
		return fmt.Sprintf("%s:%d %s", h.Where(), h.PID, h.Command)
	case h.Pglead():
		text = h.Where()
	}
	if h.Hidden {
		text = "* " + text
	}
	return text
}

// shorten cuts a cell to so many characters.
func shorten(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// squeeze takes from the middle of a cell what is too much: of a key the end, and
// the slot, say more.
func squeeze(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	head := (most - 1) / 3
	return string(runes[:head]) + "…" + string(runes[len(runes)-(most-1-head):])
}

// brief is a length of time in two units at most: 3d4h, 12m5s.
func brief(d time.Duration) string {
	d = d.Round(time.Second)
	switch days := d / (24 * time.Hour); {
	case days > 0:
		return fmt.Sprintf("%dd%dh", days, d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return d.String()
}

// claimOf are the locks that a key of who or stepdown means.
func (f *viewFlags) claimOf(key string) (lock.Claim, error) {
	f.keys = []string{key}
	if f.slots < 1 || f.slots > inspect.MostSlots {
		return lock.Claim{}, usagef("--slots %d: from 1 to %d", f.slots, inspect.MostSlots)
	}
	return f.claim()
}

func (f *viewFlags) keyFlags(cmd *cobra.Command) {
	f.schemeFlag(cmd.Flags())
	cmd.Flags().IntVar(&f.slots, "slots", f.slots, "the key has `N` slots; found out without it, where any is held or waited for")
}

func newWhoCmd(v *voice, stdout io.Writer) *cobra.Command {
	f := newViewFlags()
	cmd := &cobra.Command{
		Use:   "who KEY [flags]",
		Short: "The holder of one key; exit 0 held, 1 free",
		Long: `The holders of one key, a line each: exit status 0 if there are any, 1 if the
lock is free.`,
		Example: `  pglead who invoice_gen/SUB-1234
  pglead who render -o json`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.output != "" && f.output != "text" && f.output != "json" {
				return usagef("--output %s: text or json", printable(f.output))
			}
			if err := f.fromEnvironment(cmd); err != nil {
				return err
			}
			claim, err := f.claimOf(args[0])
			if err != nil {
				return err
			}
			return f.look(v, cmd, func(ctx context.Context, viewer *session.Viewer, target string) error {
				_, locks, err := f.seek(ctx, viewer, claim)
				if err != nil {
					return err
				}
				return f.who(stdout, args[0], target, locks)
			})
		},
	}
	f.register(cmd, "`text` or json")
	f.keyFlags(cmd)
	cmd.Flags().BoolVarP(&f.shared, "shared", "s", false, "only who keeps others from a shared lock: an exclusive holder")
	return cmd
}

func (f *viewFlags) who(stdout io.Writer, key, target string, locks []*inspect.Lock) error {
	held := slices.ContainsFunc(locks, func(l *inspect.Lock) bool { return len(l.Holders) > 0 })
	if f.output == "json" {
		if err := writeJSON(stdout, locks); err != nil {
			return err
		}
	} else {
		for _, l := range locks {
			for _, h := range l.Holders {
				as := ""
				switch {
				case l.Slot > 0:
					as = fmt.Sprintf("slot %d: ", l.Slot)
				case h.Shared:
					as = "shared: "
				}
				fmt.Fprintln(stdout, as+h.String()+waitersText(len(l.Waiters)))
			}
		}
		if !held {
			fmt.Fprintf(stdout, "%s is free in %s\n", printable(key), visible.Text(target))
		}
	}
	if !held {
		return &listError{exitFree}
	}
	return nil
}

func waitersText(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "; 1 waits"
	}
	return fmt.Sprintf("; %d wait", n)
}

func oneKey(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return &usageError{err: errors.New("one key is needed"), hint: "pglead " + cmd.Name() + " invoice_gen/SUB-1234"}
	}
	return nil
}

// isTerminal says whether a file is a terminal's.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}
