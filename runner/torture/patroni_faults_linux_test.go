package torture

import (
	"net/http"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// outage breaks something of the cluster, and mends it.
type outage struct {
	name string
	// strike does the damage and returns when what has to follow has happened.
	strike func(c *cluster, h scene)
	// mend undoes it. May be nil.
	mend func(c *cluster, h scene)
	// behind: a former primary runs on that Patroni doesn't see to. Only --quorum
	// has an answer to that.
	behind bool
}

// scene is who is who as a fault strikes.
type scene struct {
	primary, sync, async string
	client               string // where the first contest's leader is
	contests             []*contest
}

// times a Patroni has to notice what was done and to see to it.
const notice = 2 * time.Minute

// awaitLed waits for a leader in each contest whom the fault didn't strike.
// Without --quorum a former primary that runs on keeps its own.
func (c *cluster) awaitLed(h scene, behind bool) {
	c.t.Helper()
	if behind && !c.quorum {
		return
	}
	for _, x := range h.contests {
		c.await(x.modeName+": somebody leads after the fault", notice, x.ledAnew)
	}
}

// awaitNobody waits until nobody leads, as far as a busy machine lets witnesses tell.
func (c *cluster) awaitNobody(h scene) {
	c.t.Helper()
	for _, x := range h.contests {
		c.await(x.modeName+": nobody leads", notice, func() bool {
			return !slices.ContainsFunc(x.history(0), func(l life) bool { return uptime()-l.last < time.Second })
		})
	}
}

// awaitSuccessor waits for another primary, and for its leaders.
func (c *cluster) awaitSuccessor(h scene, behind bool) {
	c.t.Helper()
	c.await("another primary", notice, func() bool { return c.succeeded(h.primary) })
	c.awaitLed(h, behind)
}

// awaitOtherSync waits until Patroni has named another synchronous standby.
func (c *cluster) awaitOtherSync(h scene) {
	c.t.Helper()
	c.await("another synchronous standby", notice, func() bool {
		sync := c.inRole("sync_standby")
		return sync != "" && sync != h.sync
	})
}

// signalBoth reaches Patroni and PostgreSQL. Patroni is the first to be struck, so
// that it can't see to PostgreSQL, and the last to wake.
func (c *cluster) signalBoth(host string, sig unix.Signal) {
	programs := []string{"patroni", "postgres"}
	if sig == unix.SIGCONT {
		slices.Reverse(programs)
	}
	for _, program := range programs {
		c.signal(host, program, sig)
	}
}

// cutFromPeers lets a database host reach clients, and no other database host.
func (c *cluster) cutFromPeers(host string) {
	for _, other := range databaseHosts() {
		if other != host {
			c.net.cutFrom(host, other)
		}
	}
}

func outages() []outage {
	heal := func(c *cluster, h scene) { c.net.heal(h.primary) }
	return slices.Concat([]outage{
		{name: "switchover", strike: func(c *cluster, h scene) {
			c.order("switchover", h, h.primary, `{"leader": "`+h.primary+`", "candidate": "`+h.sync+`"}`)
			c.awaitLed(h, false)
		}},
		{name: "SIGKILL of PostgreSQL", strike: func(c *cluster, h scene) {
			c.killPostmaster(h.primary)
			c.awaitLed(h, false)
		}},
		{name: "SIGKILL of Patroni and PostgreSQL", strike: func(c *cluster, h scene) {
			c.signalBoth(h.primary, unix.SIGKILL)
			c.awaitSuccessor(h, false)
		}, mend: func(c *cluster, h scene) { c.startPatroni(h.primary) }},
		{name: "primary cut from its peers", strike: func(c *cluster, h scene) {
			c.cutFromPeers(h.primary)
			c.awaitSuccessor(h, false)
		}, mend: heal},
		{name: "primary cut from its peers, Patroni stopped", behind: true, strike: func(c *cluster, h scene) {
			c.signal(h.primary, "patroni", unix.SIGSTOP)
			c.cutFromPeers(h.primary)
			c.awaitSuccessor(h, true)
		}, mend: func(c *cluster, h scene) {
			heal(c, h)
			c.signal(h.primary, "patroni", unix.SIGCONT)
		}},
		{name: "primary cut from its clients", strike: func(c *cluster, h scene) {
			for _, host := range append(contestants(), proxyHost) {
				c.net.cutFrom(h.primary, host)
			}
			c.awaitNobody(h)
		}, mend: heal},
		{name: "the leader's host cut off", strike: func(c *cluster, h scene) {
			c.net.cut(h.client, true, true)
			c.awaitLed(scene{contests: slices.DeleteFunc(slices.Clone(h.contests), func(x *contest) bool { return x.struck.host != h.client })}, false)
		}, mend: func(c *cluster, h scene) { c.net.heal(h.client) }},
		{name: "SIGKILL of two of three etcds", strike: func(c *cluster, h scene) {
			for _, host := range []string{h.sync, h.async} {
				c.signal(host, "etcd", unix.SIGKILL)
			}
			c.awaitNobody(h)
		}, mend: func(c *cluster, h scene) {
			for _, host := range []string{h.sync, h.async} {
				c.startEtcd(host)
			}
		}},
	}, stops(), standbyOutages())
}

// stops are those in which something on the primary's host stands still.
func stops() []outage {
	stop := func(name string, signal func(c *cluster, host string, sig unix.Signal)) outage {
		return outage{name: "SIGSTOP of " + name, behind: true, strike: func(c *cluster, h scene) {
			signal(c, h.primary, unix.SIGSTOP)
			c.awaitSuccessor(h, true)
		}, mend: func(c *cluster, h scene) { signal(c, h.primary, unix.SIGCONT) }}
	}
	return []outage{
		stop("PostgreSQL", func(c *cluster, host string, sig unix.Signal) { c.signal(host, "postgres", sig) }),
		stop("Patroni", func(c *cluster, host string, sig unix.Signal) { c.signal(host, "patroni", sig) }),
		stop("Patroni and PostgreSQL", (*cluster).signalBoth),
	}
}

// standbyOutages take away those who confirm the commits.
func standbyOutages() []outage {
	return []outage{
		{name: "SIGKILL of the synchronous standby", strike: func(c *cluster, h scene) {
			c.signalBoth(h.sync, unix.SIGKILL)
			c.awaitOtherSync(h)
		}, mend: func(c *cluster, h scene) { c.startPatroni(h.sync) }},
		{name: "SIGSTOP of the synchronous standby", strike: func(c *cluster, h scene) {
			c.signalBoth(h.sync, unix.SIGSTOP)
			c.awaitOtherSync(h)
		}, mend: func(c *cluster, h scene) { c.signalBoth(h.sync, unix.SIGCONT) }},
		{name: "SIGKILL of both standbys, then a failover", behind: true, strike: failover, mend: func(c *cluster, h scene) {
			c.net.heal(h.primary)
			c.signal(h.primary, "patroni", unix.SIGCONT)
		}},
	}
}

// failover: the primary loses its standbys, which Patroni takes to heart, and is
// then itself lost to them, though not to its clients. So nobody may take its place
// when they come back, until somebody says that it has to be.
func failover(c *cluster, h scene) {
	for _, host := range []string{h.sync, h.async} {
		c.signalBoth(host, unix.SIGKILL)
	}
	c.await("no synchronous standby", notice, func() bool {
		return len(c.members()) > 0 && c.inRole("sync_standby") == ""
	})
	if c.quorum {
		c.awaitNobody(h)
	}
	c.signal(h.primary, "patroni", unix.SIGSTOP)
	c.cutFromPeers(h.primary)
	for _, host := range []string{h.sync, h.async} {
		c.startPatroni(host)
	}
	c.await("standbys without a primary", notice, func() bool {
		running := 0
		for _, m := range c.members() {
			if m.Role == "leader" {
				return false
			}
			if m.State == "running" && m.Name != h.primary {
				running++
			}
		}
		return running == 2
	})
	c.order("failover", h, h.sync, `{"candidate": "`+h.sync+`"}`)
	c.awaitLed(h, true)
}

// order has Patroni do something, which may be too busy for it at first, and waits
// for another primary.
func (c *cluster) order(what string, h scene, host, body string) {
	c.t.Helper()
	c.await(what+" "+body, notice, func() bool {
		if c.succeeded(h.primary) {
			return true
		}
		_, _, _ = c.ask(http.MethodPost, host, "/"+what, body)
		return false
	})
}
