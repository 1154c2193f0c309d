package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestSetup: it says what it installs and, if it can't, why, or what root has to do. The
// hundred lines of an installation that goes well are nobody's.
func TestSetup(t *testing.T) {
	for name, test := range map[string]struct {
		user, apt string
		status    int
		said      string
	}{
		"without sudo": {"1000", "echo apt-get ran; exit 1", 1, "setup: this needs root's rights, and there is no sudo; as root:\n" +
			`  apt-get update && apt-get install -y --no-install-recommends( \S+)+\n`},
		"well":             {"0", "echo Selecting; echo Unpacking >&2", 0, `setup: installing:( \S+)+\n`},
		"without a mirror": {"0", "echo Err:1; echo 'E: no network' >&2; exit 100", 100, `setup: installing:( \S+)+\nErr:1\nE: no network\n`},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			for _, name := range []string{"sh", "ls"} {
				program, err := exec.LookPath(name)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(program, filepath.Join(path, name)); err != nil {
					t.Fatal(err)
				}
			}
			for name, text := range map[string]string{"id": "echo " + test.user, "apt-get": test.apt, "initdb": ""} {
				if err := os.WriteFile(filepath.Join(path, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "testdata/setup", "hosts")
			var out, said bytes.Buffer
			cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + path}, &out, &said
			err := cmd.Run()
			if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if cmd.ProcessState.ExitCode() != test.status || out.Len() > 0 {
				t.Errorf("%v, standard output %q", err, &out)
			}
			says(t, said.String(), test.said)
		})
	}
}
