package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// examples are in packages, and in archives, beside the first page.
const examples = "testdata/packaging/examples/"

// packaged are the pages that packages have, in directories as they are here.
func packaged() []string {
	return []string{"README.md", "CHANGELOG.md", "cmd/RECIPES.md", "cmd/REFERENCE.md", "runner/README.md", "runner/WAYS.md"}
}

// writePages writes the pages with links that lead somewhere: to another of them, to an
// example, or to the file of this commit on the web.
func writePages(dir, commit string) error {
	for _, page := range packaged() {
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, page)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, []byte(relink(string(text), page, commit)), 0o644); err != nil { //nolint:gosec // packages have them with these rights
			return err
		}
	}
	return nil
}

// relink makes a page's links right for a package.
func relink(text, page, commit string) string {
	links := regexp.MustCompile(`(!?)\[([^\]]*)\]\(([^)\s]+)\)`)
	return links.ReplaceAllStringFunc(text, func(whole string) string {
		link := links.FindStringSubmatch(whole)
		file, heading, _ := strings.Cut(link[3], "#")
		if file == "" || strings.Contains(file, "://") {
			return whole
		}
		target := path.Join(path.Dir(page), file)
		for _, other := range packaged() {
			if target == other {
				return whole
			}
		}
		if name, ok := strings.CutPrefix(target, examples); ok {
			up := strings.Repeat("../", strings.Count(page, "/"))
			return fmt.Sprintf("[%s](%sexamples/%s)", link[2], up, name)
		}
		view := "blob"
		if link[1] != "" { // an image
			view = "raw"
		}
		if heading != "" {
			heading = "#" + heading
		}
		return fmt.Sprintf("%s[%s](https://github.com/pglead/pglead/%s/%s/%s%s)", link[1], link[2], view, commit, target, heading)
	})
}
