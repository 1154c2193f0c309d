package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestFence moves locks, and the jobs that the reference's SQL fences, from one cluster to
// another.
func TestFence(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	text, err := os.ReadFile("cmd/REFERENCE.md")
	if err != nil {
		t.Fatal(err)
	}
	statements := regexp.MustCompile(`(?s)UPDATE jobs SET [^;]*;`).FindAllString(string(text), -1)
	if len(statements) != 2 {
		t.Fatalf("the reference has the statements %q, want the fence and its move", statements)
	}
	fence, move := statements[0], statements[1]

	older, newer := fencedCluster(t), fencedCluster(t)
	older.psql("", "", "CREATE TABLE jobs (key text PRIMARY KEY, fence bigint DEFAULT 0, cluster bigint); INSERT INTO jobs VALUES ('invoices')")
	older.psql("", "", strings.Repeat("SELECT pg_current_xact_id();", 30)) // what makes its tokens the larger ones
	spent := older.grant()
	write := func(in *fencing, with grant, want string) {
		t.Helper()
		if got := in.psql(with.token, with.system, fence); got != want {
			t.Errorf("with the token %s of the cluster %s: %s, want %s", with.token, with.system, got, want)
		}
	}
	write(older, spent, "UPDATE 0") // nobody has said yet where the locks are
	here := older.psql("", "", "SELECT system_identifier FROM pg_control_system()")
	if here != spent.system {
		t.Errorf("PGLEAD_SYSTEM_ID is %s, the server says %s", spent.system, here)
	}
	older.psql("", here, move)
	write(older, spent, "UPDATE 1")
	last := older.grant()
	write(older, last, "UPDATE 1")
	write(older, last, "UPDATE 1")
	write(older, spent, "UPDATE 0")

	program := filepath.Join(older.server.Programs.Dir, "pg_dump")
	if _, err := os.Stat(program); err != nil {
		t.Skip("NOT TESTED: the move to another cluster, since these server programs come without pg_dump")
	}
	dump := exec.CommandContext(t.Context(), program, "-t", "jobs", "--column-inserts", older.server.DSN("postgres"))
	sql, err := dump.Output()
	if err != nil {
		t.Fatal(err)
	}
	newer.psql("", "", string(sql))
	first := newer.grant()
	if number(t, first.token) >= number(t, spent.token) {
		t.Errorf("the new cluster gives the token %s after the old one's %s: nothing is tried", first.token, spent.token)
	}
	write(newer, first, "UPDATE 0")
	newer.psql("", newer.psql("", "", "SELECT system_identifier FROM pg_control_system()"), move)
	write(newer, first, "UPDATE 1")
	write(newer, newer.grant(), "UPDATE 1")
	write(newer, first, "UPDATE 0")
	write(newer, last, "UPDATE 0") // larger, and of a job that nobody has told
}

// fencing is a server whose locks are fenced.
type fencing struct {
	t      *testing.T
	server *localpg.Server
}

func fencedCluster(t *testing.T) *fencing {
	t.Helper()
	return &fencing{t, testserver.StartApart(t, nil)}
}

func number(t *testing.T, text string) (n int64) {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

type grant struct{ token, system string }

func (c *fencing) grant() grant {
	c.t.Helper()
	cmd := command(c.t, "run", "--key", "invoices", "--lock-delay", "0", "--", "sh", "-c", "echo $PGLEAD_TOKEN $PGLEAD_SYSTEM_ID")
	cmd.Env = append(cmd.Env, "PGLEAD_DSN="+c.server.DSN("postgres"))
	out, err := cmd.Output()
	var g grant
	if _, scanErr := fmt.Sscan(string(out), &g.token, &g.system); err != nil || scanErr != nil {
		c.t.Fatalf("%q: %v", out, err)
	}
	return g
}

// psql runs SQL with the reference's variables and returns the last line of its answer.
func (c *fencing) psql(token, system, sql string) string {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), "psql", "-XAt", "-v", "ON_ERROR_STOP=1", "-v", "token="+token, "-v", "system_id="+system, c.server.DSN("postgres"))
	cmd.Stdin = strings.NewReader(sql)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s: %v: %s", sql, err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
