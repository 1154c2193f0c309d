package cmd

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/visible"
)

// table is what ls shows to people.
type table struct {
	all, wide bool
	width     int // of the terminal; 0: as wide as it takes
}

func (o table) write(w io.Writer, locks []*inspect.Lock) error {
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
	fit(rows, o.width, 0, 2)
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

// fit shortens keys and holders, or hosts, the longer of the two columns first, until
// the rows fit into the width; 0 is any.
func fit(rows [][]string, width, key, holder int) {
	if width == 0 {
		return
	}
	const least = 8
	widths := make([]int, len(rows[0]))
	total := len(gap) * (len(widths) - 1)
	for i := range widths {
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		total += widths[i]
	}
	for ; total > width && max(widths[key], widths[holder]) > least; total-- {
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
