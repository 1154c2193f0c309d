package lock

// What a server's backend does for the first time takes long, since it reads the catalogs for that.
// Two warm-ups do it beforehand. This keeps the time between two commands short. The promise
// doesn't depend on it.
//
//	                   when                                what it saves
//	endWarmupQueries   with a holder's first heartbeat     0.5 ms of its announcement
//	turnWarmupQueries  with the first question of a watch  0.45 ms of the try and the draw, and
//	                                                       with a ledger 0.7 ms of the start

// endWarmupQueries announce the end of a run, but find no listener. A session's first announcement
// makes it read the server's catalogs, which takes half a millisecond: with the warm-up it has done
// so before its command ends.
func (h *Held) endWarmupQueries() []string {
	if !h.cfg.announces() {
		return nil
	}
	return []string{h.announceEndQuery(h.grants[0].Lock, h.cfg.Claim.listenersSQL()+" AND pid IS NULL")}
}

// turnWarmupQueries are, for one of the first in line, a burst without a try, a draw that finds
// no lock and, with a ledger, a start without a token, which starts nothing. The text is the same
// at all places in line, so that it is one entry in pg_stat_statements. While brief runs follow
// each other there is no watch, and nobody makes them: the server would have to do them between two
// commands.
func (w *waiter) turnWarmupQueries() (queries []string) {
	locks := w.cfg.Claim.locks()
	if w.cfg.drawsWithTry() {
		queries = append(queries, w.burstQuery(burstTries), w.cfg.bareDrawQuery(locks, "NULL", true)+" AND pid IS NULL")
	}
	if w.startsOnOwn() {
		queries = append(queries, "SELECT "+w.cfg.ledgerRun().StartSQL(w.cfg.ledgerLocks(locks)[0], "NULL", "NULL"))
	}
	return queries
}
