// Package lockkey turns the name of a lock into the 64-bit number that
// PostgreSQL's advisory locks go by.
//
// Two programs exclude each other only if they come to the same number, so
// every scheme here is defined bit for bit and never changes.
package lockkey

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/dchest/siphash"
)

// ID is the number of an advisory lock: the argument of
// pg_advisory_lock(bigint).
type ID int64

// ClassID is the upper half of the number, which pg_locks shows as classid.
func (id ID) ClassID() uint32 { return uint32(uint64(id) >> 32) }

// ObjID is the lower half of the number, which pg_locks shows as objid.
func (id ID) ObjID() uint32 { return uint32(uint64(id)) }

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
	return ID(siphash.Hash(sipKey0, sipKey1, []byte(key)))
}
