package session

import (
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/leasetime"
)

// These tests run in virtual time: the server is a goroutine at the other end
// of a pipe, and what is asserted is exact.

const testLease = 15 * time.Second

// silent is a session whose server answers as the test tells it to.
type silent struct {
	*Session
	server  *pgproto3.Backend
	there   net.Conn // the server's end
	started time.Time
}

// virtual is a clock of virtual time, which started at an instant, and jumps by the time asleep.
func virtual(started time.Time, asleep *time.Duration) clock {
	now := func() boottime.Instant { return boottime.Instant(time.Since(started) + *asleep) }
	return clock{now, func() (timer, error) {
		return virtualTimer{time.NewTimer(time.Hour), make(chan struct{}), now}, nil
	}}
}

// virtualTimer stands still for the time asleep.
type virtualTimer struct {
	timer   *time.Timer
	stopped chan struct{}
	now     func() boottime.Instant
}

func (t virtualTimer) Set(at boottime.Instant) error {
	t.timer.Reset(at.Sub(t.now()))
	return nil
}

func (t virtualTimer) Wait() error {
	select {
	case <-t.timer.C:
		return nil
	case <-t.stopped:
		return net.ErrClosed
	}
}

func (t virtualTimer) Stop() { close(t.stopped) }

func newSilent(t *testing.T) *silent {
	t.Helper()
	here, there := net.Pipe()
	started := time.Now()
	s := &silent{
		Session: newSession(here, pgproto3.NewFrontend(here, here), 1, Config{Lease: testLease}, virtual(started, new(time.Duration))),
		server:  pgproto3.NewBackend(there, there),
		there:   there,
		started: started,
	}
	t.Cleanup(func() {
		_ = there.Close()
		s.Close()
	})
	return s
}

// answer receives a heartbeat and answers it after a while.
func (s *silent) answer(t *testing.T, after time.Duration) {
	t.Helper()
	if _, err := s.server.Receive(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
	s.server.Send(&pgproto3.DataRow{Values: [][]byte{[]byte("1")}})
	s.server.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
	s.server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err := s.server.Flush(); err != nil {
		t.Fatal(err)
	}
}

func (s *silent) at() time.Duration { return time.Since(s.started) }

func TestSilenceEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSilent(t)
		s.StartHeartbeat()
		beat := leasetime.BeatEvery(testLease)
		for range 3 {
			s.answer(t, 0)
		}
		if _, err := s.server.Receive(); err != nil { // the fourth stays unanswered
			t.Fatal(err)
		}
		<-s.Done()
		if want := 3*beat + leasetime.HolderShare(testLease); s.at() != want {
			t.Errorf("lost at %v, want %v: the holder's share after the last answered heartbeat was sent", s.at(), want)
		}
		var lost *LostError
		if !errors.As(s.Err(), &lost) || !errors.Is(lost, ErrSilent) || lost.SilentFor != leasetime.HolderShare(testLease) {
			t.Errorf("lost: %#v", s.Err())
		}
	})
}

// TestSlowAnswers: the deadline counts from the sending of a request, since the server may have
// begun to count at that time.
func TestSlowAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSilent(t)
		s.StartHeartbeat()
		beat := leasetime.BeatEvery(testLease)
		s.answer(t, 5*time.Second)
		synctest.Wait()
		if want := boottime.Instant(beat + leasetime.HolderShare(testLease)); s.Deadline() != want {
			t.Errorf("deadline %v after an answer that took 5s, want %v", s.Deadline(), want)
		}
		select {
		case deadline := <-s.Renewed():
			if deadline != s.Deadline() {
				t.Errorf("renewed to %v, want %v", deadline, s.Deadline())
			}
		default:
			t.Error("the answer renewed nothing")
		}
	})
}

// TestSlowNetworkKeepsIt: round trips of up to a heartbeat's interval do no harm, however long they
// go on.
func TestSlowNetworkKeepsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSilent(t)
		s.StartHeartbeat()
		for range 1000 {
			s.answer(t, leasetime.BeatEvery(testLease)-time.Millisecond)
			synctest.Wait()
			if s.Err() != nil {
				t.Fatalf("lost at %v: %v", s.at(), s.Err())
			}
		}
	})
}

func TestAnswerTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSilent(t)
		s.StartHeartbeat()
		s.answer(t, leasetime.HolderShare(testLease)+time.Millisecond)
		synctest.Wait()
		if !errors.Is(s.Err(), ErrSilent) {
			t.Errorf("lost: %v, want ErrSilent", s.Err())
		}
	})
}

// TestNoNeedlessHeartbeat: a heartbeat that asks nothing is sent only when the session has been
// silent for an interval, and not again because a request was under way when it was due.
func TestNoNeedlessHeartbeat(t *testing.T) {
	beat := leasetime.BeatEvery(testLease)
	for name, tt := range map[string]struct{ asked, took, next time.Duration }{
		"an answer before it":      {time.Second, 0, time.Second + beat},
		"a request when it is due": {time.Second, beat, 2 * beat},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSilent(t)
				s.StartHeartbeat()
				time.Sleep(tt.asked)
				go func() { _, _ = s.Query(t.Context(), "SELECT 1") }()
				s.answer(t, tt.took)
				if _, err := s.server.Receive(); err != nil || s.at() != tt.next {
					t.Errorf("the next request comes at %v, want %v; %v", s.at(), tt.next, err)
				}
			})
		})
	}
}

// TestUnanswered: without a heartbeat, too, a request waits for its answer no longer than the lock
// is certainly held.
func TestUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSilent(t)
		go func() { _, _ = s.server.Receive() }()
		_, err := s.Query(t.Context(), "SELECT 1")
		if !errors.As(err, new(*LostError)) || !errors.Is(err, ErrSilent) || s.at() != leasetime.HolderShare(testLease) {
			t.Errorf("after %v: %v", s.at(), err)
		}
	})
}

// newSilentPair is a session that beats, and the second one on which it depends, at one server.
func newSilentPair(t *testing.T) (s, second *silent) {
	t.Helper()
	s, second = newSilent(t), newSilent(t)
	s.noteIdentity("here")
	second.noteIdentity("here")
	s.dependOn(second.Session)
	s.StartHeartbeat()
	return s, second
}

// TestUnconfirmed: standbys that confirm none of many commits, all of which the server answers, are
// the cause of the loss.
func TestUnconfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, second := newSilentPair(t)
		serve := func(s *silent, rows ...[]string) {
			for i := 0; ; i++ {
				if _, err := s.server.Receive(); err != nil {
					return
				}
				s.send(&pgproto3.DataRow{Values: values(rows[i%len(rows)])})
				s.send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			}
		}
		go serve(s, []string{"1"})
		go serve(second, []string{"7", "1", "*", "here", "on", "9", ""}, []string{"7", "1", "*", "here", "8"})
		<-s.Done()
		if err := s.Err(); !errors.Is(err, ErrUnconfirmed) || s.at() != leasetime.HolderShare(testLease) {
			t.Errorf("lost after %v: %v", s.at(), err)
		}
	})
}

// TestRenewedByStandbys: an answer to either session moves the deadline, which is the earlier one
// of both.
func TestRenewedByStandbys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, second := newSilentPair(t)
		beat := leasetime.BeatEvery(testLease)
		s.answer(t, 0)
		synctest.Wait()
		first := <-s.Renewed()
		for _, row := range [][]string{{"7", "1", "*", "here", "on", "9", ""}, {"7", "1", "*", "here", "9"}} {
			if _, err := second.server.Receive(); err != nil {
				t.Fatal(err)
			}
			second.send(&pgproto3.DataRow{Values: values(row)})
			second.send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		}
		synctest.Wait()
		share := leasetime.HolderShare(testLease)
		select {
		case then := <-s.Renewed():
			if first != boottime.Instant(share) || then != boottime.Instant(beat+share) {
				t.Errorf("renewed to %v, and then to %v", first, then)
			}
		default:
			t.Errorf("renewed to %v, and not by the second answer", first)
		}
	})
}

func (s *silent) send(m pgproto3.BackendMessage) {
	s.server.Send(m)
	_ = s.server.Flush() // an error shows in what the session says
}

func values(row []string) (list [][]byte) {
	for _, v := range row {
		list = append(list, []byte(v))
	}
	return list
}

// TestFatalCountsAtOnce: the server's FATAL, or PgBouncer's, counts at once, with the socket still
// open.
func TestFatalCountsAtOnce(t *testing.T) {
	for _, fatal := range []pgproto3.ErrorResponse{{Severity: "FATAL"}, {Severity: "Erreur", SeverityUnlocalized: "FATAL"}} {
		synctest.Test(t, func(t *testing.T) {
			s := newSilent(t)
			s.StartHeartbeat()
			time.Sleep(time.Second)
			fatal.Code, fatal.Message = "08P01", "bye"
			s.server.Send(&fatal)
			if err := s.server.Flush(); err != nil {
				t.Fatal(err)
			}
			<-s.Done()
			if err := s.Err(); s.at() != time.Second || err.Error() != "the server ended the session: bye (08P01)" {
				t.Errorf("lost at %v: %v", s.at(), err)
			}
		})
	}
}

// TestGuardIsAhead: the guard may know of an earlier deadline than the session, and then releases
// the lock a little before the latter. The server's answer to that hides no cause: here it is the
// standbys' silence.
func TestGuardIsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, second := newSilent(t), newSilent(t)
		s.dependOn(second.Session)
		s.StartHeartbeat()
		go func() {
			for _, err := second.server.Receive(); err == nil; _, err = second.server.Receive() {
			}
		}()
		for range 2 {
			s.answer(t, 0)
		}
		time.Sleep(leasetime.HolderShare(testLease) - 100*time.Millisecond - s.at())
		s.server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if err := s.server.Flush(); err != nil {
			t.Fatal(err)
		}
		<-s.Done()
		if err := s.Err(); !errors.Is(err, ErrUnconfirmed) || !errors.Is(err, ErrSilent) || strings.Contains(err.Error(), ErrSilent.Error()) {
			t.Errorf("lost: %v", err)
		}
	})
}

// TestUnreadRequest: a request that the server does not read ends in time.
func TestUnreadRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSilent(t)
		_, err := s.Query(t.Context(), "SELECT 1")
		if lost := (*LostError)(nil); !errors.As(err, &lost) || !errors.Is(err, ErrSilent) || s.at() != leasetime.HolderShare(testLease) {
			t.Errorf("after %v: %v", s.at(), err)
		}
	})
}

// TestSuspend: a clock that jumps, as if the machine had been suspended for a night, ends the
// session at the next opportunity, though the timers have not run out.
func TestSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		started := time.Now()
		var asleep time.Duration
		s := newSession(here, pgproto3.NewFrontend(here, here), 1, Config{Lease: testLease}, virtual(started, &asleep))
		defer s.Close()
		defer there.Close()
		go func() { // takes requests, never answers
			for server := pgproto3.NewBackend(there, there); ; {
				if _, err := server.Receive(); err != nil {
					return
				}
			}
		}()
		asleep = 8 * time.Hour
		s.StartHeartbeat()
		<-s.Done()
		if time.Since(started) > leasetime.BeatEvery(testLease) || !errors.Is(s.Err(), ErrStopped) {
			t.Errorf("lost after %v of running: %v", time.Since(started), s.Err())
		}
	})
}

// TestSuspendWithQuorum: nobody blames the standbys for a suspended machine.
func TestSuspendWithQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, second := newSilent(t), newSilent(t)
		s.provenAt = boottime.Instant(time.Second) // and second's is before that
		s.second, s.depends = second.Session, true
		s.clock.now = func() boottime.Instant { return boottime.Instant(8 * time.Hour) }
		second.clock.now = s.clock.now
		if !s.ExpireIfDue() || !errors.Is(s.Err(), ErrStopped) {
			t.Errorf("lost: %v", s.Err())
		}
		s.depends = false
	})
}

// TestEveryLeaseHasItsMargins: the inequalities on which the promise rests hold for every lease
// that is allowed.
func TestEveryLeaseHasItsMargins(t *testing.T) {
	for _, lease := range []time.Duration{3 * time.Second, 15 * time.Second, time.Minute, time.Hour} {
		beat := leasetime.BeatEvery(lease)
		if leasetime.HolderShare(lease) < 2*beat {
			t.Errorf("lease %v: one lost heartbeat is the end", lease)
		}
		if margin := leasetime.DeadAfter(lease, 0) - leasetime.HolderShare(lease); margin < 200*time.Millisecond {
			t.Errorf("lease %v: only %v to kill in", lease, margin)
		}
		if leasetime.DeadAfter(lease, 0) >= lease {
			t.Errorf("lease %v: the holder may outlive it", lease)
		}
	}
}
