package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
)

// terminal is an interactive shell on a real terminal.
type terminal struct {
	t   *testing.T
	pty *os.File

	mu  sync.Mutex
	out []byte
}

// prompt shows in the terminal only when the shell has it: what is typed is
// echoed with the quotes that are missing here.
const prompt = "READY>"

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	shell := exec.CommandContext(t.Context(), "bash", "--norc", "--noediting", "-i")
	home := t.TempDir()
	shell.Env, shell.Dir = append(testbed.environ(home), "PS1="+prompt), home
	file, err := pty.StartWithSize(shell, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, pty: file}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 4096)
		for {
			n, err := file.Read(buf)
			term.mu.Lock()
			term.out = append(term.out, buf[:n]...)
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = shell.Process.Kill()
		_ = file.Close()
		_ = shell.Wait()
		<-ended
	})
	term.expect(prompt)
	return term
}

func (term *terminal) write(keys string) {
	term.t.Helper()
	if _, err := term.pty.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}

// suspend presses Ctrl-Z.
func (term *terminal) suspend() {
	term.t.Helper()
	term.write("\x1a")
	term.expect("Stopped")
	term.expect(prompt)
}

// expect waits for text, and forgets everything up to it. It returns what
// came before the text.
func (term *terminal) expect(text string) (before string) {
	term.t.Helper()
	if !eventually(func() bool {
		term.mu.Lock()
		defer term.mu.Unlock()
		i := bytes.Index(term.out, []byte(text))
		if i < 0 {
			return false
		}
		before = string(term.out[:i])
		term.out = term.out[i+len(text):]
		return true
	}) {
		term.mu.Lock()
		defer term.mu.Unlock()
		term.t.Fatalf("the terminal never shows %q, but:\n%s", text, term.out)
	}
	return before
}

// run types a line and returns what it prints until the shell is back.
func (term *terminal) run(line string) string {
	term.t.Helper()
	term.write(line + "\n")
	return term.expect(prompt)
}

func TestTerminal(t *testing.T) {
	t.Run("ctrl-c ends a loop", func(t *testing.T) {
		term := newTerminal(t)
		term.write("for i in 1 2 3; do pglead run --key tty1 -- sh -c 'echo st''arted; exec sleep 1000'; done\n")
		term.expect("started")
		term.write("\x03")
		if rest := term.expect(prompt); strings.Contains(rest, "started") {
			t.Errorf("the loop went on: %q", rest)
		}
	})
	t.Run("ctrl-c arrives once", func(t *testing.T) {
		term := newTerminal(t)
		term.write(`pglead run --key tty2 -- bash -c 'trap "echo in''terrupted" INT; echo st''arted; read; echo do''ne'` + "\n")
		term.expect("started")
		term.write("\x03")
		term.expect("interrupted")
		term.write("\n")
		if rest := term.expect("done"); strings.Contains(rest, "interrupted") {
			t.Error("one Ctrl-C arrived twice")
		}
	})
	t.Run("ctrl-z, bg and fg", func(t *testing.T) {
		term := newTerminal(t)
		term.write("pglead run --key tty3 -- bash -c 'echo st''arted $$; read x; echo \"go\"t $x'\n")
		term.expect("started ")
		pid, err := strconv.Atoi(term.expect("\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		term.suspend()
		// A command that has not noticed its stop yet may still read what is typed for the shell.
		if !eventually(func() bool { return stopped(pid) }) {
			t.Fatal("the command does not stop")
		}
		term.write("fg\n")
		term.expect("pglead run")
		term.write("hello\n")
		term.expect("got hello")
		term.expect(prompt)
		if out := term.run("echo status $?"); !strings.Contains(out, "status 0") {
			t.Errorf("after fg: %q", out)
		}
	})
	t.Run("a command that stops itself gives the terminal back", func(t *testing.T) {
		term := newTerminal(t)
		term.write("pglead run --key tty4 -- bash -c 'kill -STOP $$; echo con''tinued'\n")
		term.expect("Stopped")
		term.expect(prompt)
		term.write("fg\n")
		term.expect("continued")
		term.expect(prompt)
	})
	t.Run("a shell inside", func(t *testing.T) {
		term := newTerminal(t)
		term.write("pglead run --key tty5 -- bash --norc --noediting -i\n")
		term.expect(prompt)
		term.write("sleep 1000\n")
		if !eventually(func() bool { return exec.Command("pgrep", "-xf", "sleep 1000").Run() == nil }) {
			t.Fatal("no sleep")
		}
		term.suspend()
		// Not wait: it may return for a job that is still taken for stopped, and
		// then exit doesn't end the shell.
		term.run("kill %1; while jobs %1 >/dev/null 2>&1; do sleep 0.01; done")
		if out := term.run("echo $PGLEAD_LOCK_KEY"); !strings.Contains(out, "tty5\r\n") {
			t.Errorf("inside: %q", out)
		}
		term.write("exit 9\n")
		term.expect(prompt)
		if out := term.run("echo status $?"); !strings.Contains(out, "status 9") {
			t.Errorf("after the inner shell: %q", out)
		}
	})
	t.Run("an editor is killed", func(t *testing.T) {
		term := newTerminal(t)
		before := term.run("stty -g")
		term.write("pglead run --key tty7 --timeout 1s --kill-after 1s -- sh -c 'trap \"\" TERM; stty raw -echo; exec sleep 1000'\n")
		term.expect("killing it and all that it started")
		term.expect(prompt)
		if after := term.run("stty -g"); after != before {
			t.Errorf("the terminal's modes are %q, and were %q", after, before)
		}
	})
	t.Run("an editor dies of a signal", func(t *testing.T) {
		term := newTerminal(t)
		term.write("sh -c 'before=$(stty -g); pglead run --key tty9 --timeout 1s -- sh -c \"stty raw -echo; exec sleep 1000\"; test \"$(stty -g)\" = \"$before\" && echo sa\"\"me; stty \"$before\"'\n")
		term.expect("same")
		term.expect(prompt)
	})
	t.Run("a shell inside is killed", func(t *testing.T) {
		term := newTerminal(t)
		term.write("sh -c 'pglead run --key tty8 --timeout 1s --kill-after 1s -- bash --norc --noediting -i; echo \"ov\"er; read x; echo \"go\"t $x'\n")
		term.expect(prompt)
		term.expect("killing it and all that it started")
		term.expect("over") // otherwise the shell might read the next line before it is dead
		term.write("hello\n")
		term.expect("got hello")
		term.expect(prompt)
	})
	t.Run("a pager", func(t *testing.T) {
		term := newTerminal(t)
		term.write("seq 1000 | pglead run --key tty6 -- less\n")
		term.expect("\r\n:")
		term.write("G")
		term.expect("1000")
		term.write("q")
		term.expect(prompt)
	})
}
