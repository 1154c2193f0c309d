package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// cluster is a primary and standbys of it, by their application_name.
func cluster(t *testing.T, synchronous string, names ...string) (primary *localpg.Server, standbys map[string]*localpg.Server) {
	t.Helper()
	primary = throwaway(t, map[string]string{"wal_receiver_status_interval": "100ms"})
	standbys = map[string]*localpg.Server{}
	for _, name := range names {
		standby, remove, err := primary.Standby(map[string]string{"cluster_name": name, "wal_retrieve_retry_interval": "100ms"}, "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(remove)
		standbys[name] = standby
	}
	synchronize(t, primary, synchronous)
	if n := len(names); n > 0 && !eventually(func() bool {
		return ask(t, primary, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")[0] == fmt.Sprint(n)
	}) {
		t.Fatal("the standbys never follow")
	}
	return primary, standbys
}

// synchronize sets a server's synchronous_standby_names.
func synchronize(t *testing.T, server *localpg.Server, names string) {
	t.Helper()
	ask(t, server, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'")
	ask(t, server, "SELECT pg_reload_conf()")
	if !eventually(func() bool { return ask(t, server, "SHOW synchronous_standby_names")[0] == names }) {
		t.Fatal("the setting is never read")
	}
}

// TestQuorumIsEmptied: a holder whose commits wait for nobody any more has no
// quorum, whether its last one was waiting then or not.
func TestQuorumIsEmptied(t *testing.T) {
	t.Parallel() // it has a server of its own
	for name, waits := range map[string]bool{"between commits": false, "while a commit waits": true} {
		t.Run(name, func(t *testing.T) {
			primary, standbys := cluster(t, "*", "a")
			started := filepath.Join(t.TempDir(), "started")
			holder := launch(t, "run", "--quorum", "--dsn", primary.DSN("postgres"), "--key", "k", "--lease", "20s", "--lock-delay", "0", "--",
				"sh", "-c", "touch "+started+"; exec sleep 98761")
			if !eventually(func() bool { return exists(started) }) {
				t.Fatalf("never starts: %s", holder.said)
			}
			if waits {
				if err := standbys["a"].Stop(syscall.SIGQUIT); err != nil {
					t.Fatal(err)
				}
				if !eventually(func() bool {
					return ask(t, primary, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")[0] == "1"
				}) {
					t.Fatal("no heartbeat waits for the standby")
				}
			}
			synchronize(t, primary, "")
			if status := holder.ends(); status != 76 || strings.Count(holder.said.String(), "\n") != 1 ||
				!strings.Contains(holder.said.String(), ": synchronous_standby_names is empty by now, so that a commit waits for no standby; the command (process ") {
				t.Errorf("status %d: %s", status, holder.said)
			}
		})
	}
}

// TestPrimaryLeftBehind: the holder of a primary that a failover has left behind
// lives for as long as that one has its standbys, and nobody starts elsewhere
// before a lock-delay after they came over: nor one whose first try comes long after
// the promotion.
func TestPrimaryLeftBehind(t *testing.T) {
	t.Parallel() // it has a server of its own
	old, standbys := cluster(t, "ANY 1 (a, b)", "a", "b")
	a, b := standbys["a"], standbys["b"]
	log := filepath.Join(t.TempDir(), "log")
	holder := launch(t, "run", "--quorum", "--dsn", old.DSN("postgres"), "--key", "k", "--lock-delay", "0", "--",
		"sh", "-c", alone(log)+"echo old >&9; exec sleep 98760")
	if !eventually(func() bool { return exists(log) && len(lines(t, log)) == 1 }) {
		t.Fatalf("never starts: %s", holder.said)
	}
	synchronize(t, a, "ANY 1 (a, b)")
	if err := a.Run("pg_ctl", "promote", "-w", "-D", a.Data); err != nil {
		t.Fatal(err)
	}
	ask(t, a, "CHECKPOINT")
	// What b is to be when it comes over, rewound.
	rewound, remove, err := a.Standby(map[string]string{"cluster_name": "elsewhere", "wal_receiver_status_interval": "100ms"}, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	if err := rewound.Stop(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rewound.Settings["cluster_name"] = "b"
	first := func(who string, more ...string) candidate {
		return launch(t, append([]string{"run", "--quorum", "--dsn", a.DSN("postgres") + " user=" + who, "--log-format", "json", "-v"}, more...)...)
	}

	// While b is there the old one's holder goes on, and nobody starts here.
	early := first(localpg.Superuser, "--key", "k", "--", "sh", "-c", alone(log)+"echo early >&9")
	if status := early.ends(); status != 69 || !strings.Contains(early.said.String(), "the synchronous standbys do not confirm the commit") {
		t.Errorf("status %d: %s", status, early.said)
	}
	if age := "SELECT clock_timestamp() - checkpoint_time > interval '10 s' FROM pg_control_checkpoint()"; !eventually(func() bool { return ask(t, a, age)[0] == "t" }) {
		t.Fatal("the new primary is never older than the lock-delay")
	}
	if said := lines(t, log); len(said) != 1 || holder.said.String() != "" {
		t.Fatalf("while its standby is there: %v %s", said, holder.said)
	}

	if err := errors.Join(b.Stop(syscall.SIGQUIT), rewound.StartLogged()); err != nil {
		t.Fatal(err)
	}
	newcomer := first(localpg.Superuser, "--key", "k", "--", "sh", "-c", alone(log)+"echo new >&9")
	status := newcomer.ends()
	if said := strings.Join(lines(t, log), " "); said != "old new" {
		t.Errorf("who ran: %s; %s", said, newcomer.said)
	}
	if delays := delayed(t, newcomer.said.String()); status != 0 || len(delays) != 1 || delays[0] != 10 {
		t.Errorf("status %d, delays %v: %s", status, delays, newcomer.said)
	}
	if status := holder.ends(); status != 76 {
		t.Errorf("status %d: %s", status, holder.said)
	}

	// Once the standbys have been here for a lock-delay a first try need not wait,
	// if its role may see them.
	ask(t, a, "CREATE ROLE blind LOGIN")
	for role, want := range map[string]int{localpg.Superuser: 0, "blind": 1} {
		c := first(role, "--key", "other", "--", "true")
		status := c.ends()
		if delays := delayed(t, c.said.String()); status != 0 || len(delays) != want {
			t.Errorf("%s: status %d, delays %v: %s", role, status, delays, c.said)
		}
	}
}

// TestEmptyForAWhile: after a failover synchronous_standby_names may be empty for
// a while. A run that tries once is refused, and one that waits goes on waiting.
func TestEmptyForAWhile(t *testing.T) {
	t.Parallel() // it has a server of its own
	primary, _ := cluster(t, "", "a")
	args := func(verb string, more ...string) []string {
		return append(append([]string{verb, "--quorum", "--dsn", primary.DSN("postgres"), "--key", verb, "--lock-delay", "0"}, more...), "--", "true")
	}
	const reason = "--quorum needs synchronous standbys, but synchronous_standby_names is empty"
	status, said := outcome(t, args("run")...)
	if status != 78 || said != "pglead: run: "+reason+"\npglead: hint: set it, for instance to 'ANY 1 (a, b)' with two standbys, or leave out --quorum\n" {
		t.Errorf("status %d: %s", status, said)
	}
	waits := []candidate{launch(t, args("run", "--wait", "forever", "-v")...), launch(t, args("lead", "--first-delay", "0", "--restart", "never", "-v")...)}
	for _, c := range waits {
		if !eventually(func() bool { return strings.Count(c.said.String(), reason) >= 2 || c.ProcessState != nil }) {
			t.Errorf("not said: %s", c.said)
		}
	}
	synchronize(t, primary, "*")
	for _, c := range waits {
		if status := c.ends(); status != 0 {
			t.Errorf("status %d: %s", status, c.said)
		}
	}
}

// TestStalePrimaryIsLeft: a primary without its standbys, though it can be reached,
// keeps nobody from the one behind it in the list of hosts; and the second connection
// goes where the first went.
func TestStalePrimaryIsLeft(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	stale, _ := cluster(t, "gone")
	good, _ := cluster(t, "*", "a")
	hosts := fmt.Sprintf("host=%s,%s user=%s dbname=postgres", stale.Socket, good.Socket, localpg.Superuser)
	began := time.Now()
	status, said := outcome(t, "run", "--quorum", "--dsn", hosts, "--key", "k", "--lease", "3s", "--wait", "1m", "--log-format", "json", "-v", "--", "true")
	if status != 0 || strings.Count(said, `"event":"waiting"`) > 2 || strings.Count(said, `"event":"away"`) != 1 || !strings.Contains(said, "the synchronous standbys do not confirm the commit") {
		t.Errorf("status %d after %v: %s", status, time.Since(began), said)
	}

	// A first host that takes connections and says nothing, as one behind a broken
	// path: asked once, and not for the second connection too.
	port := testserver.Port(t)
	tcp := throwaway(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	asked := 0
	go func() {
		for {
			conn, err := mute.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			asked++
			mu.Unlock()
			go func() { _, _ = io.Copy(io.Discard, conn) }()
		}
	}()
	t.Cleanup(func() { _ = mute.Close() })
	mutePort := mute.Addr().(*net.TCPAddr).Port
	for _, list := range []string{
		fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%d,%s", mutePort, port),
		fmt.Sprintf("host=127.0.0.1,%s port=%d,%s", tcp.Socket, mutePort, port),
		fmt.Sprintf("host=127.0.0.1,localhost port=%d,%s sslmode=disable", mutePort, port),
	} {
		mu.Lock()
		asked = 0
		mu.Unlock()
		status, said := outcome(t, "run", "--transaction", "--dsn", list+" user=pglead dbname=postgres sslmode=disable", "--connect-timeout", "1s", "--key", "k", "--lock-delay", "0", "--", "true")
		mu.Lock()
		if status != 0 || said != "" || asked != 1 {
			t.Errorf("%s: status %d, the mute host was asked %d times: %s", list, status, asked, said)
		}
		mu.Unlock()
	}
}

// TestFullOfCandidates: a server that has fewer connections than those who want
// two of them each still runs their commands.
func TestFullOfCandidates(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	for _, mode := range []string{"--transaction", "--quorum"} {
		t.Run(mode, func(t *testing.T) {
			const slots, reserved, candidates = 9, 3, 12
			server := throwaway(t, map[string]string{"max_connections": fmt.Sprint(slots), "superuser_reserved_connections": fmt.Sprint(reserved), "max_wal_senders": "2"})
			_, remove, err := server.Standby(map[string]string{"wal_receiver_status_interval": "100ms"}, "")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(remove)
			if mode == "--quorum" {
				synchronize(t, server, "*")
			}
			ask(t, server, "CREATE ROLE node LOGIN")
			dsn := strings.Replace(server.DSN("postgres"), "user="+localpg.Superuser, "user=node", 1)
			// All slots are taken by candidates before the first of them is granted the
			// lock, and that one has to wait before it may start.
			holder := connected(t, server, "SELECT pg_advisory_lock(7)")
			var ended sync.WaitGroup
			for range candidates {
				ended.Go(func() {
					status, said := outcome(t, "run", mode, "--dsn", dsn, "--key-scheme", "int", "--key", "7", "--wait", "1m", "--lease", "6s", "--lock-delay", "2s", "--", "true")
					// It is said once that the server is full, and that it has room again.
					if status != 0 || !regexp.MustCompile(`^(pglead: 7: ((still )?no connection to the database is free: .*|a connection to the database is free after .*)\n(pglead: hint: .*\n)?)*$`).MatchString(said) {
						t.Errorf("status %d: %s", status, said)
					}
				})
			}
			if !eventually(func() bool {
				n, err := server.Query("postgres", "SELECT count(*) >= 4 FROM pg_stat_activity WHERE usename = 'node'")
				return err == nil && n[0] == "t"
			}) {
				t.Error("the server is never full")
			}
			_ = holder.Close(t.Context())
			ended.Wait()
		})
	}
}

// TestDoctorCountsStandbys: so many of them have to confirm that the primaries
// before and after a failover can't both have enough.
func TestDoctorCountsStandbys(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	primary, _ := cluster(t, "", "a", "b", "c d")
	for names, want := range map[string][2]string{
		"ANY 2 (a, b, \"c d\")":    {"ok", "2 of 3"},
		"2(a,b,\"c d\")":           {"ok", "2 of 3"},
		"ANY 1 (a, b, \"c d\")":    {"fail", "ANY 2"},
		"a, b":                     {"fail", "FIRST 2"},
		"FIRST 1 (a)":              {"fail", "FIRST 2"},
		"*":                        {"fail", "FIRST 2"},
		"ANY 2 (*)":                {"ok", "2 of 3"},
		"ANY 2 (a, b, e, f, g, h)": {"warn", "ANY 3"},
		"ANY 4 (a, b, e, f)":       {"warn", "commits hang"},
	} {
		synchronize(t, primary, names)
		out, _ := command(t, "doctor", "--quorum", "--dsn", primary.DSN("postgres"), "-o", "json").Output()
		var report struct {
			Database []struct{ Name, Status, Seen, Advice string } `json:"database"`
		}
		if err := json.Unmarshal(out, &report); err != nil {
			t.Fatal(errors.Join(err, errors.New(string(out))))
		}
		found := false
		for _, check := range report.Database {
			if check.Name == "standbys" {
				found = true
				if check.Status != want[0] || !strings.Contains(check.Seen+check.Advice, want[1]) {
					t.Errorf("%s: %+v, want %v", names, check, want)
				}
			}
		}
		if !found {
			t.Errorf("%s: %s", names, out)
		}
	}
}

// TestEachWithQuorum: a list's items share one second connection, too.
func TestEachWithQuorum(t *testing.T) {
	t.Parallel() // it has a server of its own
	primary, _ := cluster(t, "*", "a")
	file := filepath.Join(t.TempDir(), "items")
	var items strings.Builder
	for i := range 20 {
		fmt.Fprintln(&items, i)
	}
	if err := os.WriteFile(file, []byte(items.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	ask(t, primary, "CREATE ROLE node LOGIN CONNECTION LIMIT 2")
	dsn := strings.Replace(primary.DSN("postgres"), "user="+localpg.Superuser, "user=node", 1)
	status, said := outcome(t, "each", "--quorum", "--dsn", dsn, "--key", "list/{}", "-P", "3", "-a", file, "--lease", "6s", "--lock-delay", "0", "--", "true")
	if status != 0 || said != "" {
		t.Errorf("status %d: %s", status, said)
	}
}
