package localpg

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ErrNoPooler says that PgBouncer is not installed.
var ErrNoPooler = errors.New("no pgbouncer on this machine")

// Pooler starts a PgBouncer in front of s that logs everybody in as role. It
// listens in the server's own socket directory.
func (s *Server) Pooler(role string, settings map[string]string) (dsn string, stop func(), err error) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // not in everybody's PATH
	}
	if _, err := os.Stat(program); err != nil {
		return "", nil, ErrNoPooler
	}
	port, err := FreePort()
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(s.Data), "pooler")
	if err != nil {
		return "", nil, err
	}
	all := map[string]string{
		"listen_addr": "", "unix_socket_dir": s.Socket, "listen_port": port, "auth_type": "any",
		"logfile": filepath.Join(dir, "log"), "pidfile": filepath.Join(dir, "pid"),
	}
	maps.Copy(all, settings)
	var ini strings.Builder
	fmt.Fprintf(&ini, "[databases]\npostgres = host=%s port=%s user=%s\n[pgbouncer]\n", s.Socket, s.port(), role)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&ini, "%s = %s\n", name, all[name])
	}
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(ini.String()), 0o644); err != nil { //nolint:gosec // the account reads it
		return "", nil, err
	}
	if err := MakeDir(dir); err != nil {
		return "", nil, err
	}
	account, err := Account()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(program, "-q", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: account}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for began := time.Now(); !listening(filepath.Join(s.Socket, ".s.PGSQL."+port)); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > startTimeout {
			stop()
			return "", nil, errors.New("pgbouncer does not listen")
		}
	}
	return fmt.Sprintf("host=%s port=%s user=%s dbname=postgres", s.Socket, port, role), stop, nil
}
