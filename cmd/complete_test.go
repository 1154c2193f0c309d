package cmd

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// TestCompletionWaitsNoLonger: Tab comes back from a server that never answers.
func TestCompletionWaitsNoLonger(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, port, _ := net.SplitHostPort(silent.Addr().String())
	var out bytes.Buffer
	root := newRootCmd("", newUI(io.Discard), &out)
	addCompletions(root)
	root.SetArgs([]string{"__complete", "who", "--dsn", "host=127.0.0.1 sslmode=disable port=" + port, ""})
	began := time.Now()
	if err := root.Execute(); err != nil || out.String() != ":4\n" {
		t.Errorf("%q, %v", &out, err)
	}
	if took := time.Since(began); took > completionTimeout+time.Second {
		t.Errorf("after %v", took)
	}
}

func TestPlainKeys(t *testing.T) {
	for key, want := range map[string]bool{
		"invoice_gen/SUB-1234": true, "é/日本": true, "db:a@b=c,d+e%f": true,
		"": true, "two words": false, "$(touch x)": false, "`x`": false, "a;b": false, "a\nb": false, "a\tb": false,
		"-x": false, "=ls": false, "%1": false, "~root": false, "a*": false, "{a,b}": false, `a\b`: false, "a'b": false, "a&b": false, "#a": false, "!a": false,
	} {
		if unquoted(key) != want {
			t.Errorf("%q is plain: %v", key, !want)
		}
	}
}
