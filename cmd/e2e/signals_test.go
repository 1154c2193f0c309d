package e2e

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestInterruptFromElsewhere: in a terminal's foreground the command hears each
// SIGINT once, the terminal's and that which somebody sends to pglead alone.
func TestInterruptFromElsewhere(t *testing.T) {
	term := newTerminal(t)
	term.write(`pglead run --key elsewhere -- bash -c 'trap "n=\$((n+1)); echo in''terrupt \$n" INT; trap "echo qu''it" QUIT; echo st''arted $(ps -o ppid= -p $PPID) .; while test "$n" != 3; do read -t 0.01; done; echo do''ne $n'` + "\n")
	term.expect("started ")
	fields := strings.Fields(term.expect("\r\n"))
	pglead, err := strconv.Atoi(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(pglead, syscall.SIGINT)
	term.expect("interrupt 1")
	term.write("\x03")
	term.expect("interrupt 2")
	_ = syscall.Kill(pglead, syscall.SIGQUIT)
	if before := term.expect("quit"); strings.Contains(before, "interrupt") {
		t.Errorf("one Ctrl-C arrived twice: %q", before)
	}
	_ = syscall.Kill(pglead, syscall.SIGINT)
	term.expect("interrupt 3")
	term.expect("done 3")
	term.expect(prompt)
}

// TestNoSecondCore: the command's core file is the one that matters.
func TestNoSecondCore(t *testing.T) {
	cmd := exec.Command("bash", "-c", `ulimit -c unlimited 2>/dev/null; exec pglead run --key core -- sh -c 'kill -SEGV $$'`)
	home := t.TempDir()
	cmd.Env, cmd.Dir = testbed.environ(home), home
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatal(err)
	}
	status := exit.Sys().(syscall.WaitStatus)
	if !status.Signaled() || status.Signal() != syscall.SIGSEGV || status.CoreDump() {
		t.Errorf("status %v, core dumped: %v; want SIGSEGV without a core", status, status.CoreDump())
	}
}
