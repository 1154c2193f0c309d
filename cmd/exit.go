package cmd

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// The exit statuses besides the command's own. From 64 on they are those of sysexits.h if
// it has a suitable one; the last ones are those of xargs(1), timeout(1) and the shell. To add one:
//
//	its error        status below, which also has the hint; sessionStatus for a new session.Kind
//	its meaning      exitMeanings in docs.go, for each command
//	its text         REFERENCE.md, where a test compares it with exitStatuses (reference_test.go)
const (
	exitNo            = 1 // the answer of who, stepdown, check, pause, resume or ledger is no, as with diff(1) and grep(1)
	exitUsage         = 64
	exitUnreachable   = 69
	exitInternal      = 70
	exitConflict      = 75
	exitLost          = 76
	exitDenied        = 77
	exitUnsafe        = 78
	exitSomeFailed    = 123 // as with xargs
	exitTimeout       = 124
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignalBase    = 128
)

// explainedError is an error as the user of this very command has to see it.
type explainedError struct {
	error
	code int    // the exit status
	text string // in place of the error's own, or empty
	hint string
}

func (e *explainedError) Unwrap() error { return e.error }
func (e *explainedError) Error() string { return cmp.Or(e.text, e.error.Error()) }

// explain gives an error another text or another hint. An empty one leaves what there is.
func explain(err error, text, hint string) error {
	code, known := status(err)
	return &explainedError{err, code, text, cmp.Or(hint, known)}
}

// usagef is a mistake on the command line or in a PGLEAD_ variable. The hint may be empty.
func usagef(hint, format string, args ...any) error {
	return &explainedError{error: fmt.Errorf(format, args...), code: exitUsage, hint: hint}
}

// withWait adds to a full server's refusal a hint to --wait, unless it was given. A role that may
// have one connection alone would wait in vain for a second one.
func (o *options) withWait(err error) error {
	refused, ok := errors.AsType[*session.Error](err)
	switch {
	case !ok || !refused.Full || o.wait.value > 0:
		return err
	case o.transaction || o.quorum:
		return explain(err, "", "this takes two connections at once; --wait tries again until both are free")
	}
	return explain(err, "", "--wait tries again until a connection is free")
}

// unstarted adds to the obstacles after a login that the command was not started. The errors of the
// login itself need no such addition.
func unstarted(err error, what string, database *pgconn.Config) error {
	if err == nil {
		return nil
	}
	where := visible.Text(session.Target(database))
	switch {
	case errors.As(err, new(*runner.LockLostError)):
		return err
	case errors.As(err, new(*lock.LedgerError)):
		return explain(err, what+" was not started: "+err.Error(), "")
	case errors.As(err, new(*session.LostError)):
		return explain(err, what+" was not started: the session in "+where+" was lost: "+err.Error(), "")
	case session.AnsweredError(err) != nil:
		return explain(err, what+" was not started: "+err.Error()+", says "+where, "")
	}
	return err
}

// silentExit is an end that needs no further message: an exit with this status or, if there is one,
// a death of this signal.
type silentExit struct {
	code int
	sig  unix.Signal
}

func (e *silentExit) Error() string { return "all has been said" }

// exit turns the end of a subcommand into pglead's: it says why, and returns the exit status,
// or dies of the same signal as the command.
func exit(u *ui, err error) int {
	defer u.flush()
	u.clearStatus(statusOver)
	var (
		interrupted *runner.InterruptedError
		silent      *silentExit
		held        *lock.ConflictError
	)
	code, hint := status(err)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &silent) && silent.sig != 0:
		return dieOf(u, silent.sig)
	case errors.As(err, &silent):
		return silent.code
	case errors.As(err, new(*ledger.DoneError)):
		u.warnWatcher(err.Error(), "event", "done", "code", 0) // somebody would wonder why nothing ran
		return 0
	case errors.As(err, &interrupted):
		u.log.Info(err.Error(), "event", "interrupted")
		return dieOf(u, interrupted.Signal)
	case errors.As(err, &held):
		u.refuse(held, code)
		return code
	case errors.As(err, new(*ledger.PausedError)):
		u.say(slog.LevelWarn, err.Error(), hint, "event", "paused", "code", code)
		return code
	}
	u.say(slog.LevelError, u.endText(err), hint, "event", "failed", "code", code)
	return code
}

// refuse says who has the lock.
func (u *ui) refuse(held *lock.ConflictError, code int) {
	attrs := []any{"event", "conflict", "code", code}
	if len(held.Holders) > 0 {
		attrs = append(attrs, "holder", held.Holders[0].String())
	}
	text := held.Error()
	if ownHolder(held) {
		text += "; that is the pglead under which this one runs"
	}
	u.log.Warn(text, attrs...)
}

func dieOf(u *ui, sig unix.Signal) int {
	u.flush()
	child.DieOf(sig)
	return exitSignalBase + int(sig)
}

// status maps an error to its exit status and to what the user can do.
func status(err error) (code int, hint string) {
	var (
		explained *explainedError
		sess      *session.Error
		lookup    *child.LookupError
		guard     *child.GuardError
	)
	switch {
	case err == nil:
		return 0, ""
	case errors.As(err, &explained):
		return explained.code, explained.hint
	case errors.As(err, &lookup):
		return lookup.ExitStatus(), lookupHint(lookup)
	case errors.As(err, new(*child.NoProcError)):
		return exitUnsafe, "mount one: mount -t proc proc /proc"
	case errors.As(err, new(*runner.LockLostError)):
		return exitLost, ""
	case errors.Is(err, unix.EMFILE): // for instance for the heartbeat's timer, without which the session is given up
		return exitInternal, "ulimit -n sets how many files pglead may have open"
	case errors.As(err, new(*session.LostError)), errors.Is(err, child.ErrLeaseOver): // before the command started
		return exitUnreachable, ""
	case errors.Is(err, localpg.ErrNoPrograms):
		return exitUnreachable, "to install them: " + localpg.InstallHint()
	case errors.As(err, &guard):
		return exitInternal, guard.Hint
	case errors.As(err, new(*lock.LedgerError)) && session.HasCode(err, session.DiskFull):
		return exitUnreachable, "free space on the server; --ledger off starts the command without the ledger"
	case errors.As(err, new(*ledger.FencedError)) && errors.As(err, &sess):
		return exitConflict, sess.Hint
	case errors.As(err, &sess):
		return sessionStatus(sess.Kind), sess.Hint
	// cobra has no types for these.
	case strings.HasPrefix(err.Error(), "unknown command"), strings.HasPrefix(err.Error(), "invalid argument"):
		return exitUsage, "see pglead --help"
	}
	return exitInternal, ""
}

// sessionStatus is the exit status for an error of package session.
func sessionStatus(kind session.Kind) int {
	return cmp.Or(map[session.Kind]int{
		session.BadDSN: exitUsage, session.Unreachable: exitUnreachable, session.Denied: exitDenied,
		session.Unsafe: exitUnsafe, session.Standby: exitUnsafe, session.NoStandbys: exitUnsafe,
	}[kind], exitInternal)
}

// end turns the result of a run into an error that exit understands.
func (o *options) end(outcome runner.Outcome, err error) error {
	var conflict *lock.ConflictError
	var paused *ledger.PausedError
	switch {
	case errors.As(err, &conflict):
		return &explainedError{error: conflict, code: o.conflictCode}
	case errors.As(err, &paused):
		return &explainedError{error: paused, code: o.conflictCode, hint: o.resumption(paused)}
	case err != nil:
		return err
	case outcome.Asked.Has(runner.ByTimeout):
		return &silentExit{code: exitTimeout}
	case outcome.Status.Signaled():
		return &silentExit{sig: outcome.Status.Signal()}
	}
	return &silentExit{code: outcome.Status.ExitStatus()}
}

// resumption is the command that ends a pause.
func (o *options) resumption(paused *ledger.PausedError) string {
	key := "KEY" // any key
	switch {
	case paused.Key != "":
		key = visible.ShellWord(ledger.PatternOf(paused.Key))
	case len(o.keys) == 1:
		key = visible.ShellWord(ledger.PatternOf(o.keys[0]))
	}
	if o.keyScheme != lockkey.DefaultScheme {
		key += " --key-scheme " + o.keyScheme
	}
	return "pglead resume " + key + " ends the pause"
}
