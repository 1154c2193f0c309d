package session

import (
	"context"
	"net"
	"path/filepath"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// Hosts are all of a configuration's hosts, the first included.
func Hosts(database *pgconn.Config) []*pgconn.FallbackConfig {
	return append([]*pgconn.FallbackConfig{{Host: database.Host, Port: database.Port, TLSConfig: database.TLSConfig}}, database.Fallbacks...)
}

// WithHosts returns a copy of the configuration with these hosts instead of its own.
func WithHosts(database *pgconn.Config, hosts []*pgconn.FallbackConfig) *pgconn.Config {
	c := database.Copy()
	c.Host, c.Port, c.TLSConfig, c.Fallbacks = hosts[0].Host, hosts[0].Port, hosts[0].TLSConfig, hosts[1:]
	return c
}

// route notes to which address a connection went, and what addresses the names of hosts had.
type route struct {
	address string
	looked  map[string][]string // the addresses of each host
}

// record makes the configuration's next connection note its route.
func (r *route) record(database *pgconn.Config) {
	dial, lookup := database.DialFunc, database.LookupFunc
	r.looked = map[string][]string{}
	database.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		r.address = address
		return dial(ctx, network, address)
	}
	database.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
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
	c := WithHosts(database, hosts)
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
