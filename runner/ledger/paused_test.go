package ledger_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
)

// TestPausedAmong: each of many locks is paused by its number or, also under another number, by its
// key. A number has several spellings, and the text of a number may be a key, too. The question works
// with an older ledger, which lacks slots_1.
func TestPausedAmong(t *testing.T) {
	server := remembering(t, nil)
	a := connect(t, server, "cron")
	long := strings.Repeat("k", 600)
	for _, pause := range []string{"7, 1::smallint, 'seven', 'infinity'", "8, 1::smallint, 'eight', now() - interval '1h'", "9, 1::smallint, 'ni''ne\\', now() + interval '1h'", "-1, 1::smallint, '" + long + "', 'infinity'",
		"77, 1::smallint, '77', 'infinity'", "88, 1::smallint, '3,7', 'infinity'", "99, 2::smallint, '4,7', 'infinity'"} {
		run(t, a, "SELECT pglead.pause_1("+pause+", 'ann', NULL)")
	}
	query(t, server, "DROP FUNCTION pglead.slots_1")
	lock := func(number int64, key string) ledger.Lock {
		return ledger.Lock{ID: lockkey.ID{Number: number}, Key: key}
	}
	locks := []ledger.Lock{
		lock(7, "seven"), lock(7, "another"), lock(math.MinInt64, "seven"), lock(8, "eight"), lock(10, `ni'ne\`),
		lock(11, long), lock(12, "none"), {ID: lockkey.ID{Number: 7, Pair: true}, Key: "pair"},
		lock(77, "077"), lock(78, "77"), {ID: lockkey.ID{Number: 3<<32 | 7, Pair: true}, Key: "3,7"},
		{ID: lockkey.ID{Number: 89, Pair: true}, Key: "3,7"}, {ID: lockkey.ID{Number: 4<<32 | 7, Pair: true}, Key: "4,7"}, lock(89, "4,7"),
	}
	rows, err := asking(a).Query(t.Context(), ledger.PausedAmongQuery(locks))
	if err != nil {
		t.Fatal(err)
	}
	want := []bool{true, true, true, false, true, true, false, false, true, false, false, true, false, true}
	if paused, err := ledger.ParsePausedAmong(rows, len(locks)); err != nil || !slices.Equal(paused, want) {
		t.Errorf("%v, %v, want %v", paused, err, want)
	}
	for _, rows := range [][][]string{{{"14"}}, {{"-1"}}, {{"x"}}, {{"1", "2"}}, {{}}} {
		if paused, err := ledger.ParsePausedAmong(rows, len(locks)); err == nil {
			t.Errorf("%q is taken for %v", rows, paused)
		}
	}
}

// TestPauseByAnotherName: a pause waits for the commit of a reader's start, which changes no row that
// the pause changes, also if it knows the lock by another key.
func TestPauseByAnotherName(t *testing.T) {
	server := remembering(t, nil)
	a := connect(t, server, "cron")
	run(t, a, "SELECT pg_advisory_lock_shared(7)")
	reader := of(token(t, a))
	reader.shared, reader.sure = true, true
	expect(t, "the first reader", run(t, a, reader.rest()), "started")
	reader.token = token(t, a)
	pausesAfter(t, server, a, reader, "another name")
}

// pausesAfter makes sure that a pause of lock 7, by this key, waits for the commit of a start on
// connection a, and finds its run.
func pausesAfter(t *testing.T, server *localpg.Server, a *pgconn.PgConn, s starting, key string) {
	t.Helper()
	b := connect(t, server, "cron")
	run(t, a, "BEGIN")
	expect(t, "the start", run(t, a, s.rest()), "started")
	answers := beside(t, b, "SELECT pglead.pause_1(7, 1::smallint, '"+key+"', 'infinity', 'ann', '')")
	awaitLock(t, server, b)
	run(t, a, "COMMIT")
	expect(t, "a pause", <-answers, "paused<nil>")
}

// TestPauseOfFirstStart: a pause waits for the commit of a slot's very first start, which makes a
// row. So it keeps that slot, too, from starting again.
func TestPauseOfFirstStart(t *testing.T) {
	server := remembering(t, nil)
	a := connect(t, server, "cron")
	run(t, a, "SELECT pg_advisory_lock(8)")
	slot := of(token(t, a))
	slot.numbers, slot.sure = "8", true
	pausesAfter(t, server, a, slot, "seven")
	run(t, a, finish(8, slot.token, "ok"))
	slot.token = token(t, a)
	expect(t, "the next start", run(t, a, slot.first()), "")
	expect(t, "and why", strings.Split(run(t, a, slot.rest()), "\n")[0], "paused infinity")
}

// TestPauseOfAnotherKey: a key is paused under its other number while the last run of this number was
// one of another key. With hashtext k127628 and k48136 have the same number.
func TestPauseOfAnotherKey(t *testing.T) {
	server := remembering(t, nil)
	a := connect(t, server, "cron")
	run(t, a, "SELECT pg_advisory_lock(7)")
	first := of(token(t, a))
	first.sure = true
	expect(t, "a start", run(t, a, first.rest()), "started")
	run(t, a, finish(7, first.token, "ok"))
	expect(t, "the pause", run(t, a, "SELECT pglead.pause_1(8, 1::smallint, 'eight', 'infinity', 'ann', '')"), "paused")
	other := of(token(t, a))
	other.keys = "'eight'"
	expect(t, "a start of the key", run(t, a, other.first())+run(t, a, other.rest()), "paused infinity\nann\n")
	expect(t, "a start of the other key", run(t, a, of(token(t, a)).first()), "started")
}

// TestPauseWithoutBounds: a pause ends within a hundred years, or never. What an older ledger has taken
// is read all the same.
func TestPauseWithoutBounds(t *testing.T) {
	server := remembering(t, nil)
	a := connect(t, server, "cron")
	if _, err := try(t, a, "SELECT pglead.pause_1(7, 1::smallint, 'seven', '294276-12-01', 'ann', '')"); code(err) != "22023" {
		t.Errorf("a pause for ever and a day: %v", err)
	}
	expect(t, "the longest pause", run(t, a, "SELECT pglead.pause_1(7, 1::smallint, 'seven', now() + interval '3650 days', 'ann', '')"), "paused")
	query(t, server, "UPDATE pglead.lock SET paused_until = '294276-12-01', system = repeat('s', 100000), started = now(), ended = now()")
	facts, err := ledger.FactsMatching(t.Context(), asking(a), nil, 10)
	if err != nil || len(facts.List) != 1 || facts.Pause().Until != ledger.Endless() || len(facts.List[0].Last.System) != 40 {
		t.Errorf("%+v, %v", facts, err)
	}
}
