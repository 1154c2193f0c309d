package hosts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// makePackages makes those of this machine's architecture by the command that
// .goreleaser.yaml has in its first lines, of all targets only that one. The
// others are beside the .deb.
func makePackages(t *testing.T) (deb string) {
	t.Helper()
	if deb := os.Getenv("DEB"); deb != "" {
		return deb
	}
	text, err := os.ReadFile(filepath.Join(top, ".goreleaser.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^# +(go run github.com/goreleaser/.*)$`).FindStringSubmatch(string(text))
	if command == nil {
		t.Fatal(".goreleaser.yaml doesn't say how to run it")
	}
	dist := t.TempDir()
	config := filepath.Join(t.TempDir(), "goreleaser.yaml")
	text = regexp.MustCompile(`(?m)^      - (linux|darwin|freebsd)_.*\n`).ReplaceAllFunc(text, func(line []byte) []byte {
		if strings.TrimSpace(string(line)) == "- linux_"+runtime.GOARCH {
			return line
		}
		return nil
	})
	if err := os.WriteFile(config, append(text, "\ndist: "+dist+"\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	args := strings.Fields(command[1])
	for _, args := range [][]string{append(slices.Clone(args[:3]), "check"), append(args, "--config", config)} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = top, t.Output(), t.Output()
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v", strings.Join(args, " "), err)
		}
	}
	debs, _ := filepath.Glob(filepath.Join(dist, "*.deb"))
	if len(debs) != 1 {
		t.Fatalf("the packages are %q", debs)
	}
	return debs[0]
}

// debian is the root of a Debian with systemd and cron.
func debian(t *testing.T) string {
	t.Helper()
	root := os.Getenv("HOSTS_ROOT")
	if root == "" {
		root = filepath.Join(t.TempDir(), "debian")
	}
	if _, err := os.Stat(filepath.Join(root, "usr/sbin/cron")); err != nil {
		run(t, "debootstrap", "--variant=minbase", "--include=systemd-sysv,dbus,cron", "bookworm", root)
		// These would go and fetch lists of packages.
		run(t, "systemctl", "--root="+root, "disable", "--quiet", "apt-daily.timer", "apt-daily-upgrade.timer")
	}
	return root
}

func (b *bench) testPackage(t *testing.T) {
	b.shell(t, `
		dpkg -i /shared/pglead.deb
		test -z "$(dpkg --verify pglead)"
		pglead version
		cd /usr/share/doc/pglead && test -s README.md -a -s cmd/RECIPES.md -a -s cmd/REFERENCE.md -a -s runner/README.md
		install -m 600 /shared/pglead.env /etc/
		install /shared/scheduler /shared/nightly /shared/fire /usr/local/bin/
		cd /usr/share/doc/pglead/examples && cp scheduler.service nightly.service nightly.timer /etc/systemd/system/
		mkdir /etc/systemd/system/scheduler.service.d /etc/systemd/system/nightly.service.d
		printf '[Service]\nReadWritePaths=/shared\n' | tee /etc/systemd/system/scheduler.service.d/shared.conf >/etc/systemd/system/nightly.service.d/shared.conf
		systemctl daemon-reload`)
	out := b.hosts[0].run(t, "sh", "-ec", `
		systemd-analyze verify /etc/systemd/system/scheduler.service /etc/systemd/system/nightly.timer
		zcat /usr/share/man/man1/pglead-run.1.gz | head -1
		bash -n /usr/share/bash-completion/completions/pglead
		. /etc/pglead.env; export PGLEAD_DSN; pglead run --key first -- echo ran`)
	if !strings.HasPrefix(out, `.TH "PGLEAD-RUN" "1"`) || !strings.HasSuffix(out, "\nran") {
		t.Errorf("the package: %s", out)
	}
}

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
		"/usr/share/doc/pglead/README.md", "/usr/share/doc/pglead/cmd/RECIPES.md",
		"/usr/share/doc/pglead/cmd/REFERENCE.md", "/usr/share/doc/pglead/runner/README.md", "/usr/share/doc/pglead/runner/WAYS.md",
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
