package cmd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/visible"
)

// lockMetrics is the part of a metrics page about the present. The page has the text
// format that node_exporter's textfile collector reads.
// https://prometheus.io/docs/instrumenting/exposition_formats/
func lockMetrics(locks []*inspect.Lock) string {
	var b strings.Builder
	labels := func(l *inspect.Lock, more ...string) string {
		key := ""
		if l.Key != nil {
			key = *l.Key
		}
		pairs := append([]string{"database", l.Database, "key", key, "id", l.Number().String()}, more...)
		var text []string
		for pair := range slices.Chunk(pairs, 2) {
			text = append(text, pair[0]+"="+metricsLabel(pair[1]))
		}
		return "{" + strings.Join(text, ",") + "}"
	}
	metric := func(name, help string, each func(l *inspect.Lock, sample func(value any, more ...string))) {
		b.WriteString(metricHead(name, help))
		// The collector refuses a page with two equal series.
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
	metric("pglead_lock_holders", "Sessions that hold the lock.", func(l *inspect.Lock, sample func(any, ...string)) { sample(len(l.Holders)) })
	metric("pglead_lock_waiters", "Sessions that wait for the lock.", func(l *inspect.Lock, sample func(any, ...string)) { sample(len(l.Waiters)) })
	metric("pglead_lock_held_seconds", "For how long a session has held the lock, where it says so.", func(l *inspect.Lock, sample func(any, ...string)) {
		for _, h := range l.Holders {
			if !h.Since.IsZero() {
				sample(h.HeldFor().Seconds(), "host", h.Where(), "backend", strconv.FormatUint(uint64(h.Backend), 10))
			}
		}
	})
	return b.String()
}

func metricHead(name, help string) string {
	return fmt.Sprintf("# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
}

// metricsLabel is a label's value. The format has an escape for a line's end, but for no
// other invisible character, and one label that is not UTF-8 spoils the whole page.
func metricsLabel(s string) string {
	escapes := strings.NewReplacer("\\", "\\\\", "\"", "\\\"")
	s = strings.NewReplacer("\t", `\t`, "\r", `\r`).Replace(s) // as spaces they would make two keys look the same
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = escapes.Replace(visible.Text(line))
	}
	return `"` + strings.Join(lines, `\n`) + `"`
}

// rememberedMetrics is the part of a metrics page that comes from the ledger. It has
// the key as its only label, so that a series continues wherever the next run is.
func rememberedMetrics(facts ledger.Facts) string {
	if len(facts.List) == 0 {
		return ""
	}
	var b strings.Builder
	all := pastKeysOf(facts)
	slices.SortFunc(all, func(a, b *pastKey) int { return strings.Compare(a.key, b.key) })
	// See lockMetrics. Of two keys that look the same, as very long ones may, one is left out.
	written := map[string]bool{}
	all = slices.DeleteFunc(all, func(r *pastKey) bool {
		label := metricsLabel(r.key)
		again := written[label]
		written[label] = true
		return again
	})
	metric := func(name, help string, value func(r *pastKey) (any, bool)) {
		b.WriteString(metricHead(name, help))
		for _, r := range all {
			if v, ok := value(r); ok {
				fmt.Fprintf(&b, "%s{key=%s} %v\n", name, metricsLabel(r.key), v)
			}
		}
	}
	metric("pglead_last_success_timestamp_seconds", "When the last successful run ended.", func(r *pastKey) (any, bool) {
		return r.success.Ended.Unix(), !r.success.Ended.IsZero()
	})
	metric("pglead_last_duration_seconds", "How long the last run took.", func(r *pastKey) (any, bool) {
		return r.last.Took().Seconds(), !r.last.Ended.IsZero()
	})
	metric("pglead_last_status", "The exit status of the last run, 76 if it was lost.", func(r *pastKey) (any, bool) {
		return exitStatusOf(r.last), r.last.Outcome != ""
	})
	metric("pglead_running", "Runs that are under way.", func(r *pastKey) (any, bool) { return r.running, true })
	const pausedHelp = "Until when nobody may start; +Inf until it is resumed, 0 without a pause."
	metric("pglead_paused_until_timestamp_seconds", pausedHelp, func(r *pastKey) (any, bool) {
		switch {
		case !r.pause.Paused():
			return 0, true
		case !r.pause.Until.Before(ledger.Endless()):
			return "+Inf", true
		}
		return r.pause.Until.Unix(), true
	})
	return b.String()
}

// exitStatusOf is pglead's exit status after a run, or what it would have been.
func exitStatusOf(r ledger.Entry) int {
	switch {
	case r.Outcome == ledger.OK:
		return 0
	case r.Outcome == ledger.Lost:
		return exitLost
	case r.Outcome == ledger.Timeout:
		return exitTimeout
	case r.Status != nil:
		return *r.Status
	}
	return exitInternal
}
