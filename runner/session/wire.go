package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
)

// Request is one or more queries that travel together. Each is a transaction of its own,
// unless a transaction holds the lock. After an error in one the server goes on to the next.
type Request struct {
	SQL []string
	// Then, unless it is nil, is called with the rows of each query before the session reads
	// anything that the server sends later. It must not block.
	Then func([]Rows)
	// Last sends the goodbye with the request, which ends the session. A separate goodbye, just
	// before this process ends, would wake the server's backend for a millisecond, possibly on the
	// processor that this process needs for its own end.
	//
	// This session sends none with a quorum, where a second session has to be closed first, or
	// with a pooler: if a goodbye arrives before the answer, the pooler thinks that the
	// client is lost, and closes its connection to the server.
	Last bool

	// commit says that standbys have to confirm the queries. afterCommitQuery is sent after the
	// queries, and judgeCommit decides whether they were confirmed.
	commit bool
}

// A roundTrip is a request and its answer.
type roundTrip struct {
	Request
	sent      boottime.Instant
	left      int // queries whose answer is outstanding
	answers   []Rows
	size      int       // of all rows, in bytes
	err       error     // the first error
	failed    []failure // the errors that the server reported
	warning   string    // the server's warning that a commit was not confirmed
	confirmed bool      // by the standbys
	result    chan struct{}
}

// Ask sends a request and waits for the answer, in which a query that failed has no rows. An error
// of the server is a *pgconn.PgError, an answer that is too long an *Error, the loss of the session
// a *LostError. If ctx ends first, the caller does not learn what the server did, and the next
// request waits for the answer.
//
//	askOnce        one round trip
//	askInEncoding  repeats what fails since the database's encoding lacks a character
func (s *Session) Ask(ctx context.Context, r Request) ([]Rows, error) {
	rt, err := s.askInEncoding(ctx, r)
	if rt == nil {
		return nil, err
	}
	return rt.answers, err
}

// Query is Ask, but returns the rows of all queries in one list.
func (s *Session) Query(ctx context.Context, queries ...string) (Rows, error) {
	answers, err := s.Ask(ctx, Request{SQL: queries})
	return slices.Concat(answers...), err
}

// Row is Query for a question whose answer is a single row (Rows.Only).
func (s *Session) Row(ctx context.Context, columns int, sql string) ([]string, error) {
	rows, err := s.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return rows.Only(columns)
}

// askOnce sends a request and waits for its answer. The result is nil if no answer has come.
func (s *Session) askOnce(ctx context.Context, r Request) (*roundTrip, error) {
	r.SQL = s.spell(r.SQL)
	rt, err := s.send(ctx, r)
	if err != nil {
		return nil, err
	}
	answered, err := s.awaitAnswer(ctx, rt)
	if !answered {
		return nil, err
	}
	if QueueFull(err) && !rt.Last {
		_, _ = s.askOnce(ctx, Request{SQL: []string{"SELECT " + QueueUsageSQL}}) // frees it, so that the next NOTIFY may succeed
	}
	return rt, err
}

// awaitAnswer waits for as long as a holder's share of the lease. After that the server
// counts as silent, even if its backend only waits for a lock, and the session ends.
func (s *Session) awaitAnswer(ctx context.Context, rt *roundTrip) (answered bool, err error) {
	select {
	case <-time.After(leasetime.HolderShare(s.cfg.Lease)):
		s.fail(ErrSilent)
		return false, s.EndError()
	case <-rt.result:
		return true, rt.err
	case <-s.done:
		return false, s.EndError()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// send sends a request, but not after ctx has ended.
func (s *Session) send(ctx context.Context, r Request) (*roundTrip, error) {
	if ctx.Err() != nil { // select would choose at random
		return nil, context.Cause(ctx)
	}
	select {
	case s.onWire <- struct{}{}:
		return s.transmit(r)
	case <-s.done:
		return nil, s.EndError()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// transmit writes a request. The caller has filled onWire, and the reader empties it after the last
// answer.
func (s *Session) transmit(r Request) (*roundTrip, error) {
	r.Last = r.Last && !s.cfg.UsesSecondSession()
	if r.commit {
		r.SQL = append(slices.Clone(r.SQL), afterCommitQuery)
	}
	rt := &roundTrip{Request: r, sent: s.clock.now(), left: len(r.SQL), answers: make([]Rows, 1, len(r.SQL)), result: make(chan struct{})}
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	s.current = rt
	if r.Last && s.state == stateOpen {
		s.state = stateParting
	}
	if s.unansweredSince <= s.provenAt {
		s.unansweredSince = rt.sent
	}
	comment := s.comment
	s.mu.Unlock()
	s.requests++
	for _, sql := range r.SQL {
		s.fe.SendQuery(&pgproto3.Query{String: s.settingsFor(sql, r.commit) + commented(comment, s.requests, sql)})
	}
	if endsTransaction(r.SQL) {
		s.holding.Store(false)
	}
	if r.Last {
		s.fe.Send(&pgproto3.Terminate{})
	}
	// A server that reads no more lets the write wait for as long as an answer.
	_ = s.conn.SetWriteDeadline(time.Now().Add(leasetime.HolderShare(s.cfg.Lease)))
	if err := s.fe.Flush(); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.fail(ErrSilent)
		}
		s.awaitReason(err)
		s.fail(s.broken(fmt.Errorf("send: %w", networkCause(err))))
		return nil, s.EndError()
	}
	return rt, nil
}

// awaitReason is for a request that could not be written because the server had closed the
// connection. It gives the reader time to read the reason, which the server sent before.
func (s *Session) awaitReason(err error) {
	const most = 50 * time.Millisecond // a reader that gets a processor needs much less
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		return
	}
	select {
	case <-s.done:
	case <-time.After(most):
	}
}

// commented puts the session's comment in front of a query. Other statements get none:
// pg_stat_statements would take each for a new one each time.
func commented(comment describe.Comment, request uint64, sql string) string {
	if comment == "" || !isQuery(sql) {
		return sql
	}
	return comment.Before(sql, request)
}

func isQuery(sql string) bool {
	first, _, _ := strings.Cut(sql, " ")
	return first == "SELECT" || first == "WITH" || first == "EXECUTE"
}

// Encoded is a request in the bytes of the protocol. The guard, which shares the socket, sends it
// when this process, and any second session with it, is gone, stopped or cut off. That is impossible
// if the connection is encrypted.
func (s *Session) Encoded(r Request) (encoded []byte, possible bool) {
	if s.Encrypted() {
		return nil, false
	}
	s.mu.Lock()
	comment := s.comment
	s.mu.Unlock()
	for _, sql := range r.SQL { // Encode fails only for a message of a GiB
		encoded, _ = (&pgproto3.Query{String: commented(comment, math.MaxUint32, sql)}).Encode(encoded)
	}
	if r.Last {
		encoded, _ = (&pgproto3.Terminate{}).Encode(encoded)
	}
	return encoded, true
}

// OnNotify sets the function that the session's reader calls with announcements of other sessions
// on a channel, or removes it (nil). The function must not block. The caller sends the LISTEN. What
// was announced before a lock was freed arrives before the grant of that lock.
func (s *Session) OnNotify(channel string, hear func(pid uint32, payload string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hear == nil {
		delete(s.hearers, channel)
		return
	}
	s.hearers[channel] = hear
}

// hear passes on another session's announcement.
func (s *Session) hear(pid uint32, channel, payload string) {
	s.mu.Lock()
	hear := s.hearers[channel]
	s.mu.Unlock()
	if hear != nil && pid != s.BackendPID() {
		hear(pid, payload)
	}
}

// read is the goroutine that reads all that the server sends. It ends with the connection.
func (s *Session) read() {
	for {
		if s.fe.ReadBufferLen() == 0 {
			acknowledge(s.Socket())
		}
		msg, err := s.fe.Receive()
		s.mu.Lock()
		rt := s.current
		s.mu.Unlock()
		if err != nil {
			s.disconnected(rt, err)
			return
		}
		switch msg := msg.(type) {
		case *pgproto3.DataRow:
			if rt != nil {
				rt.keepRow(msg.Values)
			}
		case *pgproto3.ErrorResponse:
			s.noteError(rt, pgconn.ErrorResponseToPgError(msg))
		case *pgproto3.NotificationResponse:
			s.hear(msg.PID, msg.Channel, msg.Payload)
		case *pgproto3.NoticeResponse:
			// The warning that a commit was not confirmed has no code of its own, but
			// the server never translates the name of the function that gives it.
			if rt != nil && msg.Routine == "SyncRepWaitForLSN" {
				rt.warning = msg.Message
			}
		case *pgproto3.ReadyForQuery:
			s.queryAnswered(rt, msg.TxStatus)
		}
	}
}

// disconnected notes the end of the connection. It is a loss unless the goodbye went with the last
// request (Request.Last).
func (s *Session) disconnected(rt *roundTrip, err error) {
	s.mu.Lock()
	parted := s.state == stateParting && rt == nil
	s.mu.Unlock()
	if parted {
		return
	}
	// Poolers end a session with a plain error.
	if pgErr := rt.pgError(); pgErr != nil {
		s.endedByServer(pgErr)
	}
	s.fail(s.broken(networkCause(err)))
}

// endedByServer ends the session by the server's word. If the deadline has passed, as after this host
// was frozen, the cause is that: a waiter has then ended the silent session, which the server calls
// an administrator's command.
func (s *Session) endedByServer(pgErr *pgconn.PgError) {
	if !s.hasHeartbeat() || !s.ExpireIfDue() {
		s.fail(fmt.Errorf("the server ended the session: %w", serverError{pgErr}))
	}
}

// noteError notes an error that the server reports. The server sends FATAL before it frees the
// session's locks, and closes the socket after that. So a FATAL counts as the loss, before the
// stream ends.
func (s *Session) noteError(rt *roundTrip, pgErr *pgconn.PgError) {
	severity := cmp.Or(pgErr.SeverityUnlocalized, pgErr.Severity) // PgBouncer sends only the latter
	if severity == "FATAL" || severity == "PANIC" {
		s.endedByServer(pgErr)
	} else if rt != nil {
		query := len(rt.SQL) - rt.left
		if n := len(rt.failed); n == 0 || rt.failed[n-1].query != query { // PostgreSQL sends one for each query, others may send any number
			rt.failed = append(rt.failed, failure{query, pgErr})
		}
		rt.answers[len(rt.answers)-1] = nil // a row may come before the error that rolls back what it tells
		if rt.err == nil {
			rt.err = pgErr
		}
	}
}

// queryAnswered notes the end of one query's answer; the last one ends the request (answered).
func (s *Session) queryAnswered(rt *roundTrip, txStatus byte) {
	switch {
	case rt == nil:
		// Once the lease is over, the guard writes to this socket, too, and this is the answer. It
		// may come before the deadline: the guard is not told of one that is only a little later.
		if !s.ExpireIfDue() {
			s.fail(s.broken(errors.New("the server answered a question that nobody asked")))
		}
	case s.holding.Load() && txStatus != 'T' && (txStatus != 'E' || rt.left == 1): // an error has ended it, which frees its locks; see inSavepoint
		s.fail(transactionOver(rt.pgError()))
	case rt.left > 1:
		rt.left--
		rt.answers = append(rt.answers, nil)
	default:
		s.holding.Store(s.cfg.Transaction && txStatus == 'T')
		s.answered(rt)
	}
}

func (s *Session) answered(rt *roundTrip) {
	// The server's answer is a sign of life of the session, even if it is an error. It is no sign
	// of life of the standbys if the commit failed, did not wait for them, or ended with a warning,
	// for instance because an administrator has released it from waiting.
	alive := !rt.commit || rt.warning == "" && rt.err == nil
	var hollow error
	if rt.commit && alive {
		rt.confirmed, hollow = s.judgeCommit(rt.answers)
		rt.err, alive = hollow, rt.confirmed
	}
	s.mu.Lock()
	s.current = nil
	if alive {
		s.answerTook = 0
		if now := s.clock.now(); now < s.deadline() { // otherwise this process may have been stopped for that time
			s.answerTook = now.Sub(rt.sent)
		}
		s.provenAt = rt.sent
	}
	onAnswer := s.onAnswer
	s.mu.Unlock()
	onAnswer()
	if rt.Then != nil && rt.err == nil {
		rt.Then(rt.answers)
	}
	<-s.onWire
	close(rt.result)
	if hollow != nil {
		s.fail(hollow)
	}
}

// renew puts the deadline into the channel, in place of an older one. With a quorum the readers of
// both sessions call it.
func (s *Session) renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.renewed:
	default:
	}
	s.renewed <- s.deadline() // there is room, since nobody else writes
}

// pgError is the server's error that answers this request, or nil.
func (rt *roundTrip) pgError() *pgconn.PgError {
	var pgErr *pgconn.PgError
	if rt != nil {
		errors.As(rt.err, &pgErr)
	}
	return pgErr
}
