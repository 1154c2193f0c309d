package localpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The embedded server belongs to a user on a machine, and all of that user's pgleads share
// it. Two lock files order its life:
//
//	start  held exclusively by whoever starts or stops the server
//	users  held shared by every pglead that uses it, for as long as it lives
//
// The server is the child of a keeper, which is this program again. When the
// keeper can lock users exclusively, nobody is left; after some time without users it
// stops the server, still holding both locks, and ends. So a newcomer either has its lock
// in time and keeps the server running, or finds no server and starts one.

// Embedded is a use of the embedded server. The server outlives its users by
// keepIdle.
type Embedded struct {
	DSN   string
	Major int
	Dir   string
	users fileLock
}

// keepIdle is how long the server goes on without a user: more than a
// minute, so that a crontab finds it running.
const keepIdle = 90 * time.Second

// keeperName is the keeper's argv[0]. With it pkill doesn't take the keeper for a run.
const keeperName = "embedded-postgres-keeper"

// UseEmbedded joins the embedded server, and starts it if nobody has. The use ends
// with Close or with the process.
func UseEmbedded() (*Embedded, error) {
	programs, err := FindPrograms()
	if err != nil {
		return nil, err
	}
	dir, err := stateDir(programs.Major)
	if err != nil {
		return nil, err
	}
	e := &Embedded{Major: programs.Major, Dir: dir}
	if e.users, err = lockFile(dir, "users", unix.LOCK_SH); err != nil {
		return nil, err
	}
	start, err := lockFile(dir, "start", unix.LOCK_EX)
	if err != nil {
		e.Close()
		return nil, err
	}
	defer start.close()
	server, err := embeddedServer(programs, dir)
	if err == nil && !server.listening() {
		err = startKeeper(server, dir)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	e.DSN = server.DSN("postgres")
	return e, nil
}

// JoinEmbedded joins the embedded server if dsn is its connection string, as an outer pglead passes
// it on, and the server is there. It starts none. The use ends with Close or with the process.
func JoinEmbedded(dsn string) (e *Embedded, joined bool) {
	socket, _, _ := strings.Cut(strings.TrimPrefix(dsn, "host="), " ")
	if _, err := os.Lstat(filepath.Join(socket, ".s.PGSQL.5432")); err != nil {
		return nil, false // what follows makes directories that are missing
	}
	// The path tells the version without a look for programs. Below, the whole string has to match.
	named := regexp.MustCompile(`^host=/.*(?:embedded-(\d+)/socket|/pglead-\d+-socket-(\d+)) `).FindStringSubmatch(dsn)
	if named == nil {
		return nil, false
	}
	major, _ := strconv.Atoi(named[1] + named[2])
	dir, err := stateDir(major)
	if err != nil {
		return nil, false
	}
	server, err := embeddedServer(Programs{Major: major}, dir)
	if err != nil || server.DSN("postgres") != dsn {
		return nil, false
	}
	users, err := lockFile(dir, "users", unix.LOCK_SH)
	if err != nil {
		return nil, false
	}
	e = &Embedded{DSN: dsn, Major: major, Dir: dir, users: users}
	if !server.listening() {
		e.Close()
		return nil, false
	}
	return e, true
}

// Close ends the use, as the end of the process does.
func (e *Embedded) Close() { e.users.close() }

// stateDir is where the server of this user lives. Data directories of
// different major versions are not compatible, so each has its own.
func stateDir(major int) (string, error) {
	base := ""
	switch {
	case filepath.IsAbs(os.Getenv("XDG_STATE_HOME")): // its specification has others ignored
		base = filepath.Join(os.Getenv("XDG_STATE_HOME"), "pglead")
	case os.Geteuid() == 0:
		// root's home is closed to the account that the server runs as
		base = "/var/lib/pglead"
	default:
		home := os.Getenv("HOME")
		if home == "" {
			if me, err := user.Current(); err == nil {
				home = me.HomeDir
			}
		}
		base = filepath.Join(home, ".local", "state", "pglead")
	}
	name := "embedded-" + strconv.Itoa(major)
	if os.Geteuid() == 0 {
		base, err := rootsOwn(base)
		if err != nil {
			return "", err
		}
		dir := filepath.Join(base, name)
		return dir, makePlace(dir)
	}
	dir, err := filepath.Join(base, name), os.ErrNotExist // without a home
	if filepath.IsAbs(base) {
		err = os.MkdirAll(base, 0o700)
	}
	if err == nil {
		err = makePlace(dir)
	}
	if foreign := new(foreignError); err == nil || errors.As(err, &foreign) {
		return dir, err
	}
	// No home, or none that is writable: service accounts often have none.
	dir = filepath.Join(os.TempDir(), fmt.Sprintf("pglead-%d-%s", os.Getuid(), name))
	return dir, makePlace(dir)
}

// maxSocketDir leaves room for /.s.PGSQL.5432 in the 104 bytes that the
// strictest of our systems allows for a socket's path (macOS; Linux 108).
const maxSocketDir = 88

func embeddedServer(programs Programs, dir string) (*Server, error) {
	server := &Server{Programs: programs, Data: filepath.Join(dir, dataName), Socket: filepath.Join(dir, socketName)}
	if len(server.Socket) > maxSocketDir {
		server.Socket = filepath.Join("/tmp", fmt.Sprintf("pglead-%d-socket-%d", os.Getuid(), programs.Major))
	}
	return server, accountsDir(server.Socket)
}

// startKeeper makes the server's data directory if there is none, starts the
// keeper, and returns when the server is ready.
func startKeeper(server *Server, dir string) error {
	if _, err := os.Lstat(filepath.Join(server.Data, "PG_VERSION")); err != nil {
		// A first start that was killed midway may have left half a directory.
		if err := os.RemoveAll(server.Data); err != nil {
			return err
		}
		making := server.Data + unfinished
		if err := os.RemoveAll(making); err != nil {
			return err
		}
		initial := *server
		initial.Data = making
		if err := initial.Init(); err != nil {
			return err
		}
		if err := os.Rename(making, server.Data); err != nil {
			return err
		}
	}
	if err := accountsDir(server.Data); err != nil {
		return err
	}
	log, err := createLog(server.LogPath())
	if err != nil {
		return err
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The keeper says on its standard output that the server is ready.
	ready, signalReady, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	keeper := &exec.Cmd{
		Path: self, Args: []string{keeperName, server.Programs.Dir, strconv.Itoa(server.Programs.Major), server.Data, server.Socket, dir},
		Dir: "/", Env: []string{"PATH=" + os.Getenv("PATH"), "GOMAXPROCS=1"}, Stdout: signalReady, Stderr: log,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = keeper.Start()
	_ = signalReady.Close()
	if err != nil {
		return fmt.Errorf("start the embedded server: %w", err)
	}
	_ = keeper.Process.Release()
	if n, _ := ready.Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("the embedded server did not start: see %s", server.LogPath())
	}
	return nil
}

// RunKeeper runs this process as the embedded server's keeper, if args are a
// keeper's, and returns its exit status.
func RunKeeper(args []string) (status int, isKeeper bool) {
	if len(args) < 6 || args[0] != keeperName {
		return 0, false
	}
	if len(args) == 6 {
		// The keeper lives long and must not hold on to what it inherited,
		// such as the lock descriptor of the script that called pglead.
		// A second exec closes all of that.
		closeOnExecFrom(3)
		self, err := os.Executable()
		if err == nil {
			err = syscall.Exec(self, append(args, "clean"), os.Environ())
		}
		fmt.Fprintln(os.Stderr, err)
		return 70, true
	}
	major, _ := strconv.Atoi(args[2])
	server := &Server{Programs: Programs{Dir: args[1], Major: major}, Data: args[3], Socket: args[4]}
	ready := func() {
		_, _ = os.Stdout.WriteString("ready\n")
		_ = os.Stdout.Close()
	}
	if err := keep(server, args[5], keepIdle, ready); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 70, true
	}
	return 0, true
}

func closeOnExecFrom(first int) {
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		return
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
}

// keep runs the server until it has had no user for the given time.
func keep(server *Server, dir string, idle time.Duration, ready func()) error {
	// The server ends with the thread that started it, in case the keeper is
	// killed: then nobody would be left to count its users.
	runtime.LockOSThread()
	server.endWithParent = true
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM, unix.SIGINT)
	if err := server.Start(os.Stderr); err != nil {
		return err
	}
	ready()
	lastUse := time.Now()
	poll := time.NewTicker(min(idle/10, time.Second))
	defer poll.Stop()
	for {
		select {
		case <-server.Exited():
			return errors.New("postgres ended")
		case <-end:
			return server.Stop(unix.SIGINT)
		case <-poll.C:
		}
		users, err := lockFile(dir, "users", unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			lastUse = time.Now()
			continue
		}
		users.close()
		if time.Since(lastUse) < idle {
			continue
		}
		// The directory may have been removed in the meantime; then these are
		// not the files that a newcomer locks, and its server is another one, too.
		start, err := lockFile(dir, "start", unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			continue
		}
		if users, err = lockFile(dir, "users", unix.LOCK_EX|unix.LOCK_NB); err != nil {
			start.close()
			continue
		}
		err = server.Stop(unix.SIGINT)
		users.close()
		start.close()
		return err
	}
}
