package describe

import (
	"fmt"
	"net/url"
	"strings"
)

// mostShort is the greatest length of a host in the name of a session that has to say more.
const (
	mostShort = 25
	leftOut   = "*" // no host's name has it
)

// ShortHost is a host as such a session's name shows it: encoded, since the server shows other
// bytes in its own way, and without its middle, if it is too long. What tells hosts apart may be at
// the beginning, as in a domain name, or at the end, as in a pod's.
func ShortHost(host string) string {
	escaped := escapeShort(host, mostNamed)
	if len(escaped) <= mostShort {
		return escaped
	}
	const half = mostShort / 2
	return escaped[:half] + leftOut + escaped[len(escaped)-half:]
}

// HostRankSQL is an SQL expression that ranks a row of pg_stat_activity by how surely it is of this
// ShortHost: 0 by its comment; 1 by its name, which every role sees, but may be cut off; and else
// 2.
func HostRankSQL(short string) string {
	begin, end, cut := strings.Cut(short, leftOut)
	inComment := likeable(begin)
	if cut {
		inComment += "%" + likeable(end)
	}
	shown, err := url.QueryUnescape(begin)
	if err != nil { // cut off within a character
		shown, _ = url.QueryUnescape(begin[:strings.LastIndex(begin, "%")])
	}
	inName := likeable(shown[:min(len(shown), mostHost)])
	if cut && len(shown) < mostHost {
		inName += "%"
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
