package lock

import "context"

// What a server's backend does for the first time takes long, since it reads the catalogs for that.
// Three rehearsals do it beforehand. This keeps the time between two commands short. The promise
// doesn't depend on it.
//
//	                      when                                        what it saves
//	endRehearsalQuery     with a holder's first heartbeat             0.5 ms of its announcement
//	turnRehearsalQueries  with the first question of a watch          0.45 ms of the try and the draw
//	warmUp                by one of the first in line, with a ledger  0.7 ms of its start

// endRehearsalQuery is a query that announces the end of a tenure, but finds no listener. A
// session's first announcement makes it read the server's catalogs, which takes half a millisecond:
// with the rehearsal it has done so before its command ends.
func (h *Held) endRehearsalQuery() (query []string) {
	if h.cfg.Session.Transaction || h.cfg.OfList {
		return nil
	}
	return []string{h.wordQuery(h.Locks[0], h.cfg.Claim.listenersSQL(h.Locks)+" AND pid IS NULL", "")}
}

// turnRehearsalQueries are, for one of the first in line, a burst without a try, and a draw that
// finds no lock (medians of 300 logins in turns: 0.15 and 0.3 ms less for what follows). The start
// in the ledger is warmUp's. The text is the same at all places in line, so that it is one entry in
// pg_stat_statements. While brief tenures follow each other there is no watch, and nobody
// makes them: the server would have to do them between two commands.
func (w *waiter) turnRehearsalQueries() []string {
	if !w.cfg.drawsWithTry() {
		return nil
	}
	draw := w.cfg.drawQueryOf(w.cfg.Claim.locks(), "NULL")
	return []string{w.burstQuery(burstTries), draw + " AND pid IS NULL"}
}

// warmUp makes a start without a token, which starts nothing, for one of the first in line. With it
// the session reads beforehand what its first start has to read. Otherwise that would take 0.7 ms
// between two commands. If the ledger can't answer, the real start will say why.
func (w *waiter) warmUp(ctx context.Context) error {
	locks := w.cfg.Claim.locks()
	if w.warm || w.cfg.Claim.Shared || w.cfg.Session.Quorum || !w.usesLedger() {
		return nil
	}
	w.warm = true
	err := w.send(ctx, "SELECT "+w.cfg.ledgerRun().StartSQL(w.cfg.ledgerLocks(locks)[0], "NULL", "NULL"))
	if answeredError(err) == nil {
		return err
	}
	return nil
}
