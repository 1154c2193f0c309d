package cmd

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// serverOptions are the flags that say which database to use, and for how long to try.
type serverOptions struct {
	dsn            string
	connectTimeout duration
}

func newServerOptions() serverOptions {
	return serverOptions{connectTimeout: duration{value: 10 * time.Second}}
}

func (s *serverOptions) dsnFlag(flags *pflag.FlagSet) {
	flags.StringVarP(&s.dsn, "dsn", "d", "", "the database's `DSN`: a URI, keywords or a name, as for psql; or embedded, a private server")
}

func (s *serverOptions) connectTimeoutFlag(flags *pflag.FlagSet) {
	flags.Var(&s.connectTimeout, "connect-timeout", "how long each attempt to connect may take, and how long a full server is asked again")
}

func (s *serverOptions) checkTimeout() error {
	if s.connectTimeout.value <= 0 {
		return usagef("--connect-timeout must be longer than 0")
	}
	return nil
}

// resolveDatabase finds out which database the flags or the environment name, and warns of
// variables that may be misspelt. The connection string may set the time for an attempt to connect;
// the flag overrides that. pass says that the command gets the connection string, too.
func (s *serverOptions) resolveDatabase(u *ui, cmd *cobra.Command, pass bool) (database, error) {
	warnOfVariables(u, cmd)
	flags := cmd.Flags()
	db, err := chooseDatabase(u, flags.Lookup("dsn"), pass)
	db.connectTimeout = s.connectTimeout.value
	if err == nil && !flags.Changed("connect-timeout") && db.config.ConnectTimeout > 0 {
		db.connectTimeout = db.config.ConnectTimeout
	}
	return db, err
}
