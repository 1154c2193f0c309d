package session

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Description is what a session says of itself to whoever looks at
// pg_stat_activity: in a comment before its statements, in the style of
// sqlcommenter (https://google.github.io/sqlcommenter/spec/). It is before them
// since the server cuts off long statements at the end. The comment is visible
// to the same role and to pg_read_all_stats; there are no arguments of the
// command in it, and no secrets.
type Description struct {
	Keys    []string
	Scheme  string // of lockkey
	Slots   int    // 0 without
	Host    string
	PID     int // of the process on Host
	User    string
	Command string // its name alone
	Lease   time.Duration
	// Transaction says that the lock is held in one, where nothing is heard.
	Transaction bool

	// From the grant on.
	Slot  int
	Token int64
	Since time.Time
}

const modeTransaction = "transaction"

// comment is the description as SQL. A / is encoded too, so that nothing in it
// ends the comment or begins another.
func (d Description) comment() string {
	var fields []string
	add := func(name, value string) {
		if value != "" {
			fields = append(fields, name+"='"+url.QueryEscape(value)+"'")
		}
	}
	number := func(name string, n int64) {
		if n != 0 {
			add(name, strconv.FormatInt(n, 10))
		}
	}
	add("command", d.Command)
	add("host", d.Host)
	add("key", strings.Join(d.Keys, "\n"))
	add("lease", d.Lease.String())
	if d.Transaction {
		add("mode", modeTransaction)
	}
	number("pid", int64(d.PID))
	add("scheme", d.Scheme)
	if !d.Since.IsZero() {
		add("since", d.Since.UTC().Format(time.RFC3339))
	}
	number("slot", int64(d.Slot))
	number("slots", int64(d.Slots))
	number("token", d.Token)
	add("user", d.User)
	return "/*pglead " + strings.Join(fields, ",") + "*/ "
}

// parseDescription reads the comment of a statement. What a stranger wrote in
// its place, or the server cut off, gives at worst a wrong description.
func parseDescription(statement string) (d Description, ok bool) {
	text, found := strings.CutPrefix(statement, "/*pglead ")
	if !found {
		return d, false
	}
	text, _, _ = strings.Cut(text, "*/")
	for _, field := range strings.Split(text, ",") {
		name, quoted, _ := strings.Cut(field, "=")
		value, err := url.QueryUnescape(strings.Trim(quoted, "'"))
		if err != nil {
			continue
		}
		switch name {
		case "command":
			d.Command = value
		case "host":
			d.Host = value
		case "key":
			d.Keys = slices.DeleteFunc(strings.Split(value, "\n"), func(k string) bool { return k == "" })
		case "lease":
			d.Lease, _ = time.ParseDuration(value)
		case "mode":
			d.Transaction = value == modeTransaction
		case "pid":
			d.PID, _ = strconv.Atoi(value)
		case "scheme":
			d.Scheme = value
		case "since":
			d.Since, _ = time.Parse(time.RFC3339, value)
		case "slot":
			d.Slot, _ = strconv.Atoi(value)
		case "slots":
			d.Slots, _ = strconv.Atoi(value)
		case "token":
			d.Token, _ = strconv.ParseInt(value, 10, 64)
		case "user":
			d.User = value
		}
	}
	return d, true
}
