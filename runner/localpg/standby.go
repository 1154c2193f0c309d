package localpg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// Standby makes and starts a standby of s, which reaches s through its socket
// or, if host is given, over TCP. Settings are as for Prepare.
func (s *Server) Standby(settings map[string]string, host string) (standby *Server, remove func(), err error) {
	standby, remove, err = Prepare(settings)
	if err != nil {
		return nil, nil, err
	}
	if host == "" {
		host = s.Socket
	}
	err = s.copyTo(standby, host)
	if err == nil {
		err = standby.StartLogged()
	}
	if err != nil {
		remove()
		return nil, nil, err
	}
	return standby, remove, nil
}

// copyTo does what pg_basebackup does, which not every server comes with: it copies
// the data directory while the server is in backup mode.
// https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-LOWLEVEL-BASE-BACKUP
func (s *Server) copyTo(standby *Server, host string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	conn, err := pgconn.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	begin, end := "pg_backup_start('standby', true)", "pg_backup_stop(false)"
	if s.Programs.Major < 15 {
		begin, end = "pg_start_backup('standby', true, false)", "pg_stop_backup(false, false)"
	}
	// A commit here must not wait for standbys, since this may become the first one.
	if _, err := conn.Exec(ctx, "SET synchronous_commit = local; SELECT "+begin).ReadAll(); err != nil {
		return err
	}
	if err := accountsDir(standby.Data); err != nil {
		return err
	}
	// What changes or vanishes meanwhile is not lost: the WAL has it.
	if err := s.sh(`cd "$1" && tar -cf - --exclude=./postmaster.pid . | tar -xf - -C "$2"`, s.Data, standby.Data); err != nil {
		return err
	}
	results, err := conn.Exec(ctx, "SELECT labelfile FROM "+end).ReadAll()
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return errors.New(end + " has no answer")
	}
	// The WAL up to the end of the copy, which the primary may remove before
	// the standby asks for it.
	return s.sh(`cp -R "$1/pg_wal/." "$2/pg_wal" && printf %s "$3" >"$2/backup_label" && : >"$2/standby.signal" && echo "$4" >>"$2/postgresql.auto.conf"`,
		s.Data, standby.Data, string(results[0].Rows[0][0]), fmt.Sprintf("primary_conninfo = 'host=%s port=%s user=%s'", host, s.port(), Superuser))
}

// sh runs a script as the server's account.
func (s *Server) sh(script string, args ...string) error {
	return s.Run("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
}
