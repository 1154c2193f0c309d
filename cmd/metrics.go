package cmd

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
)

// writeMetrics writes what is so now, and what is remembered.
func writeMetrics(w io.Writer, locks []*inspect.Lock, facts ledger.Facts) error {
	if err := inspect.WriteMetrics(w, busy(locks)); err != nil {
		return err
	}
	_, err := io.WriteString(w, rememberedMetrics(facts))
	return err
}

// remembrance is what a page or a list has of a key, whatever the number of its slots
// and readers is.
type remembrance struct {
	key     string
	success ledger.Success
	newest  ledger.Entry // which may be under way
	last    ledger.Entry // that has ended
	running int
	pause   ledger.Pause
}

// remembrances are in the order of the facts.
func remembrances(facts ledger.Facts) []*remembrance {
	var all []*remembrance
	of := map[string]*remembrance{}
	for _, fact := range facts.List {
		r := of[fact.Last.Key]
		if r == nil {
			r = &remembrance{key: fact.Last.Key}
			of[r.key], all = r, append(all, r)
		}
		if fact.Success.Ended.After(r.success.Ended) {
			r.success = fact.Success
		}
		last := fact.Last
		if r.newest.Key == "" || last.Started.After(r.newest.Started) {
			r.newest = last
		}
		if last.Outcome == ledger.Running {
			r.running++
			last = fact.Before
		}
		if last.Started.After(r.last.Started) {
			r.last = last
		}
		if fact.Pause.Until.After(r.pause.Until) {
			r.pause = fact.Pause
		}
	}
	return all
}

// rememberedMetrics is the part of a metrics page that comes from the ledger. It has
// the key as its only label, so that a series goes on wherever the next run is.
func rememberedMetrics(facts ledger.Facts) string {
	if len(facts.List) == 0 {
		return ""
	}
	var b strings.Builder
	all := remembrances(facts)
	slices.SortFunc(all, func(a, b *remembrance) int { return strings.Compare(a.key, b.key) })
	metric := func(name, help string, value func(r *remembrance) (any, bool)) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
		for _, r := range all {
			if v, ok := value(r); ok {
				fmt.Fprintf(&b, "%s{key=%s} %v\n", name, inspect.MetricsLabel(r.key), v)
			}
		}
	}
	metric("pglead_last_success_timestamp_seconds", "When the last successful run ended.", func(r *remembrance) (any, bool) {
		return r.success.Ended.Unix(), !r.success.Ended.IsZero()
	})
	metric("pglead_last_duration_seconds", "How long the last run took.", func(r *remembrance) (any, bool) {
		return r.last.Took().Seconds(), !r.last.Ended.IsZero()
	})
	metric("pglead_last_status", "The exit status of the last run, 76 if it was lost.", func(r *remembrance) (any, bool) {
		return exitStatusOf(r.last), r.last.Outcome != ""
	})
	metric("pglead_running", "Runs that are under way.", func(r *remembrance) (any, bool) { return r.running, true })
	metric("pglead_paused_until_timestamp_seconds", "Until when nobody may start; +Inf until it is resumed, 0 without a pause.", func(r *remembrance) (any, bool) {
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

// exitStatusOf is what pglead exited with after a run, or would have.
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
