/*
 * --quorum: A holds the lock on the old primary, a standby is promoted, and B
 * is granted the same lock there, where nobody knows of A. Checked by
 * testdata/model/check, which also takes each measure out.
 *
 * The old primary asks K_OLD of N standbys to confirm each commit, the promoted
 * one K_NEW of those that follow it. A's heartbeats are such commits. B counts
 * its lock-delay from the moment at which it hears that a commit, which it sent
 * after its grant, was confirmed: whoever confirmed that has left the old
 * primary. It holds for K_OLD + K_NEW >= N. Time is in fifths of a lease and
 * without end: only ages are kept, so the search is exhaustive.
 *
 * Assumptions:
 *   - a standby confirms for one primary at a time, and once it has followed
 *     the new one (or is it) it never goes back to the old one, whose history
 *     is another;
 *   - clocks run at the same rate; a tree is dead DELAY after the sending of
 *     its last confirmed heartbeat (pglead.pml has the details);
 *   - synchronous_standby_names, once emptied, stays so until the next
 *     heartbeat's look; one promotion.
 * Confirmations and messages take as long as they like, and a confirmation
 * counts although its sender has left meanwhile.
 */
#ifndef N
#define N 2
#endif
#ifndef K_OLD
#define K_OLD 1
#endif
#ifndef K_NEW
#define K_NEW 1
#endif
#define SHARE 3                         /* the holder gives up: 3/5 */
#define DELAY 4

/* What the lock-delay is counted from */
#define CONFIRMED 0                     /* the commit's confirmation, */
#define SENT 1                          /* its sending, */
#define GRANTED 2                       /* the grant, */
#define PROMOTED 3                      /* the promotion */
#ifndef FROM
#define FROM CONFIRMED
#endif

/* When a heartbeat looks whether synchronous_standby_names is empty */
#define NEVER 0
#define BEFORE 1                        /* in the statement that commits */
#define AFTER 2                         /* once the commit is through */
#ifndef LOOK
#define LOOK AFTER
#endif

#define OLD 0                           /* whom a standby follows */
#define NOBODY 1
#define NEW 2

byte follows[N];
byte confirmed;                         /* by whom: A's heartbeat under way */
byte confirms;                          /* and B's commit */
byte promoted = N;
bool emptied;

bool tree = true;
byte heard;                             /* since the sending of A's last confirmed heartbeat */
bool asked, seen;                       /* a heartbeat is under way, and saw that names are set */
byte sent;

bool granted, committing, counting, started;
byte waited;

#define COUNT(m) (((m) & 1) + (((m) >> 1) & 1) + (((m) >> 2) & 1) + (((m) >> 3) & 1))
inline age(a) { if :: a < DELAY -> a++ :: else fi }

#define STANDBY(s) \
	:: d_step { follows[s] == OLD -> follows[s] = NOBODY } \
	:: d_step { follows[s] == NOBODY && s != promoted -> follows[s] = OLD } \
	:: d_step { promoted < N && s != promoted && follows[s] != NEW -> follows[s] = NEW } \
	:: d_step { promoted == N -> promoted = s; follows[s] = NOBODY; \
		if :: FROM == PROMOTED -> counting = true :: else fi } \
	:: d_step { asked && follows[s] == OLD && !(confirmed & (1 << s)) -> confirmed = confirmed | (1 << s) } \
	:: d_step { committing && follows[s] == NEW && !(confirms & (1 << s)) -> confirms = confirms | (1 << s) }

active proctype world() {
	do
	STANDBY(0)
	STANDBY(1)
#if N >= 3
	STANDBY(2)
#endif
#if N >= 4
	STANDBY(3)
#endif
	/* A's heartbeat */
	:: d_step { tree && !asked && heard < SHARE -> asked = true; sent = 0; seen = !emptied }
	:: d_step { asked && (COUNT(confirmed) >= K_OLD || emptied) ->
		if
		:: tree && heard < SHARE && (LOOK == NEVER || (LOOK == BEFORE && seen) || (LOOK == AFTER && !emptied)) -> heard = sent
		:: else
		fi;
		asked = false; sent = 0; seen = false; confirmed = 0 }
	:: d_step { tree -> tree = false }
	/* an operator, or Patroni without its strict mode */
	:: d_step { !emptied -> emptied = true }

	/* B, on the promoted one */
	:: d_step { promoted < N && !granted -> granted = true;
		if :: FROM == GRANTED -> counting = true :: else fi }
	:: d_step { granted && !committing -> committing = true;
		if :: FROM == SENT -> counting = true :: else fi }
	:: d_step { committing && !counting && FROM == CONFIRMED && COUNT(confirms) >= K_NEW -> counting = true }
	:: d_step { counting && !started && waited >= DELAY && COUNT(confirms) >= K_NEW -> started = true; assert(!tree) }

	/* time */
	:: d_step { !(tree && heard + 1 >= DELAY) ->
		if :: tree -> heard++ :: else -> heard = 0 fi;
		if :: asked && tree -> age(sent) :: else -> sent = 0 fi;
		if :: counting -> age(waited) :: else fi }
	:: started || !tree -> break
	od
}
