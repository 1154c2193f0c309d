package lock

// The ways of locking (runner/WAYS.md) are: several locks, slots, readers, lists, through a pooler
// (in a transaction), a ledger, and a quorum. A run may combine them. Claim has the fields of slots
// (Gate) and readers (Shared), List is a list, and Config and its Session have the rest. First come
// the questions that mix several of these, or that several files ask (those about a claim alone are
// in claim.go); at the end, a table of the differences that sit in one place. To add a way: its
// field, a row in that table, and its flag; then see what each question has to answer for it.

// keepsPart says whether a bid keeps the locks that it gets while it waits for the rest, so that
// only the first missing one was refused. With slots any one is enough, and in a transaction a try
// takes all or nothing. (With Wait 0 it does so, too. Then a refusal counts as that of the first
// lock, of which nobody makes anything.)
func (cfg *Config) keepsPart() bool { return !cfg.Claim.takesAny() && !cfg.Session.Transaction }

// announces says whether starts and ends are announced, so that those who wait stand in line, and
// hear of them. In a transaction they poll: through a pooler nobody can listen.
func (cfg *Config) announces() bool { return !cfg.Session.Transaction }

// drawsWithTry says whether a try and the draw can go in one message: one try decides, and the draw
// is not on another session.
func (cfg *Config) drawsWithTry() bool {
	return len(cfg.Claim.IDs) == 1 && !cfg.Claim.takesAny() && !cfg.Session.UsesSecondSession()
}

// canExchange says whether, in a list, the release of one lock and the try for the next can go in
// one message, and the draw with them.
func (cfg *Config) canExchange() bool { return cfg.drawsWithTry() && !cfg.Claim.Shared }

// announcesDeath says whether waiters are told of a command that is dead after a loss. After a
// reader, or without a lock-delay, they wait for nothing that this would shorten.
func (cfg *Config) announcesDeath() bool {
	return cfg.LockDelay > 0 && cfg.announces() && !cfg.Claim.Shared
}

// callsDormant says whether a holder calls the dormant waiters when it is done. With a ledger
// nobody needs a call, since the ledger says how a holder ended. Readers leave without announcing a
// clean end.
func (b *bid) callsDormant() bool {
	return b.cfg.announces() && !b.usesLedger() && !b.cfg.Claim.Shared && b.cfg.Claim.hasOneLine()
}

// usesLedger says whether the run goes by a ledger: every start then learns how the last run ended.
// It is false, too, if the run requires a ledger that is gone; so a start asks ledgerApplies.
func (b *bid) usesLedger() bool {
	use, err := b.ledgerApplies()
	return use && err == nil
}

// ledgerApplies is usesLedger, with an error if the run requires a ledger that is gone. In a list
// another item may have found that out.
func (b *bid) ledgerApplies() (use bool, err error) {
	return b.cfg.Ledger.Applies(b.Session.LoginAnswer())
}

// startsOnOwn says whether the lock's own session starts the run in the ledger, and not the second.
func (b *bid) startsOnOwn() bool { return b.usesLedger() && !b.cfg.Session.UsesSecondSession() }

// These are the other differences, and where they are.
//
//	several locks    they are taken one after the other, with a place in     bid.try, waiter.join
//	                 the line of the next one
//	slots            any one lock will do                                    bid.readTry
//	                 there is one line for all of them, the gate's           Claim.lineFor, takeGate
//	readers          they may share a ticket                                 ticketQuery
//	                 a reader announces left, not clean, and its name does   announceEndQuery,
//	                 not show its end                                        releaseQueries
//	                 a reader that comes back ends no former session         endFormer
//	lists            the session outlives the lock, and holds others         Held.Close, exchange
//	                 no first try travels with its login                     OpenList, bid.trySQL
//	                 it shows no token                                       showsToken
//	                 an end is announced, though nobody may listen           announceEndQueries
//	                 an exchange announces each start, though nobody may     bareDrawQuery
//	                 listen: it tells the others on the list in any case
//	                 nobody stands in line: the list comes back              Attempt.KeepListening
//	through a pooler the locks are a transaction's: it tries, and ends       tryInTransaction,
//	                 with the release                                        endTransaction
//	                 to give back is to roll back                            giveBackQueries,
//	                                                                         freeUnused
//	                 an error frees the locks, so no lock_timeout, and only  BeginQueries,
//	                 the release records the end                             RecordEnd
//	                 waiters poll                                            waiter.poll
//	                 the token comes from a second session                   drawOnSecond
//	the ledger       it is asked for the start, and told of the end          startInLedger,
//	                                                                         record.queries
//	--quorum         what counts is what the standbys have confirmed, on a   drawOnSecond, recordEach,
//	                 second session                                          Session.AwaitStandbys
//	                 a lock counts as held from then on                      addGrants, confirmGrants
//	                 the guard's word of the end waits for none              Held.EncodedRelease
//	                 the first try does not travel with the login            acquireOnce
