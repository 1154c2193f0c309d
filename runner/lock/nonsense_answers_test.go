package lock

import (
	"bytes"
	"strconv"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// FuzzRows: whatever rows a server answers with, nothing panics, and what is taken
// for a grant is one of the locks that were asked for.
func FuzzRows(f *testing.F) {
	f.Add([]byte("2"))
	f.Add([]byte("-2"))
	f.Add([]byte("-9"))
	f.Add([]byte("-9;1000000"))
	f.Add([]byte("7,8,,,,0,0,1,1;7,8,,,,0,0,2,1"))
	f.Add([]byte("f,0,1,1,ExclusiveLock,7,10,pglead:#5 k@h,a,b,1.5,/*pglead beat='3'lease='1h'*/,0,0,0,0,10,"))
	f.Add([]byte("t,0,1,1,ShareLock,t,7,10,x,,,NaN,,9,9,1,9,10,t"))
	const testDelay, testLease = 10 * time.Second, 30 * time.Second
	f.Fuzz(func(t *testing.T, text []byte) {
		var rows session.Rows
		for _, line := range bytes.Split(text, []byte(";")) {
			var row []string
			for _, value := range bytes.Split(line, []byte(",")) {
				row = append(row, string(value))
			}
			rows = append(rows, row)
		}
		for _, gated := range []bool{false, true} {
			claim := Claim{IDs: []lockkey.ID{{Number: 1}, {Number: 2}}}
			if gated {
				claim.Gate = &lockkey.ID{Number: 3}
			}
			b := NewBid(nil, Config{Claim: claim, Wait: time.Minute, LockDelay: testDelay, PrivateServer: true, Session: session.Config{Lease: testLease}}, true)
			if row, err := rows.Only(1); err == nil {
				number, noNumber := strconv.Atoi(row[0])
				want, _ := advisory.SplitArrival(number)
				bad := noNumber != nil || want > 2
				if gated {
					want = min(want, 1)
				}
				won, err := b.readTry(row[0])
				b.addGrants(won)
				if bad != (err != nil) || !bad && len(b.grants) != want || bad && len(b.grants) > 0 {
					t.Errorf("%q of two locks are %v, %v", row[0], b.grants, err)
				}
			}
			_ = b.noteDrawn(rows)
			if l := (&evidence.Look{}); l.Parse(rows, 1) {
				for _, s := range l.Holders {
					if s.Request != 0 && s.Opened == "" {
						t.Errorf("a session that can't be seen has sent %+v", s)
					}
				}
				e := evidence.New(evidence.Waiter{LockDelay: testDelay, Lease: testLease})
				e.LookSent()
				e.Saw(l, lockkey.ID{Number: 1})
				if d := e.Verdict(testLease).Delay; d < 0 || d > testLease {
					t.Errorf("a takeover waits %v", d)
				}
			}
		}
	})
}
