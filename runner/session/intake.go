package session

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// What a server sends is kept until it is complete, and what poses as one before
// the login may be anybody. So all of it is limited: longest is a row with a
// statement of 1 MB, the most that a server shows, and of the many locks of a
// large one each takes a row of about 1 kB.
const (
	longestMessage = 16 << 20
	mostLogin      = 16 << 20
	mostAnswer     = 64 << 20
)

// tooMuchError says that a server has sent more than it may.
type tooMuchError struct{ most int }

func (e tooMuchError) Error() string {
	return fmt.Sprintf("the server sends more than the %d MiB that its answer may have", e.most>>20)
}

// intake is a connection's reader that gives out so much and no more.
type intake struct {
	r          io.Reader
	left, most int
}

func (in *intake) Read(p []byte) (int, error) {
	if in.left <= 0 {
		return 0, tooMuchError{in.most}
	}
	n, err := in.r.Read(p[:min(len(p), in.left)])
	in.left -= n
	return n, err
}

// intakeName is where a connection has its intake.
const intakeName = "pglead intake"

// login connects, to a server that may send mostLogin up to the first allow.
func login(ctx context.Context, database *pgconn.Config) (*pgconn.PgConn, error) {
	var in *intake // of the latest attempt, which is the one that succeeds
	database.MaxProtocolMessageBodyLen = longestMessage
	database.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		in = &intake{r, mostLogin, mostLogin}
		return pgproto3.NewFrontend(in, w)
	}
	pg, err := pgconn.ConnectConfig(ctx, database)
	if err != nil {
		return nil, err
	}
	pg.CustomData()[intakeName] = in
	return pg, nil
}

// allow has the server send so much from now on, until the next call.
func allow(pg *pgconn.PgConn, most int) {
	if in, ok := pg.CustomData()[intakeName].(*intake); ok {
		in.left, in.most = most, most
	}
}

// allowAll is for a session, which counts what it keeps by itself: see keep.
func allowAll(pg *pgconn.PgConn) { allow(pg, math.MaxInt) }

// keep notes a row of the answer, unless that is too long by now: then it is an
// error, and nothing of it is kept.
func (ex *exchange) keep(values [][]byte) {
	const each = 64 // of what a row, and a value, take beside their text
	ex.size += each
	for _, v := range values {
		ex.size += len(v) + each
	}
	if ex.size > mostAnswer {
		ex.answers = []Rows{nil}
		if ex.err == nil {
			ex.err = unsafe("", "%w", tooMuchError{mostAnswer})
		}
		return
	}
	last := len(ex.answers) - 1
	ex.answers[last] = append(ex.answers[last], copyRow(values))
}
