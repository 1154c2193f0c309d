// Package lockkey turns the name of a lock into the 64-bit number by which
// PostgreSQL identifies an advisory lock.
//
// Two programs exclude each other only if they compute the same number, so
// every scheme here is defined bit for bit and never changes.
package lockkey

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dchest/siphash"
)

// ID is the number of an advisory lock: the argument of
// pg_advisory_lock(bigint) or, for a Pair, the arguments of
// pg_advisory_lock(int, int). A bigint and a Pair never name the same lock.
type ID struct {
	// Number is the bigint. For a Pair it has the first int in the upper half and
	// the second in the lower.
	Number int64
	Pair   bool
}

// ClassID is the upper half of the number, which pg_locks shows as classid.
func (id ID) ClassID() uint32 { return uint32(uint64(id.Number) >> 32) }

// ObjID is the lower half of the number, which pg_locks shows as objid.
func (id ID) ObjID() uint32 { return uint32(uint64(id.Number)) }

// ObjSubID is what pg_locks shows as objsubid: 1 for a bigint, 2 for a pair.
func (id ID) ObjSubID() int {
	if id.Pair {
		return 2
	}
	return 1
}

// String is the number as the lock functions take it: "10", or "3,7".
func (id ID) String() string {
	if id.Pair {
		return fmt.Sprintf("%d,%d", int32(id.ClassID()), int32(id.ObjID()))
	}
	return strconv.FormatInt(id.Number, 10)
}

// Parse reads what String writes.
func Parse(s string) (ID, error) {
	if strings.Contains(s, ",") {
		return parseIntPair(s)
	}
	return parseInt(s)
}

// SpelledBy says whether key is this number in some spelling: 7, 07 or +7.
func (id ID) SpelledBy(key string) bool {
	spelled, err := Parse(key)
	return err == nil && spelled == id
}

// Compare orders locks. Whoever takes several locks takes them in this order, so
// that two never wait for each other.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(id.ObjSubID(), other.ObjSubID()), cmp.Compare(id.Number, other.Number))
}

// Errors of Check.
var (
	ErrEmpty = errors.New("the key is empty")
	ErrNUL   = errors.New("the key contains a NUL byte")
	ErrUTF8  = errors.New("the key is not valid UTF-8")
)

// Check says why key can't name a lock, or nil.
//
// Empty keys are refused because they come from unset variables, invalid
// UTF-8 because languages with Unicode strings can't produce the same bytes,
// and NUL because it separates a key from its slot number.
func Check(key string) error {
	switch {
	case key == "":
		return ErrEmpty
	case strings.IndexByte(key, 0) >= 0:
		return ErrNUL
	case !utf8.ValidString(key):
		return ErrUTF8
	}
	return nil
}

// The SipHash key 00 01 … 0f, read as two little-endian words. It is that of
// the reference implementation's test vectors and the default of Guava's
// Hashing.sipHash24().
const (
	sipKey0 = 0x0706050403020100
	sipKey1 = 0x0f0e0d0c0b0a0908
)

// SipHash24 hashes the UTF-8 bytes of key with SipHash-2-4. The number is
// that of Guava's Hashing.sipHash24().hashString(key, UTF_8).asLong(). It does
// no checks: see Check.
func SipHash24(key string) ID {
	return ID{Number: int64(siphash.Hash(sipKey0, sipKey1, []byte(key)))}
}
