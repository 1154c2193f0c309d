package ledger

import (
	"errors"
	"fmt"
	"html"
	"strings"

	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// Mode says whether a run uses a ledger.
type Mode string

// They differ for a run that can't use a ledger: with Require it fails, and with Auto it goes on
// without one, unless it has a Tick.
const (
	Auto    Mode = "auto" // if there is one, and the role has USAGE
	Require Mode = "require"
	Off     Mode = "off"
)

// Use is what a run does with a ledger. The zero value does nothing.
type Use struct {
	Mode Mode
	Tick *Tick // or nil
}

func (u Use) wanted() bool { return u.Mode == Auto || u.Mode == Require }

func (u Use) required() bool { return u.Mode == Require || u.wanted() && u.Tick != nil }

// Access is what a role may do with a ledger. The answer to QuestionSQL contains it.
type Access string

const (
	// Absent means that there is none in this database.
	Absent Access = "" // NULL
	// Denied means that there is one, but the role has no USAGE of its schema.
	Denied Access = "denied"
	// Foreign means that there is one, but an untrusted role made it, perhaps as a trap: nothing in
	// it must be called.
	Foreign Access = "foreign"
	// Granted means that the role reads and writes it.
	Granted Access = "granted"
)

// QuestionSQL is an SQL expression for session.Config.LoginQuestion: whether there is a ledger,
// and whether the role has USAGE. Its value, in XML, is an Access and, with Denied, the role that
// lacks it. The expression is empty if the run wants no ledger.
//
// Functions in the schema run with this role's rights. So the schema has to belong to a
// superuser, to the database's owner (pg_database_owner), or to this role. Any other
// role may have made a schema of that name as a trap. (A superuser counts as a member of
// every role.)
//
// If there is a ledger, the expression also lets transactions write, whatever the role's default
// is. A session through a pooler gets no settings.
func (u Use) QuestionSQL(pooled bool) string {
	if !u.wanted() {
		return ""
	}
	settings := "pg_catalog.left(pg_catalog.set_config('default_transaction_read_only', 'off', false), 0) || "
	if pooled {
		settings = ""
	}
	word := fmt.Sprintf(`SELECT CASE WHEN NOT pg_catalog.has_schema_privilege('pglead', 'USAGE') THEN '%s ' || current_user::text
	WHEN EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'pglead' AND (pg_catalog.pg_has_role(nspowner, 'pg_database_owner', 'MEMBER')
		OR pg_catalog.current_setting('is_superuser') = 'off' AND pg_catalog.pg_has_role(nspowner, 'MEMBER'))) THEN %s'%s' ELSE '%s' END AS word`,
		Denied, settings, Granted, Foreign)
	// The query is a text that query_to_xml runs, so that the server reads it only if there is a
	// ledger. Otherwise these functions would cost a new backend 0.2 ms without a ledger, and the
	// catalogs of schemas and roles 0.8 ms; this costs 0.07 ms (medians of 120 logins in turns).
	return "CASE WHEN pg_catalog.to_regnamespace('pglead') IS NOT NULL THEN pg_catalog.query_to_xml(" + quote(word) + ", false, true, '') END"
}

// LoginError is a login's error, with one more hint if the role may not call QuestionSQL's function:
// a run without a ledger doesn't call it.
func LoginError(err error) error {
	if e, ok := errors.AsType[*session.Error](err); ok && e.Kind == session.Denied && strings.Contains(e.Error(), "query_to_xml") {
		e.Hint += "; --ledger off does without it"
	}
	return err
}

// ParseAccess reads the answer to QuestionSQL. With Denied it returns the role that lacks the
// grant, too. If the session has set another role (SET ROLE), it is that one.
func ParseAccess(answer string) (access Access, role string) {
	_, rest, _ := strings.Cut(answer, "<word>")
	text, _, _ := strings.Cut(rest, "</word>")
	word, role, _ := strings.Cut(text, " ")
	return Access(word), html.UnescapeString(role)
}

// Applies says, from the answer to QuestionSQL, whether the run uses the ledger. It returns
// an error if the run must use it but can't.
func (u Use) Applies(answer string) (bool, error) {
	access, _ := ParseAccess(answer)
	switch {
	case u.wanted() && access == Granted:
		return true, nil
	case !u.required():
		return false, nil
	}
	why := "--ledger require"
	if u.Tick != nil {
		why = "--once-per"
	}
	switch access {
	case Foreign:
		return false, session.Errorf(session.Denied, UntrustedHint, "%s needs a ledger that can be trusted: %s", why, Untrusted)
	case Denied:
		return false, session.Errorf(session.Denied, "its owner, or a superuser: GRANT USAGE ON SCHEMA pglead TO this role",
			"%s needs the ledger, which this role is not granted", why)
	}
	return false, session.Errorf(session.Denied, "pglead ledger install, as the owner of the database; then GRANT USAGE ON SCHEMA pglead TO this role",
		"%s needs a ledger, and there is none in this database", why)
}

// Untrusted says why pglead does not use a ledger.
const Untrusted = "the schema pglead belongs neither to a superuser, nor to the database's owner, nor to this role"

// UntrustedHint says what to do about it. ALTER SCHEMA alone isn't enough: the functions run with the
// rights of their owner, who needs the schema.
const UntrustedHint = "if it is the database's former owner's, as a superuser: ALTER SCHEMA pglead OWNER TO the present owner, " +
	"and the same for its tables and functions, keeps what it has; else, as its owner or a superuser: pglead ledger uninstall; " +
	"then, as the owner of the database: pglead ledger install"

// Rejected turns an error of the server into one that names the ledger in this database, and not the
// lock.
func Rejected(err error, database string) error {
	pgErr := session.AnsweredError(err)
	if pgErr == nil {
		return err
	}
	name := "the ledger in " + visible.Text(database)
	if pgErr.Code == session.LockNotAvailable {
		return session.Errorf(session.Unreachable,
			"is somebody altering or copying them? SELECT pid, mode FROM pg_locks WHERE granted AND relation::regclass::text LIKE 'pglead.%' says who",
			"%s: %w: %s", name, ErrLocked, session.ServerSays(pgErr))
	}
	err = session.Rejected(err, name)
	if e, ok := errors.AsType[*session.Error](err); ok && session.Undefined(err) {
		return session.Errorf(e.Kind, "the ledger is not whole: "+Mend+"; until then --ledger off runs without", "%w", e)
	}
	return err
}

// Mend says what to do about a ledger that is not whole.
const Mend = "pglead ledger install, as the owner of the database, makes what is missing"

// ErrLocked says that another session has locked a table of the ledger for longer than the
// statement waited.
var ErrLocked = errors.New("its tables are locked by another session")

// DoneError says that a tick has already had its success.
type DoneError struct {
	Tick Tick
	Host string // where the success was
	At   string // when, for people
}

func (e *DoneError) Error() string {
	return fmt.Sprintf("done already: %s had its success on %s at %s", e.Tick, visible.Text(e.Host), e.At)
}
