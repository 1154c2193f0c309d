package session

import (
	"bytes"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// FuzzAnswers: whatever a server says, a session takes no harm.
func FuzzAnswers(f *testing.F) {
	const rows = 'r' // what begins with it is rows of values, else it is taken as it is
	encoded := func(answer []byte) (messages []byte) {
		if len(answer) == 0 || answer[0] != rows {
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
	notice, err := (&pgproto3.NotificationResponse{PID: 2, Channel: "pglead.1.1", Payload: "started 9 9999999999999 9"}).Encode(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("r2"), []byte("r7,8,,,0,1,1;7,8,,,0,2,1"), []byte("r0,1,1"))
	f.Add([]byte("r1000000"), []byte("r"), []byte("r-1"))
	f.Add([]byte("r-9"), []byte("r1"), append(notice, encoded([]byte("r1,0,1,1"))...))
	f.Add([]byte("rcrowded"), []byte("r1,2;;3"), []byte("rdb,0,1,1,ExclusiveLock,t,7,0,r,,pglead:k@h,/*pglead slots='9'*/,f,1700000000"))
	f.Add([]byte("E\x00\x00\x00\x0eSFATAL\x00\x00\x00"), []byte("D\x7f\xff\xff\xff"), []byte("Z"))
	// Of an answer that doesn't end, no more is waited for than this allows.
	const lease = 50 * time.Millisecond
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		answers := [][]byte{encoded(first), encoded(second), encoded(third)}
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
				if _, err := there.Write(slices.Concat(answers[i%len(answers)], ready)); err != nil {
					return
				}
			}
		}()
		s := newSession(here, pgproto3.NewFrontend(here, here), 1, Config{Lease: lease}, bootClock())
		ctx := t.Context()
		s.OnNotify("pglead.1.1", func(uint32, string) {})
		for range 3 {
			asked, err := s.Ask(ctx, Request{SQL: []string{"SELECT 1", "SELECT 2"}})
			if err == nil && len(asked) != 2 {
				t.Errorf("%d answers to two questions", len(asked))
			}
			_, _ = s.Row(ctx, 2, "SELECT 1, 2")
		}
		s.Close()
		<-served
	})
}
