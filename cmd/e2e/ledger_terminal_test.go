package e2e

import (
	"strings"
	"testing"
)

// TestLedgerTerminal: what those who sit in front of a terminal are told, and asked.
func TestLedgerTerminal(t *testing.T) {
	if _, err := testbed.server.Query("postgres", "CREATE DATABASE ledger_terminal"); err != nil {
		t.Fatal(err)
	}
	term := newTerminal(t)
	term.run("export PGDATABASE=ledger_terminal; pglead ledger install")
	const daily = "pglead run --key tty/day --once-per day"
	if out := term.run(daily + " -- true"); strings.Contains(out, "done") {
		t.Errorf("the first of the day: %q", out)
	}
	if out := term.run(daily + " -- true; echo sta''tus $?"); !strings.Contains(out, "\r\npglead: tty/day: done already: 20") || !strings.HasSuffix(out, "status 0\r\n") {
		t.Errorf("the second: %q", out)
	}
	for _, quiet := range []string{daily + " -q -- true", daily + " -- true 2>&1 | cat"} {
		if out := term.run(quiet); strings.Contains(out, "done") {
			t.Errorf("%s: %q", quiet, out)
		}
	}

	const list = "pglead each --transaction --key 'tty/list/{}' 1"
	for command, want := range map[string]bool{list: true, list + " -q": false, list + " --once-per day": false} {
		out := term.run(command + " -- true")
		if got := strings.Contains(out, "\r\npglead: tty/list/{}: --transaction: items that another pglead has run meanwhile are run again; "); got != want {
			t.Errorf("%s: %q", command, out)
		}
	}

	// What each waits for is not done yet.
	term.run("pglead run --key tty/b -- true; pglead pause tty/b")
	term.write("pglead each --key 'tty/{}' --wait 1m a b -- true\n")
	term.expect("\rpglead: 1 of 2 items: 0 running, 1 ran, 0 failed, 0 skipped, 1 waited for")
	term.write("\x03")
	term.expect("\r\n" + prompt)

	term.write("pglead ledger uninstall; echo sta''tus $?\n")
	if out := term.expect("/ledger_terminal, with 6 runs of 4 keys. Go on? [y/N] "); !strings.Contains(out, "This removes the ledger in ") {
		t.Errorf("asked %q", out)
	}
	term.write("\n")
	if out := term.expect(prompt); !strings.Contains(out, "Nothing was removed.\r\nstatus 1\r\n") {
		t.Errorf("after a no: %q", out)
	}
	term.write("for i in 1 2; do pglead ledger uninstall; done\n")
	term.expect("[y/N] ")
	term.write("\x03")
	if out := term.expect(prompt); strings.Contains(out, "removed") {
		t.Errorf("after Ctrl-C: %q", out)
	}
	if out := term.run("echo sta''tus $?"); !strings.HasSuffix(out, "status 130\r\n") {
		t.Errorf("Ctrl-C: %q", out)
	}
	term.write("pglead ledger uninstall; echo sta''tus $?\n")
	term.expect("[y/N] ")
	term.write("y\n")
	if out := term.expect(prompt); !strings.Contains(out, "is gone, with all that it had\r\nstatus 0\r\n") {
		t.Errorf("after a yes: %q", out)
	}
}
