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

// TestEnoughConfirm: as many senders have to be there as the setting asks for, and those of which
// more is known have to have passed the commit's position.
func TestEnoughConfirm(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		names, position string
		senders         []string
		want            bool
	}{
		{"a", "9", nil, false},
		{"a", "9", []string{"hidden"}, true},
		{"a", "9", []string{"9"}, true},
		{"a", "9", []string{"8"}, false},
		{"a", "9", []string{"10"}, true},
		{"ANY 2 (a, b, c)", "9", []string{"hidden"}, false},
		{"ANY 2 (a, b, c)", "9", []string{"hidden", "hidden"}, true},
		{"ANY 2 (a, b, c)", "9", []string{"9", "8", "12"}, true},
		{"ANY 2 (a, b, c)", "9", []string{"9", "8"}, false},
		{"a", "", []string{"8"}, false},
		{"a", "9", []string{""}, false},
		{"of another form", "9", nil, true},
	} {
		if got := enoughConfirm(tt.names, tt.position, tt.senders); got != tt.want {
			t.Errorf("%q asks for %s, and there are %q: %v", tt.names, tt.position, tt.senders, got)
		}
	}
}
