package e2e

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestUnreadMessages: the command gets its TERM whether or not anybody can be told
// about it.
func TestUnreadMessages(t *testing.T) {
	const said = "pglead: unread: the command ran for all of the 300ms that --timeout allows; sending SIGTERM\n"
	job := `trap "touch terminated" TERM; until test -e terminated -a -e end; do sleep 0.01; done; exit 7`
	run := func(t *testing.T, stderr *os.File) *exec.Cmd {
		t.Helper()
		cmd := command(t, "run", "--key", "unread", "--timeout", "300ms", "--", "sh", "-c", job)
		cmd.Stderr = stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	ends := func(t *testing.T, cmd *exec.Cmd) {
		t.Helper()
		if !eventually(func() bool { _, err := os.Stat(filepath.Join(cmd.Dir, "terminated")); return err == nil }) {
			t.Error("the command gets no TERM")
		}
		if err := os.WriteFile(filepath.Join(cmd.Dir, "end"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		overdue := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		if !overdue.Stop() {
			t.Error("it never ends")
		}
		if code := cmd.ProcessState.ExitCode(); code != 124 {
			t.Errorf("%v, want status 124", cmd.ProcessState)
		}
	}
	full := func(t *testing.T) (reader, writer *os.File, filled int) {
		t.Helper()
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = reader.Close(), writer.Close() })
		_ = writer.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		filled, _ = writer.Write(make([]byte, 1<<20))
		return reader, writer, filled
	}
	t.Run("the reader is gone", func(t *testing.T) {
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = reader.Close()
		cmd := run(t, writer)
		_ = writer.Close()
		ends(t, cmd)
	})
	t.Run("nobody reads", func(t *testing.T) {
		_, writer, _ := full(t)
		ends(t, run(t, writer))
	})
	t.Run("somebody reads late", func(t *testing.T) {
		reader, writer, filled := full(t)
		cmd := run(t, writer)
		_ = writer.Close()
		if !eventually(func() bool { _, err := os.Stat(filepath.Join(cmd.Dir, "terminated")); return err == nil }) {
			t.Error("the command gets no TERM before anybody reads")
		}
		read := make(chan []byte)
		go func() {
			all, _ := io.ReadAll(reader)
			read <- all
		}()
		ends(t, cmd)
		if all := <-read; string(all[min(filled, len(all)):]) != said {
			t.Errorf("after %d bytes: %q, want %q", filled, all[min(filled, len(all)):], said)
		}
	})
}
