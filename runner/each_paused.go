package runner

import (
	"context"
	"slices"

	"github.com/pglead/pglead/runner/lock"
)

// mostAsked limits the locks in one question to the ledger.
const mostAsked = 1000

// resumed returns the items whose pause is over. The others stay paused, since a try would draw a
// token, which waits for the server's disk. If the ledger doesn't answer, all items are tried, and
// the tries say why.
func (e *each) resumed(ctx context.Context) (over []string) {
	items := e.paused
	e.paused = nil
	if len(items) == 0 {
		return nil
	}
	s, leave, err := e.workingSession(ctx)
	if err != nil {
		return items
	}
	defer leave()
	for some := range slices.Chunk(items, mostAsked) {
		var claims []lock.Claim
		for _, item := range some {
			claims = append(claims, e.cfg.Task(item).claim())
		}
		paused, err := lock.PausedAmong(ctx, s, claims)
		for i, item := range some {
			if err == nil && paused[i] {
				e.paused = append(e.paused, item)
			} else {
				over = append(over, item)
			}
		}
	}
	e.count(func(t *Tally) { t.Paused += len(e.paused) })
	return over
}
