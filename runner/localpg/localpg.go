// Package localpg runs private PostgreSQL servers: the one behind
// `pglead run --dsn embedded`, and throwaway ones for the tests and the benchmark.
//
// Each server listens on a unix socket in a directory that only its account can enter.
// It never runs as root, and keeps no state outside its directory.
package localpg

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Programs is a directory with a server's programs, and their major version.
type Programs struct {
	Dir   string
	Major int
}

// ErrNoPrograms says that PostgreSQL's server is not installed.
var ErrNoPrograms = errors.New("no PostgreSQL server programs (initdb, postgres) on this machine")

// FindPrograms looks in the directory that PG_BINDIR names, and nowhere else.
// Without PG_BINDIR it looks in PATH, asks pg_config, and tries the places where Debian,
// Red Hat, Homebrew, Postgres.app and FreeBSD keep server programs. The newest
// version wins.
func FindPrograms() (Programs, error) {
	if dir := os.Getenv("PG_BINDIR"); dir != "" {
		named := newestPrograms([]string{dir})
		if named.Major == 0 {
			return named, fmt.Errorf("PG_BINDIR=%s: %w", dir, ErrNoPrograms)
		}
		return named, nil
	}
	dirs := filepath.SplitList(os.Getenv("PATH"))
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/libexec/postgresql*", "/usr/local/bin", "/usr/bin",
		"/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin",
		"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin", "/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		found, _ := filepath.Glob(pattern) // the patterns are well-formed
		dirs = append(dirs, found...)
	}
	slices.Sort(dirs)
	best := newestPrograms(slices.Compact(dirs))
	if best.Major == 0 {
		return Programs{}, ErrNoPrograms
	}
	return best, nil
}

func newestPrograms(dirs []string) (best Programs) {
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
			continue
		}
		out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
		if err != nil {
			continue
		}
		// "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
		if major := majorVersion(string(out)); major > best.Major {
			best = Programs{Dir: dir, Major: major}
		}
	}
	return best
}

func majorVersion(s string) int {
	_, rest, _ := strings.Cut(s, ") ")
	digits := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(rest)
	}
	major, _ := strconv.Atoi(rest[:digits])
	return major
}

// InstallHint is the command that installs a server on this system, as far as
// the system can be identified.
func InstallHint() string {
	switch runtime.GOOS {
	case "darwin":
		return "brew install postgresql@17"
	case "freebsd":
		return "pkg install postgresql17-server"
	}
	release, _ := os.ReadFile("/etc/os-release")
	for _, system := range []struct{ id, command string }{
		{"debian", "apt-get install -y postgresql"},
		{"alpine", "apk add postgresql"},
		{"arch", "pacman -S postgresql"},
		{"suse", "zypper install postgresql-server"},
		{"fedora", "dnf install postgresql-server"},
		{"rhel", "dnf install postgresql-server"},
	} {
		for line := range strings.Lines(string(release)) {
			if (strings.HasPrefix(line, "ID=") || strings.HasPrefix(line, "ID_LIKE=")) && strings.Contains(line, system.id) {
				return system.command
			}
		}
	}
	return "install your system's PostgreSQL server package"
}

// Server is a private server.
type Server struct {
	Programs Programs
	Data     string // the data directory
	Socket   string // the directory of its unix socket
	// Settings go onto the command line, and so override postgresql.conf.
	Settings map[string]string
	Env      []string // more variables for its programs

	endWithParent bool // shut down fast when the thread that started it ends
	cmd           *exec.Cmd
	exited        chan struct{}
}

// Superuser is the role that initdb makes.
const Superuser = "pglead"

// Account is the account that a server runs as. It is nil for the user's own; for root, as whom
// PostgreSQL refuses to run, it is postgres or else nobody.
func Account() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(account.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(account.Gid, 10, 32)
		if err1 == nil && err2 == nil && uid != 0 {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither an account postgres nor nobody")
}

// LogPath is where the server's log is: beside its data, where the account can't
// put anything.
func (s *Server) LogPath() string { return filepath.Join(filepath.Dir(s.Data), logName) }

// MakeDir makes a directory that only the server's account can enter.
func MakeDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return giveAway(path)
}

// WriteFile writes a file that only the server's account can read.
func WriteFile(path string, text []byte) error {
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return err
	}
	return giveAway(path)
}

func giveAway(path string) error {
	account, err := Account()
	if err != nil || account == nil {
		return err
	}
	return os.Chown(path, int(account.Uid), int(account.Gid))
}

// Init makes the data directory, in a directory to which the account need not be able
// to write.
func (s *Server) Init() error {
	if err := accountsDir(s.Data); err != nil {
		return err
	}
	return s.Run("initdb", "-D", s.Data, "-U", Superuser, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions")
}

// command prepares one of the server's programs, or one with a path, to run as its
// account.
func (s *Server) command(name string, args ...string) (*exec.Cmd, error) {
	account, err := Account()
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(s.Programs.Dir, name)
	}
	cmd := exec.Command(name, args...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}, s.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: account}
	return cmd, nil
}

// Run runs one of the server's programs, such as pg_ctl.
func (s *Server) Run(name string, args ...string) error {
	cmd, err := s.command(name, args...)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Start starts the server and returns when it accepts connections. Its log
// goes to the file log, or nowhere.
func (s *Server) Start(log *os.File) error {
	settings := map[string]string{
		"listen_addresses":        "",
		"unix_socket_directories": s.Socket,
		"unix_socket_permissions": "0700",
		"shared_buffers":          "16MB",
		"max_connections":         "200",
	}
	maps.Copy(settings, s.Settings)
	args := []string{"-D", s.Data}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	cmd, err := s.command("postgres", args...)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	// No signal for the group of our terminal or our service reaches it.
	cmd.SysProcAttr.Setsid = true
	if s.endWithParent {
		endWithParent(cmd.SysProcAttr)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	s.cmd, s.exited = cmd, make(chan struct{})
	go func(exited chan struct{}) {
		_ = cmd.Wait()
		close(exited)
	}(s.exited)
	if err := s.awaitReady(); err != nil {
		_ = cmd.Process.Kill()
		<-s.exited
		return err
	}
	return nil
}

// startTimeout is long because recovery after a crash may come first.
const startTimeout = time.Minute

// awaitReady waits for what pg_ctl -w waits for: the line in postmaster.pid
// that says "ready", or "standby".
func (s *Server) awaitReady() error {
	for began := time.Now(); time.Since(began) < startTimeout; {
		pidFile, _ := readPIDFile(filepath.Join(s.Data, "postmaster.pid"))
		lines := strings.Split(string(pidFile), "\n")
		if len(lines) > 7 && lines[0] == strconv.Itoa(s.cmd.Process.Pid) {
			if state := strings.TrimSpace(lines[7]); state == "ready" || state == "standby" {
				return nil
			}
		}
		select {
		case <-s.exited:
			return errors.New("postgres ended while it was starting; its log says why")
		case <-time.After(5 * time.Millisecond):
		}
	}
	return fmt.Errorf("postgres is not ready after %v", startTimeout)
}

// Exited is closed when the server has ended.
func (s *Server) Exited() <-chan struct{} { return s.exited }

// Signal sends the postmaster a signal: SIGTERM, SIGINT and SIGQUIT mean a
// smart, fast and immediate shutdown.
func (s *Server) Signal(sig syscall.Signal) error { return s.cmd.Process.Signal(sig) }

// Stop shuts the server down with the given signal and waits for its end.
func (s *Server) Stop(sig syscall.Signal) error {
	err := s.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-s.exited
	return err
}

// DSN is the connection string of a database of the server.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("host=%s port=%s user=%s dbname=%s", s.Socket, s.port(), Superuser, database)
}

func (s *Server) port() string {
	if port := s.Settings["port"]; port != "" {
		return port
	}
	return "5432"
}

// listening says whether anything answers at the server's socket.
func (s *Server) listening() bool {
	return listening(filepath.Join(s.Socket, ".s.PGSQL."+s.port()))
}

func listening(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// PID is the postmaster's process number.
func (s *Server) PID() int { return s.cmd.Process.Pid }
