package cmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/pglead/pglead/runner/visible"
)

func writeJSON(w io.Writer, value any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return err
	}
	_, err := w.Write(escapeJSON(b.Bytes()))
	return err
}

// print writes the value in JSON, if --output asks for that, or else the text.
func (o *options) print(w io.Writer, value any, text string) error {
	if o.output.value == "json" {
		return writeJSON(w, value)
	}
	_, err := io.WriteString(w, text)
	return err
}

// escapeJSON escapes characters that affect a terminal and that encoding/json doesn't
// escape: DEL, the control characters beyond ASCII, bidi overrides. In JSON they can only
// occur in strings.
func escapeJSON(encoded []byte) []byte {
	var b []byte
	for _, r := range string(encoded) {
		switch {
		case r == '\n' || visible.Rune(r):
			b = utf8.AppendRune(b, r)
		case r > 0xffff:
			first, second := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, first, second)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return b
}
