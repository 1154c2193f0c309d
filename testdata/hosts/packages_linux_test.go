package hosts

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testOtherPackages installs the .rpm with rpm itself, into a root of its own,
// and removes it again. There is no apk for Debian: the .apk, which is an archive
// in three parts, is unpacked, and has to have what the .rpm has.
func testOtherPackages(t *testing.T, dist string) {
	t.Helper()
	one := func(pattern string) string {
		t.Helper()
		files, _ := filepath.Glob(filepath.Join(dist, pattern))
		if len(files) != 1 {
			t.Fatalf("%s are %q", pattern, files)
		}
		return files[0]
	}
	output := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	starts := func(root string) {
		t.Helper()
		if out := output(filepath.Join(root, "usr/bin/pglead"), "version"); !strings.HasPrefix(out, "pglead ") {
			t.Errorf("pglead version: %s", out)
		}
	}

	root := t.TempDir()
	rpm := func(args ...string) string { return output("rpm", append([]string{"--root", root}, args...)...) }
	rpm("--initdb")
	rpm("--nosignature", "-i", one("*.rpm"))
	starts(root)
	if out := rpm("-V", "pglead"); out != "" {
		t.Errorf("rpm -V: %s", out)
	}
	packaged := strings.Fields(rpm("-ql", "pglead"))
	for _, name := range []string{
		"/usr/bin/pglead", "/usr/share/man/man1/pglead-run.1.gz", "/usr/share/bash-completion/completions/pglead",
		"/usr/share/zsh/site-functions/_pglead", "/usr/share/licenses/pglead/LICENSE",
		"/usr/share/doc/pglead/README.md", "/usr/share/doc/pglead/cmd/README.md", "/usr/share/doc/pglead/runner/README.md",
	} {
		if !slices.Contains(packaged, name) {
			t.Errorf("the .rpm has no %s", name)
		}
	}
	rpm("-e", "pglead")
	for _, name := range packaged {
		if _, err := os.Lstat(filepath.Join(root, name)); err == nil {
			t.Errorf("rpm -e leaves %s", name)
		}
	}

	root = t.TempDir()
	output("tar", "--extract", "--gzip", "--ignore-zeros", "--directory", root, "--file", one("*.apk"))
	starts(root)
	if info, _ := os.ReadFile(filepath.Join(root, ".PKGINFO")); !strings.Contains(string(info), "pkgname = pglead\n") {
		t.Errorf(".PKGINFO: %s", info)
	}
	for _, name := range packaged {
		if _, err := os.Lstat(filepath.Join(root, name)); err != nil {
			t.Errorf("the .apk: %v", err)
		}
	}
}
