package e2e

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// TestPreparedHolder: a transaction that somebody has prepared, and forgotten, keeps a lock without
// a session. Every command says so, and what ends it.
func TestPreparedHolder(t *testing.T) {
	t.Parallel() // it has a server of its own
	server := throwaway(t, map[string]string{"max_prepared_transactions": "1"})
	// That is what pglead key prep prints.
	ask(t, server, "BEGIN; SELECT pg_advisory_xact_lock(-4201323886811716453); PREPARE TRANSACTION 'forgotten'")
	const holder = `a prepared transaction; pg_prepared_xacts lists them, and COMMIT PREPARED or ROLLBACK PREPARED ends one\n`
	const nobody = `pglead: there is no session to ask or to end: the lock is held by ` + holder
	for args, want := range map[string]struct {
		status         int
		stdout, stderr string
	}{
		"run --key prep -- true":           {75, ``, `pglead: prep: the lock in \S+ is held elsewhere: by ` + holder},
		"run --key prep --wait 1s -- true": {75, ``, `pglead: prep: the lock in \S+ was held elsewhere for all of the 1s that --wait allows: by ` + holder},
		"who prep":                         {0, holder, ``},
		"ls":                               {0, `KEY .*\nnumber -4201323886811716453 +exclusive +\(a prepared transaction\) +0\n`, ``},
		"stepdown prep":                    {64, ``, nobody},
		"stepdown prep --force":            {64, ``, nobody},
	} {
		cmd := command(t, append(strings.Fields(args)[:1:1], append([]string{"--dsn", server.DSN("postgres")}, strings.Fields(args)[1:]...)...)...)
		var out, diagnosis bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &diagnosis
		if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Fatal(err)
		}
		if status := cmd.ProcessState.ExitCode(); status != want.status {
			t.Errorf("%s: status %d, want %d", args, status, want.status)
		}
		says(t, out.String(), want.stdout)
		says(t, diagnosis.String(), want.stderr)
	}
}
