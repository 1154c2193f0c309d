// Command docs writes pglead's manual pages, completions, and the pages of this repository
// with links for where packages have them:
//
//	go run ./testdata/packaging/docs DIR VERSION DATE COMMIT
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pglead/pglead/cmd"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: docs DIR VERSION DATE COMMIT")
		os.Exit(64)
	}
	err := write(os.Args[1], os.Args[2], os.Args[3])
	if err == nil {
		err = writePages(filepath.Join(os.Args[1], "pages"), os.Args[4])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "write the docs:", err)
		os.Exit(1)
	}
}

func write(dir, version, date string) error {
	files, err := cmd.Docs(version, date)
	if err != nil {
		return err
	}
	for name, text := range files {
		content := []byte(text)
		if strings.HasPrefix(name, "man/") { // where packages have them compressed
			name += ".gz"
			var b bytes.Buffer
			w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // without a time, the same each time
			if _, err := w.Write(content); err != nil {
				return err
			}
			if err := w.Close(); err != nil {
				return err
			}
			content = b.Bytes()
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // packages have them with these rights
			return err
		}
	}
	return nil
}
