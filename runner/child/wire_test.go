package child

import (
	"bytes"
	"errors"
	"io"
	"os"
	"reflect"
	"testing"
	"testing/iotest"
)

func TestStartRequestSurvivesTheWire(t *testing.T) {
	for _, want := range []Spec{
		{Path: "/bin/true", Args: []string{"true"}, Env: []string{}, Release: []byte{}},
		{
			Path: "/bin/echo", Args: []string{"echo", "", "a\nb", "日本"}, Env: []string{"A=1", "B="}, Deadline: 1 << 60, LostGrace: 5, MostGrace: 4,
			WaitForLeftovers: true, ReleaseEndsSession: true, KeepGuard: true, SocketLinger: 3, SharesSocket: true, Release: []byte("bye\x00"),
		},
	} {
		var wire bytes.Buffer
		if err := writeMessage(&wire, msgStart, want.encode()); err != nil {
			t.Fatal(err)
		}
		k, body, err := readMessage(&wire)
		if err != nil || k != msgStart {
			t.Fatalf("read %c: %v", k, err)
		}
		var got Spec
		if err := got.decode(body); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v became %+v, %v", want, got, err)
		}
	}
}

// FuzzDecode: whatever arrives, decoding neither panics nor invents anything.
func FuzzDecode(f *testing.F) {
	f.Add((&Spec{Path: "/bin/true", Args: []string{"true"}, Env: []string{"A=1"}}).encode())
	f.Add((&doneReport{Result{Ending: ByOrder, Status: 9, Killed: 3}, true}).encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		var spec Spec
		if spec.decode(body) == nil {
			var again Spec
			if err := again.decode(spec.encode()); err != nil || !reflect.DeepEqual(spec, again) {
				t.Errorf("%+v became %+v, %v", spec, again, err)
			}
		}
		var done doneReport
		if done.decode(body) == nil {
			var again doneReport
			if err := again.decode(done.encode()); err != nil || done != again {
				t.Errorf("%+v became %+v, %v", done, again, err)
			}
		}
	})
}

// TestStartAnswer: if the read deadline comes in the middle of an answer, the rest can be read
// after it.
func TestStartAnswer(t *testing.T) {
	var whole bytes.Buffer
	if err := writeStartAnswer(&whole, msgStarted, 4711, 815); err != nil {
		t.Fatal(err)
	}
	for cut := range whole.Len() {
		var a startAnswer
		first := io.MultiReader(bytes.NewReader(whole.Bytes()[:cut]), iotest.ErrReader(os.ErrDeadlineExceeded))
		if _, _, _, err := a.read(first); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if k, n, born, err := a.read(bytes.NewReader(whole.Bytes()[cut:])); k != msgStarted || n != 4711 || born != 815 || err != nil {
			t.Errorf("cut at %d: %c %d %d, %v", cut, k, n, born, err)
		}
	}
}
