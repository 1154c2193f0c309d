package child

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/pglead/pglead/runner/boottime"
)

// kind begins each message between pglead and the guard. The length (32 bits) and the
// body follow. The messages go over a socket pair that no other process has, so at the end of the
// stream the other process is dead, or needs this one no more.
//
// New deadlines (int64s, in nanoseconds of boot time) go over a pipe. The guard reads it
// only when the deadline that it knows has passed: otherwise each heartbeat would wake
// the guard, for months.
type kind byte

const (
	// from pglead
	msgStart  kind = 'S' // a Spec
	msgSignal kind = 'G' // int64: a signal for the command
	msgKill   kind = 'K' // kill the tree
	msgLost   kind = 'L' // the lock is lost: kill the tree, after the grace

	// from the guard
	msgStarted    kind = 's' // int64: the command's process number; int64: boot time just before it was made
	msgFailed     kind = 'f' // int64: errno of the exec, or tooLate; int64: boot time just before the exec, or 0
	msgStopped    kind = 'p' // the command was stopped by a signal
	msgLeftovers  kind = 'l' // text: processes that outlive the command
	msgUnkillable kind = 'u' // text: processes that SIGKILL doesn't reach
	msgDone       kind = 'd' // doneReport
)

// tooLate takes the place of an errno if the deadline had passed, or the server had closed the
// connection.
const tooLate = -1

// maxBody is more than the 6 MiB that Linux permits for argv and environment
// (execve(2)).
const maxBody = 16 << 20

var errTooLong = errors.New("the message is too long")

// headSize is the size of kind and length.
const headSize = 5

func writeMessage(w io.Writer, k kind, body []byte) error {
	if len(body) > maxBody {
		return errTooLong
	}
	msg := make([]byte, 0, headSize+len(body))
	msg = append(msg, byte(k))
	msg = binary.BigEndian.AppendUint32(msg, uint32(len(body)))
	msg = append(msg, body...)
	_, err := w.Write(msg)
	return err
}

func writeNumber(w io.Writer, k kind, n int64) error {
	return writeMessage(w, k, binary.BigEndian.AppendUint64(nil, uint64(n)))
}

func readMessage(r io.Reader) (kind, []byte, error) {
	var head [headSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxBody {
		return 0, nil, fmt.Errorf("message of %d bytes", n)
	}
	body := make([]byte, n)
	_, err := io.ReadFull(r, body)
	return kind(head[0]), body, err
}

// startAnswer is the message that answers a request to start: two numbers. It keeps what
// was read so far, since the read deadline may come between two pieces.
type startAnswer struct {
	message [headSize + 16]byte
	n       int
}

func (a *startAnswer) read(r io.Reader) (k kind, n int64, born boottime.Instant, err error) {
	for a.n < len(a.message) {
		n, err := r.Read(a.message[a.n:])
		if a.n += n; err != nil {
			return 0, 0, 0, err
		}
	}
	head, body := a.message[:headSize], a.message[headSize:]
	if binary.BigEndian.Uint32(head[1:]) != uint32(len(body)) {
		return 0, 0, 0, errMalformed
	}
	return kind(head[0]), number(body[:8]), boottime.Instant(number(body[8:])), nil
}

func writeStartAnswer(w io.Writer, k kind, n int64, born boottime.Instant) error {
	return writeMessage(w, k, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(n)), uint64(born)))
}

func number(body []byte) int64 {
	if len(body) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(body))
}

// fixed are pointers to the fields of a message to start that have a fixed size.
func (spec *Spec) fixed() []any {
	return []any{
		&spec.Deadline, &spec.LostGrace, &spec.MostGrace, &spec.SocketLinger,
		&spec.WaitForLeftovers, &spec.ReleaseEndsSession, &spec.SharesSocket, &spec.KeepGuard,
	}
}

// encode is the request as a message. It has the command's argv and environment, since ps shows the
// guard's own arguments, and the guard's own environment is for its Go runtime. GuardPatience does
// not go over the wire: only pglead needs it.
func (spec *Spec) encode() (b []byte) {
	for _, field := range spec.fixed() {
		b, _ = binary.Append(b, binary.BigEndian, field)
	}
	for _, list := range [][]string{{spec.Path, string(spec.Release)}, spec.Args, spec.Env} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, s := range list {
			b = binary.AppendUvarint(b, uint64(len(s)))
			b = append(b, s...)
		}
	}
	return b
}

var errMalformed = errors.New("malformed message")

func (spec *Spec) decode(b []byte) error {
	for _, field := range spec.fixed() {
		used, err := binary.Decode(b, binary.BigEndian, field)
		if err != nil {
			return errMalformed
		}
		b = b[used:]
	}
	var single []string
	for _, list := range []*[]string{&single, &spec.Args, &spec.Env} {
		count, used := binary.Uvarint(b)
		if used <= 0 || count > uint64(len(b)) {
			return errMalformed
		}
		b = b[used:]
		*list = make([]string, 0, count)
		for range count {
			size, used := binary.Uvarint(b)
			if used <= 0 || size > uint64(len(b)-used) {
				return errMalformed
			}
			*list = append(*list, string(b[used:used+int(size)]))
			b = b[used+int(size):]
		}
	}
	if len(single) != 2 || len(b) != 0 {
		return errMalformed
	}
	spec.Path, spec.Release = single[0], []byte(single[1])
	return nil
}

// doneReport is the end of a tree as its guard has seen it.
type doneReport struct {
	Result
	Idle bool // the guard can have another command (Guard.Idle)
}

func (d *doneReport) encode() []byte {
	b, _ := binary.Append(nil, binary.BigEndian, d) // its size is fixed
	return b
}

func (d *doneReport) decode(b []byte) error {
	if n, err := binary.Decode(b, binary.BigEndian, d); err != nil || n != len(b) {
		return errMalformed
	}
	return nil
}
