package session

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Standbys are what synchronous_standby_names asks for.
type Standbys struct {
	Least int      // how many have to confirm a commit
	Names []string // of the standbys that may do so; "*" is any standby
	Any   bool     // any of Names will do; otherwise the first that are connected
}

var errStandbyNames = errors.New("synchronous_standby_names is not of a form that is known here")

// ParseStandbys reads synchronous_standby_names: ANY 2 (a, b, c), FIRST 1 (a, b),
// 1 (a, b), or a, b.
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/backend/replication/syncrep_gram.y
func ParseStandbys(setting string) (s Standbys, err error) {
	words, err := standbyWords(setting)
	if err != nil || len(words) == 0 {
		return s, errStandbyNames
	}
	s.Least = 1
	is := func(i int, what string) bool {
		return i < len(words) && !words[i].quoted && strings.EqualFold(words[i].text, what)
	}
	if start := slices.Index(words, standbyWord{"(", false}); start > 0 {
		if start > 2 || start == 2 && !is(0, "ANY") && !is(0, "FIRST") || !is(len(words)-1, ")") {
			return s, errStandbyNames
		}
		s.Any = start == 2 && is(0, "ANY")
		if s.Least, err = strconv.Atoi(words[start-1].text); err != nil || s.Least < 1 {
			return s, errStandbyNames
		}
		words = words[start+1 : len(words)-1]
	}
	for i := range words {
		if comma := is(i, ","); comma != (i%2 == 1) || is(i, "(") || is(i, ")") {
			return s, errStandbyNames
		}
		if i%2 == 0 {
			s.Names = append(s.Names, words[i].text)
		}
	}
	if len(words)%2 == 0 {
		return s, errStandbyNames
	}
	return s, nil
}

// standbyWord is a name, a number or a sign.
type standbyWord struct {
	text   string
	quoted bool
}

func standbyWords(setting string) (words []standbyWord, err error) {
	word := regexp.MustCompile(`"((?:[^"]|"")*)"|[,()*"]|[^,()*" \t\n\r\f\v]+`)
	for _, match := range word.FindAllStringSubmatch(setting, -1) {
		switch text := match[0]; {
		case text == `"`: // it has no closing quote
			return nil, errStandbyNames
		case text[0] == '"':
			words = append(words, standbyWord{strings.ReplaceAll(match[1], `""`, `"`), true})
		default:
			words = append(words, standbyWord{text, false})
		}
	}
	return words, nil
}
