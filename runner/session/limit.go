package session

import (
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgconn"
)

// This process keeps the server's answer until it is complete, and before the login is over anybody
// may pose as the server. So all that the server sends is limited. The longest message is a row
// with a statement of 1 MB, the most that a server shows. The longest answer is a list of locks: a
// large server has many, and each takes about 1 kB.
const (
	longestMessage = 16 << 20
	mostLogin      = 16 << 20
	mostAnswer     = 64 << 20
)

// tooMuchError says that a server has sent more than its limit.
type tooMuchError struct{ most int }

func (e tooMuchError) Error() string {
	return fmt.Sprintf("the server sends more than the %d MiB that its answer may have", e.most>>20)
}

// limitedReader is a connection's reader with a limit in bytes.
type limitedReader struct {
	r          io.Reader
	left, most int
}

func (in *limitedReader) Read(p []byte) (int, error) {
	if in.left <= 0 {
		return 0, tooMuchError{in.most}
	}
	n, err := in.r.Read(p[:min(len(p), in.left)])
	in.left -= n
	return n, err
}

// limitName is the key of a connection's limitedReader: connect sets it, allow reads it.
const limitName = "pglead limit"

// allow lets the server send this many bytes until the next call.
func allow(pg *pgconn.PgConn, most int) {
	if in, ok := pg.CustomData()[limitName].(*limitedReader); ok {
		in.left, in.most = most, most
	}
}

// keepRow adds a row to the answer. If the answer gets too long, keepRow drops the rows, and the
// answer is an error instead.
func (rt *roundTrip) keepRow(values [][]byte) {
	const each = 64 // bytes that each row and each value take besides their text
	rt.size += each
	for _, v := range values {
		rt.size += len(v) + each
	}
	if rt.size > mostAnswer {
		rt.answers = []Rows{nil}
		rt.err = unfit("", "%w", tooMuchError{mostAnswer}) // after any error of the server: there are no answers to read
		return
	}
	last := len(rt.answers) - 1
	rt.answers[last] = append(rt.answers[last], copyRow(values))
}
