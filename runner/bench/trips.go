//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// roundTrips counts them on the wire, by a relay in front of the server.
func (b *bench) roundTrips() error {
	dir, err := os.MkdirTemp(b.dir, "relay")
	if err != nil {
		return err
	}
	socket := ".s.PGSQL." + b.server.Settings["port"]
	r, err := listen(filepath.Join(dir, socket), filepath.Join(b.server.Socket, socket))
	if err != nil {
		return err
	}
	defer r.Close()
	env := through(b.unix, dir)
	f := &field{b: b}
	f.add("C and libpq", "", env, "floor", "try", key, "true")
	f.addPglead("", "", env, "--", "true")
	with, err := b.remembering()
	if err != nil {
		return err
	}
	f.addPglead(", with a ledger", "", through(with, dir), "--", "true")
	f.add("`psql -c lock -c '\\! true'`", "", env, "psql", "-X", "-q", "-c", "select pg_try_advisory_lock("+key+")", "-c", `\! true`)
	section("On the wire", "Between login and goodbye.", "| | round trips | messages there | messages back | bytes there | bytes back |\n|---|---|---|---|---|---|")
	for _, c := range f.list {
		if _, err := b.time(c.of); err != nil {
			return err
		}
		n := r.next()
		fmt.Printf("| %s | %d | %d | %d | %d | %d |\n", c.name, n.trips, n.there, n.back, n.bytesThere, n.bytesBack)
		if name, ours := strings.CutPrefix(c.name, "**pglead run**"); ours {
			b.goal("round trips after the login"+name, float64(n.trips), 3, "")
		}
	}
	return nil
}
