package child

import (
	"bytes"
	"reflect"
	"testing"
)

func TestStartRequestSurvivesTheWire(t *testing.T) {
	for _, want := range []startRequest{
		{path: "/bin/true", args: []string{"true"}, env: []string{}},
		{path: "/bin/echo", args: []string{"echo", "", "a\nb", "日本"}, env: []string{"A=1", "B="}, deadline: 1 << 60, lostGrace: 5, leaseGrace: 4, waitForAll: 1, goodbye: 1, lastWords: "bye\x00"},
	} {
		var wire bytes.Buffer
		if err := writeMessage(&wire, msgStart, want.encode()); err != nil {
			t.Fatal(err)
		}
		k, body, err := readMessage(&wire)
		if err != nil || k != msgStart {
			t.Fatalf("read %c: %v", k, err)
		}
		var got startRequest
		if err := got.decode(body); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v became %+v, %v", want, got, err)
		}
	}
}

// FuzzDecode: whatever arrives, decoding neither panics nor invents anything.
func FuzzDecode(f *testing.F) {
	f.Add((&startRequest{path: "/bin/true", args: []string{"true"}, env: []string{"A=1"}}).encode())
	f.Add((&doneReport{ending: Killed, status: 9, killed: 3}).encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		var req startRequest
		if req.decode(body) == nil {
			var again startRequest
			if err := again.decode(req.encode()); err != nil || !reflect.DeepEqual(req, again) {
				t.Errorf("%+v became %+v, %v", req, again, err)
			}
		}
		var done doneReport
		if done.decode(body) == nil && !bytes.Equal(done.encode(), body) {
			t.Errorf("%+v is encoded differently", done)
		}
	})
}
