package session

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// A database may have another encoding than UTF8, and then lacks some characters that a text in our
// queries may contain. The server rejects such a query unread, and its error names the character.
// Only the server knows what it lacks, so the query is sent again with that character spelled out
// (see spelled). The spelling is the same wherever the text is stored or looked up.

// lacking is the character of a query that, by the server's error, the database's encoding lacks.
// It is empty if the error is another one.
func lacking(err error, sql string) string {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != untranslatableCharacter {
		return ""
	}
	// The words around the bytes are in the server's language.
	bytes := regexp.MustCompile(`0x[0-9a-f]{2}(?: 0x[0-9a-f]{2})*`).FindString(pgErr.Message)
	char, _ := hex.DecodeString(strings.ReplaceAll(strings.ReplaceAll(bytes, "0x", ""), " ", ""))
	if len(char) < 2 || !utf8.Valid(char) || !strings.Contains(sql, string(char)) {
		return ""
	}
	return string(char)
}

// spelled is a query with these characters spelled in ASCII, such as <U+20AC>. They occur only in
// the query's texts, which mean nothing but themselves, so it does not matter where in it they
// stand.
func spelled(sql string, chars string) string {
	for _, char := range chars {
		sql = strings.ReplaceAll(sql, string(char), fmt.Sprintf("<U+%04X>", char))
	}
	return sql
}

// asIsSQL is an SQL expression for a database with the encoding SQL_ASCII. There it makes the
// server send texts as they are, in this transaction or for the session. Otherwise a single text
// that isn't UTF-8, or was cut within a character, would make every query fail that shows it.
func asIsSQL(pg *pgconn.PgConn, local bool) string {
	if pg.ParameterStatus("server_encoding") != "SQL_ASCII" {
		return "''"
	}
	return setSQL(local, [][2]string{{"client_encoding", "SQL_ASCII"}})
}

// AsIsSQL is an SQL expression by which the server sends texts as they are, for the length of the
// transaction, if the database's encoding is SQL_ASCII: see asIsSQL. A session through a pooler has
// no setting of its own for that.
func (s *Session) AsIsSQL() string { return s.asIs }

// failure is the server's error about one of a request's queries.
type failure struct {
	query int
	err   error
}

// askInEncoding sends a request and waits for its answer. The result is nil if no answer has
// come. A query that was rejected because of a character is sent again, after the others, which
// have been carried out. All of a commit is sent again.
//
// The loop ends, because a character that was spelled out no longer occurs in the query.
func (s *Session) askInEncoding(ctx context.Context, r Request) (*roundTrip, error) {
	rt, err := s.askOnce(ctx, r)
	for rt != nil && len(rt.failed) > 0 && r.Then == nil && !r.Last {
		failed := rt.failed[0]
		char := lacking(err, rt.SQL[failed.query])
		if char == "" {
			break
		}
		s.noteLack(char)
		if r.commit {
			rt, err = s.askOnce(ctx, r)
			continue
		}
		if len(rt.answers) != len(rt.SQL) { // too long an answer was dropped
			break
		}
		again, answered := s.askOnce(ctx, Request{SQL: r.SQL[failed.query : failed.query+1]})
		if again == nil {
			return nil, answered
		}
		rt.SQL = slices.Clone(rt.SQL)
		rt.SQL[failed.query], rt.answers[failed.query], rt.failed = again.SQL[0], again.answers[0], rt.failed[1:]
		if answered != nil {
			rt.failed = slices.Insert(rt.failed, 0, failure{failed.query, answered})
		}
		err = nil
		if len(rt.failed) > 0 {
			err = rt.failed[0].err
		}
	}
	return rt, err
}

func (s *Session) noteLack(char string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.Contains(s.lacks, char) {
		s.lacks += char
	}
}

// spell returns the queries with the characters spelled out that the server is known to lack.
func (s *Session) spell(queries []string) []string {
	s.mu.Lock()
	lacks := s.lacks
	s.mu.Unlock()
	if lacks == "" {
		return queries
	}
	queries = slices.Clone(queries)
	for i, sql := range queries {
		queries[i] = spelled(sql, lacks)
	}
	return queries
}
