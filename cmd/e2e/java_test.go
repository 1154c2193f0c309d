package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestJavaHolds shares a lock with a Java program that takes it by JDBC and
// Guava, without a number that anyone has copied.
func TestJavaHolds(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	const jars = "/usr/share/java/"
	_, err := os.Stat(jars + "guava.jar")
	_, err2 := os.Stat(jars + "postgresql.jar")
	java, err3 := exec.LookPath("java")
	if err := errors.Join(err, err2, err3); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("NOT TESTED: Java, which testdata/setup tests installs:", err)
	}
	port := testserver.Port(t)
	// JDBC knows no Unix-domain sockets.
	server := throwaway(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})

	const key = "invoice_gen/SUB-1234"
	b := stage{dir: testbed.dir, server: server}
	pglead := func(command ...string) *exec.Cmd {
		home := t.TempDir()
		// The server is young and others may reach it: without a delay of 0 the
		// wait for a holder of its last life would be most of this test.
		args := append([]string{"run", "--key", key, "--lock-delay", "0", "--"}, command...)
		cmd := exec.CommandContext(t.Context(), filepath.Join(b.dir, "pglead"), args...)
		cmd.Env, cmd.Dir = append(b.environ(home), "PGPORT="+port), home
		return cmd
	}
	holdLock := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), java, "-cp", jars+"guava.jar:"+jars+"postgresql.jar", "testdata/interop/HoldLock.java",
			"jdbc:postgresql://127.0.0.1:"+port+"/postgres?user="+localpg.Superuser, key)
		cmd.Stderr = t.Output()
		return cmd
	}

	holder := holdLock()
	said, release := start(t, holder)
	if said != "granted" {
		t.Fatalf("the lock is free, and Java says %q", said)
	}
	var exit *exec.ExitError
	if out, err := pglead("echo", "ran").CombinedOutput(); !errors.As(err, &exit) || exit.ExitCode() != 75 || strings.Contains(string(out), "ran") {
		t.Errorf("Java holds the lock, and pglead ends with %v: %s", err, out)
	}
	release()
	if err := holder.Wait(); err != nil {
		t.Fatalf("Java: %v", err)
	}

	holder = pglead("sh", "-c", "echo holding; read line; echo over")
	holder.Stderr = t.Output()
	said, release = start(t, holder)
	if said != "holding" {
		t.Fatalf("Java has given the lock back, and pglead's command says %q", said)
	}
	if out, err := holdLock().Output(); err != nil || strings.TrimSpace(string(out)) != "refused" {
		t.Errorf("pglead holds the lock, and Java says %q (%v)", out, err)
	}
	release()
	if err := holder.Wait(); err != nil {
		t.Errorf("pglead: %v", err)
	}
}
