package lock

import (
	"context"
	"strings"
	"time"

	"github.com/pglead/pglead/runner/session"
)

// What all questions to the server have in common: how they are sent, what their errors are, and
// how long their answers are waited for once the run is asked to end.

// selectQueries are one query for these columns, or none if there are none.
func selectQueries(columns []string) (queries []string) {
	if len(columns) > 0 {
		queries = []string{"SELECT " + strings.Join(columns, ", ")}
	}
	return queries
}

// send sends queries, if there are any.
func (b *bid) send(ctx context.Context, queries ...string) error {
	if len(queries) == 0 {
		return nil
	}
	_, err := b.Session.Query(ctx, queries...)
	return b.cfg.Claim.rejected(err)
}

// askNumber sends a query that is answered by a number.
func (b *bid) askNumber(ctx context.Context, query string) (int, error) {
	rows, err := b.Session.Query(ctx, query)
	if err != nil {
		return 0, b.cfg.Claim.rejected(err)
	}
	numbers, err := rows.Ints(1)
	if err != nil {
		return 0, err
	}
	return numbers[0], nil
}

// retryCanceled sends queries again if they are canceled, a few times.
func retryCanceled(ctx context.Context, s *session.Session, queries ...string) error {
	return retryCanceledFunc(func() error {
		_, err := s.Query(ctx, queries...)
		return err
	})
}

// retryCanceledFunc asks again if what it asks is canceled, a few times.
func retryCanceledFunc(ask func() error) error {
	err := ask()
	for again := 0; again < 3 && session.HasCode(err, session.QueryCanceled); again++ {
		err = ask()
	}
	return err
}

// rejected adds the names of the claim's locks to an error of the server's.
func (c Claim) rejected(err error) error {
	return session.Rejected(err, "lock "+c.String())
}

// untilAnswered returns the context for a request that may announce a start, or note it in the
// ledger. The server carries out such a request even if a signal ends ctx meanwhile. So this
// process still waits for the answer, and then knows what to end: otherwise the run would seem to
// be lost. The new context ends PatienceAtEnd after ctx, since the server may be silent.
func untilAnswered(ctx context.Context) (later context.Context, cancel context.CancelFunc) {
	if ctx.Err() != nil { // the request will not be sent
		return ctx, func() {}
	}
	return lateAfter(ctx)
}

// lateAfter returns a context that ends PatienceAtEnd after ctx.
func lateAfter(ctx context.Context) (later context.Context, cancel context.CancelFunc) {
	return lateBy(ctx, PatienceAtEnd)
}

// lateBy returns a context that ends so long after ctx, or after now if ctx has ended.
func lateBy(ctx context.Context, patience time.Duration) (later context.Context, cancel context.CancelFunc) {
	later, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(patience, func() { end(context.Cause(ctx)) })
	})
	return later, func() {
		stop()
		end(nil)
	}
}

// PatienceAtEnd is how long the end of a run still waits for a database that may be silent. Once
// the run was asked to end, it limits the wait for an answer (lateAfter) and for a listener
// (Held.Call). It also limits the report of a lost session if a signal came before that, and
// reports for which nobody waits for long (report).
const PatienceAtEnd = 2 * time.Second

// releasePatience is how long each request of a release is waited for once the run was asked to
// end. The ledger's functions wait for its tables for 3 s, and that is no reason to give up the
// release.
const releasePatience = 5 * time.Second
