package lockkey_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pglead/pglead/lockkey"
)

// vectors are values that the owner of each scheme publishes, or that its own
// code gave when it was run, as said.
var vectors = []struct {
	scheme, key, want string
}{
	// Guava 31.1.
	{"siphash24", "invoice_gen/SUB-1234", "8427875614812761404"},
	{"siphash24", "é/日本", "7566786554608901472"},

	{"int", "10", "10"},
	{"int", "0", "0"},
	{"int", "-1", "-1"},
	{"int", "9223372036854775807", "9223372036854775807"},
	{"int", "-9223372036854775808", "-9223372036854775808"},
	{"int-pair", "3,7", "3,7"},
	{"int-pair", "-1,-1", "-1,-1"},
	{"int-pair", "0,-2147483648", "0,-2147483648"},
	{"int-pair", "2147483647,0", "2147483647,0"},

	// PostgreSQL 15. More are compared in TestPostgreSQL.
	{"hashtext", "hello", "-1870292951"},
	{"hashtextextended", "hello", "3449563369152288809"},

	// Issue 84 of with_advisory_lock shows this number for "user-#{user.id}".
	{"with-advisory-lock", "user-1", "2116437524,0"},
	// Its own lock_keys_for, 7.5.0 on Ruby 3.1.
	{"with-advisory-lock", "invoice_gen/SUB-1234", "1075798543,0"},
	{"with-advisory-lock", "123456789", "1274296614,0"}, // whose CRC-32 has the highest bit
	{"with-advisory-lock", "a", "1756872259,0"},
	{"with-advisory-lock", "é/日本", "499249822,0"},
	{"with-advisory-lock", "😀", "88978756,0"},
	{"with-advisory-lock", " ", "1768738629,0"},
	{"with-advisory-lock", strings.Repeat("x", 300), "457387283,0"},

	// PostgresAdvisoryLockKeyTest.cs of DistributedLock.
	{"distributed-lock", strings.Repeat("漢", 18), "-5707277204051710361"},
	{"distributed-lock", "00000003,ffffffff", "3,-1"},
	{"distributed-lock", "00000000,00000000", "0,0"},
	{"distributed-lock", "0000000000000001", "1"},
	{"distributed-lock", "0000000000000000", "0"},
	// Its own PostgresAdvisoryLockKey.cs on Mono 6.8.
	{"distributed-lock", "a", "-1023410177,-1"},
	{"distributed-lock", "ASCII", "-2092032871,805306367"},
	{"distributed-lock", "nightly", "-576242034,-1690517505"},
	{"distributed-lock", "zzzzzzzzz", "-169093201,1589476084"},
	{"distributed-lock", "@@@@@@@@@", "-2130574328,270549120"},
	{"distributed-lock", "FFFFFFFFfffffffe", "-2"},
	{"distributed-lock", "80000000,00000000", "-2147483648,0"},
	{"distributed-lock", "ffffffff-00000000", "4457596865489566553"},
	{"distributed-lock", "0000000g00000000", "7412081691610215600"},
	{"distributed-lock", "+000000100000001", "8270286797625197627"},
	{"distributed-lock", " 000000100000001", "2711934258276448111"},
	{"distributed-lock", "0x0000010000000a", "-5100716277389187818"},
	{"distributed-lock", "some very long name", "1765484347666752899"},
	{"distributed-lock", "invoice_gen/SUB-1234", "4283028353223593388"},
	{"distributed-lock", "café", "-8317739947985132300"},
	{"distributed-lock", "😀", "6388489840466744220"},

	// pglock/tests/test_core.py of django-pglock: (245608543, 3125670444).
	{"django-pglock", "hello", "1054880662928880172"},
	// Its own _cast_lock_id, 1.8.0 on Python 3.11.
	{"django-pglock", "invoice_gen/SUB-1234", "-4575927764125514833"},
	{"django-pglock", "a", "-3837880752741967926"},
	{"django-pglock", "é/日本", "-4974083583513786844"},
	{"django-pglock", "😀", "5185154089934800112"},

	// database/util_test.go of golang-migrate. More in TestGolangMigrate.
	{"golang-migrate", "database_name", "1764327054"},
	{"golang-migrate", "database_name/schema_name_1", "2453313553"},
	{"golang-migrate", "database_name/schema_name_2", "235207038"},
	{"golang-migrate", "database_name/schema_name_1/schema_name_2", "3743845847"},

	// sqlx's own generate_lock_id, with a CRC-32 written bit by bit in place
	// of the crate's.
	{"sqlx", "123456789", "3513249314174792564"},
	{"sqlx", "postgres", "368907709894077238"},
	{"sqlx", "é/日本", "2717484419308094340"},
}

func TestVectors(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range vectors {
		seen[v.scheme] = true
		id, err := scheme(t, v.scheme).ID(v.key)
		if err != nil || id.String() != v.want {
			t.Errorf("%s of %.30q = %v, %v; want %s", v.scheme, v.key, id, err, v.want)
		}
	}
	for _, s := range lockkey.Schemes() {
		if !seen[s.Name] {
			t.Errorf("%s has no vector", s.Name)
		}
	}
}

func scheme(tb testing.TB, name string) lockkey.Scheme {
	tb.Helper()
	s, ok := lockkey.SchemeByName(name)
	if !ok {
		tb.Fatalf("no scheme %q", name)
	}
	return s
}

func TestSchemes(t *testing.T) {
	all := lockkey.Schemes()
	if all[0].Name != "siphash24" {
		t.Errorf("the default is %s", all[0].Name)
	}
	for _, s := range all {
		for _, tt := range []struct {
			key  string
			want error
		}{
			{"", lockkey.ErrEmpty}, {"a\x00b", lockkey.ErrNUL}, {"3,\x007", lockkey.ErrNUL}, {"caf\xe9", lockkey.ErrUTF8},
		} {
			if id, err := s.ID(tt.key); !errors.Is(err, tt.want) {
				t.Errorf("%s takes %q for %v (%v)", s.Name, tt.key, id, err)
			}
			if id, err := s.Slot(tt.key, 1); !errors.Is(err, tt.want) {
				t.Errorf("slot 1 of %s takes %q for %v (%v)", s.Name, tt.key, id, err)
			}
		}
	}
	for _, name := range []string{"", "all", "Int", "siphash"} {
		if s, ok := lockkey.SchemeByName(name); ok {
			t.Errorf("there is a scheme %q: %v", name, s.Name)
		}
	}
	if id, err := (lockkey.Scheme{}).ID("k"); err == nil {
		t.Errorf("the zero scheme has a number: %v", id)
	}
}

func TestRefusedKeys(t *testing.T) {
	for _, tt := range []struct{ scheme, key string }{
		{"int", "ten"}, {"int", "1.0"}, {"int", "0x10"}, {"int", "1_000"}, {"int", " 10"}, {"int", "3,7"}, {"int", "-"},
		{"int", "9223372036854775808"}, {"int", "-9223372036854775809"}, {"int", "١"},
		{"int-pair", "3"}, {"int-pair", "3,"}, {"int-pair", ",7"}, {"int-pair", "3,7,9"}, {"int-pair", "3, 7"},
		{"int-pair", "2147483648,0"}, {"int-pair", "0,-2147483649"}, {"int-pair", "a,2147483648"},
		{"golang-migrate", "/"}, {"golang-migrate", "db/"}, {"golang-migrate", "db//t"}, {"golang-migrate", "db/s/t/u"},
	} {
		id, err := scheme(t, tt.scheme).ID(tt.key)
		if err == nil {
			t.Errorf("%s takes %q for %v", tt.scheme, tt.key, id)
		} else if strings.Contains(err.Error(), "strconv") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s says of %q: %q", tt.scheme, tt.key, err)
		}
	}
}

// TestSlots pins the numbers too: pgleads of different versions share slots.
func TestSlots(t *testing.T) {
	for _, tt := range []struct {
		scheme, key string
		slot        int
		want        string
	}{
		{"siphash24", "deploy", 0, "6705089182490848150"},
		{"siphash24", "deploy", 1, "-450224113660648114"},
		{"siphash24", "deploy", 12, "6030394755120354647"},
		{"hashtextextended", "deploy", 1, "1048636220879658772"},
		{"with-advisory-lock", "deploy", 1, "1448489303,0"},
		{"distributed-lock", "deploy", 1, "-912816435,-29347457"},
	} {
		id, err := scheme(t, tt.scheme).Slot(tt.key, tt.slot)
		if err != nil || id.String() != tt.want {
			t.Errorf("slot %d of %s %s = %v, %v; want %s", tt.slot, tt.scheme, tt.key, id, err, tt.want)
		}
	}
	for _, s := range lockkey.Schemes() {
		key := map[string]string{"int": "10", "int-pair": "3,7"}[s.Name]
		if key == "" {
			key = "deploy"
		}
		slot, err := s.Slot(key, 0)
		gate, gateErr := s.Gate(key)
		if gate != slot || (gateErr == nil) != (err == nil) {
			t.Errorf("the gate of %s is %v (%v), slot 0 %v (%v)", s.Name, gate, gateErr, slot, err)
		}
		if none := slices.Contains([]string{"int", "int-pair", "golang-migrate", "sqlx"}, s.Name); none != (err != nil) {
			t.Errorf("slot 0 of %s: %v, %v", s.Name, slot, err)
		}
		if id, err := s.Slot(key, -1); err == nil {
			t.Errorf("slot -1 of %s is %v", s.Name, id)
		}
	}
}

// FuzzSchemes gives every scheme every key. A scheme that accepts a key gives it the same number
// each time, and a key that is a number keeps that number.
func FuzzSchemes(f *testing.F) {
	for _, v := range vectors {
		f.Add(v.key)
	}
	for _, s := range []string{"", "\x00", "\xff", "+1", "-0,007", "a,b", "a/b/c/d", "0000000000000000", "00000000,00000000"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		for _, s := range lockkey.Schemes() {
			id, err := s.ID(key)
			if again, err2 := s.ID(key); again != id || (err == nil) != (err2 == nil) {
				t.Errorf("%s of %q is %v, then %v", s.Name, key, id, again)
			}
			if err != nil {
				if id != (lockkey.ID{}) {
					t.Errorf("%s refuses %q and says %v", s.Name, key, id)
				}
				continue
			}
			if lockkey.Check(key) != nil {
				t.Errorf("%s takes %q for %v", s.Name, key, id)
			}
			if int64(uint64(id.ClassID())<<32|uint64(id.ObjID())) != id.Number {
				t.Errorf("%s of %q: %d, %d are not the halves of %d", s.Name, key, id.ClassID(), id.ObjID(), id.Number)
			}
			switch s.Name {
			case "int", "int-pair":
				// Only the spelling may differ: +7, 007, -0.
				if again, err := s.ID(id.String()); err != nil || again != id || id.Pair != (s.Name == "int-pair") {
					t.Errorf("%s takes %q for %v, and that for %v (%v)", s.Name, key, id, again, err)
				}
			case "golang-migrate":
				if id.Number < 0 || id.Number >= 1<<32 {
					t.Errorf("golang-migrate of %q = %v, not 32 bits without a sign", key, id)
				}
			case "with-advisory-lock":
				if first, second, _ := strings.Cut(id.String(), ","); strings.HasPrefix(first, "-") || second != "0" {
					t.Errorf("with-advisory-lock of %q = %v", key, id)
				}
			case "hashtext":
				if id.Number != int64(int32(id.Number)) {
					t.Errorf("hashtext of %q = %v, not 32 bits", key, id)
				}
			case "distributed-lock":
				checkDistributedLock(t, s, key, id)
			}
		}
	})
}

// checkDistributedLock holds an ASCII key against its definition: 9 characters
// of 7 bits, a 0, and ones up to the 64th bit, here written out in binary.
func checkDistributedLock(t *testing.T, s lockkey.Scheme, key string, id lockkey.ID) {
	t.Helper()
	hex := strconv.FormatUint(uint64(id.Number), 16)
	spelled := strings.Repeat("0", 16-len(hex)) + hex
	if id.Pair {
		spelled = spelled[:8] + "," + spelled[8:]
	}
	if again, err := s.ID(spelled); err != nil || again != id {
		t.Errorf("distributed-lock takes %q for %v, and its hexadecimal form %s for %v (%v)", key, id, spelled, again, err)
	}
	if len(key) > 9 || strings.ContainsFunc(key, func(r rune) bool { return r > 0x7f }) {
		return
	}
	var packed strings.Builder
	for _, b := range []byte(key) {
		digits := strconv.FormatUint(uint64(b), 2)
		packed.WriteString(strings.Repeat("0", 7-len(digits)) + digits)
	}
	packed.WriteString("0")
	want, err := strconv.ParseUint(packed.String()+strings.Repeat("1", 64-packed.Len()), 2, 64)
	if err != nil || !id.Pair || uint64(id.Number) != want {
		t.Errorf("distributed-lock packs %q into %v, want the pair %#x (%v)", key, id, want, err)
	}
}
