package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/session"
)

// withheld is the command's PGLEAD_DSN if pglead withholds its connection string.
const withheld = "withheld"

// embedded is the connection string of the private server.
const embedded = "embedded"

// database is where the lock is, and what the command is told about it.
type database struct {
	config *pgconn.Config
	dsn    string // the connection string, if it is one that only pglead knows
	// private says that the database is on the private server, which stays in use as long
	// as this process lives.
	private bool
}

// connection is how to connect to the database that the flags or the environment name. It warns of
// variables that may be misspelt. The connection string may set the time for an attempt to connect;
// the flag overrides that.
func (o *options) connection(cmd *cobra.Command) (session.Config, database, error) {
	warnOfVariables(o.u, cmd)
	flags := cmd.Flags()
	db, err := chooseDatabase(o.u, flags.Lookup("dsn"))
	cfg := session.Config{
		Database: db.config, ApplicationName: "pglead " + cmd.Name(), ConnectTimeout: o.connectTimeout.value,
		Lease: o.lease.value, Transaction: o.transaction, Quorum: o.quorum,
	}
	if err == nil && !flags.Changed("connect-timeout") && db.config.ConnectTimeout > 0 {
		cfg.ConnectTimeout = db.config.ConnectTimeout
	}
	return cfg, db, err
}

// chooseDatabase chooses the database: from the flag or its variable, DATABASE_URL, or what libpq
// reads by itself. It starts the private server if that is the one.
func chooseDatabase(u *ui, flag *pflag.Flag) (database, error) {
	dsn, source := flag.Value.String(), sourceOf(flag)
	switch {
	case dsn == "" && os.Getenv(envName("dsn")) == withheld:
		return database{}, usagef("give this pglead its own --dsn, or the outer one --pass-dsn",
			"%s is withheld: an outer pglead was given a connection string and did not pass it on", envName("dsn"))
	case dsn == "":
		// The user's environment names the database, and the command finds it there, too.
		source = "the PG* variables"
		url := os.Getenv("DATABASE_URL")
		if url != "" {
			source = "DATABASE_URL"
		}
		config, err := session.ParseDSN(url, source, u.remark)
		return database{config: config}, err
	}
	d := database{dsn: dsn}
	_, d.private = localpg.JoinEmbedded(dsn) // an outer pglead may have passed it on
	if dsn == embedded {
		server, err := localpg.UseEmbedded()
		if err != nil {
			return d, err
		}
		d.private = true
		// It is logged as an error, so that it is shown every time, even with -q.
		text := fmt.Sprintf("using a private PostgreSQL %d in %s: this lock is local to this machine and user", server.Major, server.Dir)
		u.log.Error(text, "event", "embedded")
		d.dsn = server.DSN
	}
	var err error
	d.config, err = session.ParseDSN(d.dsn, source, u.remark)
	return d, err
}

// openAside connects for a side question: with little patience, without messages, and
// without starting the private server.
func openAside(ctx context.Context, cmd *cobra.Command, name string, patience time.Duration) (*session.Client, error) {
	flag := cmd.Flags().Lookup("dsn")
	if flag.Value.String() == embedded {
		return nil, errors.New("the private server would have to be started")
	}
	db, err := chooseDatabase(nil, flag)
	if err != nil {
		return nil, err
	}
	return session.OpenClient(ctx, session.Config{Database: db.config, ConnectTimeout: patience, ApplicationName: name})
}
