package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/ledger"
)

// ledger examines the database's ledger, if there is one.
func (x *examination) ledger(ctx context.Context) checkup.Check {
	access, role, err := ledger.ReadAccess(ctx, x)
	if err != nil {
		return unknown(err)
	}
	switch access {
	case ledger.Absent:
		return checkup.Okf("none: nothing is remembered of runs (pglead ledger install)")
	case ledger.Denied:
		return checkup.Warningf("as its owner: GRANT USAGE ON SCHEMA pglead TO "+role,
			"there is one that role %s is not granted: its runs leave no rows, and go by no pause", role)
	case ledger.Foreign:
		return checkup.Warningf(ledger.UntrustedHint, "there is one that is left alone: %s", ledger.Untrusted)
	}
	forRuns, others, err := ledger.Missing(ctx, x)
	switch {
	case err != nil:
		return unknown(err)
	case len(forRuns) > 0:
		return checkup.Failf(ledger.Mend+"; until then --ledger off goes on without",
			"it is not whole: there is no %s", strings.Join(slices.Concat(forRuns, others), ", "))
	}
	faults, err := ledger.Faults(ctx, x)
	switch {
	case err != nil:
		return unknown(err)
	case len(faults) > 0:
		return checkup.Failf("what was revoked is to be granted again; until then --ledger off goes on without",
			"it can't be written: %s", strings.Join(faults, ", "))
	case len(others) > 0:
		return checkup.Warningf(ledger.Mend, "it is enough for runs, and not for all else: there is no %s", strings.Join(others, ", "))
	}
	unreadable, err := ledger.Unreadable(ctx, x)
	if err != nil {
		return unknown(err)
	}
	if tables := strings.Join(unreadable, ", "); tables != "" {
		return checkup.Warningf("as its owner: GRANT SELECT ON "+tables+" TO "+role,
			"granted to role %s, which has no SELECT on %s: it can't see pauses and history, nor wait until a pause is over", role, tables)
	}
	altered, err := ledger.Alterations(ctx, x)
	switch {
	case err != nil:
		return unknown(err)
	case len(altered) > 0:
		return checkup.Warningf("undo that, unless it does no harm: a trigger, for instance, can drop the row of a start",
			"granted to role %s, but not as it was installed: %s", role, strings.Join(altered, ", "))
	}
	published, err := ledger.Published(ctx, x)
	switch {
	case err != nil:
		return unknown(err)
	case len(published) > 0:
		return checkup.Notef("each subscriber needs the schema pglead, without rows before the first copy",
			"granted to role %s; published FOR ALL TABLES, by %s", role, strings.Join(published, ", "))
	}
	return checkup.Okf("granted to role %s", role)
}
