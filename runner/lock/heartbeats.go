package lock

import (
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/session"
)

// A session has one heartbeat. What it asks depends on what the session is:
//
//	rank 1 to 3       what the holder's latest request is (startWatch)
//	others            nothing (beatPlainly). Ranks 1 to 3 ask nothing either if the holder's
//	                  requests have no numbers
//	dormant           whether somebody calls (goDormant)
//	in a delay        as before, but without the watch
//	holder            whether somebody asks it to step down (checkForStepDown)
//	list              which of its items somebody asks to step down (List.checkForStepDowns); nothing
//	                  while none has run for long
//
// The second session of a quorum commits (package session).

// beatPlainly makes the heartbeat ask about nothing.
func (b *bid) beatPlainly() {
	b.Session.SetHeartbeat(session.Heartbeat{Every: leasetime.WaiterBeat(b.cfg.Session.Lease), Request: session.Request{SQL: []string{session.PlainBeatQuery}}})
}
