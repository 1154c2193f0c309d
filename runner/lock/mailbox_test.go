package lock

import (
	"testing"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock/evidence"
)

// TestMailbox: mostMail announcements of a lock are kept and no more, and each is taken once.
func TestMailbox(t *testing.T) {
	var m mailbox
	busy, other := lockkey.ID{Number: 1}, lockkey.ID{Number: 2}
	for i := range 2 * mostMail {
		m.put(busy, evidence.Announcement{Token: int64(i)})
	}
	m.put(other, evidence.Announcement{Token: 7})
	mail := m.empty()
	if got := mail[busy]; len(got) != mostMail || got[0].Token != 0 {
		t.Errorf("of the busy lock there are %d", len(got))
	}
	if got := mail[other]; len(got) != 1 || got[0].Token != 7 {
		t.Errorf("of the other lock there are %v", got)
	}
	if len(m.empty()) != 0 {
		t.Error("an announcement is taken twice")
	}
}
