// Package lock takes an advisory lock, and decides when its holder may start work
// under it.
//
// Candidate.Acquire opens a session, tries, waits in line without blocking in the server, and draws
// the fencing token: it returns a Held. Held.Release frees the lock. If the lock was free at the
// first try, the command may start at once, unless the server is young. After a wait there has to
// be evidence that the last holder's command is dead: a word of that holder, of its guard or of its
// new session, or its silence. Otherwise the lock-delay has to pass (package evidence). A ledger
// may also say that the command is dead, or make a first try wait.
//
// These words are enough to follow one run. (Lease, lock-delay and token are explained in
// runner/README.md.)
//
//	claim      the locks that a run wants: all of them or, with slots, any one
//	candidate  a process that wants a claim, and opens a new session when it lost one
//	bid        a claim on one session, as far as it is granted: it tries for what is missing
//	waiter     a candidate's bid, which may wait, and what it then knows of its line
//	refused    a try is refused if others hold the lock, and so is a run that gives up for
//	           that reason
//	rejected   a query is rejected if the server answers it with an error
//	evidence   what was heard and seen of a lock's holders; a bid's listener collects it. It is
//	           untouched at first, and contested once others have the lock, or may have had it
//	           while the bid did not listen: from then on, to start at once takes
//	           evidence that the last command is dead
//	grant      a lock that a bid has got, since when, and the verdict of the evidence on it: how
//	           long it is held without a command, not at all or for the lock-delay
//	settle     the steps from the last grant to the start: the delay, the draw (the query that
//	           makes the token, and announces the start with it), the ledger
//	held       a bid that has settled: a command may be started under its locks
//
// This is how one run takes and releases its locks:
//
//	Candidate.Acquire    candidate.go  sessions come and go
//	  acquireOnce                      opens one; its login may carry the first try (firstTrySQL)
//	    waiter.acquire   waiter.go     again after each pause in the ledger
//	      take                         bid.try and, if it is refused, waits: in line or by poll
//	        standInLine                joins the line (line.go), sleeps, decides, tries and looks
//	          tryNow                   bid.try, or a burst: many tries in one statement
//	            addGrants   bid.go     what was granted
//	      bid.settle     settle.go     until the command may start
//	  outlast                          after a loss: the pause before the next session
//	Held.Release         held.go       after the command
//
// Each of the other files is one mechanism, and its first comment explains the words that only that
// one needs. These keep two commands from running at once:
//
//	grant.go, delay.go      for how long a lock has to be held without a command, and the wait
//	listener.go, look.go    what others announce about the locks is heard, and who has them is seen
//	announce.go             what becomes of a lock is announced to those who listen, by NOTIFY
//	token*.go               the token is drawn, by a second session where that of the lock can't
//	giveback.go             locks are given back under which no command was started
//	report.go               after a loss, a new session announces and records how the command ended
//	ask.go, heartbeats.go   what all questions to the server have in common; what heartbeats ask
//	claim.go, config.go     what the caller says
//	observer.go             what it is told
//
// These are for some runs alone:
//
//	transaction.go          the locks of a transaction, for a pooler
//	ledger*.go              the ledger is asked whether a run may start, and has its end recorded
//	stepdown.go             a holder is asked to step down, and finds out
//	list*.go                pglead each: one session for many bids, and no line
//
// Without these every run would still be right, but slower or unfair, or many waiters would cost the
// server more:
//
//	line*.go                the order of the waiters, and which of them listens and looks
//	prepare.go, warmup.go   what is done ahead of time
//
// Three packages below know no session. Package advisory has all locks that pglead takes, and their
// SQL. Package evidence has what a waiter has heard and seen of a lock's holders (a look shows all
// of it at once), and the verdict. Package crowd decides who of many listens, and when each looks
// and tries (its turn).
//
// The ways of locking (slots, readers, a quorum, ...) and what differs in each are in modes.go.
//
// A function whose name ends in SQL returns SQL expressions, one that ends in Query a whole query,
// and one that ends in Queries any number of them, maybe none. Such a function has no effect: the
// caller sends the queries, and notes the answer.
package lock
