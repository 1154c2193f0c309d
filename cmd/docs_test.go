package cmd

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestManPages: each command has a page, with every section and every flag in
// the words of --help.
func TestManPages(t *testing.T) {
	files, err := Docs("1.2.3", "2026-01-02")
	if err != nil {
		t.Fatal(err)
	}
	root := newRootCmd("", newUI(nil), nil)
	root.InitDefaultCompletionCmd()
	for _, cmd := range append(subcommands(root), root) {
		t.Run(cmd.Name(), func(t *testing.T) {
			cmd.InitDefaultHelpFlag()
			page := files["man/"+pageName(cmd)+".1"]
			sections := []string{"NAME", "SYNOPSIS", "DESCRIPTION"}
			if cmd.HasAvailableSubCommands() {
				sections = append(sections, "COMMANDS")
			}
			sections = append(sections, "OPTIONS", "EXIT STATUS")
			if cmd.Name() != "completion" && cmd.Name() != "version" {
				sections = append(sections, "ENVIRONMENT")
				if cmd.Name() != "key" {
					sections = append(sections, "FILES")
				}
				sections = append(sections, "EXAMPLES")
			}
			sections = append(sections, "SEE ALSO")
			var got []string
			for _, m := range regexp.MustCompile(`(?m)^\.SH "(.*)"$`).FindAllStringSubmatch(page, -1) {
				got = append(got, m[1])
			}
			if !slices.Equal(got, sections) {
				t.Errorf("the page has the sections %q, want %q", got, sections)
			}

			_, options, _ := strings.Cut(page, `.SH "OPTIONS"`)
			options, rest, _ := strings.Cut(options, ".SH")
			cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
				if _, usage := pflag.UnquoteUsage(f); !f.Hidden && (!strings.Contains(options, escape("--"+f.Name)) || !strings.Contains(options, escape(usage))) {
					t.Errorf("--%s is not in the page as it is in --help", f.Name)
				}
			})
			if !strings.Contains(rest, "\n.TP\n") {
				t.Error("exitMeanings says nothing of it")
			}
		})
	}
	for page, meaning := range map[string]string{
		"run":      "75 The lock is held elsewhere, or paused.",
		"each":     "75 Some items were still held elsewhere, paused or kept from starting when --wait was over.",
		"stepdown": "75 The lock was still held when --wait was over.",
	} {
		if text := files["man/pglead-"+page+".1"]; !strings.Contains(unescaped(text), meaning) {
			t.Errorf("the page of %s lacks %q", page, meaning)
		}
	}
	for name, page := range files {
		if strings.HasPrefix(name, "man/") && regexp.MustCompile(`(?m)^'|^\.(SH|TP|PP|TH|RS|RE|nf|fi)\S`).MatchString(page) {
			t.Errorf("%s has text that troff takes for a request", name)
		}
	}
}

// unescaped is a page with each entry in a line.
func unescaped(page string) string {
	page = regexp.MustCompile(`(?m)^\\fB(.*)\\fR\n`).ReplaceAllString(page, "$1 ")
	return strings.ReplaceAll(page, `\-`, "-")
}

// TestUsage: help shows a flag's value and its text side by side, so the text doesn't begin with the
// value's name.
func TestUsage(t *testing.T) {
	for _, cmd := range newRootCmd("", newUI(nil), nil).Commands() {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if value, usage := pflag.UnquoteUsage(f); value != "" && strings.HasPrefix(usage, value) {
				t.Errorf("pglead %s --help: --%s %s   %s", cmd.Name(), f.Name, value, usage)
			}
		})
	}
}

// TestFileMap: the comment of the package names each file that isn't named after a command.
func TestFileMap(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	comment, _, _ := strings.Cut(read(t, "root.go"), "\npackage cmd\n")
	for _, file := range files {
		name := strings.TrimSuffix(file, ".go")
		known := isCommand(name) || name == "root" || regexp.MustCompile(`\b`+name+`\b`).MatchString(comment)
		if !strings.HasSuffix(name, "_test") && !known {
			t.Errorf("the comment in root.go lacks %s", name)
		}
	}
}

func TestExitMeanings(t *testing.T) {
	commands := []string{}
	for _, cmd := range subcommands(newRootCmd("", newUI(nil), nil)) {
		commands = append(commands, cmd.Name())
	}
	var got []int
	for _, e := range exitMeanings() {
		if code, err := strconv.Atoi(e.status); err == nil {
			got = append(got, code)
		}
		for _, name := range strings.Fields(e.commands) {
			if name != "completion" && !slices.Contains(commands, name) {
				t.Errorf("%s: there is no command %s", e.status, name)
			}
		}
	}
	slices.Sort(got)
	if want := append([]int{0}, exitStatuses()...); !slices.Equal(slices.Compact(got), want) {
		t.Errorf("the pages have the exit statuses %v, the code %v", slices.Compact(got), want)
	}
}
