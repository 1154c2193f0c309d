package child

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// kind begins each message between pglead and the guard. Its length (32 bits) and the
// body follow. The messages go over a socket pair of the two alone, so the end of the
// stream says that the other process is dead.
//
// New deadlines (int64s, in nanoseconds of boot time) go over a pipe, which the guard
// reads only when the deadline that it knows has passed: else each heartbeat would
// wake it up, for months.
type kind byte

const (
	// from pglead
	msgStart  kind = 'S' // startRequest
	msgSignal kind = 'G' // int64: a signal for the command
	msgKill   kind = 'K' // kill the tree
	msgLost   kind = 'L' // the lock is lost: kill the tree, after the grace

	// from the guard
	msgStarted    kind = 's' // int64: the command's process number
	msgFailed     kind = 'f' // int64: errno of the exec, or tooLate
	msgStopped    kind = 'p' // int64: the command was stopped by this signal
	msgLeftovers  kind = 'l' // text: processes that outlive the command
	msgUnkillable kind = 'u' // text: processes that SIGKILL doesn't reach
	msgDone       kind = 'd' // doneReport
)

// tooLate stands in place of an errno if the deadline had passed.
const tooLate = -1

// maxBody is more than the 6 MiB that Linux permits for argv and environment
// (execve(2)).
const maxBody = 16 << 20

// headSize is the size of kind and length.
const headSize = 5

func writeMessage(w io.Writer, k kind, body []byte) error {
	if len(body) > maxBody {
		return errors.New("arguments and environment are too large")
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

// startAnswer is the message with a number that answers a request to start. What has
// been read of it stays, since a deadline may come between two pieces.
type startAnswer struct {
	message [headSize + 8]byte
	n       int
}

func (a *startAnswer) read(r io.Reader) (kind, int64, error) {
	for a.n < len(a.message) {
		n, err := r.Read(a.message[a.n:])
		if a.n += n; err != nil {
			return 0, 0, err
		}
	}
	head, body := a.message[:headSize], a.message[headSize:]
	if binary.BigEndian.Uint32(head[1:]) != uint32(len(body)) {
		return 0, 0, errMalformed
	}
	return kind(head[0]), number(body), nil
}

func number(body []byte) int64 {
	if len(body) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(body))
}

// startRequest is what the guard has to know. The command's argv and environment
// are here and not in the guard's own, which ps shows, and which hold the settings of
// its Go runtime.
type startRequest struct {
	path               string
	args               []string
	env                []string
	deadline           int64
	lostGrace          int64 // nanoseconds from a loss to the kill
	leaseGrace         int64 // nanoseconds from the deadline to the kill at most
	waitForAll         int64 // 1: leave leftovers alone
	releaseEndsSession int64 // 1: the connection ends with the release
	keepGuard          int64 // 1: another request may follow this one's end
	release            string
	cgroup             string // to be made for the command, unless the guard has one from its start
}

func (r *startRequest) encode() []byte {
	var b []byte
	for _, n := range []int64{r.deadline, r.lostGrace, r.leaseGrace, r.waitForAll, r.releaseEndsSession, r.keepGuard} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	for _, list := range [][]string{{r.path, r.release, r.cgroup}, r.args, r.env} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, s := range list {
			b = binary.AppendUvarint(b, uint64(len(s)))
			b = append(b, s...)
		}
	}
	return b
}

var errMalformed = errors.New("malformed message")

func (r *startRequest) decode(b []byte) error {
	for _, n := range []*int64{&r.deadline, &r.lostGrace, &r.leaseGrace, &r.waitForAll, &r.releaseEndsSession, &r.keepGuard} {
		if len(b) < 8 {
			return errMalformed
		}
		*n, b = number(b[:8]), b[8:]
	}
	var path []string
	for _, list := range []*[]string{&path, &r.args, &r.env} {
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
	if len(path) != 3 || len(b) != 0 {
		return errMalformed
	}
	r.path, r.release, r.cgroup = path[0], path[1], path[2]
	return nil
}

// Ending is why the guard ended the tree.
type Ending int64

const (
	// Exited means that the command ended by itself, or by a signal that was meant for it.
	Exited Ending = iota
	// Killed means that pglead asked for it.
	Killed
	// LeaseOver means that pglead had not renewed the deadline: the lock may be lost.
	LeaseOver
	// SocketClosed means that the server closed the lock's connection.
	SocketClosed
	// PgleadGone means that pglead is dead.
	PgleadGone
)

type doneReport struct {
	ending Ending
	status uint32 // the command's wait status
	killed int64  // processes reaped after the decision to kill
	ready  int64  // 1: the guard awaits another request
}

func (d *doneReport) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(d.ending))
	b = binary.BigEndian.AppendUint32(b, d.status)
	b = binary.BigEndian.AppendUint64(b, uint64(d.killed))
	return binary.BigEndian.AppendUint64(b, uint64(d.ready))
}

func (d *doneReport) decode(b []byte) error {
	if len(b) != 28 {
		return errMalformed
	}
	d.ending = Ending(number(b[:8]))
	d.status = binary.BigEndian.Uint32(b[8:])
	d.killed = number(b[12:20])
	d.ready = number(b[20:])
	return nil
}
