package main_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestSetupWithoutSudo: it says what root has to do, and does nothing.
func TestSetupWithoutSudo(t *testing.T) {
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
	for name, text := range map[string]string{"id": "echo 1000", "apt-get": "echo apt-get ran; exit 1", "initdb": ""} {
		if err := os.WriteFile(filepath.Join(path, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "testdata/setup", "versions")
	var out, said bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + path}, &out, &said
	err := cmd.Run()
	const want = "setup: this needs root's rights, and there is no sudo; as root:\n" +
		"  apt-get update && apt-get install -y --no-install-recommends npm\n"
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 || out.Len() > 0 || said.String() != want {
		t.Errorf("%v, standard output %q, standard error %q", err, &out, &said)
	}
}
