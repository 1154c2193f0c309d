/*
 * One lock, its holder A and a waiter B: when does B start its command, and is
 * A's dead by then? The model is of time and of what each side can know, not
 * of SQL. Checked by testdata/model/check, which also breaks each safety
 * measure in turn and expects the checker to find the overlap.
 *
 * The unit of time is a fifth of the lease, which is between two heartbeats.
 * What matters is the order of LEASE, DELAY, SHARE and K, not their size: of the
 * real 2/3 of a lease, DELAY keeps that it is SHARE and the time of a kill.
 *
 * Assumptions, which are the promise's own:
 *   - clocks run at the same rate, and the holder's goes on in suspend;
 *   - a kill that has been decided on is over in less than K;
 *   - the network delays, loses and reorders as it likes, in each direction
 *     by itself, but invents nothing;
 *   - pglead and its guard are not both killed;
 *   - B hears what is said, at once. What it may conclude where there are more
 *     than A and B is in takeover.pml, and quorum in quorum.pml.
 *
 * A's last words are in it: pglead's before the unlock, its guard's over the
 * socket that they share, and pglead's from a new session after a loss. With
 * LOOKS, B looks for silence, too, in two looks that each take their time; both
 * the second look and the end of A's session are one statement. This costs so
 * many states that it is checked with fewer faults and less time than the rest.
 *
 * The search is exhaustive within END units of time and FAULTS faults.
 */

#ifndef LEASE
#define LEASE 5                         /* the server frees a silent session */
#endif
#ifndef SHARE
#define SHARE 3                         /* the holder gives up: 3/5 */
#endif
#ifndef K
#define K 1                             /* the kill takes less than this */
#endif
#ifndef DELAY
#define DELAY 4                         /* a takeover without evidence: 2/3 */
#endif
#ifndef GUARD
#define GUARD 1
#endif
#ifndef REAPED
#define REAPED 1                        /* the last word comes after the reap, */
#endif
#ifndef ENDS
#define ENDS 1                          /* from a new session, which ends the old one; */
#endif
#ifndef GONE
#define GONE 1                          /* the guard's, only if pglead is gone */
#endif
#ifndef LOOKS
#define LOOKS 0                         /* B looks, too, */
#endif
#ifndef GAP
#define GAP DELAY                       /* so long after what it saw first */
#endif
#ifndef RECEIVED
#define RECEIVED 1                      /* was received, */
#endif
#ifndef SENT
#define SENT 1                          /* and by when it sends the second */
#endif
#ifndef END
#define END 18
#endif
#ifndef FAULTS
#define FAULTS 3
#endif

#define NOBODY 0
#define A 1
#define B 2

#define IDLE 0                          /* A's heartbeat: none under way, */
#define ASKED 1                         /* sent, */
#define ANSWERED 2                      /* answered by the server */

byte now;
byte faults;

/* the network, a direction each: A to server, server to A */
bool out = true, in = true;

/* the server */
byte lock = A;
bool session = true;                    /* A's, as the server sees it */
byte arrived;                           /* A's last request */
bool closing;                           /* its last word to A is on the way */

/* A's host */
bool pglead = true, stopped, guard = true, command = true;
byte beat = IDLE;
byte sent;                              /* the request under way */
byte heard;                             /* the last answered one: when sent */
bool killing;
byte decided;                           /* when */
bool knows;                             /* that the lock is lost */
bool again;                             /* the command is the second on this session */
bool said;                              /* its last word, on a new session */

/* B */
bool clean;                             /* it has heard A's last word, or seen its silence */
#define FIRST_SENT 1
#define FIRST_DONE 2
#define RECEIVED_FIRST 3
#define SECOND_SENT 4
#define SECOND_DONE 5                   /* without SENT: equal, and received when B decides */
byte look;                              /* where B is with its two looks */
byte first;                             /* what the second is counted from */
bool moved;                             /* A was heard between the two */
byte granted;
bool started;

/* since when A is of no use, for the property of no stale lock */
bool broken;
byte since;

inline decide() { killing = true; decided = now }
inline fault() { faults++; if :: !broken -> broken = true; since = now :: else fi }

#define AWAKE (pglead && !stopped)
#define ENFORCED (AWAKE || (GUARD && guard))

/* Time goes on only if nothing that has to happen by now is left undone. */
#define KILLED_IN_TIME (!command || !killing || now + 1 < decided + K)
#define GAVE_UP (!command || killing || !ENFORCED || now < heard + SHARE)
#define FREED (lock != A || now < arrived + LEASE)
#define SERVED (lock != NOBODY)
#define RAN (lock != B || started || !(clean || now >= granted + DELAY))
#define HEARD (!(closing && in && command && !killing && ENFORCED))
#define ENDED (!(!command && lock == A && session && out && ((GUARD && guard) || AWAKE)))

active proctype world() {
	do
	/* A's session: one request at a time */
	:: atomic { AWAKE && session && beat == IDLE && !killing -> beat = ASKED; sent = now }
	:: atomic { beat == ASKED && out && session -> beat = ANSWERED; arrived = now; moved = LOOKS }
	:: atomic { beat == ANSWERED && in && AWAKE -> beat = IDLE; heard = sent }

	/* A's side of the lease, pglead's duty and the guard's */
	:: atomic { command && !killing && ENFORCED && now >= heard + SHARE -> decide() }
	:: atomic { closing && in && command && !killing && ENFORCED -> knows = true; decide() }
	:: atomic { killing && command -> command = false }

	/* the command ends by itself, or has been killed: the lock is released */
	:: atomic { command && !killing && AWAKE && guard && faults == FAULTS -> command = false }
	:: atomic { !command && lock == A && session && out && AWAKE && !knows ->
		clean = in; session = false; lock = NOBODY }
	:: atomic { !command && lock == A && session && out && GUARD && guard && !AWAKE ->
		clean = clean || !pglead; session = false; lock = NOBODY }
	:: atomic { !GONE && !command && lock == A && session && out && guard && pglead -> clean = true; lock = NOBODY }

	/* the same session's next command: a list comes back to an item */
	:: atomic { !command && !again && !killing && AWAKE && guard && session && now < heard + SHARE ->
		again = true; command = true; assert(!(lock == B && started)) }

	/* it was lost: the last word comes from a new session */
	:: atomic { (!command || !REAPED) && killing && !said && AWAKE && out && in ->
		said = true; clean = true;
		if :: ENDS && lock == A -> session = false; lock = NOBODY :: else fi }

	/* the server's side of the lease */
	:: atomic { lock == A && now >= arrived + LEASE -> session = false; closing = true; lock = NOBODY }

	/* B */
	:: atomic { lock == NOBODY -> lock = B; granted = now }
	:: atomic { lock == B && !started && (clean || now >= granted + DELAY) ->
		started = true; assert(!command) }

	/* silence: two looks, of which each takes its time */
	:: atomic { LOOKS && lock == A && look == 0 -> look = FIRST_SENT; first = now }
	:: atomic { look == FIRST_SENT -> look = FIRST_DONE; moved = false }
	:: atomic { look == FIRST_DONE -> look = RECEIVED_FIRST; if :: RECEIVED -> first = now :: else fi }
	:: atomic { look == RECEIVED_FIRST && (!SENT || now >= first + GAP) -> look = SECOND_SENT }
	:: atomic { look == SECOND_SENT -> look = 0;
		if
		:: SENT && lock == A && session && !moved -> clean = true; session = false; closing = true; lock = NOBODY
		:: !SENT && lock == A && session && !moved -> look = SECOND_DONE
		:: else
		fi;
		if :: look == 0 -> first = 0 :: else fi; moved = false }
	:: atomic { look == SECOND_DONE && now >= first + GAP -> look = 0; first = 0;
		if :: lock == A && session -> clean = true; session = false; closing = true; lock = NOBODY :: else fi; moved = false }
	:: atomic { look && lock != A -> look = 0; moved = false; first = 0 }

	/* faults */
	:: atomic { faults < FAULTS && out -> out = false; fault() }
	:: atomic { faults < FAULTS && in -> in = false; fault() }
	:: atomic { !out -> out = true; broken = false }
	:: atomic { !in -> in = true; broken = false }
	:: atomic { faults < FAULTS && lock == A && session -> /* pg_terminate_backend, a restart */
		fault(); session = false; closing = true; lock = NOBODY }
	:: atomic { faults < FAULTS && AWAKE -> stopped = true; fault() }
	:: atomic { stopped -> stopped = false; broken = false }
	:: atomic { faults < FAULTS && pglead && guard -> /* SIGKILL of pglead */
		pglead = false; fault();
		if
		:: GUARD && !killing -> decide()
		:: GUARD && killing -> skip
		:: !GUARD -> /* its socket closes, and the command lives on */
			if :: out && lock == A -> session = false; lock = NOBODY :: else fi
		fi }
	:: atomic { faults < FAULTS && GUARD && pglead && guard && command -> /* of the guard */
		guard = false; fault(); if :: !killing -> decide() :: else fi }

	/* time */
	:: atomic { now < END && KILLED_IN_TIME && GAVE_UP && FREED && SERVED && RAN && HEARD && ENDED ->
		now++;
		/* nor does a last word leave the lock held */
		assert(!(clean && lock == A));
		/* no stale lock: whoever is cut off, stopped or dead blocks nobody for
		   longer than a lease since its last word arrived, the takeover's delay,
		   and one unit to notice in */
		assert(!broken || started || now <= since + LEASE + DELAY + 1 || now <= arrived + LEASE + DELAY + 1) }
	:: now == END -> break
	od
}
