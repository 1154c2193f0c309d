package child

// GuardPID is the guard's process number, for tests that kill it.
func GuardPID(c *Child) int { return c.guard }
