package cmd

import (
	"slices"
	"time"

	"github.com/pglead/pglead/runner/ledger"
)

// missedTicks are the instants at which a run was due and there was none, on any host. Runs
// come newest first. If every doesn't say how often one is due, the runs themselves show it,
// provided that nearly all are equally far apart.
func missedTicks(runs []ledger.Entry, now time.Time, every time.Duration) (time.Duration, []time.Time) {
	const (
		mostGuessed = 10  // in a row: a longer gap may well be a weekend
		most        = 500 // marks in a picture
	)
	var starts []time.Time
	for _, r := range slices.Backward(runs) {
		starts = append(starts, r.Started)
	}
	guessed := every <= 0
	if guessed {
		every = regularGap(starts)
	}
	if every <= 0 {
		return 0, nil
	}
	var missed []time.Time
	for i, start := range starts {
		due := 0
		if i+1 < len(starts) {
			due = int((starts[i+1].Sub(start)+every/2)/every) - 1
		} else {
			due = int((now.Sub(start) - every/4) / every) // a late one is not missed yet
		}
		if guessed && due > mostGuessed {
			continue
		}
		for j := 1; j <= due && len(missed) < most; j++ {
			missed = append(missed, start.Add(time.Duration(j)*every))
		}
	}
	return every, missed
}

// regularGap is the median of the gaps between starts, or zero if they differ much.
func regularGap(starts []time.Time) time.Duration {
	const least = 8
	var gaps []time.Duration
	for i := 1; i < len(starts); i++ {
		gaps = append(gaps, starts[i].Sub(starts[i-1]))
	}
	if len(gaps) < least {
		return 0
	}
	slices.Sort(gaps)
	median := gaps[len(gaps)/2]
	near := 0
	for _, gap := range gaps {
		if (gap - median).Abs() <= median/5 {
			near++
		}
	}
	if near*10 < len(gaps)*8 {
		return 0
	}
	return median
}
