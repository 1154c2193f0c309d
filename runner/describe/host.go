package describe

import (
	"fmt"
	"strings"
)

// mostShort is the greatest length of a host in the name of a session that has to say more.
const (
	mostShort = 37
	leftOut   = "*" // no host's name has it
)

// ShortHost is a host as such a session's name shows it: without its middle, if it is too long. What
// tells hosts apart may be at the beginning, as in a domain name, or at the end, as in a pod's.
func ShortHost(host string) string {
	if len(host) <= mostShort {
		return host
	}
	const half = mostShort / 2
	return host[:half] + leftOut + host[len(host)-half:]
}

// HostRankSQL is an SQL expression for a row of pg_stat_activity. It is 0 if the comment says that
// the session is on this host, which may be a ShortHost; 1 if the session's name says so, which is
// all that other roles see, and may be cut off; and else 2.
func HostRankSQL(host string) string {
	begin, end, short := strings.Cut(host, leftOut)
	inComment, inName := likeable(escapeShort(begin, mostNamed)), likeable(begin)
	switch shown := mostName/2 - len("@"); {
	case short:
		inComment, inName = inComment+"%"+likeable(escapeShort(end, mostNamed)), inName+"%"
	case len(host) > shown:
		inName = likeable(host[:shown])
	}
	return fmt.Sprintf("CASE WHEN query LIKE '%%host=''%s''%%' THEN 0 WHEN application_name LIKE '%%@%s' THEN 1 ELSE 2 END", inComment, inName)
}

// likeable makes a text safe in a quoted pattern for LIKE.
func likeable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '_'
	}, text)
}
