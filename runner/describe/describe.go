// Package describe writes what a pglead session says of itself, in its name (name.go) and in a
// comment in front of its statements. It reads what other sessions say, which may be anything.
package describe

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Description is what a session says of itself in pg_stat_activity: in the comment in front
// of its statements, in the style of sqlcommenter
// (https://google.github.io/sqlcommenter/spec/). Sessions of the same role, or with
// pg_read_all_stats, see the comment. It has no arguments of the command, and no secrets.
type Description struct {
	Keys    []string
	Scheme  string // of lockkey; empty: lockkey.DefaultScheme
	Slots   int    // 0 if the key has none
	Host    string
	PID     int // of the process on Host
	User    string
	Command string // its name, without arguments
	Note    string // by the user
	Lease   time.Duration
	// LostGrace is the time between SIGTERM and SIGKILL after a loss. Whatever it is, the kill
	// comes before the lease is over (leasetime.MostGrace).
	LostGrace time.Duration
	// Transaction says that a transaction holds the lock: the session hears nothing.
	Transaction bool

	// From the grant on.
	Delay time.Duration // how long the lock is held, from Since on, before the command starts; 0 once it has
	Slot  int
	Token int64
	Since time.Time // the command's start or, with a Delay, that of the delay

	// Request is the number of the session's last request, in the field beat. Parse reads it, and
	// Comment.Before writes it.
	Request uint64
}

// MostKeys and MostSlots bound what one run may claim: a statement that names each of the locks
// stays short.
const (
	MostKeys  = 100
	MostSlots = 1000
)

// Placeholder stands for the item in the key of a list.
const Placeholder = "{}"

const modeTransaction = "transaction"

// lineInKey stands for a line's end in a key, since a line's end separates keys. No key has it.
const lineInKey = "\x00"

// Limits of a description. Others write some of the descriptions, loops run up to their numbers,
// and their texts are kept in memory.
const (
	// mostDescribed is how much of a statement is read.
	mostDescribed = 16 << 10
	// mostNamed is the greatest length of host, user and command, encoded. If all
	// three have that length, the rest still fits into the 1024 bytes of a statement that
	// the server shows by default (track_activity_query_size).
	mostNamed = 200
	// mostNoted is the greatest length of a note, encoded. A note is cut shorter if it
	// leaves less than leastKeys for the keys.
	mostNoted = 300
	leastKeys = 400
	mostShown = 950 // of those 1024, without the number of the request

	// mostLength is the longest time that is read. It leaves room to calculate with it.
	mostLength = 365 * 24 * time.Hour
)

// Comment is a description as it is put in front of statements.
type Comment string

// opens begins the comment.
const opens = "/*pglead "

// opening is how the comment begins in front of a request with this number, which shows other
// sessions that this one is alive.
func opening(request uint64) string { return fmt.Sprintf(opens+"beat='%d',", request) }

// Before puts the comment in front of a query: the server cuts off the end of long statements.
func (c Comment) Before(sql string, request uint64) string {
	return opening(request) + string(c) + "*/ " + sql
}

// RequestSQL is an SQL expression for whether a row of pg_stat_activity shows this request.
func RequestSQL(request uint64) string {
	return "pg_catalog.starts_with(query, '" + strings.ReplaceAll(opening(request), "'", "''") + "')"
}

// Comment is the description as a session's comment. It also encodes /, so that nothing
// in it ends the comment or begins another. The keys come last: if the server cuts off
// keys that are too long, all the rest is there.
func (d Description) Comment() Comment {
	var fields []string
	add := func(name, value string) {
		if value != "" {
			fields = append(fields, name+"='"+value+"'")
		}
	}
	number := func(name string, n int64) {
		if n != 0 {
			add(name, strconv.FormatInt(n, 10))
		}
	}
	number("pid", int64(d.PID))
	add("lease", url.QueryEscape(d.Lease.String())) // below a millisecond it has a µ
	if d.LostGrace > 0 {
		add("grace", url.QueryEscape(d.LostGrace.String()))
	}
	if d.Delay > 0 {
		add("delay", url.QueryEscape(d.Delay.String()))
	}
	if d.Transaction {
		add("mode", modeTransaction)
	}
	add("scheme", url.QueryEscape(d.Scheme))
	if !d.Since.IsZero() {
		add("since", url.QueryEscape(d.Since.UTC().Format(time.RFC3339)))
	}
	number("slot", int64(d.Slot))
	number("slots", int64(d.Slots))
	number("token", d.Token)
	add("host", escapeShort(d.Host, mostNamed))
	add("user", escapeShort(d.User, mostNamed))
	add("command", escapeShort(d.Command, mostNamed))
	var keys []string
	for _, key := range d.Keys {
		keys = append(keys, strings.ReplaceAll(key, "\n", lineInKey))
	}
	list := url.QueryEscape(strings.Join(keys, "\n"))
	add("note", escapeShort(d.Note, min(mostNoted, mostShown-len(strings.Join(fields, ","))-min(len(list), leastKeys))))
	add("key", list)
	return Comment(strings.Join(fields, ","))
}

// escapeShort encodes as much of a text as fits into most bytes.
func escapeShort(s string, most int) string {
	var b strings.Builder
	for _, r := range s {
		escaped := url.QueryEscape(string(r))
		if b.Len()+len(escaped) > most {
			break
		}
		b.WriteString(escaped)
	}
	return b.String()
}

// Parse reads the comment of a statement. A stranger's comment, or one that the
// server cut off, gives a wrong description at worst. Parse omits fields that can't be
// right.
func Parse(statement string) (d Description, ok bool) {
	text, found := strings.CutPrefix(statement, opens)
	if !found {
		return d, false
	}
	text, _, _ = strings.Cut(text[:min(len(text), mostDescribed)], "*/")
	for field := range strings.SplitSeq(text, ",") {
		name, quoted, _ := strings.Cut(field, "=")
		quoted, begun := strings.CutPrefix(quoted, "'")
		value, ended := strings.CutSuffix(quoted, "'")
		if begun && !ended && name == "key" { // cut off, but the first keys may be complete
			value = value[:max(0, strings.LastIndex(value, "%0A"))]
			ended = true
		}
		if begun && ended {
			d.set(name, value)
		}
	}
	if d.Slots > 0 && len(d.Keys) > 1 { // no pglead has both
		d.Slots, d.Slot = 0, 0
	}
	return d, true
}

// set notes the encoded value of one field.
func (d *Description) set(name, encoded string) {
	value, err := url.QueryUnescape(encoded)
	if err != nil {
		return
	}
	// number reads a number from 0 to most.
	number := func(most int64) int64 {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 || n > most {
			return 0
		}
		return n
	}
	length := func() time.Duration {
		parsed, _ := time.ParseDuration(value)
		return min(max(0, parsed), mostLength)
	}
	text := func() string { return value[:min(len(value), mostNamed)] }
	switch name {
	case "command":
		d.Command = text()
	case "host":
		d.Host = text()
	case "key":
		d.Keys = slices.DeleteFunc(strings.SplitN(value, "\n", MostKeys+1), func(k string) bool { return k == "" })
		d.Keys = d.Keys[:min(len(d.Keys), MostKeys)]
		for i, key := range d.Keys {
			d.Keys[i] = strings.ReplaceAll(key, lineInKey, "\n")
		}
	case "beat":
		d.Request, _ = strconv.ParseUint(value, 10, 64)
	case "delay":
		d.Delay = length()
	case "grace":
		d.LostGrace = length()
	case "lease":
		d.Lease = length()
	case "mode":
		d.Transaction = value == modeTransaction
	case "note":
		d.Note = value[:min(len(value), mostNoted)]
	case "pid":
		d.PID = int(number(math.MaxInt32))
	case "scheme":
		d.Scheme = text()
	case "since":
		// JSON can't write instants in other years.
		if since, err := time.Parse(time.RFC3339, value); err == nil && since.UTC().Year() >= 1970 && since.UTC().Year() <= 9999 {
			d.Since = since.UTC()
		}
	case "slot":
		d.Slot = int(number(MostSlots))
	case "slots":
		d.Slots = int(number(MostSlots))
	case "token":
		d.Token = number(math.MaxInt64)
	case "user":
		d.User = text()
	}
}
