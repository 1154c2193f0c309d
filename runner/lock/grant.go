package lock

import (
	"time"

	"github.com/pglead/pglead/runner/advisory"
)

// Grant is what a bid has been granted; a Held has it.
type Grant struct {
	cfg   *Config // the bid's
	Locks []advisory.Lock
	Slot  int           // with a gate: the index of the lock in the claim, from 1
	delay time.Duration // how long the locks are held before the command may start
	// coversEarlier says that a clean end of this run means that the commands of all earlier
	// holders are dead, too (see verdict).
	coversEarlier bool

	// From the draw on:

	// Token grows with every grant in this cluster: the timeline in the upper
	// 16 bits, the transaction number that this grant used up in the lower 48.
	Token int64
	// SystemID names the cluster that the token belongs to.
	SystemID string
	recorded bool // in the ledger
	dormant  bool // somebody in line was dormant
	listened bool // somebody in line listened
}

func noGrant(cfg *Config) Grant { return Grant{cfg: cfg, coversEarlier: true} }

// drawn says whether the token has been drawn.
func (g *Grant) drawn() bool { return g.Token != 0 }

// startsAtOnce says whether the command may start without a delay: the evidence says that no
// earlier command is alive.
func (g *Grant) startsAtOnce() bool { return g.delay == 0 }

// mayAnnounceEnd says whether a grant under which no command was started may announce its end. Its
// start must have been announced, and no earlier command may be alive, since a waiter that hears of
// the end starts at once. A grant that has waited out a delay announces nothing either.
func (g *Grant) mayAnnounceEnd() bool { return g.drawn() && g.startsAtOnce() }

// undraw forgets the token, and what the ledger may have noted under it.
func (g *Grant) undraw() { g.Token, g.SystemID, g.recorded = 0, "", false }
