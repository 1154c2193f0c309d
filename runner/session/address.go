package session

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// Hosts are all of a configuration's hosts, the first included.
func Hosts(database *pgconn.Config) []*pgconn.FallbackConfig {
	return append([]*pgconn.FallbackConfig{{Host: database.Host, Port: database.Port, TLSConfig: database.TLSConfig}}, database.Fallbacks...)
}

// EachHost returns a configuration for each host. With sslmode=prefer a host is tried twice, and
// counts once.
func EachHost(database *pgconn.Config) []*pgconn.Config {
	var list []*pgconn.Config
	for _, f := range Hosts(database) {
		i := slices.IndexFunc(list, func(c *pgconn.Config) bool { return c.Host == f.Host && c.Port == f.Port })
		if i >= 0 { // with another sslmode
			list[i].Fallbacks = append(list[i].Fallbacks, f)
			continue
		}
		list = append(list, withHosts(database, []*pgconn.FallbackConfig{f}))
	}
	return list
}

// Elsewhere returns the database with another host first than the one that gave err, and how many
// others there are. It does so only for an error that another host may not give: after a failover
// the primary that was left behind has no standbys, but the new one may have some. For any other
// error it returns the database as it is, and 0.
func Elsewhere(database *pgconn.Config, err error) (next *pgconn.Config, others int) {
	var e *Error
	if !errors.As(err, &e) || e.at == nil {
		return database, 0
	}
	there := configHosts(e.at)
	hosts := Hosts(database)
	slices.SortStableFunc(hosts, func(a, b *pgconn.FallbackConfig) int {
		last := func(f *pgconn.FallbackConfig) int {
			if f.Port == e.at.Port && slices.Contains(there, f.Host) {
				return 1
			}
			return 0
		}
		return last(a) - last(b)
	})
	return withHosts(database, hosts), len(EachHost(database)) - 1
}

// withHosts returns a copy of the configuration with these hosts instead of its own.
func withHosts(database *pgconn.Config, hosts []*pgconn.FallbackConfig) *pgconn.Config {
	c := database.Copy()
	c.Host, c.Port, c.TLSConfig, c.Fallbacks = hosts[0].Host, hosts[0].Port, hosts[0].TLSConfig, hosts[1:]
	return c
}

// route notes to which address a connection went, and what addresses the names of hosts had.
type route struct {
	address string
	looked  map[string][]string // the addresses of each host
}

// record makes the configuration's next connection note its route, and call trying at each step
// of it that may take long.
func (r *route) record(database *pgconn.Config, trying func()) {
	if trying == nil {
		trying = func() {}
	}
	dial, lookup := database.DialFunc, database.LookupFunc
	r.looked = map[string][]string{}
	database.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		r.address = address
		trying()
		return dial(ctx, network, address)
	}
	database.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		trying()
		found, err := lookup(ctx, host)
		r.looked[host] = found
		return found, err
	}
}

// pin returns a configuration that connects only to the noted address, with the TLS settings of the
// host that has it.
func (r route) pin(database *pgconn.Config) *pgconn.Config {
	hosts := slices.DeleteFunc(Hosts(database), func(f *pgconn.FallbackConfig) bool { return !r.isTo(f) })
	if len(hosts) == 0 {
		return database
	}
	c := withHosts(database, hosts)
	c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{r.address}, nil }
	return c
}

// isTo says whether a host has the address.
func (r route) isTo(f *pgconn.FallbackConfig) bool {
	if filepath.IsAbs(f.Host) {
		_, address := pgconn.NetworkAddress(f.Host, f.Port)
		return address == r.address
	}
	return slices.ContainsFunc(r.looked[f.Host], func(found string) bool {
		if _, _, err := net.SplitHostPort(found); err == nil {
			return found == r.address
		}
		_, address := pgconn.NetworkAddress(found, f.Port)
		return address == r.address
	})
}
