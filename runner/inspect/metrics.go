package inspect

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/pglead/pglead/runner/visible"
)

// WriteMetrics writes the text format that node_exporter's textfile collector
// reads.
// https://prometheus.io/docs/instrumenting/exposition_formats/
func WriteMetrics(w io.Writer, locks []*Lock) error {
	var b strings.Builder
	labels := func(l *Lock, more ...string) string {
		key := ""
		if l.Key != nil {
			key = *l.Key
		}
		pairs := append([]string{"database", l.Database, "key", key, "id", l.number.String()}, more...)
		var text []string
		for pair := range slices.Chunk(pairs, 2) {
			text = append(text, pair[0]+"="+MetricsLabel(pair[1]))
		}
		return "{" + strings.Join(text, ",") + "}"
	}
	metric := func(name, help string, each func(l *Lock, sample func(value any, more ...string))) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
		// A page with two equal series is refused.
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
	metric("pglead_lock_holders", "Sessions that hold the lock.", func(l *Lock, sample func(any, ...string)) { sample(len(l.Holders)) })
	metric("pglead_lock_waiters", "Sessions that wait for the lock.", func(l *Lock, sample func(any, ...string)) { sample(len(l.Waiters)) })
	metric("pglead_lock_held_seconds", "For how long a session has held the lock, where it says so.", func(l *Lock, sample func(any, ...string)) {
		for _, h := range l.Holders {
			if !h.Since.IsZero() {
				sample(h.HeldFor().Seconds(), "host", h.Where(), "backend", strconv.FormatUint(uint64(h.Backend), 10))
			}
		}
	})
	_, err := io.WriteString(w, b.String())
	return err
}

// MetricsLabel is a label's value. The format has an escape for a line's end, but for no
// other invisible character, and one label that is not UTF-8 spoils the whole page.
func MetricsLabel(s string) string {
	escapes := strings.NewReplacer("\\", "\\\\", "\"", "\\\"")
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = escapes.Replace(visible.Text(line))
	}
	return `"` + strings.Join(lines, `\n`) + `"`
}
