package testserver

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/pglead/pglead/runner/localpg"
)

// entry is a directory or a file of a data directory.
type entry struct {
	path string
	dir  bool
	text []byte
}

// cluster is a data directory as initdb has made it, once for the whole test program: that takes
// a second or two of a processor, and to write the same files takes a tenth of it.
//
//nolint:gochecknoglobals // see above
var cluster = sync.OnceValues(func() (entries []entry, err error) {
	server, remove, err := localpg.Prepare(nil)
	if err != nil {
		return nil, err
	}
	defer remove()
	if err := server.Init(); err != nil {
		return nil, err
	}
	files := os.DirFS(server.Data)
	err = fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		e := entry{path: path, dir: err == nil && d.IsDir()}
		if err == nil && !e.dir {
			e.text, err = fs.ReadFile(files, path)
		}
		entries = append(entries, e)
		return err
	})
	return entries, err
})

// fill makes a server's data directory. With the files of initdb it gets the system identifier
// that is in them.
func fill(server *localpg.Server) error {
	entries, err := cluster()
	if err != nil {
		return err
	}
	account, err := localpg.Account()
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(server.Data, e.path)
		if e.dir {
			err = os.Mkdir(path, 0o700)
		} else {
			err = os.WriteFile(path, e.text, 0o600)
		}
		if err == nil && account != nil {
			err = os.Lchown(path, int(account.Uid), int(account.Gid))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
