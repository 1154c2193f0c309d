package ledger_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/ledger"
)

func TestParseAnswer(t *testing.T) {
	a, err := ledger.ParseAnswer("lost 1 7 15000 2000 web1\nlost 2 8 999999999999999 0", 2, nil)
	if err != nil || len(a.Open) != 2 || a.Open[0] != (ledger.OpenRun{Token: 7, Lease: 15 * time.Second, LostGrace: 2 * time.Second, Host: "web1"}) || a.Open[1].Lock != 1 {
		t.Errorf("lost: %+v, %v", a, err)
	}
	if need := a.Open[0].Outlives(); need != 12*time.Second {
		t.Errorf("two thirds of the lease and the grace: %v", need)
	}
	if need := a.Open[1].Outlives(); need != 16*time.Hour {
		t.Errorf("what a stranger says of his lease: %v", need)
	}
	if need := (ledger.OpenRun{Lease: 15 * time.Second, LostGrace: time.Hour}).Outlives(); need != 15*time.Second {
		t.Errorf("no command outlives its lease: %v", need)
	}
	for _, text := range []string{
		"", "begun", "lost", "lost 0 7 1 1", "lost 3 7 1 1", "lost 1 -7 1 1", "lost 1 7 -1 1", "lost 1 7 x 1", "lost 1 7 1 1\nbusy", "lost 1 7 1 1\n",
		"paused", "paused infinity", "clock", "clock x", "lost 9223372036854775808 7 1 1",
	} {
		if a, err := ledger.ParseAnswer(text, 2, nil); err == nil {
			t.Errorf("%q: %+v", text, a)
		}
	}
	for _, p := range []ledger.PausedError{{Pause: ledger.Pause{Until: ledger.Endless()}}, {Pause: ledger.Pause{Until: ledger.Endless(), By: "ann"}}, {Pause: ledger.Pause{By: "ann", Note: "disk\x1b swap", Until: time.Now().Add(time.Hour)}}} {
		if strings.ContainsAny(p.Error(), "\x1b\n") {
			t.Errorf("%q", p.Error())
		}
	}
}
