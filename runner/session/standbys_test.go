package session

import (
	"slices"
	"testing"
)

// TestParseStandbys: every form that PostgreSQL's grammar has, and texts that it does not have.
func TestParseStandbys(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]Standbys{
		`a`:                                 {1, []string{"a"}, false},
		`a, b`:                              {1, []string{"a", "b"}, false},
		" a ,\t\"b\"\n":                     {1, []string{"a", "b"}, false},
		`*`:                                 {1, []string{"*"}, false},
		`""`:                                {1, []string{""}, false},
		`"a""b"`:                            {1, []string{`a"b`}, false},
		`""""`:                              {1, []string{`"`}, false},
		`"a b", "c,(d)"`:                    {1, []string{"a b", "c,(d)"}, false},
		`"("`:                               {1, []string{"("}, false},
		`2(a,b)`:                            {2, []string{"a", "b"}, false},
		`2 (a, b, c)`:                       {2, []string{"a", "b", "c"}, false},
		`ANY 1 (*)`:                         {1, []string{"*"}, true},
		`any 2(a,"b",c)`:                    {2, []string{"a", "b", "c"}, true},
		`FIRST 1 (a, b)`:                    {1, []string{"a", "b"}, false},
		"\vfirst\f3\r(a , \"FIRST\" , any)": {3, []string{"a", "FIRST", "any"}, false},
		`first`:                             {1, []string{"first"}, false},
		`é, "ü"`:                            {1, []string{"é", "ü"}, false},
		"\xff":                              {1, []string{"\xff"}, false},
	} {
		got, err := ParseStandbys(setting)
		if err != nil || got.Least != want.Least || got.Any != want.Any || !slices.Equal(got.Names, want.Names) {
			t.Errorf("%q: %+v, %v, want %+v", setting, got, err, want)
		}
	}
	for _, setting := range []string{
		``, ` `, `"`, `"a`, `"a""`, `"a""b`, `"""`, `a, "b`, `a b`, `a"b"`, `"a" "b"`, `,`, `a,`, `,a`, `a,,b`,
		`()`, `(a)`, `1 ()`, `1 (a`, `1 a)`, `0 (a)`, `-1 (a)`, `x (a)`, `ANY (a)`, `SOME 1 (a)`, `"ANY" 1 (a)`, `ANY 1 2 (a)`,
		`1 (a) b`, `1 (a,(b))`, `1 (a ")"`, `1 (a b)`, `1 (a,)`, `a, )`, `* *`,
	} {
		if got, err := ParseStandbys(setting); err == nil {
			t.Errorf("%q: %+v, want an error", setting, got)
		}
	}
}
