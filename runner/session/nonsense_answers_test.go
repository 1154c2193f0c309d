package session

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// encoded makes the server's messages of an answer. An answer that begins with r is rows of values;
// any other is sent as it is.
func encoded(answer []byte) (messages []byte) {
	if len(answer) == 0 || answer[0] != 'r' {
		return answer
	}
	for _, row := range bytes.Split(answer[1:], []byte(";")) {
		var err error
		if messages, err = (&pgproto3.DataRow{Values: bytes.Split(row, []byte(","))}).Encode(messages); err != nil {
			return nil
		}
	}
	return messages
}

// answered is a session whose server gives these answers, one to each query, over and over.
func answered(t *testing.T, lease time.Duration, answers ...[]byte) *Session {
	t.Helper()
	here, there := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer there.Close()
		server := pgproto3.NewBackend(there, there)
		ready, _ := (&pgproto3.ReadyForQuery{TxStatus: 'I'}).Encode(nil)
		for i := 0; ; i++ {
			message, err := server.Receive()
			if _, ok := message.(*pgproto3.Query); err != nil || !ok {
				return
			}
			if _, err := there.Write(slices.Concat(encoded(answers[i%len(answers)]), ready)); err != nil {
				return
			}
		}
	}()
	s := newSession(here, pgproto3.NewFrontend(here, here), 1, Config{Lease: lease}, bootClock())
	t.Cleanup(func() {
		s.Close()
		<-served
	})
	return s
}

// FuzzAnswers: whatever a server says, a session takes no harm.
func FuzzAnswers(f *testing.F) {
	notice, err := (&pgproto3.NotificationResponse{PID: 2, Channel: "pglead.1.1", Payload: "started 9 9999999999999 9"}).Encode(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("r2"), []byte("r7,8,,,0,1,1;7,8,,,0,2,1"), []byte("r0,1,1"))
	f.Add([]byte("r1000000"), []byte("r"), []byte("r-1"))
	f.Add([]byte("r-9"), []byte("r1"), append(notice, encoded([]byte("r1,0,1,1"))...))
	f.Add([]byte("rcrowded"), []byte("r1,2;;3"), []byte("rdb,0,1,1,ExclusiveLock,t,7,0,r,,pglead:k@h,/*pglead slots='9'*/,f,1700000000"))
	f.Add([]byte("E\x00\x00\x00\x0eSFATAL\x00\x00\x00"), []byte("D\x7f\xff\xff\xff"), []byte("Z"))
	// For an answer that doesn't end the session waits no longer than this lease allows.
	const lease = 50 * time.Millisecond
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		s := answered(t, lease, first, second, third)
		ctx := t.Context()
		s.OnNotify("pglead.1.1", func(uint32, string) {})
		for range 3 {
			asked, err := s.Ask(ctx, Request{SQL: []string{"SELECT 1", "SELECT 2"}})
			if err == nil && len(asked) != 2 {
				t.Errorf("%d answers to two questions", len(asked))
			}
			_, _ = s.Row(ctx, 2, "SELECT 1, 2")
		}
	})
}

// TestCommitIsUnderstood: a commit counts as confirmed only if each of its two statements has one
// row.
func TestCommitIsUnderstood(t *testing.T) {
	for name, tt := range map[string]struct{ commit, after, want string }{
		"as PostgreSQL answers": {"r7,1,*,here,on,9,token", "r7,1,*,here,9", "token"},
		"no rows, then two":     {"", "r7,1,*,here,on,9,token;7,1,*,here", ""},
		"two rows, then none":   {"r7,1,*,here,on,9,token;7,1,*,here", "", ""},
		"two rows, then one":    {"r7,1,*,here,on,9,token;7,1,*,here", "r7,1,*,here,9", ""},
		"too few columns":       {"r7,1", "r7,1,*,here,9", ""},
		"too few columns after": {"r7,1,*,here,on,9,token", "r7,1", ""},
		"one too many after":    {"r7,1,*,here,on,9,token", "r7,1,*,here,9,on", ""},
	} {
		t.Run(name, func(t *testing.T) {
			const lease = time.Hour
			s := answered(t, lease, nil)
			s.noteIdentity("here")
			s.second = answered(t, lease, []byte(tt.commit), []byte(tt.after))
			row, err := s.commit(t.Context(), "the columns")
			if strings.Join(row, " ") != tt.want {
				t.Errorf("%q, want %q", row, tt.want)
			}
			if e := (*Error)(nil); tt.want == "" && (!errors.As(err, &e) || e.Kind != Unsafe) || tt.want != "" && err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCommitElsewhere: a commit on another server than the one that has the lock, to which a pooler
// leads by now, is not confirmed, and ends both sessions.
func TestCommitElsewhere(t *testing.T) {
	for name, tt := range map[string]struct{ commit, after, want string }{
		"here":        {"r7,1,*,here,on,9,token", "r7,1,*,here,9", ""},
		"there":       {"r7,1,*,there,on,9,token", "r7,1,*,there,9", "another server"},
		"there after": {"r7,1,*,here,on,9,token", "r8,1,*,there,9", "another server"},
		"here after":  {"r7,1,*,there,on,9,token", "r8,1,*,here,9", "another server"},
	} {
		t.Run(name, func(t *testing.T) {
			s := answered(t, time.Hour, nil)
			s.noteIdentity("here")
			s.second = answered(t, time.Hour, []byte(tt.commit), []byte(tt.after))
			_, err := s.commit(t.Context(), "the columns")
			var e *Error
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (!errors.As(err, &e) || e.Kind != Unreachable || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, want %q", err, tt.want)
			case tt.want != "":
				select {
				case <-s.Done():
				case <-time.After(time.Minute):
					t.Error("the session with the lock goes on")
				}
			}
		})
	}
}

// TestSecondElsewhere: without a quorum, too, what a second session says counts only if that is on
// the server that has the lock.
func TestSecondElsewhere(t *testing.T) {
	for answer, want := range map[string]string{"rhere,token": "token", "rthere,token": ""} {
		s := answered(t, time.Hour, nil)
		s.noteIdentity("here")
		s.second = answered(t, time.Hour, []byte(answer))
		row, err := s.AskSecond(t.Context(), "the columns")
		e := &Error{}
		if errors.As(err, &e); strings.Join(row, " ") != want || (want == "") != (e.Kind == Unreachable) {
			t.Errorf("%s: %q, %v", answer, row, err)
		}
	}
}

// TestSecondAgain: a second session that is lost is closed before another one is opened.
func TestSecondAgain(t *testing.T) {
	database, err := pgconn.ParseConfig("host=/nosuch")
	if err != nil {
		t.Fatal(err)
	}
	s, second := answered(t, time.Hour, nil), answered(t, time.Hour, nil)
	s.cfg.Database, s.second = database, second
	second.fail(ErrSilent)
	if _, err := s.Second(t.Context()); err == nil || !strings.Contains(err.Error(), "no server socket there") {
		t.Errorf("opened: %v", err)
	}
	select {
	case <-second.stop:
	default:
		t.Error("the lost one is left open")
	}
}

// TestCommitMayHaveWaited: a commit counts as confirmed only if the names of the standbys were
// there all the time, and as many standbys as they ask for have its position. Otherwise it is
// repeated or, where no names are left, in vain.
func TestCommitMayHaveWaited(t *testing.T) {
	for name, tt := range map[string]struct {
		commit, after string
		confirmed     bool
		kind          Kind
	}{
		"it has waited":                    {"7,1,*,here,on,9", "7,1,*,here,9", true, 0},
		"by two backends":                  {"7,1,*,here,on,9", "8,2,*,here,9", true, 0},
		"the settings were read meanwhile": {"7,1,*,here,on,9", "7,2,*,here,9", false, 0},
		"the standby is behind":            {"7,1,*,here,on,9", "7,1,*,here,8", false, 0},
		"there is no standby":              {"7,1,*,here,on,9", "7,1,*,here,", false, 0},
		"no names":                         {"7,1,,here,on,9", "7,1,*,here,9", false, NoStandbys},
		"no names any more":                {"7,1,*,here,on,9", "7,1,,here,9", false, NoStandbys},
	} {
		s := &Session{}
		s.noteIdentity("here")
		confirmed, err := s.judgeCommit([]Rows{{strings.Split(tt.commit, ",")}, {strings.Split(tt.after, ",")}})
		e := &Error{}
		if errors.As(err, &e); confirmed != tt.confirmed || e.Kind != tt.kind || (err != nil) != (tt.kind != 0) {
			t.Errorf("%s: confirmed %t, %v", name, confirmed, err)
		}
	}
}

// TestOtherHosts: sslmode=prefer, the default, makes two attempts of each host, which are one
// host.
func TestOtherHosts(t *testing.T) {
	for dsn, want := range map[string]int{
		"host=a": 0, "host=a,b": 1, "host=a,a port=1,2": 1, "host=a,b,c sslmode=disable": 2,
	} {
		database, err := pgconn.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		s := &Session{cfg: Config{Database: EachHost(database)[0]}}
		next, got := Elsewhere(database, s.noQuorum()) // of the first
		if got != want {
			t.Errorf("%s: %d others, want %d", dsn, got, want)
		}
		if same := next.Host == database.Host && next.Port == database.Port; same != (want == 0) {
			t.Errorf("%s: the next is %s:%d", dsn, next.Host, next.Port)
		}
		if _, got := Elsewhere(database, ErrSilent); got != 0 {
			t.Errorf("%s: %d others, though the error is not of one host", dsn, got)
		}
	}
}

// TestSentInTime: a request is not sent once its context has ended.
func TestSentInTime(t *testing.T) {
	s := answered(t, time.Hour, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // a choice at random would send every other one
		if _, err := s.send(ctx, Request{SQL: []string{"SELECT 1"}}); !errors.Is(err, context.Canceled) {
			t.Fatalf("sent: %v", err)
		}
	}
}

// TestFloodOfErrors: a server that sends errors without end costs this process no memory: a session
// keeps one for each query.
func TestFloodOfErrors(t *testing.T) {
	flood, err := (&pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "XX000", Message: "no"}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := answered(t, time.Minute, bytes.Repeat(flood, 1000))
	rt, err := s.askOnce(t.Context(), Request{SQL: []string{"SELECT 1", "SELECT 2"}})
	if err == nil || rt == nil || len(rt.failed) != 2 || rt.failed[1].query != 1 || !HasCode(rt.failed[1].err, "XX000") {
		t.Errorf("%v; it keeps %+v", err, rt)
	}
}

// TestTooMuchAfterError: an answer that is too long is that error, also if the server has rejected an
// earlier query: then there are no answers to read.
func TestTooMuchAfterError(t *testing.T) {
	rt := &roundTrip{answers: []Rows{nil, nil}, err: &pgconn.PgError{Code: "XX000"}, size: mostAnswer}
	rt.keepRow([][]byte{[]byte("1")})
	if AnsweredError(rt.err) != nil || !strings.Contains(rt.err.Error(), "64 MiB") {
		t.Errorf("the error is %v", rt.err)
	}
}
