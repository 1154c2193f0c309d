package ledger

import (
	"regexp"
	"slices"
	"strings"
)

// Pattern is an argument that may stand for several keys: * for any characters, and ? for one. In an
// argument that has one of these, \*, \? and \\ stand for *, ? and \.
type Pattern []patternPart

// patternPart is a wildcard, or a byte of a key.
type patternPart struct {
	char     byte
	wildcard bool // char is * or ?
}

// special are the characters that a backslash makes stand for themselves.
const special = `*?\`

// PatternOf is the argument that stands for this key alone.
func PatternOf(key string) string {
	if !strings.ContainsAny(key, "*?") {
		return key
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`).Replace(key)
}

// ParsePattern reads an argument.
func ParsePattern(arg string) (p Pattern) {
	escapes := strings.ContainsAny(arg, "*?")
	for i := 0; i < len(arg); i++ {
		part := patternPart{arg[i], arg[i] == '*' || arg[i] == '?'}
		if escapes && arg[i] == '\\' && i+1 < len(arg) && strings.ContainsRune(special, rune(arg[i+1])) {
			i++
			part = patternPart{arg[i], false}
		}
		p = append(p, part)
	}
	return p
}

// Key is the one key that the argument stands for, unless it stands for several.
func (p Pattern) Key() (key string, one bool) {
	if slices.ContainsFunc(p, func(part patternPart) bool { return part.wildcard }) {
		return "", false
	}
	return p.translate("", "", func(text string) string { return text }), true
}

// Expression is a regular expression for the pattern's keys, in Go's syntax.
func (p Pattern) Expression() string { return p.translate(".*", ".", regexp.QuoteMeta) }

// like is a quoted pattern for LIKE.
func (p Pattern) like() string {
	return quote(p.translate("%", "_", strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace))
}

// translate writes the pattern in another syntax.
func (p Pattern) translate(any, one string, text func(string) string) string {
	var all, plain []byte
	for _, part := range append(p, patternPart{wildcard: true}) {
		if !part.wildcard {
			plain = append(plain, part.char)
			continue
		}
		all, plain = append(all, text(string(plain))...), nil
		switch part.char {
		case '*':
			all = append(all, any...)
		case '?':
			all = append(all, one...)
		}
	}
	return string(all)
}
