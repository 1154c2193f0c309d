package cmd

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglead/pglead/lockkey"
)

const (
	reference = "REFERENCE.md"
	readme    = "../README.md"
)

func read(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// section returns what a page has under a heading.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(read(t, page), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// rows returns the cells of the rows of the tables under a heading of a page.
func rows(t *testing.T, page, heading string) [][]string {
	t.Helper()
	var table [][]string
	for line := range strings.Lines(section(t, page, heading)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| flag") || strings.HasPrefix(line, "| code") || strings.HasPrefix(line, "| scheme") {
			continue
		}
		line = strings.ReplaceAll(strings.TrimSpace(line), `\|`, "\x00")
		var cells []string
		for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(strings.ReplaceAll(cell, "\x00", "|")))
		}
		table = append(table, cells)
	}
	return table
}

// TestReadmeRows: a row of README's table of flags is one of the reference, which says more.
func TestReadmeRows(t *testing.T) {
	whole := map[string][]string{}
	for _, row := range rows(t, reference, "Flags") {
		whole[row[0]] = row
	}
	short := rows(t, readme, "Flags")
	if len(short) < 5 {
		t.Errorf("README has %d flags", len(short))
	}
	for _, row := range short {
		same := slices.EqualFunc(row, whole[row[0]], func(begins, text string) bool { return strings.HasPrefix(text, begins) })
		if !same {
			t.Errorf("README has %q, and the reference %q", row, whole[row[0]])
		}
	}
}

// TestReadmeExitStatus: the reference has each exit status that README names.
func TestReadmeExitStatus(t *testing.T) {
	named := regexp.MustCompile(`\b[0-9]{2,3}\b`).FindAllString(section(t, readme, "Exit status"), -1)
	if len(named) < 3 {
		t.Errorf("README has the exit statuses %v", named)
	}
	for _, code := range named {
		if !slices.ContainsFunc(rows(t, reference, "Exit status"), func(row []string) bool { return row[0] == code }) {
			t.Errorf("README has the exit status %s, and the reference has not", code)
		}
	}
}

// TestReferenceFlags: the reference has each flag, with its short form and default.
func TestReferenceFlags(t *testing.T) {
	u := newUI(io.Discard)
	all := map[string]*pflag.Flag{}
	for _, cmd := range []*cobra.Command{newRunCmd(u), newLeadCmd(u), newEachCmd(u)} {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if all[f.Name] == nil {
				all[f.Name] = f
			}
		})
	}
	spelling := regexp.MustCompile("^`(?:-(.), )?--([a-z-]+)")
	var documented []string
	for _, row := range rows(t, reference, "Flags") {
		m := spelling.FindStringSubmatch(row[0])
		if m == nil {
			t.Errorf("row %q names no flag", row[0])
			continue
		}
		documented = append(documented, m[2])
		flag := all[m[2]]
		if flag == nil {
			t.Errorf("the reference has --%s, which does not exist", m[2])
			continue
		}
		if flag.Shorthand != m[1] {
			t.Errorf("--%s: the reference has the short form %q, the command %q", m[2], m[1], flag.Shorthand)
		}
		if want := regexp.MustCompile("^`([^`]+)`").FindStringSubmatch(row[2]); want != nil && m[2] != "kill-after" && flag.DefValue != want[1] {
			t.Errorf("--%s: the reference has the default %q, the command %q", m[2], want[1], flag.DefValue)
		}
	}
	for name := range all {
		if !slices.Contains(documented, name) {
			t.Errorf("the reference has no --%s", name)
		}
	}
}

func exitStatuses() []int {
	return []int{
		exitNo, exitUsage, exitUnreachable, exitInternal, exitConflict, exitLost, exitDenied, exitUnsafe,
		exitSomeFailed, exitTimeout, exitNotExecutable, exitNotFound,
	}
}

// TestReferenceSchemes: the reference has each key scheme, as pglead key --help explains it.
func TestReferenceSchemes(t *testing.T) {
	said, want := rows(t, reference, "Keys of other programs"), [][]string{}
	for _, s := range lockkey.Schemes() {
		want = append(want, []string{"`" + s.Name + "`", s.About})
	}
	if !slices.EqualFunc(said, want, slices.Equal[[]string]) {
		t.Errorf("the reference has %q, want %q", said, want)
	}
}

func TestReferenceExitStatus(t *testing.T) {
	want := exitStatuses()
	var got []int
	for _, row := range rows(t, reference, "Exit status") {
		if code, err := strconv.Atoi(row[0]); err == nil {
			got = append(got, code)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the reference has the exit statuses %v, the code %v", got, want)
	}
}

// TestVariables: each variable that the pages name is a flag's, or one that the command gets
// and a pglead in it does not pass on.
func TestVariables(t *testing.T) {
	flags := newRunCmd(newUI(io.Discard)).Flags()
	for _, name := range regexp.MustCompile(`PGLEAD_[A-Z_]+`).FindAllString(read(t, reference)+read(t, readme), -1) {
		flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, envPrefix), "_", "-"))
		if flags.Lookup(flag) == nil && !slices.Contains(lockVariables(), name) {
			t.Errorf("the pages name %s, which is neither a flag's nor the lock's", name)
		}
	}
}

// sources is the code that logs.
func sources(t *testing.T) string {
	t.Helper()
	var code strings.Builder
	for _, dir := range []string{".", "../runner", "../runner/child", "../runner/ledger", "../runner/lock"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(text)
		}
	}
	return code.String()
}

// TestReferenceMessages: the code has each message that the reference quotes.
func TestReferenceMessages(t *testing.T) {
	code, checked := sources(t), 0
	for _, row := range rows(t, reference, "Logs") {
		for i, quoted := range strings.Split(row[2], "`") {
			if i%2 == 0 || !strings.Contains(quoted, " ") {
				continue
			}
			for _, part := range strings.Split(quoted, "…") {
				checked++
				if !strings.Contains(code, strings.TrimSpace(part)) {
					t.Errorf("the reference quotes %q, and the code has no %q", quoted, part)
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d parts of messages were looked up", checked)
	}
}

// TestReferenceEvents: the reference has each event that the code logs, and no other.
func TestReferenceEvents(t *testing.T) {
	code := sources(t)
	var documented []string
	for _, row := range rows(t, reference, "Logs") {
		for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(row[0], -1) {
			documented = append(documented, name[1])
			if !strings.Contains(code, strconv.Quote(name[1])) {
				t.Errorf("the reference has the event %s, and the code has not", name[1])
			}
		}
	}
	said := regexp.MustCompile(`"event", "([a-z_]+)"`).FindAllStringSubmatch(code, -1)
	if len(said) == 0 {
		t.Error("the code says nothing")
	}
	for _, event := range said {
		if !slices.Contains(documented, event[1]) {
			t.Errorf("the code says %s, and the reference doesn't", event[1])
		}
	}
}
