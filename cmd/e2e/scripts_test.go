package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
)

func TestScripts(t *testing.T) {
	t.Parallel() // what else runs by then has a server, or keys, of its own
	pooler, statementPooler := pooled(t, "transaction", 3), pooled(t, "statement", 3)
	ledgerSQL := filepath.Join(testbed.dir, "ledger.sql")
	if err := os.WriteFile(ledgerSQL, []byte(ledger.InstallSQL(ledger.Plan{Keep: ledger.Keep})), 0o644); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			env.Vars = append(env.Vars, testbed.environ(env.WorkDir)...)
			env.Vars = append(env.Vars, "DSN="+testbed.server.DSN("postgres"), "SERVER="+testbed.server.Socket,
				"POOLER="+pooler, "STATEMENT_POOLER="+statementPooler, "LEDGER_SQL="+ledgerSQL, "LOGNAME=root") // whoever runs the tests
			return nil
		},
		Condition: func(what string) (bool, error) {
			if what != "pooler" {
				return false, fmt.Errorf("unknown condition %s", what)
			}
			return pooler != "", nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
			"sql":   sql,
			"await": await,
		},
	})
}

// exits STATUS COMMAND... runs a command that must end with that status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	if neg || err != nil || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND...")
	}
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = shellStatus(exit.ProcessState)
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// sql QUERY prints the values of a query's answer, one a line.
func sql(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: sql QUERY")
	}
	values, err := testbed.server.Query("postgres", args[0])
	ts.Check(err)
	for _, v := range values {
		fmt.Fprintln(ts.Stdout(), v)
	}
}

// await waits until a condition holds: exists FILE, held KEY, free KEY,
// waiting KEY, unwaited KEY, gone PATTERN (no process has that in its command
// line). For KEYs see lockOf.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await exists|held|free|waiting|unwaited|gone WHAT")
	}
	what := args[1]
	var condition func() bool
	switch args[0] {
	case "exists":
		condition = func() bool {
			_, err := os.Stat(ts.MkAbs(what))
			return err == nil
		}
	case "held":
		condition = func() bool { return testbed.holders(what) > 0 }
	case "free":
		condition = func() bool { return testbed.holders(what) == 0 }
	case "waiting":
		condition = func() bool { return testbed.settled(what) > 0 }
	case "unwaited":
		condition = func() bool { return testbed.waiters(what) == 0 }
	case "gone":
		condition = func() bool { return exec.Command("pgrep", "-f", what).Run() != nil }
	default:
		ts.Fatalf("await what?")
	}
	if !eventually(condition) {
		ts.Fatalf("never: %s", strings.Join(args, " "))
	}
}

// lockOf is the lock of a key, of slot i of a key that is written KEY@i, and,
// for int:N, that of the number itself.
func lockOf(key string) lockkey.ID {
	if number, ok := strings.CutPrefix(key, "int:"); ok {
		n, _ := strconv.ParseInt(number, 10, 64)
		return lockkey.ID{Number: n}
	}
	return lockkey.SipHash24(strings.Replace(key, "@", "\x00", 1))
}
