package cmd

import (
	"bytes"
	"cmp"
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

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// viewFlags are the flags of the commands that look at locks.
type viewFlags struct {
	options
	output           string
	dsnOnCommandLine bool
	viewing          session.Config // how to connect, once that is known
	facts            ledger.Facts   // of the keys of a metrics page
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

// lockView is a lock with all who hold it and all who wait for it. Slots of
// one key are one lock.
type lockView struct {
	Database string       `json:"database"`
	Key      *string      `json:"key"` // null where nobody says it
	Scheme   string       `json:"scheme,omitempty"`
	ID       int64        `json:"id"`
	IDText   string       `json:"id_text"` // for programs to which a number is a float64
	ClassID  uint32       `json:"classid"`
	ObjID    uint32       `json:"objid"`
	ObjSubID int          `json:"objsubid"`
	Mode     string       `json:"mode"`
	Slot     int          `json:"slot,omitempty"`
	Slots    int          `json:"slots,omitempty"`
	Holders  []holderView `json:"holders"`
	Waiters  []holderView `json:"waiters"`
	Paused   *pauseView   `json:"paused,omitempty"` // by the ledger

	id  lockkey.ID
	has map[uint32]int // the places, from 1, of backends in Holders

	awaits map[uint32]bool // backends in Waiters
}

type holderView struct {
	Host        string     `json:"host"`
	PID         int        `json:"pid,omitempty"`
	User        string     `json:"user,omitempty"`
	Command     string     `json:"command,omitempty"`
	Note        string     `json:"note,omitempty"`
	Role        string     `json:"role"`
	Client      string     `json:"client,omitempty"`
	Application string     `json:"application"`
	Backend     uint32     `json:"backend"`
	Pglead      bool       `json:"pglead"`
	Since       *time.Time `json:"since,omitempty"`
	Seconds     float64    `json:"seconds,omitempty"` // held for, or waiting for
	Token       int64      `json:"token,omitempty"`
	Lease       float64    `json:"lease_seconds,omitempty"`
	Hidden      bool       `json:"hidden,omitempty"` // this role may not see the details

	view session.View
}

func newHolderView(v session.View) holderView {
	h := holderView{
		Host: v.Where(), PID: v.PID, User: v.User, Command: v.Command, Note: v.Note, Role: v.Role, Client: v.Client,
		Application: v.Application, Backend: v.Backend, Pglead: v.Pglead(), Seconds: v.Waiting.Seconds(),
		Token: v.Token, Lease: v.Lease.Seconds(), Hidden: v.Hidden, view: v,
	}
	if v.Granted {
		h.Seconds = v.HeldFor().Seconds()
		if !v.Since.IsZero() {
			h.Since = &v.Since
		}
	}
	return h
}

// locksOf puts together what the server shows one by one. Who stands in line
// before the gate of slots waits for all of them. A session that has a lock in both
// modes is one holder, and keeps others out as an exclusive one does.
func locksOf(views []session.View) []*lockView {
	type number struct {
		database string
		id       lockkey.ID
	}
	locks := []*lockView{}
	of := map[number]*lockView{}
	find := func(v session.View) *lockView {
		l := of[number{v.Database, v.ID}]
		if l == nil {
			l = &lockView{
				Database: v.Database, ID: v.ID.Number, IDText: strconv.FormatInt(v.ID.Number, 10), ClassID: v.ID.ClassID(), ObjID: v.ID.ObjID(), ObjSubID: v.ID.ObjSubID(),
				Mode: modeOf(v), Holders: []holderView{}, Waiters: []holderView{}, id: v.ID, has: map[uint32]int{}, awaits: map[uint32]bool{},
			}
			locks = append(locks, l)
			of[number{v.Database, v.ID}] = l
		}
		return l
	}
	for _, v := range views {
		l := find(v)
		if key, slot, known := v.Key(); known && l.Key == nil {
			l.Key, l.Scheme, l.Slots, l.Slot = &key, cmp.Or(v.Scheme, session.DefaultScheme), v.Slots, slot
		}
		gate := l.Slots > 0 && l.Slot == 0
		switch {
		case !v.Granted || gate:
			// The first in line holds the gate, too.
			if !l.awaits[v.Backend] {
				l.awaits[v.Backend] = true
				l.Waiters = append(l.Waiters, newHolderView(v))
			}
		case l.has[v.Backend] > 0:
			l.Mode, l.Holders[l.has[v.Backend]-1].view.Shared = "exclusive", false
		default:
			l.has[v.Backend] = len(l.Holders) + 1
			l.Holders = append(l.Holders, newHolderView(v))
		}
	}
	slices.SortStableFunc(locks, compareLocks)
	return locks
}

func modeOf(v session.View) string {
	if v.Shared {
		return "shared"
	}
	return "exclusive"
}

// name is what a table calls a lock.
func (l *lockView) name() string {
	name := "number " + l.id.String()
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
						locks, err := f.listed(ctx, viewer, all, patterns)
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
func list(locks []*lockView, screen bool, target string, write lockWriter, stdout io.Writer) error {
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

type lockWriter func(w io.Writer, target string, locks []*lockView) error

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
		return t.writeWithPauses, nil
	case "json":
		return func(w io.Writer, _ string, locks []*lockView) error { return writeJSON(w, locks) }, nil
	case "prometheus":
		return f.writeMetrics, nil
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
		case r == '\n' || session.Shows(r):
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

func (o table) write(w io.Writer, target string, locks []*lockView) error {
	if len(locks) == 0 {
		_, err := fmt.Fprintf(w, "no locks %sin %s\n", o.of, session.Visible(target))
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
			holders = []holderView{{}}
		}
		for i, h := range holders {
			hidden = hidden || h.Hidden
			row := []string{l.name(), l.Mode, holderCell(h), "", "", strconv.Itoa(len(l.Waiters))}
			if h.Since != nil {
				row[3] = brief(h.view.HeldFor())
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
				row = append(row, l.Scheme, l.id.String(), h.User, h.Role, h.Client, h.Note)
			}
			rows = append(rows, row)
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = session.Visible(cell)
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

func holderCell(h holderView) string {
	text := fmt.Sprintf("backend %d %s", h.Backend, h.Application)
	switch {
	case h.Backend == 0:
		return "-"
	case h.PID != 0:
		return fmt.Sprintf("%s:%d %s", h.Host, h.PID, h.Command)
	case h.Pglead:
		text = h.Host
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

// writePrometheus writes the text format that node_exporter's textfile
// collector reads.
// https://prometheus.io/docs/instrumenting/exposition_formats/
func writePrometheus(w io.Writer, locks []*lockView) error {
	var b strings.Builder
	labels := func(l *lockView, more ...string) string {
		key := ""
		if l.Key != nil {
			key = *l.Key
		}
		pairs := append([]string{"database", l.Database, "key", key, "id", l.id.String()}, more...)
		var text []string
		for pair := range slices.Chunk(pairs, 2) {
			text = append(text, pair[0]+"="+metricsLabel(pair[1]))
		}
		return "{" + strings.Join(text, ",") + "}"
	}
	metric := func(name, help string, each func(l *lockView, sample func(value any, more ...string))) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
		// Of two equal series the page would have to be refused.
		written := map[string]bool{}
		for _, l := range locks {
			each(l, func(value any, more ...string) {
				if series := name + labels(l, more...); !written[series] {
					written[series] = true
					fmt.Fprintf(&b, "%s %v\n", series, value)
				}
			})
		}
	}
	metric("pglead_lock_holders", "Sessions that hold the lock.", func(l *lockView, sample func(any, ...string)) { sample(len(l.Holders)) })
	metric("pglead_lock_waiters", "Sessions that wait for the lock.", func(l *lockView, sample func(any, ...string)) { sample(len(l.Waiters)) })
	metric("pglead_lock_held_seconds", "For how long a session has held the lock, where it says so.", func(l *lockView, sample func(any, ...string)) {
		for _, h := range l.Holders {
			if h.Since != nil {
				sample(h.Seconds, "host", h.Host, "backend", strconv.FormatUint(uint64(h.Backend), 10))
			}
		}
	})
	_, err := io.WriteString(w, b.String())
	return err
}

// claimOf are the locks that a key of who or stepdown means.
func (f *viewFlags) claimOf(key string) (lock.Claim, error) {
	f.keys = []string{key}
	if f.slots < 1 || f.slots > mostSlots {
		return lock.Claim{}, usagef("--slots %d: from 1 to %d", f.slots, mostSlots)
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
				if err == nil {
					locks, err = f.withPauseOf(ctx, viewer, locks, args[0])
				}
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

func (f *viewFlags) who(stdout io.Writer, key, target string, locks []*lockView) error {
	held := slices.ContainsFunc(locks, func(l *lockView) bool { return len(l.Holders) > 0 })
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
				case h.view.Shared:
					as = "shared: "
				}
				fmt.Fprintln(stdout, as+h.view.String()+waitersText(len(l.Waiters)))
			}
		}
		if !held {
			fmt.Fprintf(stdout, "%s is free in %s\n", printable(key), session.Visible(target))
		}
		for _, line := range pausedLines(locks, 0) {
			fmt.Fprintln(stdout, line)
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
