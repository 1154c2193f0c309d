package session

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pglead/pglead/runner/checkup"
)

// standbys are what synchronous_standby_names asks for.
type standbys struct {
	least int      // so many have to confirm a commit
	names []string // of these; "*" is any
	any   bool     // whichever of them; else the first that are there
}

var errStandbyNames = errors.New("synchronous_standby_names is not of a form that is known here")

// parseStandbys reads synchronous_standby_names: ANY 2 (a, b, c), FIRST 1 (a, b),
// 1 (a, b), or a, b.
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/backend/replication/syncrep_gram.y
func parseStandbys(setting string) (s standbys, err error) {
	words, err := standbyWords(setting)
	if err != nil || len(words) == 0 {
		return s, errStandbyNames
	}
	s.least = 1
	is := func(i int, what string) bool {
		return i < len(words) && !words[i].quoted && strings.EqualFold(words[i].text, what)
	}
	if start := openingOf(words); start > 0 {
		if start > 2 || start == 2 && !is(0, "ANY") && !is(0, "FIRST") || !is(len(words)-1, ")") {
			return s, errStandbyNames
		}
		s.any = start == 2 && is(0, "ANY")
		if s.least, err = strconv.Atoi(words[start-1].text); err != nil || s.least < 1 {
			return s, errStandbyNames
		}
		words = words[start+1 : len(words)-1]
	}
	for i := range words {
		if comma := is(i, ","); comma != (i%2 == 1) || is(i, "(") || is(i, ")") {
			return s, errStandbyNames
		}
		if i%2 == 0 {
			s.names = append(s.names, words[i].text)
		}
	}
	if len(words)%2 == 0 {
		return s, errStandbyNames
	}
	return s, nil
}

// countStandbys holds the number of standbys that confirm a commit against how many
// there are: of n, one is promoted, and of the others the former primary and the new
// one must not both find enough, k and k', which is k + k' >= n. A list that is the
// same on all servers may name this one, too.
func countStandbys(setting, self string, connected int) checkup.Check {
	list, err := parseStandbys(setting)
	if err != nil {
		return checkup.Warningf("", "%v: %q", err, setting)
	}
	listed := list.names
	if slices.Contains(listed, "*") {
		listed = nil
	}
	others := slices.DeleteFunc(slices.Clone(listed), func(name string) bool { return strings.EqualFold(name, self) })
	n := max(connected, len(others))
	seen := fmt.Sprintf("synchronous_standby_names is %q: a commit waits for %d of %d standbys, %d connected", setting, list.least, n, connected)
	const unsound = "%s; after a promotion the primary that is left behind may find as many as the new one"
	switch {
	case list.least > connected:
		return checkup.Warningf("pg_stat_replication shows those that are connected", "%s: commits hang, and with --quorum a command's start", seen)
	case 2*list.least < connected:
		return checkup.Failf("on all servers: "+list.asking((connected+1)/2), unsound, seen)
	case 2*list.least < n:
		return checkup.Warningf("unless the list names servers that are no standbys, on all servers: "+list.asking((n+1)/2), unsound, seen)
	}
	return checkup.Okf("%s; --quorum waits for them", seen)
}

// asking is what to set for so many of a list.
func (s standbys) asking(least int) string {
	method := "FIRST"
	if s.any {
		method = "ANY"
	}
	names := make([]string, len(s.names))
	for i, name := range s.names {
		names[i] = name
		if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_*") != "" {
			names[i] = `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
		}
	}
	return fmt.Sprintf("%s %d (%s), with all standbys in the list", method, least, strings.Join(names, ", "))
}

// standbyWord is a name, a number, or one of the characters in between.
type standbyWord struct {
	text   string
	quoted bool
}

func openingOf(words []standbyWord) int {
	for i, w := range words {
		if w.text == "(" && !w.quoted {
			return i
		}
	}
	return -1
}

func standbyWords(setting string) (words []standbyWord, err error) {
	for rest := strings.TrimLeft(setting, " \t\n\r\f\v"); rest != ""; rest = strings.TrimLeft(rest, " \t\n\r\f\v") {
		switch {
		case rest[0] == '"':
			var name strings.Builder
			for rest = rest[1:]; ; {
				part, after, closed := strings.Cut(rest, `"`)
				if !closed {
					return nil, errStandbyNames
				}
				name.WriteString(part)
				if !strings.HasPrefix(after, `"`) {
					rest = after
					break
				}
				name.WriteByte('"')
				rest = after[1:]
			}
			words = append(words, standbyWord{name.String(), true})
		case strings.IndexByte(",()*", rest[0]) >= 0:
			words = append(words, standbyWord{rest[:1], false})
			rest = rest[1:]
		default:
			end := strings.IndexAny(rest, ",()*\" \t\n\r\f\v")
			if end < 0 {
				end = len(rest)
			}
			words = append(words, standbyWord{rest[:end], false})
			rest = rest[end:]
		}
	}
	return words, nil
}
