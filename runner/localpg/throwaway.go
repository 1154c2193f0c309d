package localpg

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

// Throwaway starts a server in its own directory, which remove deletes
// together with the server. On request it also listens on the loopback
// interface: see Settings and FreePort.
func Throwaway(settings map[string]string) (s *Server, remove func(), err error) {
	s, remove, err = Prepare(settings)
	if err != nil {
		return nil, nil, err
	}
	if err = s.Init(); err == nil {
		err = s.StartLogged()
	}
	if err != nil {
		remove()
		return nil, nil, err
	}
	return s, remove, nil
}

// Prepare makes a throwaway server's directory, but nothing in it.
func Prepare(settings map[string]string) (s *Server, remove func(), err error) {
	programs, err := FindPrograms()
	if err != nil {
		return nil, nil, err
	}
	parent := os.TempDir()
	if len(parent) > maxSocketDir-len("/localpg1234567890/s") {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "localpg")
	if err != nil {
		return nil, nil, err
	}
	// The socket's directory is part of messages, whose exact lines tests know.
	s = &Server{Programs: programs, Data: filepath.Join(dir, dataName), Socket: filepath.Join(dir, "s"), Settings: settings}
	if err := makePlace(dir); err != nil {
		return nil, nil, err
	}
	if err := accountsDir(s.Socket); err != nil {
		return nil, nil, err
	}
	return s, func() {
		if s.cmd != nil {
			_ = s.Signal(syscall.SIGCONT) // a test may have stopped it
			_ = s.Stop(syscall.SIGQUIT)
		}
		_ = os.RemoveAll(dir)
	}, nil
}

// StartLogged starts the server, whose log goes on in the same file.
func (s *Server) StartLogged() error {
	log, err := os.OpenFile(s.LogPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	return s.Start(log)
}

// FreePort is a TCP port of the loopback interface that was free a moment ago.
func FreePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// Query runs SQL on its own connection and returns the text of all values.
func (s *Server) Query(database, sql string) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	conn, err := pgconn.Connect(ctx, s.DSN(database))
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	return Ask(ctx, conn, sql)
}

// Ask runs SQL on a connection and returns the text of all values.
func Ask(ctx context.Context, conn *pgconn.PgConn, sql string) ([]string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	var values []string
	for _, result := range results {
		for _, row := range result.Rows {
			for _, value := range row {
				values = append(values, string(value))
			}
		}
	}
	return values, err
}
