package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// liar stands between pglead and a server, and puts something else in place of
// rows of its answers.
type liar struct {
	t      *testing.T
	socket string
	listen net.Listener
	open   sync.WaitGroup

	mu   sync.Mutex
	skip int // rows, over all connections, before the one to lie about
	lie  func(values [][]byte) (messages []byte)
	lied bool
}

func newLiar(t *testing.T, socket string) *liar {
	t.Helper()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{t: t, socket: filepath.Join(socket, ".s.PGSQL.5432"), listen: listen}
	l.open.Go(func() {
		for {
			conn, err := listen.Accept()
			if err != nil {
				return
			}
			l.open.Go(func() { l.relay(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listen.Close()
		l.open.Wait()
	})
	return l
}

// environ makes pglead talk to it.
func (l *liar) environ() []string {
	_, port, _ := net.SplitHostPort(l.listen.Addr().String())
	return []string{"PGHOST=127.0.0.1", "PGPORT=" + port, "PGSSLMODE=disable"}
}

func (l *liar) relay(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("unix", l.socket)
	if err != nil {
		l.t.Error(err)
		return
	}
	defer server.Close()
	l.open.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	header := make([]byte, 5)
	for {
		if _, err := io.ReadFull(server, header); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(header[1:])-4)
		if _, err := io.ReadFull(server, body); err != nil {
			return
		}
		message := append(bytes.Clone(header), body...)
		if header[0] == 'D' {
			message = l.row(message, body)
		}
		if _, err := client.Write(message); err != nil {
			return
		}
	}
}

func (l *liar) row(message, body []byte) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.skip--
	if l.skip != -1 {
		return message
	}
	var row pgproto3.DataRow
	if err := row.Decode(body); err != nil {
		l.t.Error(err)
	}
	l.lied = true
	return l.lie(row.Values)
}

// about has it lie about the next row but so many, in this way.
func (l *liar) about(skip int, lie func([][]byte) []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.skip, l.lie, l.lied = skip, lie, false
}

// told says whether it has come to the lie.
func (l *liar) told() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lied
}

func rowOf(values ...[]byte) []byte {
	encoded, err := (&pgproto3.DataRow{Values: values}).Encode(nil)
	if err != nil {
		panic(err) // a row as long as that is a mistake of the test's
	}
	return encoded
}

// lies are in place of a row.
func lies() map[string]func([][]byte) []byte {
	all := func(value []byte) func([][]byte) []byte {
		return func(row [][]byte) []byte {
			for i := range row {
				row[i] = value
			}
			return rowOf(row...)
		}
	}
	list := map[string]func([][]byte) []byte{
		"no row":          func([][]byte) []byte { return nil },
		"three rows":      func(row [][]byte) []byte { return bytes.Repeat(rowOf(row...), 3) },
		"no columns":      func([][]byte) []byte { return rowOf() },
		"one column":      func(row [][]byte) []byte { return rowOf(row[:1]...) },
		"one too many":    func(row [][]byte) []byte { return rowOf(append(row, []byte("1"))...) },
		"empty, and more": func(row [][]byte) []byte { return append(rowOf(), rowOf(row...)...) },
		"large numbers":   all([]byte("1000000000")),
		"larger numbers":  all([]byte("99999999999999999999")),
		"negative":        all([]byte("-9")),
		"NULL":            all(nil),
		"nothing":         all([]byte{}),
		"text":            all([]byte(evil + "\xff")),
		"NaN":             all([]byte("NaN")),
		"long":            all(bytes.Repeat([]byte("9"), 1<<16)),
		"eight bytes":     all([]byte("\x7f\xff\xff\xff\xff\xff\xff\xff")),
	}
	for column := range 4 { // the first are pglead's own, and others may make it look no further
		for _, value := range []string{"1000000000", "-9"} {
			list[fmt.Sprintf("%s in column %d", value, column)] = func(row [][]byte) []byte {
				row[min(column, len(row)-1)] = []byte(value)
				return rowOf(row...)
			}
		}
	}
	return list
}

// TestLyingServer: whatever the server says, pglead ends by itself, in order, and
// says nothing that has an effect on a terminal.
func TestLyingServer(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	s := newStrange(t)
	s.session("", false, locking("command='c',host='h',key='taken',lease='1s',pid='1',user='u'", "taken"), locking("", "taken@1"))
	for _, tt := range []struct {
		args  string
		rows  int // of the server's answers, that are lied about
		every int // of many rows not each is lied about in each way
	}{
		{"run --key k -- true", 4, 1},
		{"run -v --key k --slots 3 -- true", 4, 1},
		{"run -v --key k --key k/2 -- true", 4, 1},
		{"run -v --transaction --key k -- true", 10, 3},
		{"run -v --key taken --lease 3s --wait 0.05 -- true", 9, 3},
		{"run -v --key taken --slots 2 --wait 0.05 -- true", 9, 3},
		{"each --key k/{} a b -- true", 9, 4},
		{"ls --all-databases", 2, 1},
		{"ls -o json", 2, 1},
		{"who taken", 1, 1},
		{"stepdown taken --wait 0.01", 4, 8}, // each asks for as long as a holder may take to look
		{"doctor --lease 3s", 45, 50},
	} {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			s, l := strange{t, s.server}, newLiar(t, s.server.Socket)
			all := lies()
			names := slices.Sorted(maps.Keys(all))
			told := 0
			for skip := range tt.rows {
				for i, name := range names {
					if (skip*len(names)+i)%tt.every > 0 {
						continue
					}
					l.about(skip, all[name])
					status, stdout, stderr := s.pglead(l.environ(), strings.Fields(tt.args)...)
					if l.told() {
						told++
					}
					what := fmt.Sprintf("%s in place of row %d", name, skip)
					if status == 2 || status < 0 || strings.Contains(stderr, "panic") || strings.Contains(stderr, "goroutine ") {
						t.Errorf("%s: exit status %d: %.2000s", what, status, stderr)
					}
					plain(t, what+": standard output", stdout)
					plain(t, what+": standard error", stderr)
				}
			}
			if told == 0 {
				t.Error("no lie was told")
			}
		})
	}
}

// flood is a server that says so much, over and over, to whoever comes.
func flood(t *testing.T, first []byte, more []byte) (environ []string) {
	t.Helper()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			conn, err := listen.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				defer conn.Close()
				_, err := conn.Write(first)
				for left := 2 << 30; err == nil && left > 0; left -= len(more) {
					_, err = conn.Write(more)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listen.Close()
		open.Wait()
	})
	_, port, _ := net.SplitHostPort(listen.Addr().String())
	return []string{"PGHOST=127.0.0.1", "PGPORT=" + port, "PGSSLMODE=disable"}
}

// TestFloodingServer: a server, or what poses as one before the login, doesn't
// make pglead take all of a machine's memory.
func TestFloodingServer(t *testing.T) {
	racesNothing(t)
	if watched() {
		t.Skip("NOT TESTED under the race detector, which takes more memory than pglead may have here")
	}
	s := newStrange(t)
	s.session("", false, locking("command='c',host='h',key='taken',pid='1',user='u'", "taken"))
	header := func(kind byte, length uint32) []byte { return binary.BigEndian.AppendUint32([]byte{kind}, length) }
	zeros := make([]byte, 1<<20)
	status := func(n int) []byte {
		encoded, err := (&pgproto3.ParameterStatus{Name: fmt.Sprint(n), Value: strings.Repeat("x", 1<<19)}).Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	var statuses []byte
	for n := range 400 { // of 200 MB in all
		statuses = append(statuses, status(n)...)
	}
	// An answer, and what is made of it: where that is not enough, pglead panics.
	const most = 400 << 20
	limited := func(environ []string, args string, want int, says string) {
		t.Helper()
		script := fmt.Sprintf("ulimit -d %d; exec pglead %s", most>>10, args)
		status, stdout, stderr := s.program(environ, "sh", "-c", script)
		if status != want || !strings.Contains(strings.Join(strings.Fields(stdout+stderr), " "), says) {
			t.Errorf("%s: exit status %d, want %d and %q: %.300s%.300s", args, status, want, says, stdout, stderr)
		}
	}
	for _, args := range []string{"run --key k -- true", "ls", "doctor"} {
		limited(flood(t, header('R', 1<<30-1), zeros), args, 69, "what answers there is not PostgreSQL")
		limited(flood(t, header('S', 15<<20), zeros), args, 69, "what answers there is not PostgreSQL")
		limited(flood(t, nil, statuses), args, 69, "the server sends more than the 16 MiB")
	}
	l := newLiar(t, s.server.Socket)
	rows := func(row [][]byte) []byte { return bytes.Repeat(rowOf(row...), (100<<20)/len(rowOf(row...))) }
	empty := func([][]byte) []byte { return bytes.Repeat(rowOf(), 3<<20) }
	const tooMuch = "the server sends more than the 64 MiB that its answer may have"
	l.about(1, rows)
	limited(l.environ(), "run --key k -- true", 78, tooMuch)
	l.about(1, empty)
	limited(l.environ(), "run --key k -- true", 78, tooMuch)
	const first = 2 // behind the answers to whether it is a standby, and to the search_path
	l.about(first, rows)
	limited(l.environ(), "ls", 69, tooMuch)
	l.about(first, func([][]byte) []byte { return append(header('D', 1<<30-1), bytes.Repeat(zeros, 40)...) })
	limited(l.environ(), "ls", 69, "the server sends more than the 16 MiB")
	l.about(1, func([][]byte) []byte { return append(header('D', 1<<30-1), bytes.Repeat(zeros, 40)...) })
	limited(l.environ(), "run --key k -- true", 69, "the server sends more than the 16 MiB")
}
