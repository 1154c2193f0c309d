package ledger

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// Mode says whether a run goes by a ledger.
type Mode string

// The modes.
const (
	Auto    Mode = "auto" // if there is one, and the role is granted it
	Require Mode = "require"
	Off     Mode = "off"
)

// Use is what a run does with a ledger. The zero value does nothing.
type Use struct {
	Mode Mode
	Keys []string // of the claim's locks, in their order, or one for all
	Tick *Tick    // or nil
}

// Key is the name of lock i of a claim.
func (u Use) Key(i, of int) string {
	switch {
	case len(u.Keys) == of:
		return u.Keys[i]
	case len(u.Keys) == 0:
		return ""
	}
	return u.Keys[0]
}

func (u Use) wanted() bool { return u.Mode == Auto || u.Mode == Require }

func (u Use) required() bool { return u.Mode == Require || u.wanted() && u.Tick != nil }

// The answers to Question.
const (
	denied  = "denied"
	granted = "granted"
	foreign = "foreign"
)

// Question is an SQL expression for session.Config.LedgerQuestion: whether there is a
// ledger, and whether the role is granted it. Its value is NULL, denied, granted or
// foreign. It is empty if the run wants no ledger.
//
// What is in the schema runs with this role's rights. So the schema has to belong to a
// superuser, or to the database's owner, whom pg_database_owner stands for, or to this
// role. Any other role may have made a schema of that name in order to be called. (A
// superuser counts as a member of every role.)
//
// If there is a ledger, the expression also makes the session's settings, whatever the
// role's defaults are: a start needs a snapshot of its own, younger than the lock's
// grant. A session through a pooler gets no settings.
func (u Use) Question(pooled bool) string {
	if !u.wanted() {
		return ""
	}
	settings := "pg_catalog.left(pg_catalog.set_config('default_transaction_isolation', 'read committed', false) || pg_catalog.set_config('default_transaction_read_only', 'off', false), 0) || "
	if pooled {
		settings = ""
	}
	// A text, so that it is planned only if it is executed. Without a ledger, the catalogs
	// of schemas and roles would take a backend in its first moments 0.8 ms, and this
	// takes 0.15 (medians of 250 runs in turns with --ledger off).
	trusted := `SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'pglead' AND (pg_catalog.pg_has_role(nspowner, 'pg_database_owner', 'MEMBER')
		OR pg_catalog.current_setting('is_superuser') = 'off' AND pg_catalog.pg_has_role(nspowner, 'MEMBER'))`
	return "CASE WHEN pg_catalog.to_regnamespace('pglead') IS NOT NULL THEN CASE WHEN NOT pg_catalog.has_schema_privilege('pglead', 'USAGE') THEN '" + denied + "' " +
		"WHEN pg_catalog.query_to_xml(" + quote(trusted) + ", false, true, '')::text <> '' THEN " + settings + "'" + granted + "' ELSE '" + foreign + "' END END"
}

// Found says whether the run goes by a ledger, after the answer to Question. It is an
// error if the run has to and can't.
func (u Use) Found(answer string) (bool, error) {
	switch {
	case u.wanted() && answer == granted:
		return true, nil
	case !u.required():
		return false, nil
	}
	why := "--ledger require"
	if u.Tick != nil {
		why = "--once-per"
	}
	switch answer {
	case foreign:
		return false, session.Errorf(session.Denied, "the owner of the database is to make the ledger: pglead ledger install", "%s needs a ledger that can be trusted: %s", why, Untrusted)
	case denied:
		return false, session.Errorf(session.Denied, "its owner, or a superuser: GRANT USAGE ON SCHEMA pglead TO this role",
			"%s needs the ledger, which this role is not granted", why)
	}
	return false, session.Errorf(session.Denied, "pglead ledger install, as the owner of the database; then GRANT USAGE ON SCHEMA pglead TO this role",
		"%s needs a ledger, and there is none in this database", why)
}

// Untrusted says why a ledger is left alone.
const Untrusted = "the schema pglead belongs neither to the database's owner nor to a superuser"

// Foreign says whether the answer to Question is that the ledger can't be trusted.
func (u Use) Foreign(answer string) bool { return answer == foreign }

// Denied says whether the answer to Question is that the role is not granted the ledger.
func (u Use) Denied(answer string) bool { return answer == denied }

// Refused makes a refusal of the server name the ledger, instead of the lock.
func Refused(err error) error {
	if locked := Locked(err); locked != nil {
		return locked
	}
	return session.Refused(err, "the ledger")
}

// Locked makes a *LockedError of a statement's error, if it is one, and else returns nil.
func Locked(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "55P03" || errors.As(err, new(*session.LostError)) {
		return nil
	}
	return &LockedError{session.Errorf(session.Unreachable,
		"is somebody altering or copying them? SELECT pid, mode FROM pg_locks WHERE granted AND relation::regclass::text LIKE 'pglead.%' says who",
		"the ledger's tables are locked by another session: %s", session.ServerSays(pgErr))}
}

// LockedError says that another session has a table of the ledger, for longer than is
// waited for it.
type LockedError struct{ err error }

func (e *LockedError) Error() string { return e.err.Error() }
func (e *LockedError) Unwrap() error { return e.err }

// DoneError says that a tick has had its success.
type DoneError struct {
	Tick Tick
	Host string // where
	At   string // when, for people
}

func (e *DoneError) Error() string {
	return fmt.Sprintf("done already: %s had its success on %s at %s", e.Tick, visible.Text(e.Host), e.At)
}
