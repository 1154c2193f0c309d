package describe

import (
	"fmt"
	"strconv"
	"strings"
)

// Name is the name (application_name) of a session that takes a lock. Unlike the comment it is
// shown to every role:
//
//	pglead:KEY@HOST           before the token is drawn, and always for a list
//	pglead:#TOKEN KEY@HOST    while the command may be alive
//	pglead:#TOKEN- KEY@HOST   once the command is dead
//
// The token comes before the key, since the server cuts off a long name at its end.
type Name struct {
	Key, Host string // as far as they are known, and not cut off
	Token     int64  // 0 if the name shows none
	Ended     bool   // the command is dead
}

const (
	namePrefix  = "pglead:"
	tokenMark   = "#"
	endedSuffix = "-"

	// mostName is NAMEDATALEN-1: the server cuts off the rest.
	mostName = 63
	mostHost = mostName/2 - len("@")
)

// String is the name without its token, as far as it fits. The server shows other bytes as
// question marks, a quote would end the literal with the name, and a key that begins as a token
// does would be read as one.
func (n Name) String() string {
	host := "@" + n.Host[:min(len(n.Host), mostHost)]
	key := n.Key
	if after, marked := strings.CutPrefix(key, tokenMark); marked {
		key = "?" + after
	}
	name := namePrefix + key
	name = name[:min(len(name), mostName-len(host))]
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '\'' || r == '\\' {
			return '?'
		}
		return r
	}, name+host)
}

// ParseName reads a session's name. A name that does not begin as those of pglead do is not ok.
func ParseName(name string) (n Name, ok bool) {
	rest, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return n, false
	}
	if token, after, marked := strings.Cut(rest, " "); marked && strings.HasPrefix(token, tokenMark) {
		rest = after
		digits, ended := strings.CutSuffix(strings.TrimPrefix(token, tokenMark), endedSuffix)
		if number, err := strconv.ParseInt(digits, 10, 64); err == nil && number > 0 {
			n.Token, n.Ended = number, ended
		}
	}
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		n.Key, n.Host = rest[:at], rest[at+1:]
	}
	return n, true
}

// ShowTokenSQL is an SQL expression that adds a token, itself an SQL expression, to the session's
// name, and says with it whether the command is dead.
func ShowTokenSQL(name, token string, ended bool) string {
	suffix := ""
	if ended {
		suffix = endedSuffix
	}
	return fmt.Sprintf("pg_catalog.set_config('application_name', pg_catalog.concat('%s', %s, '%s %s'), false)",
		namePrefix+tokenMark, token, suffix, strings.TrimPrefix(name, namePrefix))
}

// ShowsTokenSQL is an SQL condition: a session's name shows this token, whether or not its command
// is dead.
func ShowsTokenSQL(name string, token int64) string {
	return fmt.Sprintf("pg_catalog.split_part(%[1]s, ' ', 1) IN ('%[2]s%[3]d', '%[2]s%[3]d%[4]s')", name, namePrefix+tokenMark, token, endedSuffix)
}
