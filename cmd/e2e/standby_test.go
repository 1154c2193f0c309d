package e2e

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestStandbyCannotKnow: a standby has none of the primary's advisory locks, so whoever asks
// it about a lock gets no answer. What is in tables is there, and may be of yesterday.
func TestStandbyCannotKnow(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has servers of its own
	primary := throwaway(t, nil)
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	said := func(dsn string, args ...string) (status int, stdout, stderr string) {
		t.Helper()
		cmd := command(t, append(args, "--dsn", dsn)...)
		var out, diagnosis bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &diagnosis
		if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), out.String(), diagnosis.String()
	}
	if status, _, stderr := said(primary.DSN("postgres"), "ledger", "install"); status != 0 {
		t.Fatal(stderr)
	}
	started := filepath.Join(t.TempDir(), "started")
	holder := launch(t, "run", "--dsn", primary.DSN("postgres"), "--key", "nightly", "--", "sh", "-c", "touch "+started+"; exec sleep 1000")
	if !eventually(func() bool {
		_, rows, _ := said(standby.DSN("postgres"), "history", "nightly")
		return exists(started) && strings.Contains(rows, "running")
	}) {
		t.Fatalf("no run reaches the standby: %s", holder.said)
	}

	const hint = `pglead: hint: connect to the primary, or give all hosts \(host=a,b,c\): the primary among them is found\n`
	at := regexp.QuoteMeta(standby.Socket) + ":5432/postgres: "
	for _, args := range []string{
		"who nightly", "ls", "ls -o json", "ls -o prometheus", "ls --watch", "stepdown nightly", "stepdown nightly --force",
		"pause nightly", "resume nightly", "pause night*", "ledger install", "ledger prune", "ledger uninstall --yes",
	} {
		status, stdout, stderr := said(standby.DSN("postgres"), strings.Fields(args)...)
		if status != 78 || stdout != "" {
			t.Errorf("%s: status %d, %q", args, status, stdout)
		}
		says(t, stderr, "pglead: connect to "+at+"the server is a standby: its locks don't exclude anyone on the primary\n"+hint)
	}
	for args, want := range map[string]struct {
		status int
		text   string
	}{
		"history":                   {0, `KEY .*\nnightly +.* running +never\n`},
		"history nightly":           {0, `STARTED .*\n.* running \d+s \(token \d+\)\n`},
		"check nightly --within 1h": {1, `nightly: LATE, no success yet; running on .*\n`},
		"ledger status":             {0, `ledger in ` + strings.TrimSuffix(at, " ") + ` version (?s:.*)`},
	} {
		status, stdout, stderr := said(standby.DSN("postgres"), strings.Fields(args)...)
		if status != want.status {
			t.Errorf("%s: status %d", args, status)
		}
		says(t, stdout, want.text)
		says(t, stderr, "pglead: a standby answers in "+at+"it may lag behind the primary, and can't know whether what it shows as running still runs\n"+hint)
	}

	// Of all hosts the primary is found, as by run.
	both := strings.Replace(primary.DSN("postgres"), primary.Socket, standby.Socket+","+primary.Socket, 1)
	status, stdout, stderr := said(both, "who", "nightly")
	if status != 0 || stderr != "" {
		t.Errorf("who of all hosts: status %d, %s", status, stderr)
	}
	says(t, stdout, `\S+ \(sh, process \d+ of .*\).*\n`)
	status, stdout, stderr = said(both, "history", "nightly")
	if status != 0 || stderr != "" || !strings.Contains(stdout, "running") {
		t.Errorf("history of all hosts: status %d, %s%s", status, stdout, stderr)
	}
}

// TestMissingStandbys: whoever changes the ledger does not wait for synchronous standbys, as no run
// does.
func TestMissingStandbys(t *testing.T) {
	t.Parallel() // it has a server of its own
	racesNothing(t)
	server := throwaway(t, map[string]string{"synchronous_standby_names": "gone"})
	for _, step := range []struct{ args, says string }{
		{"ledger install", `ledger in (?s:.*)`},
		{"run --key nightly --lock-delay 0 -- true", ""},
		{"pause nightly", `nightly: no start until it is resumed .*\n`},
		{"resume nightly", `nightly: may start again; was paused with no end set .*\n`},
		{"ledger prune --older 0", `forgot \d+ rows?\n`},
		{"ledger uninstall --yes", `the ledger in .* is gone, with all that it had\n`},
	} {
		args := strings.Fields(step.args)
		args = slices.Insert(args, 1, "--dsn", server.DSN("postgres"))
		var out lockedBuffer
		c := candidate{command(t, args...), &lockedBuffer{}}
		c.Stdout, c.Stderr = &out, c.said
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if status := c.ends(); status != 0 || c.said.String() != "" {
			t.Errorf("%s: exit status %d, %s", step.args, status, c.said)
		}
		says(t, out.String(), step.says)
	}
}
