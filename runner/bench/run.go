//go:build linux

package main

import (
	"os"
	"path/filepath"
	"time"
)

// key is the lock that everything here uses: a number, for programs that don't know
// names.
const key = "7"

// numbered makes pglead take the key for a number, too.
func numbered() []string { return []string{"PGLEAD_KEY_SCHEME=int"} }

// uncontended measures a free lock, and a command that does nothing.
func (b *bench) uncontended() error {
	f := &field{b: b}
	for _, way := range []struct {
		name string
		env  []string
	}{{"", b.unix}, {", TCP", b.tcp}, {", TLS and SCRAM", b.tls}} {
		floor := "C and libpq" + way.name
		f.add(floor, "", way.env, "floor", "try", key, "true")
		f.addPglead(way.name, floor, way.env, "--", "true")
		if way.name == "" {
			f.addEvicted(way.env, "--", "true")
		}
		f.add("`psql -c lock -c '\\! true'`"+way.name, floor, way.env, "psql", "-X", "-q", "-c", "select pg_try_advisory_lock("+key+")", "-c", `\! true`)
	}
	f.add("`psql -c 'select pg_try_advisory_lock(1)'`", "C and libpq", b.unix, "psql", "-X", "-q", "-c", "select pg_try_advisory_lock("+key+")")
	f.add("`flock`", "C and libpq", b.unix, "flock", filepath.Join(b.dir, "lockfile"), "true")
	stop, err := b.addEtcd(f, "C and libpq", "true")
	if err != nil {
		return err
	}
	defer stop()
	stopConsul, err := b.addConsul(f, "C and libpq", "true")
	if err != nil {
		return err
	}
	defer stopConsul()
	if err := f.race(); err != nil {
		return err
	}
	f.print("A free lock and `true`", "")
	b.goal("run against the C floor", f.against("**pglead run**", "C and libpq"), 1.12, " ×")
	b.goal("run against the C floor, TCP", f.against("**pglead run**, TCP", "C and libpq, TCP"), 1.2, " ×")
	b.goal("run against the C floor, TLS and SCRAM", f.against("**pglead run**, TLS and SCRAM", "C and libpq, TLS and SCRAM"), 1.2, " ×")
	b.goal("run against `psql -c lock -c '\\! true'`", f.against("**pglead run**", "`psql -c lock -c '\\! true'`"), .6, " ×")
	if etcd := f.named("`etcdctl lock`"); len(etcd.walls) > 0 {
		b.goal("run against `etcdctl lock`", f.against("**pglead run**", "`etcdctl lock`"), .65, " ×")
	}
	return nil
}

// refused measures a lock that somebody else holds.
func (b *bench) refused() error {
	release, err := b.holdKey()
	if err != nil {
		return err
	}
	defer release()
	f := &field{b: b}
	f.add("C and libpq", "", b.unix, "floor", "try", key, "true").status = 75
	f.addRefused("", "C and libpq", b.unix)
	evicted := f.addEvicted(b.unix, "--wait", "0", "--", "true")
	evicted.status, evicted.of.quiet = 75, true
	f.addRefused(" -q", "C and libpq", b.unix, "-q")
	f.add("`psql -c 'select pg_try_advisory_lock(1)'`", "C and libpq", b.unix, "psql", "-X", "-q", "-c", "select pg_try_advisory_lock("+key+")")
	held, err := os.Create(filepath.Join(b.dir, "lockfile"))
	if err != nil {
		return err
	}
	defer held.Close()
	holder, err := b.program(b.unix, "flock", "-n", held.Name(), "sleep", "1000")
	if err == nil {
		sleeper, err := holder.start(nil, nil)
		if err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
		defer func() {
			for _, pid := range children(sleeper.Pid) {
				if child, err := os.FindProcess(pid); err == nil {
					_ = child.Kill()
				}
			}
			_, _ = sleeper.Wait()
		}()
		f.add("`flock -n`", "C and libpq", b.unix, "flock", "-n", held.Name(), "true").status = 1
	}
	if err := f.race(); err != nil {
		return err
	}
	f.print("A lock that is held elsewhere, `--wait 0`", "")
	b.goal("refused against the C floor", f.against("**pglead run**", "C and libpq"), 1, " ×")
	b.goal("refused, -q, against the C floor", f.against("**pglead run** -q", "C and libpq"), 1, " ×")
	return nil
}
