package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/session"
)

func (x *examination) standbys(ctx context.Context) checkup.Check {
	row, err := x.row(ctx, 4, `SELECT pg_catalog.current_setting('synchronous_standby_names'), count(*), pg_catalog.current_setting('cluster_name'),
	pg_catalog.current_setting('max_wal_senders')
FROM pg_catalog.pg_stat_replication`)
	if err != nil {
		return unknown(err)
	}
	there, err := strconv.Atoi(row[1])
	if err != nil {
		return unknown(fmt.Errorf("%q is no number", row[1]))
	}
	names, connected := row[0], fmt.Sprintf("%d connected", there)
	switch {
	case names != "" && row[3] == "0" && x.cfg.Quorum:
		return checkup.Failf(session.NoSendersHint, "--quorum needs synchronous standbys, but "+session.NoSenders)
	case names != "" && row[3] == "0":
		return checkup.Notef("", "synchronous_standby_names is %q, but "+session.NoSenders, names)
	case names == "" && x.cfg.Quorum:
		return checkup.Failf("set it, for instance to 'ANY 1 (a, b)' with two standbys, or leave out --quorum",
			"--quorum needs synchronous standbys, but synchronous_standby_names is empty (%s)", connected)
	case names == "" && there == 0:
		return checkup.Okf("none, and none synchronous")
	case names == "":
		const advice = "if a standby is promoted while this server may still run, " +
			"synchronous_standby_names and --quorum keep it from going on granting its locks"
		return checkup.Notef(advice, "%s, none synchronous", connected)
	case there == 0:
		const hang = "commits hang, with --quorum also a command's start, and without it if any session's NOTIFY hangs"
		return checkup.Warningf("pg_stat_replication shows those that are connected",
			"synchronous_standby_names is %q, but none is connected: "+hang, names)
	case x.cfg.Quorum:
		return countStandbys(names, row[2], there)
	}
	return checkup.Notef("with --quorum a primary that is cut off from them loses its holders", "synchronous_standby_names is %q, %s", names, connected)
}

// countStandbys compares the number of standbys that confirm a commit with the number of
// standbys, n. After one is promoted, the former primary, which asks for k, and the new
// one, which asks for k', must not both find enough among the others: k + k' >= n. A list
// that is the same on all servers may name this server, too.
func countStandbys(setting, self string, connected int) checkup.Check {
	list, err := session.ParseStandbys(setting)
	if err != nil {
		return checkup.Warningf("", "%v: %q", err, setting)
	}
	listed := list.Names
	if slices.Contains(listed, "*") {
		listed = nil
	}
	others := slices.DeleteFunc(slices.Clone(listed), func(name string) bool { return strings.EqualFold(name, self) })
	n := max(connected, len(others))
	seen := fmt.Sprintf("synchronous_standby_names is %q: a commit waits for %d of %d standbys, %d connected", setting, list.Least, n, connected)
	const unsound = "%s; after a promotion the primary that is left behind may find as many as the new one"
	switch {
	case list.Least > connected:
		return checkup.Warningf("pg_stat_replication shows those that are connected", "%s: commits hang, and with --quorum a command's start", seen)
	case 2*list.Least < connected:
		return checkup.Failf("on all servers: "+asking(list, (connected+1)/2), unsound, seen)
	case 2*list.Least < n:
		return checkup.Warningf("unless the list names servers that are no standbys, on all servers: "+asking(list, (n+1)/2), unsound, seen)
	}
	return checkup.Okf("%s; --quorum waits for them", seen)
}

// asking is the setting that asks for this many of a list.
func asking(s session.Standbys, least int) string {
	method := "FIRST"
	if s.Any {
		method = "ANY"
	}
	names := make([]string, len(s.Names))
	for i, name := range s.Names {
		names[i] = name
		if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_*") != "" {
			names[i] = `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
		}
	}
	return fmt.Sprintf("%s %d (%s), with all standbys in the list", method, least, strings.Join(names, ", "))
}
