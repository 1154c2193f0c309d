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
 *   - pglead and its guard are not both killed.
 * Not in the model: a newcomer whose first try meets a lock that was torn away
 * just before, which README names as open, and quorum.
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
#define END 18
#define FAULTS 3

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

/* B */
bool clean;                             /* it has heard A's last word */
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
	:: atomic { beat == ASKED && out && session -> beat = ANSWERED; arrived = now }
	:: atomic { beat == ANSWERED && in && AWAKE -> beat = IDLE; heard = sent }

	/* A's side of the lease, pglead's duty and the guard's */
	:: atomic { command && !killing && ENFORCED && now >= heard + SHARE -> decide() }
	:: atomic { closing && in && command && !killing && ENFORCED -> knows = true; decide() }
	:: atomic { killing && command -> command = false }

	/* the command ends by itself, or has been killed: the lock is given back */
	:: atomic { command && !killing && AWAKE && guard && faults == FAULTS -> command = false }
	:: atomic { !command && lock == A && session && out && AWAKE && !knows ->
		clean = in; session = false; lock = NOBODY }
	:: atomic { !command && lock == A && session && out && GUARD && guard && !AWAKE ->
		session = false; lock = NOBODY }

	/* the server's side of the lease */
	:: atomic { lock == A && now >= arrived + LEASE -> session = false; closing = true; lock = NOBODY }

	/* B */
	:: atomic { lock == NOBODY -> lock = B; granted = now }
	:: atomic { lock == B && !started && (clean || now >= granted + DELAY) ->
		started = true; assert(!command) }

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
		/* no stale lock: whoever is cut off, stopped or dead blocks nobody for
		   longer than a lease since its last word arrived, the takeover's delay,
		   and one unit to notice in */
		assert(!broken || started || now <= since + LEASE + DELAY + 1 || now <= arrived + LEASE + DELAY + 1) }
	:: now == END -> break
	od
}
