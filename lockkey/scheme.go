package lockkey

import (
	"errors"
	"strconv"
	"strings"
)

// DefaultScheme is the name of the scheme that is used if none is named.
const DefaultScheme = "siphash24"

// Scheme is a way to turn a key into a number. The zero Scheme accepts no
// key: see Schemes and SchemeByName.
type Scheme struct {
	Name  string
	About string // one line

	// One of the two is set. With parse not every text is a key, and nothing can be
	// derived from one, such as a slot.
	hash  func(key string) ID
	parse func(key string) (ID, error)
}

// Schemes are all schemes, the default one first. To add one:
//
//	its function  hash or parse, in others.go if it is another program's
//	its row       below
//	its tests     vectors in scheme_test.go, and its lines in testdata/script/key.txtar; if it has
//	              parse, also a place in scheme_test.go's list of schemes without slots
//	its text      cmd/REFERENCE.md
func Schemes() []Scheme {
	return []Scheme{
		{Name: DefaultScheme, About: "SipHash-2-4, Guava's sipHash24().hashString(KEY, UTF_8)", hash: SipHash24},
		{Name: "int", About: "the key is the number: 10", parse: parseInt},
		{Name: "int-pair", About: "the key is two numbers of 32 bits: 3,7", parse: parseIntPair},
		{Name: "hashtextextended", About: "PostgreSQL's hashtextextended(KEY, 0)", hash: hashTextExtended},
		{Name: "hashtext", About: "PostgreSQL's hashtext(KEY), for pg_advisory_lock(bigint)", hash: hashText},
		{Name: "with-advisory-lock", About: "Ruby's with_advisory_lock", hash: withAdvisoryLock},
		{Name: "distributed-lock", About: "DistributedLock for .NET, with allowHashing", hash: distributedLock},
		{Name: "django-pglock", About: "django-pglock", hash: djangoPglock},
		{Name: "golang-migrate", About: "golang-migrate; the key is DATABASE/SCHEMA/TABLE", parse: golangMigrate},
		{Name: "sqlx", About: "the migrations of sqlx for Rust; the key is DATABASE", parse: sqlx},
	}
}

// SchemeByName finds a scheme by its exact name.
func SchemeByName(name string) (Scheme, bool) {
	for _, s := range Schemes() {
		if s.Name == name {
			return s, true
		}
	}
	return Scheme{}, false
}

// ID is the number of key. No scheme accepts a key that Check refuses.
func (s Scheme) ID(key string) (ID, error) {
	if err := Check(key); err != nil {
		return ID{}, err
	}
	switch {
	case s.hash != nil:
		return s.hash(key), nil
	case s.parse != nil:
		return s.parse(key)
	}
	return ID{}, errors.New("no scheme is given")
}

// Slot is the number of slot i of key: that of the key, a NUL byte and i in
// decimal. It fails in schemes whose keys are the numbers themselves, or name
// the one lock of another program.
func (s Scheme) Slot(key string, i int) (ID, error) {
	if _, err := s.ID(key); err != nil {
		return ID{}, err
	}
	switch {
	case s.hash == nil:
		return ID{}, errors.New("a key of the scheme " + s.Name + " has no slots")
	case i < 0:
		return ID{}, errors.New("there is no slot " + strconv.Itoa(i))
	}
	return s.hash(key + "\x00" + strconv.Itoa(i)), nil
}

// Gate is slot 0, which no command runs in: those who wait for any slot stand in
// its line.
func (s Scheme) Gate(key string) (ID, error) { return s.Slot(key, 0) }

// pair is the lock of pg_advisory_lock(first, second).
func pair(first, second int32) ID {
	return ID{Number: int64(first)<<32 | int64(uint32(second)), Pair: true}
}

func parseInt(key string) (ID, error) {
	n, err := strconv.ParseInt(key, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return ID{}, errors.New("the number does not fit in 64 bits with a sign")
	case err != nil:
		return ID{}, errors.New("the key is not a whole number such as 10")
	}
	return ID{Number: n}, nil
}

func parseIntPair(key string) (ID, error) {
	// Without a comma the second is empty, and so not a number either.
	a, b, _ := strings.Cut(key, ",")
	first, err := strconv.ParseInt(a, 10, 32)
	second, err2 := strconv.ParseInt(b, 10, 32)
	switch err = errors.Join(err, err2); {
	case errors.Is(err, strconv.ErrSyntax):
		return ID{}, errors.New("the key is not two whole numbers such as 3,7")
	case err != nil:
		return ID{}, errors.New("a number does not fit in 32 bits with a sign")
	}
	return pair(int32(first), int32(second)), nil
}
