package cmd

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printable quotes what would not stand in a line as it is.
func printable(s string) string {
	if s == "" || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }) {
		return strconv.Quote(s)
	}
	return s
}

// shorten cuts a cell to so many characters.
func shorten(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// squeeze takes from the middle of a cell what is too much: of a key the end, and
// the slot, say more.
func squeeze(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	head := (most - 1) / 3
	return string(runes[:head]) + "…" + string(runes[len(runes)-(most-1-head):])
}

// wrap breaks a text at its spaces. A word that is longer than a line stands
// alone.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}

// plural is a number of things: 1 run, 2 runs.
func plural[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// few names the first of a list, and says how many more there are.
func few(list []string, most int) string {
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
