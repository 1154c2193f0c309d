package cmd

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// TestOutlet: while nobody reads, no speaker waits. A later reader gets the number of
// messages that are missing, and then the last ones in their order.
func TestOutlet(t *testing.T) {
	for name, tt := range map[string]struct {
		json bool
		note string
	}{
		"text": {note: "pglead: k: nobody read standard error in time: 44 messages are missing here\n"},
		"json": {json: true, note: `,"level":"WARN","msg":"nobody read standard error in time: 44 messages are missing here","key":"k","event":"dropped","messages":44}` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			reader, writer := io.Pipe()
			out := &outlet{w: writer}
			u := newUI(out)
			u.width = func() int { return 80 }
			u.out, out.note = out, u.dropped
			u.configure(false, false, tt.json, []string{"k"})
			say := func(i int) { fmt.Fprintf(u, "message %d\n", i) }
			say(0)
			for { // until the first one is being written
				out.mu.Lock()
				begun := len(out.queue) == 0
				out.mu.Unlock()
				if begun {
					break
				}
			}
			const missing = 44
			for i := 1; i <= mostQueued+missing; i++ {
				say(i)
				u.setStatus("waiting") // which is not worth a place
			}
			want := "message 0\n" + tt.note
			for i := missing + 1; i <= mostQueued+missing; i++ {
				want += fmt.Sprintf("message %d\n", i)
			}
			read := make(chan string)
			go func() {
				all, _ := io.ReadAll(reader)
				read <- string(all)
			}()
			u.flush()
			_ = writer.Close()
			got := <-read
			if tt.json { // but for its time
				begin, end := strings.Index(got, `{"time":"`), strings.Index(got, `,"level"`)
				got = got[:max(0, begin)] + got[max(0, end):]
			}
			if got != want {
				t.Errorf("read\n%s\nwant\n%s", got, want)
			}
		})
	}
}
