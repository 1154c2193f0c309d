package child

// A guard can have several commands, one after the other, because its own start takes longer than a
// brief command. With a new guard for each `true`, pglead each would take 2.3 times as long, and
// 3.6 times with -P 4, where all wait for the processors.
//
// Whether a guard gets a second command depends on the first. The guard must have done nothing but
// start and reap the first one, so that nothing is left that could touch the second:
//
//	guardProcess.firstInstants   the command was dead within 20 ms, and nothing else happened
//	guardProcess.untilDead       it exited, and nothing of it is left; the report says Idle
//	Child.end                    pglead has sent no order that would reach the next command
//	Guard.Idle                   pglead uses the guard for the next command
//	guardProcess.receive         the next command begins anew, with a deadline of its own
//
// Such commands run in the guard's session, each in a group of its own (guardProcess.start).
// They share a control group, which is empty between two of them.

// Idle says whether the guard can start a command. A new one can. After a command it can with
// Spec.KeepGuard, if the command ended by itself within an instant and left nothing behind, and
// nobody gave an order; Child.Done must be closed by then. An idle guard has to be used or closed.
// A nil guard is not idle.
func (g *Guard) Idle() bool { return g != nil && g.idle }
