package cmd

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLinks: the files and headings of this repository that its pages link to exist.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	found := 0
	err := filepath.WalkDir("..", func(page string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(page) != ".md" {
			return err
		}
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			found++
			file, heading, _ := strings.Cut(m[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			} else if heading != "" && !anchors(t, target)[heading] {
				t.Errorf("%s links to %s, but there is no such heading", page, m[1])
			}
		}
		return nil
	})
	if err != nil || found < 10 {
		t.Errorf("%d links: %v", found, err)
	}
}

// TestPackagedLinks: the pages in a package link to files that the package has, too, or to the web.
func TestPackagedLinks(t *testing.T) {
	dir := t.TempDir()
	generate := exec.CommandContext(t.Context(), "go", "run", "./testdata/packaging/docs", dir, "1.2.3", "2026-01-02", "c0ffee")
	generate.Dir = ".."
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pages := filepath.Join(dir, "pages")
	if err := os.CopyFS(filepath.Join(pages, "examples"), os.DirFS("../testdata/packaging/examples")); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile("../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	web, examples := 0, 0
	for _, page := range []string{"README.md", "CHANGELOG.md", "cmd/RECIPES.md", "cmd/REFERENCE.md", "runner/README.md", "runner/WAYS.md"} {
		if n := strings.Count(string(config), "{src: testdata/packaging/generated/pages/"+page+", "); n != 2 {
			t.Errorf("packages and archives have %s %d times, want 2", page, n)
		}
		text, err := os.ReadFile(filepath.Join(pages, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(string(text), -1) {
			file, _, _ := strings.Cut(m[1], "#")
			if on, ok := strings.CutPrefix(file, "https://github.com/pglead/pglead/"); ok {
				web++
				_, here, _ := strings.Cut(on, "/c0ffee/")
				if _, err := os.Stat(filepath.Join("..", here)); here == "" || err != nil {
					t.Errorf("%s links to %s: %v", page, m[1], err)
				}
			}
			if strings.Contains(file, "://") {
				continue
			}
			if strings.Contains(file, "examples/") {
				examples++
			}
			if _, err := os.Stat(filepath.Join(pages, filepath.Dir(page), file)); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
	if web < 5 || examples != 3 {
		t.Errorf("%d links to the web, %d to examples", web, examples)
	}
}

// anchors are the names that GitHub gives to a page's headings.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	dropped := regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		names[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return names
}

// TestImage: the recipe for Docker copies the file that the image has.
func TestImage(t *testing.T) {
	find := func(file, pattern string) string {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?m)` + pattern).FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s has no %s", file, pattern)
		}
		return string(m[1])
	}
	recipe := find("RECIPES.md", `^COPY --from=ghcr\.io/pglead/pglead (\S+) `)
	if image := find("../testdata/packaging/Dockerfile", `^COPY \S+/pglead (\S+)$`); recipe != image {
		t.Errorf("the recipe copies %s, and the image has %s", recipe, image)
	}
}
