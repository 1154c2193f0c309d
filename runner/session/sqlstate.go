package session

import (
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// The server's error codes have the names here that PostgreSQL's documentation has for them.
// https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	FeatureNotSupported               = "0A000"
	untranslatableCharacter           = "22P05"
	ReadOnlySQLTransaction            = "25006"
	IdleInTransactionSessionTimeout   = "25P03"
	transactionTimeoutExceeded        = "25P04"
	invalidAuthorizationSpecification = "28000"
	invalidPassword                   = "28P01"
	invalidCatalogName                = "3D000" // no such database
	invalidSchemaName                 = "3F000"
	DependentObjectsStillExist        = "2BP01"
	SerializationFailure              = "40001"
	DeadlockDetected                  = "40P01"
	InsufficientPrivilege             = "42501"
	WrongObjectType                   = "42809"
	undefinedFunction                 = "42883"
	undefinedTable                    = "42P01"
	DiskFull                          = "53100"
	OutOfMemory                       = "53200"
	tooManyConnections                = "53300"
	programLimitExceeded              = "54000" // the queue of notifications is full, or the transaction numbers are used up
	objectNotInPrerequisiteState      = "55000"
	LockNotAvailable                  = "55P03"
	QueryCanceled                     = "57014"
)

// Classes of codes: the first two characters of a code, or three where PostgreSQL has its own
// class.
const (
	classConnection       = "08"
	classAuthorization    = "28"
	classSyntaxOrAccess   = "42"
	classResources        = "53"
	classOperatorShutdown = "57P"
)

// HasCode says whether err is an error of the server with one of these codes.
func HasCode(err error, codes ...string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && slices.Contains(codes, pgErr.Code)
}

// Undefined says whether the server has rejected a statement because it has no such schema, table
// or function.
func Undefined(err error) bool {
	return HasCode(err, invalidSchemaName, undefinedTable, undefinedFunction)
}

// QueueFull says whether the server has rejected a NOTIFY because its queue of notifications is
// full. The server translates the message, but not that word.
func QueueFull(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == programLimitExceeded && strings.Contains(pgErr.Message, "NOTIFY")
}

// QueueUsageSQL is an SQL expression for the part of the queue of notifications that is in use,
// between 0 and 1. Its evaluation frees what all listeners have read. The end of the listener that
// kept the queue full doesn't do that, and a NOTIFY that fails doesn't, either.
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/backend/commands/async.c (asyncQueueAdvanceTail)
const QueueUsageSQL = "pg_catalog.pg_notification_queue_usage()"

// mayPass says whether an error may pass by itself: it is about the connection, the server's
// resources and limits, its starts and stops, another session's lock, or a query that was canceled.
// The role's timeouts may cancel one before the login has turned them off.
func mayPass(e *pgconn.PgError) bool {
	for _, class := range []string{classConnection, classResources, classOperatorShutdown} {
		if strings.HasPrefix(e.Code, class) {
			return true
		}
	}
	return slices.Contains([]string{QueryCanceled, programLimitExceeded, LockNotAvailable, transactionTimeoutExceeded}, e.Code)
}
