package child

// GuardPID is the guard's process number, for tests that kill it.
func GuardPID(c *Child) int { return c.guard.pid }

// UnusedPID is that of a guard that has no command yet.
func UnusedPID(g *Guard) int { return g.pid }

// HangUp is what the guard sees of this process's death.
func HangUp(c *Child) { c.guard.hangUp() }
