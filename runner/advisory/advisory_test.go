package advisory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
	. "github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

func id(n int64) lockkey.ID { return lockkey.ID{Number: n} }

// TestNumbersStay: other programs and older versions know these numbers from runner/README.
func TestNumbersStay(t *testing.T) {
	of := id(-7)
	ticket := lockkey.SipHash24("\x00ticket\x00-7").Number>>32<<32 | 5
	for name, tt := range map[string]struct {
		got    Lock
		number int64
		pair   bool
		shared bool
	}{
		"ticket":      {TicketOf(of, 5, false), ticket, false, false},
		"reader's":    {TicketOf(of, 5, true), ticket, false, true},
		"mark":        {MarkOf(TicketOf(of, 5, false)), ticket, true, false},
		"common mark": {CommonMarkOf(of), ticket | (1<<32 - 1), true, true},
		"arrival":     {ArrivalOf(of), lockkey.SipHash24("\x00arrival\x00-7").Number, false, true},
		"call":        {CallOf(of), lockkey.SipHash24("\x00call\x00-7").Number, false, true},
		"gate":        {GateOf(of), lockkey.SipHash24("\x00gate\x00-7").Number, false, false},
		"step down":   {StepDownOf(of), lockkey.SipHash24("\x00step down\x00-7").Number, false, false},
	} {
		if want := (Lock{ID: lockkey.ID{Number: tt.number, Pair: tt.pair}, Shared: tt.shared}); tt.got != want {
			t.Errorf("%s: %+v, want %+v", name, tt.got, want)
		}
	}
}

// TestAnswersAndLocksLeft: what each expression answers, and what its session has afterwards, while
// another has some locks.
func TestAnswersAndLocksLeft(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, nil)
	connect := func() (ask func(sql string) string) {
		c, err := pgconn.Connect(t.Context(), server.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(t.Context()) })
		return func(sql string) string {
			r := c.ExecParams(t.Context(), sql, nil, nil, nil, nil).Read()
			if r.Err != nil || len(r.Rows) != 1 {
				t.Fatalf("%s: %v, %v", sql, r.Rows, r.Err)
			}
			return string(r.Rows[0][0])
		}
	}
	own, other := connect(), connect()
	one, two, three := Exclusive(id(1)), Exclusive(id(2)), Exclusive(id(-3))
	all, readers, gate := []Lock{one, two, three}, AsShared(id(1)), id(9)
	for _, tt := range []struct {
		sql    string
		others []Lock
		value  string
		has    []Lock // of the session's own
	}{
		{one.TrySQL(), nil, "t", []Lock{one}},
		{one.TrySQL(), []Lock{one}, "f", nil},
		{TryNumberSQL(true, "-6 / 2"), []Lock{AsShared(id(-3))}, "t", []Lock{AsShared(id(-3))}},
		{MarkOf(TicketOf(id(1), 5, false)).TrySQL(), []Lock{TicketOf(id(1), 5, false)}, "t", []Lock{MarkOf(TicketOf(id(1), 5, false))}},
		{one.TryXactSQL(), nil, "t", nil},
		{one.AwaitXactSQL(), nil, "", nil},
		{one.UnlockSQL(), nil, "f", nil},
		{one.ProbeSQL(), nil, "t", nil},
		{one.ProbeSQL(), []Lock{readers}, "f", nil},
		{ProbeNumberSQL(true, "2 - 1"), []Lock{readers}, "t", nil},
		{ProbeNumberSQL(true, "2 - 1"), []Lock{one}, "f", nil},
		{one.TryInTurnSQL(), []Lock{GateOf(id(1))}, "t", []Lock{one}},
		{readers.TryInTurnSQL(), []Lock{readers}, "t", []Lock{readers}},
		{readers.TryInTurnSQL(), []Lock{GateOf(id(1))}, "f", nil},
		{ThroughSQL(two, one.TrySQL()+"::int", "7"), []Lock{AsShared(id(2))}, "1", []Lock{one}},
		{ThroughSQL(two, one.TrySQL()+"::int", "7"), []Lock{two}, "7", nil},
		{TryAllSQL(all, Lock.TrySQL), nil, "3", all},
		{TryAllSQL(all, Lock.TrySQL), []Lock{three}, "2", []Lock{one, two}},
		{TryAllSQL(all, Lock.TrySQL), []Lock{one}, "0", nil},
		{TryAllOrNoneSQL(all), nil, "3", all},
		{TryAllOrNoneSQL(all), []Lock{three}, "0", nil},
		{TryEachSQL(all, Lock.TrySQL), []Lock{one, two}, "3", []Lock{three}},
		{TryEachSQL(all, Lock.TrySQL), all, "0", nil},
		{TryOrArriveSQL(all[:1], nil), nil, "1", []Lock{one}},
		{TryOrArriveSQL(all[:1], nil), []Lock{one, ArrivalOf(id(1))}, "-1", []Lock{ArrivalOf(id(1))}},
		{TryOrArriveSQL(all[:1], nil), []Lock{one, Exclusive(ArrivalOf(id(1)).ID)}, "0", nil},
		{TryOrArriveSQL(all, nil), nil, "3", all},
		{TryOrArriveSQL(all, nil), []Lock{three}, "-3", []Lock{one, two, ArrivalOf(id(-3))}},
		{TryOrArriveSQL(all, nil), []Lock{three, Exclusive(ArrivalOf(id(-3)).ID)}, "2", []Lock{one, two}},
		{TryOrArriveSQL(all, &gate), []Lock{one}, "2", []Lock{two}},
		{TryOrArriveSQL(all, &gate), all, "-1", []Lock{ArrivalOf(gate)}},
		{TryOrArriveSQL(all, &gate), []Lock{Exclusive(gate)}, "-1", []Lock{ArrivalOf(gate)}},
		{TryOrArriveSQL(all, &gate), []Lock{Exclusive(gate), Exclusive(ArrivalOf(gate).ID)}, "0", nil},
		{UnlockAllSQL(all), nil, "0", nil},
		{TryAllSQL(all, Lock.TrySQL) + " * 10 + " + UnlockAllSQL(all), nil, "33", nil},
	} {
		for _, l := range tt.others {
			if other("SELECT "+l.TrySQL()) != "t" {
				t.Fatalf("the other session did not get %+v", l)
			}
		}
		if got := own("SELECT " + tt.sql); got != tt.value {
			t.Errorf("%s while another has %v is %q, want %q", tt.sql, tt.others, got, tt.value)
		}
		has := own(`SELECT coalesce(string_agg(mode || ' ' || classid || ' ' || objid || ' ' || objsubid, E'\n'), '')
FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`)
		if got, want := lines(has), listed(tt.has); !slices.Equal(got, want) {
			t.Errorf("after %s while another has %v the session has %q, want %q", tt.sql, tt.others, got, want)
		}
		for _, ask := range []func(string) string{own, other} {
			ask("SELECT pg_advisory_unlock_all()")
		}
	}
}

func TestSplitArrival(t *testing.T) {
	for value, want := range map[int][2]any{0: {0, false}, 3: {3, false}, -1: {0, true}, -3: {2, true}} {
		if n, arrived := SplitArrival(value); n != want[0] || arrived != want[1] {
			t.Errorf("%d: %d, %t", value, n, arrived)
		}
	}
}

func lines(text string) []string {
	return slices.Sorted(strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' }))
}

func listed(locks []Lock) []string {
	var text []string
	for _, l := range locks {
		mode := map[bool]string{false: "ExclusiveLock", true: "ShareLock"}[l.Shared]
		text = append(text, fmt.Sprintf("%s %d %d %d", mode, l.ClassID(), l.ObjID(), l.ObjSubID()))
	}
	slices.Sort(text)
	return text
}

// TestSlotsAreApart: no slot of a key is a lock that pglead derives from another one.
func TestSlotsAreApart(t *testing.T) {
	scheme, ok := lockkey.SchemeByName(lockkey.DefaultScheme)
	if !ok {
		t.Fatal("there is no default scheme")
	}
	of := lockkey.ID{Number: 1}
	for word, derived := range map[string]lockkey.ID{
		"step down": StepDownOf(of).ID, "gate": GateOf(of).ID, "call": CallOf(of).ID, "arrival": ArrivalOf(of).ID,
		"ticket": {Number: int64(TicketClass(of))<<32 | 7},
	} {
		for _, key := range []string{word, "\x00" + word} {
			slot, err := scheme.Slot(key, 1)
			if err == nil && slot.ClassID() == derived.ClassID() {
				t.Errorf("slot 1 of the key %q is a lock of lock 1", key)
			}
		}
	}
}
