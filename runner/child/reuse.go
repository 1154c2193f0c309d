package child

// A guard can have several commands, one after the other, because its own start takes longer than a
// brief command. With a new guard for each `true`, pglead each would take 2.3 times as long, and
// 3.6 times with -P 4, where all wait for the processors.
//
// Whether a guard gets a second command depends on the first. The guard must have done nothing but
// start and reap the first one, so that nothing is left that could touch the second:
//
//	guardProcess.firstInstants   the command was dead within 20 ms, and nothing else happened
//	guardProcess.untilDead       it exited, and nothing of it is left; the report says Ready
//	Child.handOn                 pglead has sent no order that would reach the next command
//	Child.ReusableGuard          pglead takes the guard from the Child for the next command
//	guardProcess.receive         the next command begins anew, with a deadline of its own
//
// Such commands run in the guard's session, each in a group of its own (guardProcess.start).
// They share a control group, which is empty between two of them.

// orderState says whether orders for a command may go to its guard:
//
//	noOrders → ordersGiven      the guard ends with this command
//	noOrders → guardHandedOn    the command has ended, and the guard may have another
type orderState int

const (
	noOrders orderState = iota
	ordersGiven
	guardHandedOn
)

// handOn leaves the guard to another command, unless an order may be on its way to it.
func (c *Child) handOn() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.orders == ordersGiven {
		return false
	}
	c.orders = guardHandedOn
	return true
}

// ReusableGuard is the guard if it is ready for another command, or nil. It is ready with
// Config.KeepGuard, if the command ended by itself within an instant and left nothing
// behind, and nobody gave an order. ReusableGuard may be called after Done. The caller has to use
// or close the guard.
func (c *Child) ReusableGuard() *Guard {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.orders != guardHandedOn {
		return nil
	}
	return c.guard
}
