package cmd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/visible"
)

// table is what ls shows to people.
type table struct {
	all, wide bool
	width     int           // of the terminal; 0: no limit
	role      func() string // the connection's, as SQL writes it
}

func (o table) text(locks []*inspect.Lock) string {
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
			if left, delayed := h.StartsIn(); delayed {
				row[3] = "starts in " + brief(left)
			}
			if silent := h.SilentFor(); silent > 0 {
				row[3] += ", silent for " + brief(silent)
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
			for i, cell := range row {
				row[i] = visible.Text(cell)
			}
			rows = append(rows, row)
		}
	}
	lines := columns(rows, o.width, shrinking{0, squeeze}, shrinking{2, shorten})
	if hidden {
		lines = append(lines, "", "* of another role: to see more, GRANT pg_read_all_stats TO "+o.role())
	}
	return strings.Join(lines, "\n") + "\n"
}

// shrinking is a column that shrinks on a narrow terminal, and how to shorten its cells.
type shrinking struct {
	column  int
	shorten func(cell string, most int) string
}

// columns turns rows into lines, with their cells aligned. The last cell of a row
// takes the rest of its line. If lines would be longer than width (0: no limit), the widest
// column in shrink gets narrower first.
func columns(rows [][]string, width int, shrink ...shrinking) (lines []string) {
	const least = 8
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row[:len(row)-1] {
			widths[i] = max(widths[i], cells(cell))
		}
	}
	longest := 0
	for _, row := range rows {
		longest = max(longest, cells(padded(row, widths)))
	}
	for ; width > 0 && longest > width; longest-- {
		widest := slices.MaxFunc(shrink, func(a, b shrinking) int { return widths[a.column] - widths[b.column] }).column
		if widths[widest] <= least {
			break
		}
		widths[widest]--
	}
	for _, row := range rows {
		for _, y := range shrink {
			row[y.column] = y.shorten(row[y.column], widths[y.column])
		}
		lines = append(lines, padded(row, widths))
	}
	return lines
}

func padded(row []string, widths []int) string {
	var line strings.Builder
	for i, cell := range row {
		line.WriteString(cell + strings.Repeat(" ", max(0, widths[i]-cells(cell))) + "  ")
	}
	return strings.TrimRight(line.String(), " ")
}

func holderCell(h inspect.View) string {
	text := fmt.Sprintf("backend %d %s", h.Backend, h.Application)
	switch {
	case h.Prepared():
		return "(a prepared transaction)"
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

// nameOf is a lock's name in a table.
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
