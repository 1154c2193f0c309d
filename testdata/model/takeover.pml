/*
 * Who may start when: the line, the last words and the looks, over several
 * generations. A holds the lock with token T1; two waiters, newcomers and
 * foreign holders come and go and draw T2 to T4. Checked by
 * testdata/model/check, which also takes each rule out in turn and expects the
 * checker to find the overlap.
 *
 * pglead.pml shows that a tree is dead DELAY after its session was last heard;
 * here that is an assumption, and it may be dead at any time before. Time is in
 * fifths of a lease. Only ages are kept, up to where they make no difference, so
 * there is no bound on time, on faults, reconnects, looks or words: every
 * session may fall silent, be ended by the server or be ended by its own host at
 * any time. The search is exhaustive for G tokens and two waiters at a time; who
 * has started its command leaves its place to another host.
 *
 * What a waiter does: LISTEN, then look who holds. `started T` and a look put T
 * among the open ones; `clean T` and `dead T` close T and, if T was entitled,
 * all before it. Granted, it starts if a last word counts and none is open, or
 * else after its delay. Entitled are starts after a delay, and starts by
 * evidence that goes back to an entitled word or to two looks.
 *
 * The property: no start while another tree is alive, but for
 *   - a newcomer's, which starts at once;
 *   - a waiter's that never knew of that tree, whose only evidence is the last
 *     word of runs that were not entitled: a newcomer's, or such a waiter's. Its
 *     own end closes its own token alone;
 *   - with LONG (T1 has a longer lost-grace than the rest allow for): against
 *     T1, by those who neither knew T1 nor one who waited for it.
 * Of a foreign holder nobody knows when it is dead; a tree of its own stands for
 * it for DELAY. Who has seen it in a look, or was refused by it when a last word
 * counted and has heard no new one since, does not start beside that. Who met it
 * in neither way may: it came and went between two looks.
 *
 * Assumptions: what was announced before a grant is heard before its answer is
 * acted on; tokens grow; nobody draws and announces a token without the lock, or
 * starts without it having been heard just before; last words are said by whom
 * they are about. Not in the model: slots, several keys, readers, --transaction,
 * each, old versions.
 */

#ifndef G
#define G 4                             /* tokens: 3 or 4 */
#endif
#ifndef WAITERS
#define WAITERS 2
#endif
#ifndef DELAY
#define DELAY 4                         /* the lock-delay: 2/3 of a lease */
#endif
#ifndef LONG
#define LONG DELAY                      /* what T1 asks for */
#endif
#ifndef NEWCOMERS
#define NEWCOMERS 1
#endif
#ifndef FOREIGN
#define FOREIGN 0
#endif
#ifndef SILENCE
#define SILENCE 1
#endif

/* The rules, which testdata/model/check takes out one by one. */
#ifndef ENTITLED
#define ENTITLED 1                      /* who is in its delay says nothing for those before it */
#endif
#ifndef QUIET
#define QUIET 1                         /* who is in its delay says nothing at all when it ends */
#endif
#ifndef ALONE
#define ALONE 1                         /* a newcomer's last word is for itself alone, */
#endif
#ifndef CHAIN
#define CHAIN 1                         /* and that of who started by such a word, too */
#endif
#ifndef LISTENFIRST
#define LISTENFIRST 1                   /* LISTEN, then look */
#endif
#ifndef VOIDS
#define VOIDS 1                         /* a refused try voids the word before it */
#endif
#ifndef STRANGER
#define STRANGER 1                      /* a foreign holder that was seen voids it, too, and what follows for DELAY */
#endif
#ifndef ONCE
#define ONCE 1                          /* a word counts once, */
#endif
#ifndef KNOWN
#define KNOWN 1                         /* dead only of a token that was heard of, */
#endif
#ifndef HIGHEST
#define HIGHEST 1                       /* and to start by only of the highest */
#endif
#ifndef DIES
#define DIES 1                          /* evidence dies with the session */
#endif
#ifndef SILENCEVOIDS
#define SILENCEVOIDS 1                  /* a started after two looks voids them */
#endif
#ifndef LOOKS
#define LOOKS DELAY                     /* between the first look and the second */
#endif
#ifndef LEFT
#define LEFT 1                          /* and what the holder shows of its own delay, */
#endif
#ifndef ADDS
#define ADDS 1                          /* added; 0: or that, if it is longer */
#endif
#ifndef INHERITS
#define INHERITS 1                      /* who waits for LONG asks for LONG */
#endif
#ifndef REACHES
#define REACHES (LONG > DELAY)          /* a word does not close who asks for more than its run waited */
#endif
#ifndef REAPED
#define REAPED 1                        /* dead is said when the tree is */
#endif
#ifndef GROWS
#define GROWS 0                         /* not built: who has held or listened for DELAY is entitled */
#endif

/*
 * Marks: a start or a clean end is announced only if a waiter is marked as
 * listening, one beside the run itself. A waiter listens, is marked, and looks,
 * or looks before, too. It may give the mark back, listen no more, and come back
 * in the same session. A run finds out who is marked some time before the commit
 * that announces its clean end, which shows where the log was at that time.
 */
#ifndef MARKS
#define MARKS 0
#endif
#ifndef NEEDSMARK
#define NEEDSMARK 1                     /* without a mark nothing is evidence, */
#endif
#ifndef AFTERMARK
#define AFTERMARK 1                     /* nor is an end that was heard before it, */
#endif
#ifndef EARLY
#define EARLY 1                         /* nor an end said for a run that is known from before it: another may have followed, */
#endif
#ifndef PLACE
#define PLACE 1                         /* nor the clean end of one that no look has shown since, by a log of before it */
#endif

#define FREE 0
#define OTHER 15

#define WAITS 1                         /* a run holds the lock, in its delay; */
#define RUNS 2                          /* its tree is alive; */
#define OVER 3                          /* its tree is dead; */
#define NEVER 4                         /* it gave up in its delay */

#define OFF 0
#define LOOKEDFIRST 1
#define LISTENS 2

byte lock = 1;                          /* whose: a token, FREE or OTHER */
byte last = 1;                          /* the last token that was drawn */
bool done;                              /* nobody is left who might start */

/* the runs, by token */
byte st[G + 1];
bool entitled[G + 1];                   /* its last word is for every token before it, too */
bool sess[G + 1];                       /* the server has its session, */
bool mute[G + 1];                       /* of which nothing arrives any more */
byte age[G + 1];                        /* since then */
byte left[G + 1];                       /* what it shows of its own delay */
byte longs;                             /* whose started asks for LONG, */
byte far;                               /* whose last word is for those, too */
byte warned;                            /* for the property: who knew that T1 asks for LONG */

/* the waiters: what each heard in its session */
bool basedfar[2];

byte ph[2], mine[2], waited[2], looks[2];
byte know[2], open[2];                  /* the tokens, and those without a last word */
bool word[2];                           /* a last word that still counts */
bool based[2];                          /* it knows of all that may live */
byte alien[2];                          /* a foreign holder was seen, and is gone for so long */
byte held, heard[2]; bool looked[2];    /* for GROWS */
#if !SILENCEVOIDS
bool silent[2];
#define SILENT(w) silent[w]
#else
#define SILENT(w) false
#endif
bool saw[2], met[2];                    /* for the property: a foreign holder was looked at, refused it */
bool ftree; byte fage;                  /* what a foreign holder ran, and how long the lock is gone */
byte t;

#if MARKS
bool mark[2];                           /* it shows that it listens */
bool marked[2];                         /* it did so when it last listened */
byte early[2];                          /* of the open tokens: known from before the mark */
byte shown[2];                          /* whom its last look since the mark has shown */
byte to[G + 1];                         /* what a run has found out at its end: NOBODY is marked, or it SAYS so, and who is */
#define NOBODY 4
#define SAYS 8
#define AUDIENCE (mark[0] || mark[1])
#define HEEDS(w, i, isclean) (isclean || (open[w] & BIT(i)) || !KNOWN)
#define COUNTS(w, i, all, isclean) ((isclean && (shown[w] == i || (PLACE -> (to[i] & (1 << w)) : marked[w]))) || \
	(open[w] & (all -> UPTO(i) : BIT(i)) & (EARLY -> 255 - early[w] : 255)))
#define CERTAIN(w) (marked[w] || !NEEDSMARK)
#define KNOWNSINCE(w, i) early[w] = early[w] & (255 - BIT(i));
#else
#define AUDIENCE true
#define HEEDS(w, i, isclean) (isclean || (know[w] & BIT(i)) || !KNOWN)
#define COUNTS(w, i, all, isclean) true
#define CERTAIN(w) true
#define KNOWNSINCE(w, i)
#endif

#define BIT(i) (1 << ((i) - 1))
#define UPTO(i) ((1 << (i)) - 1)
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define NEED(w) ((open[w] & longs) -> LONG : DELAY)
#define EVIDENCE(w) (CERTAIN(w) && (word[w] && open[w] == 0 && (alien[w] == 0 || !STRANGER)) || SILENT(w))

#if MARKS
inline unmark(w) {
	mark[w] = false; marked[w] = false; early[w] = 0; shown[w] = 0;
	to[1] = to[1] & (255 - (1 << w)); to[2] = to[2] & (255 - (1 << w)); to[3] = to[3] & (255 - (1 << w))
#if G >= 4
	; to[4] = to[4] & (255 - (1 << w))
#endif
}
#else
#define unmark(w) skip
#endif
inline forget(w) {
	unmark(w); deaf(w)
}
inline deaf(w) {
	ph[w] = OFF; mine[w] = 0; waited[w] = 0; looks[w] = 0; saw[w] = false; met[w] = false; heard[w] = 0; looked[w] = false;
	know[w] = 0; open[w] = 0; word[w] = false; based[w] = false; basedfar[w] = false; alien[w] = 0;
#if !SILENCEVOIDS
	silent[w] = false
#endif
}
inline loses(w) {
	if :: DIES -> forget(w)
	:: !DIES -> ph[w] = OFF; mine[w] = 0; waited[w] = 0; looks[w] = 0 fi
}
inline hears_started(w, i) {
	if :: ph[w] == LISTENS && mine[w] != i -> know[w] = know[w] | BIT(i); open[w] = open[w] | BIT(i); KNOWNSINCE(w, i)
		if :: alien[w] == 1 -> alien[w] = 2 :: else fi
	:: else fi
}
inline hears(w, i, all, isclean) {
	if
	:: ph[w] == LISTENS && mine[w] != i && HEEDS(w, i, isclean) ->
		if :: COUNTS(w, i, all, isclean) ->
			if :: ((know[w] >> i) == 0 || !HIGHEST) && ((open[w] & BIT(i)) || !(know[w] & BIT(i)) || !ONCE) -> word[w] = true :: else fi;
			if :: all -> based[w] = true; basedfar[w] = basedfar[w] || (far & BIT(i)) != 0 :: else fi
		:: else fi;
		if :: (know[w] >> i) == 0 && ((open[w] & BIT(i)) || !(know[w] & BIT(i))) -> met[w] = false :: else fi;
		know[w] = know[w] | BIT(i);
		if :: all -> open[w] = open[w] & (255 - BIT(i)) & (255 - (UPTO(i) & (REACHES && !(far & BIT(i)) -> 255 - longs : 255)))
		:: else -> open[w] = open[w] & (255 - BIT(i)) fi
	:: else fi
}
inline says(i, isclean) { hears(0, i, entitled[i], isclean); hears(1, i, entitled[i], isclean) }
inline draws() {
	last++; lock = last; held = 0; sess[last] = true; looks[0] = 0; looks[1] = 0;
	if :: AUDIENCE -> hears_started(0, last); hears_started(1, last) :: else fi
}
inline ends(i) {
	sess[i] = false; left[i] = 0;
	if :: !mute[i] -> mute[i] = true; age[i] = 0 :: else fi;
	if :: lock == i -> lock = FREE; looks[0] = 0; looks[1] = 0 :: else fi;
	if :: st[i] == WAITS -> st[i] = NEVER; if :: mine[0] == i -> loses(0) :: mine[1] == i -> loses(1) fi :: else fi
}

#define EXCUSED(w, i, j, ev) ((LONG > DELAY && j == 1 && !(know[w] & warned)) || st[j] != RUNS || j == i || (NEWCOMERS && (ev) && !based[w] && !(know[w] & BIT(j))))
inline starts(w, i, ev) {
	assert(EXCUSED(w, i, 1, ev));
	assert(EXCUSED(w, i, 2, ev));
	assert(EXCUSED(w, i, 3, ev));
#if G >= 4
	assert(EXCUSED(w, i, 4, ev));
#endif
	assert(!(ftree && (saw[w] || met[w])));
	st[i] = RUNS;
	entitled[i] = !(ev) || based[w] || !CHAIN;
	if :: LONG > DELAY && (((ev) && basedfar[w]) || (!(ev) && waited[w] >= LONG)) -> far = far | BIT(i) :: else fi;
	longs = longs & (255 - BIT(i));
	forget(w);
	if :: last == G && !mine[0] && !mine[1] -> done = true :: else fi
}

#define LATE(i) (st[i] == RUNS && mute[i] && age[i] + 1 >= (i == 1 -> LONG : DELAY))
inline older(i) { if :: mute[i] && st[i] == RUNS -> age[i]++ :: else -> age[i] = 0 fi }
inline ages(w) {
	if :: mine[w] && waited[w] < NEED(w) -> waited[w]++ :: else fi;
	if :: alien[w] >= 2 -> alien[w] = (alien[w] + 1) % (2 + DELAY) :: else fi;
	if :: GROWS && ph[w] == LISTENS && !mine[w] && !based[w] && looked[w] -> heard[w]++; if :: heard[w] == DELAY -> based[w] = true; heard[w] = 0 :: else fi :: else fi;
	if :: looks[w] && looks[w] <= 2 * LONG -> looks[w]++ :: else fi
}

#if MARKS
/* who is marked is found out before the commit that says so */
#define CLEAN(i) \
	:: d_step { !done && st[i] == RUNS && lock == i && !mute[i] -> printf("T%d is about to end; marked are %d %d\n", i, mark[0], mark[1]); st[i] = OVER; \
		to[i] = (AUDIENCE -> SAYS : NOBODY) | (mark[0] -> 1 : 0) | (mark[1] -> 2 : 0) } \
	:: d_step { !done && to[i] && lock == i && !mute[i] -> printf("T%d ends, clean (entitled %d)\n", i, entitled[i]); \
		if :: to[i] & SAYS -> says(i, true) :: else fi; to[i] = 0; ends(i) }
#else
#define CLEAN(i) \
	:: d_step { !done && st[i] == RUNS && lock == i && !mute[i] -> printf("T%d ends, clean (entitled %d)\n", i, entitled[i]); \
		st[i] = OVER; says(i, true); ends(i) }
#endif

#define RUN(i) \
	/* a clean end: the tree, the word, the unlock; by pglead, or its guard once that is gone */ \
	CLEAN(i) \
	/* cut off, stopped or dead: from its last request on */ \
	:: d_step { !done && sess[i] && !mute[i] -> printf("T%d falls silent\n", i); mute[i] = true; age[i] = 0; \
		if :: LONG > DELAY && mine[0] == i -> left[i] = MAX(NEED(0), waited[0]) - waited[0] \
		:: LONG > DELAY && mine[1] == i -> left[i] = MAX(NEED(1), waited[1]) - waited[1] :: else fi } \
	/* pg_terminate_backend, or the lease */ \
	:: d_step { !done && sess[i] -> printf("the server ends T%d's session\n", i); ends(i) } \
	:: d_step { !done && st[i] == RUNS && mute[i] -> printf("T%d's tree is dead\n", i); st[i] = OVER; age[i] = 0 } \
	/* its last word, from a new session, which ends the old one first; late, and repeated */ \
	:: d_step { !done && mute[i] && (st[i] == OVER || (st[i] == NEVER && !(QUIET && ENTITLED)) || (st[i] == RUNS && !REAPED)) -> printf("T%d: dead (entitled %d)\n", i, entitled[i]); \
		if :: sess[i] -> ends(i) :: else fi; says(i, false) }

#if MARKS
#define SEES(w) shown[w] = (marked[w] -> lock : 0); if :: lock != FREE && lock != OTHER -> early[w] = early[w] & (255 - BIT(lock)) :: else fi;
#define SILENCED(w) early[w] = 0;
#define LEAVES(w) mark[w] = false;
#define MAYWATCH(w) marked[w]
#define MARK(w) \
	:: d_step { !done && ph[w] == LISTENS && !mine[w] && !marked[w] -> printf("W%d is marked\n", w); mark[w] = true; marked[w] = true; \
		if :: AFTERMARK -> word[w] = false; based[w] = false; basedfar[w] = false :: else fi; \
		early[w] = open[w] } \
	:: d_step { !done && ph[w] == LISTENS && !mine[w] && mark[w] -> printf("W%d gives its mark back\n", w); unmark(w); deaf(w) }
#else
#define SEES(w)
#define SILENCED(w)
#define LEAVES(w)
#define MAYWATCH(w) true
#define MARK(w)
#endif

#define WAITER(w) \
	MARK(w) \
	:: d_step { !done && ph[w] == OFF && LISTENFIRST -> printf("W%d listens\n", w); ph[w] = LISTENS } \
	:: d_step { !done && ph[w] == LOOKEDFIRST -> printf("W%d listens\n", w); ph[w] = LISTENS } \
	:: d_step { !done && !mine[w] && ph[w] == (LISTENFIRST -> LISTENS : OFF) -> printf("W%d looks: %d\n", w, lock); \
		if :: !LISTENFIRST -> ph[w] = LOOKEDFIRST :: else fi; \
		SEES(w) \
		if :: GROWS -> looked[w] = true :: else fi; \
		if :: lock == OTHER -> alien[w] = 1; saw[w] = true; if :: STRANGER -> word[w] = false :: else fi \
		:: lock != OTHER && alien[w] == 1 -> alien[w] = 2 \
		:: else fi; \
		if :: lock != FREE && lock != OTHER && !(know[w] & BIT(lock)) -> know[w] = know[w] | BIT(lock); open[w] = open[w] | BIT(lock) :: else fi; \
		if :: lock != FREE && lock != OTHER && SILENCE && MAYWATCH(w) && mute[lock] && looks[w] == 0 -> looks[w] = 1 :: else fi } \
	/* a try: refused, or granted */ \
	:: d_step { !done && ph[w] == LISTENS && !mine[w] && lock != FREE && word[w] -> printf("W%d is refused, by %d\n", w, lock); \
		met[w] = (lock == OTHER); \
		if :: VOIDS -> word[w] = false :: else fi } \
	:: d_step { !done && ph[w] == LISTENS && !mine[w] && lock == FREE && last < G -> printf("W%d is granted T%d\n", w, last + 1); \
		mine[w] = last + 1; waited[w] = 0; st[last + 1] = WAITS; entitled[last + 1] = !ENTITLED; \
		if :: LONG > DELAY && (know[w] & warned) -> warned = warned | BIT(last + 1) :: else fi; \
		if :: INHERITS && NEED(w) > DELAY -> longs = longs | BIT(last + 1) :: else fi; LEAVES(w) draws() } \
	:: d_step { !done && mine[w] && !mute[mine[w]] && EVIDENCE(w) -> printf("W%d starts T%d by evidence\n", w, mine[w]); t = mine[w]; starts(w, t, true); t = 0 } \
	:: d_step { !done && mine[w] && !mute[mine[w]] && waited[w] >= NEED(w) -> printf("W%d starts T%d after its delay\n", w, mine[w]); t = mine[w]; starts(w, t, false); t = 0 } \
	:: d_step { !done && mine[w] && !mute[mine[w]] -> printf("W%d gives T%d up\n", w, mine[w]); t = mine[w]; if :: !(QUIET && ENTITLED) -> says(t, true) :: else fi; ends(t); t = 0 } \
	:: d_step { !done && ph[w] != OFF && !mine[w] -> printf("W%d's session is lost\n", w); loses(w) } \
	/* the second look */ \
	:: d_step { !done && !mine[w] && looks[w] && mute[lock] && \
		looks[w] - 1 >= (ADDS -> NEED(w) - DELAY + LOOKS + (LEFT -> left[lock] : 0) : MAX(NEED(w) - DELAY + LOOKS, left[lock])) -> printf("W%d saw T%d silent\n", w, lock); basedfar[w] = LONG > DELAY && looks[w] - 1 >= LONG; t = lock; ends(t); t = 0; \
		open[w] = 0; word[w] = true; based[w] = true; alien[w] = 0; met[w] = false; SILENCED(w) \
		SETSILENT(w) }
#if !SILENCEVOIDS
#define SETSILENT(w) silent[w] = true
#else
#define SETSILENT(w) skip
#endif

init {
	d_step { st[1] = RUNS; sess[1] = true; entitled[1] = true; longs = (LONG > DELAY -> 1 : 0); far = longs; warned = longs }
	do
	RUN(1)
	RUN(2)
	RUN(3)
#if G >= 4
	RUN(4)
#endif
	WAITER(0)
#if WAITERS >= 2
	WAITER(1)
#endif
#if NEWCOMERS
	:: d_step { !done && lock == FREE && last < G - 1 -> printf("a newcomer starts T%d\n", last + 1); st[last + 1] = RUNS; entitled[last + 1] = !ALONE; draws() }
#endif
#if FOREIGN
	:: d_step { !done && lock == FREE && !ftree -> printf("another takes it\n"); lock = OTHER; ftree = true; fage = 0 }
	:: d_step { !done && lock == OTHER -> printf("another lets go\n"); lock = FREE }
	:: d_step { !done && ftree && lock != OTHER -> printf("another is dead\n"); ftree = false; fage = 0; saw[0] = false; saw[1] = false; met[0] = false; met[1] = false }
#endif
	:: d_step { !done && !(LATE(1) || LATE(2) || LATE(3)
#if G >= 4
		|| LATE(4)
#endif
		) && !(ftree && lock != OTHER && fage + 1 >= DELAY) -> printf("... time\n");
		older(1); older(2); older(3);
#if G >= 4
		older(4);
#endif
		if :: GROWS && lock != FREE && lock != OTHER && st[lock] == RUNS && !mute[lock] && !entitled[lock] -> held++;
			if :: held == DELAY -> entitled[lock] = true; held = 0 :: else fi :: else fi;
		ages(0); ages(1);
		if :: ftree && lock != OTHER -> fage++ :: else fi }
	:: done -> break
	od
}
