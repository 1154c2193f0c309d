package lock

// A lock can be held in several ways, which a claim may combine. This is what differs most, and
// where. (Transaction and Quorum are fields of the session's Config.)
//
//	way                      what is different                               where
//	several locks            they are taken one after the other, with a      Bid.Try, waiter.join
//	                         place in the line of the next one
//	                         all marks of their lines count                  lacksCommon
//	                         nobody calls the dormant waiters                waiter.callIfFew, followers
//	slots (Claim.Gate)       any one lock will do                            Bid.parseTry
//	                         there is one line for all of them, the gate's   Claim.lineFor, takeGate
//	                         nobody watches the holders                      watchHolder
//	shared (Claim.Shared)    readers may share a ticket                      ticketQuery
//	                         nobody watches the holders                      watchHolder
//	                         a reader announces left, not clean, and its     Held.wordQuery,
//	                         name does not show its end                      Held.releaseParts
//	                         nobody announces a reader's death               Held.deathMatters
//	                         nobody calls the dormant waiters                followers
//	                         a reader that comes back ends no former session endFormerQuery
//	in a transaction         waiters poll: there is no line                  waiter.poll
//	(Transaction)            neither the start nor the end is announced      drawOnSecond, endTransaction
//	                         the token comes from a second session           drawOnSecond
//	quorum (Quorum)          what counts is what the standbys have           drawOnSecond, noteEnds,
//	                         confirmed, on a second session                  Session.AwaitStandbys
//	                         the guard's word of the end waits for none      Held.EncodedRelease
//	                         the server is asked once more after a grant     Bid.Settle
//	                         the first try does not travel with the login,   session.Open,
//	                         and nobody waits for those who arrive           awaitArrivalsQuery
//	of a list (List)         the session outlives the lock, and holds others Held.Close, exchange
//	                         ends are announced to all, in line or not       Held.wordQuery
//	                         nobody stands in line: the list comes back      Item.KeepListening
//	with a ledger            every start learns how the last run ended       startInLedger
//	                         nobody calls, or waits for those who arrive     followers, awaitArrivalsQuery

// hasLine says whether those who wait stand in line, where they hear of the end. In a transaction
// they poll: through a pooler nobody can listen, and so nothing is announced either.
func (cfg *Config) hasLine() bool { return !cfg.Session.Transaction }

// takesOne says whether the claim is to one lock, and no other will do.
func (c Claim) takesOne() bool { return c.Gate == nil && len(c.IDs) == 1 }

// drawsWithTry says whether a try and the draw can go in one message: one try decides, and the draw
// is not on another session.
func (cfg *Config) drawsWithTry() bool {
	return cfg.Claim.takesOne() && !cfg.Session.UsesSecondSession()
}

// hasOneLine says whether all who wait for the claim stand in one line.
func (c Claim) hasOneLine() bool { return c.takesAny() || c.takesOne() }

// takesAny says whether any one of the locks will do.
func (c Claim) takesAny() bool { return c.Gate != nil }
