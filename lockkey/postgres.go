package lockkey

import (
	"encoding/binary"
	"math/bits"
)

// PostgreSQL's hashtext and hashtextextended are the functions hash_bytes and
// hash_bytes_extended of its src/common/hashfn.c: Bob Jenkins' lookup3 of 2006
// with its own start value. The results are those of a server on a
// little-endian machine whose database is in UTF-8: others read other words,
// or other bytes.

// hashText is hashtext(key), widened to the bigint that pg_advisory_lock takes.
func hashText(key string) ID {
	_, c := lookup3(key)
	return ID{Number: int64(int32(c))}
}

// hashTextExtended is hashtextextended(key, 0).
func hashTextExtended(key string) ID {
	b, c := lookup3(key)
	return ID{Number: int64(uint64(b)<<32 | uint64(c))}
}

func lookup3(key string) (b, c uint32) {
	const (
		goldenRatio = 0x9e3779b9
		salt        = 3923095
		block       = 12
	)
	a := goldenRatio + salt + uint32(len(key))
	b, c = a, a
	rest := []byte(key)
	for ; len(rest) >= block; rest = rest[block:] {
		a += binary.LittleEndian.Uint32(rest)
		b += binary.LittleEndian.Uint32(rest[4:])
		c += binary.LittleEndian.Uint32(rest[8:])

		a = (a - c) ^ bits.RotateLeft32(c, 4)
		c += b
		b = (b - a) ^ bits.RotateLeft32(a, 6)
		a += c
		c = (c - b) ^ bits.RotateLeft32(b, 8)
		b += a
		a = (a - c) ^ bits.RotateLeft32(c, 16)
		c += b
		b = (b - a) ^ bits.RotateLeft32(a, 19)
		a += c
		c = (c - b) ^ bits.RotateLeft32(b, 4)
		b += a
	}

	// The lowest byte of c stands for the length: the last word starts a byte
	// higher than the others.
	var last [block]byte
	copy(last[:8], rest)
	if len(rest) > 8 {
		copy(last[9:], rest[8:])
	}
	a += binary.LittleEndian.Uint32(last[:])
	b += binary.LittleEndian.Uint32(last[4:])
	c += binary.LittleEndian.Uint32(last[8:])

	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	c = (c ^ b) - bits.RotateLeft32(b, 24)
	return b, c
}
