package cmd

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestSeconds: a length of time has no more digits in JSON than it has nanoseconds.
func TestSeconds(t *testing.T) {
	var out bytes.Buffer
	u := newUI(&out)
	u.configure(false, false, true, []string{"k"})
	u.log.Warn("the command ended", "ran", 1424929859*time.Nanosecond)
	if !strings.Contains(out.String(), `"ran":1.424929859}`) {
		t.Error(out.String())
	}
}
