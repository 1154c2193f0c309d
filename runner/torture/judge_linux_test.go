package torture

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// The second judge knows nothing of time stamps that overlap. It gets what hosts
// have done, each operation with the time in which it must have happened, and asks
// a checker of linearizability (porcupine) for an order in which a lock, its tokens,
// and a register that they fence could have done that one after the other.

// thinking is how long the judge may take for a lock.
const thinking = time.Minute

// never is the end of an operation that nobody has heard of the end of.
const never = math.MaxInt64

// grip is an operation on a lock: a life takes it and gives it back.
type grip struct {
	id      int   // of the life, from 1
	token   int64 // 0: the holder is no pglead
	shared  bool
	release bool
}

// lockState is what a lock knows.
type lockState struct {
	writer, readers     int // the life that has it alone, and how many have it together
	last, lastExclusive int64
}

func (s lockState) after(g grip) (bool, lockState) {
	switch {
	case g.release && g.shared:
		s.readers--
		return s.readers >= 0, s
	case g.release:
		held := s.writer == g.id
		s.writer = 0
		return held, s
	case s.writer != 0:
		return false, s
	case g.shared:
		s.readers++
		fits := g.token == 0 || g.token > s.lastExclusive
		s.last = max(s.last, g.token)
		return fits, s
	}
	s.writer = g.id
	fits := s.readers == 0 && (g.token == 0 || g.token > s.last)
	s.last = max(s.last, g.token)
	s.lastExclusive = s.last
	return fits, s
}

func lockModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return lockState{} },
		Step: func(state, input, _ any) (bool, any) { return state.(lockState).after(input.(grip)) },
	}
}

// grips are the operations on one lock. A host takes it at some time between its
// life before this one and the first sign of this, and gives it back between the
// last sign and the next life. So much is certain without pglead's own word.
func (h history) grips(lock string) []porcupine.Operation {
	h.sort()
	var all []porcupine.Operation
	released := map[string]int{} // host to its last release
	for id, l := range h {
		if !slices.Contains(l.locks, lock) {
			continue
		}
		take := porcupine.Operation{Input: grip{id + 1, l.token, l.shared, false}, Return: int64(l.first)}
		if i, before := released[l.host]; before {
			all[i].Return = max(all[i].Call, int64(l.first))
			take.Call = min(all[i].Call, int64(l.first))
		}
		released[l.host] = len(all) + 1
		all = append(all, take, porcupine.Operation{Input: grip{id + 1, l.token, l.shared, true}, Call: int64(l.last), Return: never})
	}
	return all
}

// judge says of which locks the history is none that there could have been.
func judge(h history) []string {
	var said []string
	for _, lock := range h.held() {
		if result := porcupine.CheckOperationsTimeout(lockModel(), h.grips(lock), thinking); result != porcupine.Ok {
			said = append(said, fmt.Sprintf("second judge: lock %s: %s", lock, result))
		}
	}
	return said
}

// registerState is what stands in a table of jobs: the newest token and how many
// lines were written.
type registerState struct{ fence, n int64 }

func (s registerState) after(w write) (bool, registerState) {
	if w.fenced {
		return w.token < s.fence, s
	}
	return w.token >= s.fence && w.n == s.n+1, registerState{w.token, w.n}
}

// total is what is read of the number of lines when all is over.
type total int64

// judgeWrites says the same of a register that tokens fence. What became of the
// attempts that nobody has answered, the table itself tells.
func judgeWrites(found []line, written []write) []string {
	numbers := map[line]int64{}
	for _, l := range found {
		numbers[line{token: l.token, seq: l.seq}] = l.n
	}
	var all []porcupine.Operation
	for _, w := range written {
		end := int64(w.answered)
		if w.answered == 0 {
			end = never
			if w.n = numbers[w.line]; w.n == 0 {
				continue // it has come to nothing
			}
		}
		all = append(all, porcupine.Operation{Input: w, Call: int64(w.called), Return: end})
	}
	all = append(all, porcupine.Operation{Input: total(len(found)), Call: never - 1, Return: never})
	model := porcupine.Model{
		Init: func() any { return registerState{} },
		Step: func(state, input, _ any) (bool, any) {
			s := state.(registerState)
			if n, ok := input.(total); ok {
				return s.n == int64(n), s
			}
			return s.after(input.(write))
		},
	}
	if result := porcupine.CheckOperationsTimeout(model, all, thinking); result != porcupine.Ok {
		return []string{fmt.Sprintf("second judge: lines: %s", result)}
	}
	return nil
}

// TestJudge: the second judge finds each kind of defect, and no defect where there
// is none.
func TestJudge(t *testing.T) {
	a, both := []string{"a"}, []string{"a", "b"}
	for name, tt := range map[string]struct {
		history history
		bad     bool
	}{
		"one after another": {history{{token: 1, host: "h1", locks: a, first: 1, last: 9}, {token: 2, host: "h2", locks: a, first: 10, last: 19},
			{token: 5, host: "h1", locks: a, first: 20, last: 29}}, false},
		"overlap":                 {history{{token: 1, host: "h1", locks: a, first: 1, last: 9}, {token: 2, host: "h2", locks: a, first: 5, last: 19}}, true},
		"overlap on one host":     {history{{token: 1, host: "h1", locks: a, first: 1, last: 9}, {token: 2, host: "h1", locks: a, first: 5, last: 19}}, true},
		"beside a short one":      {history{{token: 1, host: "h1", locks: a, first: 1, last: 9}, {token: 2, host: "h2", locks: a, first: 5, last: 6}}, true},
		"overlap of one key":      {history{{token: 1, host: "h1", locks: a, first: 1, last: 9}, {token: 2, host: "h2", locks: both, first: 5, last: 19}}, true},
		"other keys":              {history{{token: 1, host: "h1", locks: a, first: 1, last: 9}, {token: 2, host: "h2", locks: []string{"b"}, first: 5, last: 19}}, false},
		"token goes back":         {history{{token: 2, host: "h1", locks: a, first: 1, last: 9}, {token: 1, host: "h2", locks: a, first: 10, last: 19}}, true},
		"token comes again":       {history{{token: 2, host: "h1", locks: a, first: 1, last: 9}, {token: 2, host: "h2", locks: a, first: 10, last: 19}}, true},
		"foreign holder":          {history{{token: 1, host: "h1", locks: a, first: 1, last: 9}, {host: "psql", locks: a, first: 10, last: 19}}, false},
		"overlaps a foreign one":  {history{{token: 1, host: "h1", locks: a, first: 1, last: 9}, {host: "psql", locks: a, first: 8, last: 19}}, true},
		"readers":                 {history{{token: 2, host: "h1", locks: a, shared: true, first: 1, last: 9}, {token: 1, host: "h2", locks: a, shared: true, first: 5, last: 19}}, false},
		"a writer beside readers": {history{{token: 1, host: "h1", locks: a, shared: true, first: 1, last: 9}, {token: 2, host: "h2", locks: a, first: 5, last: 19}}, true},
		"a reader before a writer, and its token after": {history{{token: 2, host: "h1", locks: a, first: 1, last: 9},
			{token: 1, host: "h2", locks: a, shared: true, first: 10, last: 19}}, true},
	} {
		if said := judge(tt.history); (len(said) > 0) != tt.bad {
			t.Errorf("%s: said %q, want a defect: %v", name, said, tt.bad)
		}
	}
}

// TestJudgeWrites: the same for lines that tokens fence.
func TestJudgeWrites(t *testing.T) {
	wrote := func(n, token, seq int64, called, answered time.Duration) write {
		return write{line: line{n, token, seq}, called: called, answered: answered}
	}
	refused := wrote(0, 1, 2, 7, 8)
	refused.fenced = true
	for name, tt := range map[string]struct {
		found   []line
		written []write
		bad     bool
		missed  bool // by misdeeds, which see only the table
	}{
		"clean":            {[]line{{1, 1, 1}, {2, 2, 1}}, []write{wrote(1, 1, 1, 1, 2), wrote(2, 2, 1, 5, 6), refused}, false, false},
		"unanswered, lost": {[]line{{1, 2, 1}}, []write{wrote(0, 1, 1, 1, 0), wrote(1, 2, 1, 5, 6)}, false, false},
		"unanswered, late": {[]line{{1, 2, 1}, {2, 2, 2}}, []write{wrote(0, 2, 2, 1, 0), wrote(1, 2, 1, 5, 6)}, false, false},
		"lost":             {[]line{{1, 2, 1}}, []write{wrote(1, 1, 1, 1, 2), wrote(1, 2, 1, 5, 6)}, true, false},
		"lost, the last":   {[]line{{1, 1, 1}}, []write{wrote(1, 1, 1, 1, 2), wrote(2, 2, 1, 5, 6)}, true, false},
		"out of order":     {[]line{{1, 2, 1}, {2, 1, 1}}, []write{wrote(1, 2, 1, 1, 2), wrote(2, 1, 1, 5, 6)}, true, false},
		"before its time":  {[]line{{1, 2, 1}, {2, 2, 2}}, []write{wrote(1, 2, 1, 5, 6), wrote(2, 2, 2, 1, 2)}, true, true},
		"fenced wrongly":   {[]line{{1, 1, 1}}, []write{wrote(1, 1, 1, 1, 2), refused}, true, true},
	} {
		if said := judgeWrites(tt.found, tt.written); (len(said) > 0) != tt.bad {
			t.Errorf("%s: said %q, want a defect: %v", name, said, tt.bad)
		}
		if said := misdeeds(tt.found, tt.written); (len(said) > 0) != (tt.bad && !tt.missed) {
			t.Errorf("%s: misdeeds %q", name, said)
		}
	}
}
