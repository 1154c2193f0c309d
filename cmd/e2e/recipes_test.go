package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRecipes runs what the recipes and README's crontab say, with programs that do nothing, and
// that nobody else may run at that time.
func TestRecipes(t *testing.T) {
	racesNothing(t)
	text, err := os.ReadFile("cmd/RECIPES.md")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, bytes.Join(regexp.MustCompile("(?ms)^```crontab\n.*?^```\n").FindAll(readme, -1), nil)...)
	home := openDir(t)
	programs := regexp.MustCompile(`\./[a-z]+(\.sh)?\b`).FindAllString(string(text), -1)
	for _, program := range programs {
		if err := os.WriteFile(filepath.Join(home, program), []byte("#!/bin/sh\necho ran $PGLEAD_LOCK_KEY\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	shell := func(t *testing.T, script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
		cmd.Env, cmd.Dir = append(testbed.environ(home), "PGLEAD_DSN="+testbed.server.DSN("postgres"), "PGLEAD_MIN_HOLD=0"), home
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
		return string(out)
	}
	step := regexp.MustCompile(`(?m)^ +(?:- run:|-) (pglead .*)$`)
	scheduled := regexp.MustCompile(`(?m)^\*/5 \* \* \* \* +(.*)$`)
	command := regexp.MustCompile(`(?m)command: \[(.*)\]$`)
	kinds := map[string]int{}
	for _, block := range regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		kind, body := block[1], block[2]
		var scripts []string
		switch kind {
		case "sh":
			scripts = strings.Split(strings.TrimSpace(body), "\n")
		case "yaml":
			for _, m := range step.FindAllStringSubmatch(body, -1) {
				scripts = append(scripts, m[1])
			}
			if m := command.FindStringSubmatch(body); m != nil {
				// For ever, but for the test.
				scripts = append(scripts, "PGLEAD_RESTART=never PGLEAD_FIRST_DELAY=0 "+strings.ReplaceAll(m[1], ", ", " "))
			}
		case "crontab":
			for _, m := range scheduled.FindAllStringSubmatch(body, -1) {
				if !strings.Contains(m[1], "--min-hold") || !strings.HasPrefix(body, "PATH=") {
					t.Errorf("this runs once on each machine, or nowhere: %s", body)
				}
				scripts = append(scripts, strings.ReplaceAll(m[1], "--min-hold 1m", ""))
			}
		case "sql":
			kinds[kind]++
			if out := shell(t, `psql -XAtq "$PGLEAD_DSN" <<"END"`+"\n"+body+"END"); out != "t\nt\n" {
				t.Errorf("%s: %s", body, out)
			}
		}
		for _, script := range scripts {
			kinds[kind]++
			if out := shell(t, script); !strings.Contains(script, "-q ") && !strings.Contains(script, "pglead key") && !strings.Contains(out, "ran ") {
				t.Errorf("%s: the program was not run: %s", script, out)
			}
		}
	}
	for kind, least := range map[string]int{"sh": 6, "yaml": 3, "crontab": 2, "sql": 1} {
		if kinds[kind] < least {
			t.Errorf("%d steps of %s were run, want %d", kinds[kind], kind, least)
		}
	}
}
