package lockkey_test

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"strings"
	"testing"

	"github.com/pglead/pglead/lockkey"
)

func TestSipHash24(t *testing.T) {
	for _, tt := range []struct {
		key  string
		want int64
	}{
		{"", 8246050544436514353},
		{"a", 3144613055062689994},
		{"SipHash", -8996774569131282592},
		{"The quick brown fox jumps over the lazy dog", 5919806912997584868},
		{"invoice_gen/SUB-1234", 8427875614812761404},
		{"é/日本", 7566786554608901472},
	} {
		if got := lockkey.SipHash24(tt.key).Number; got != tt.want {
			t.Errorf("SipHash24(%q) = %d, want %d", tt.key, got, tt.want)
		}
	}
}

func TestHalves(t *testing.T) {
	id := lockkey.SipHash24("invoice_gen/SUB-1234")
	if id.ClassID() != 1962267704 || id.ObjID() != 135753020 {
		t.Errorf("halves of %v = %d, %d; want 1962267704, 135753020", id, id.ClassID(), id.ObjID())
	}
	if id := (lockkey.ID{Number: -1}); id.ClassID() != 1<<32-1 || id.ObjID() != 1<<32-1 {
		t.Errorf("halves of -1 = %d, %d; want all ones", id.ClassID(), id.ObjID())
	}
}

// TestReferenceVectors checks the 64 outputs that the authors of SipHash
// publish with their reference implementation: input i is the bytes 0 … i-1.
func TestReferenceVectors(t *testing.T) {
	input := make([]byte, 0, len(referenceVectors))
	for i, want := range referenceVectors {
		if got := uint64(lockkey.SipHash24(string(input)).Number); got != want {
			t.Errorf("vector %d = %#016x, want %#016x", i, got, want)
		}
		input = append(input, byte(i))
	}
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		key  string
		want error
	}{
		{"invoice_gen/SUB-1234", nil},
		{" ", nil},
		{strings.Repeat("é", 100_000), nil},
		{"", lockkey.ErrEmpty},
		{"a\x00b", lockkey.ErrNUL},
		{"\xff", lockkey.ErrUTF8},
		{"caf\xe9", lockkey.ErrUTF8},
		{"\xed\xa0\x80", lockkey.ErrUTF8}, // a lone surrogate
	} {
		if got := lockkey.Check(tt.key); !errors.Is(got, tt.want) {
			t.Errorf("Check(%.20q) = %v, want %v", tt.key, got, tt.want)
		}
	}
}

// FuzzSipHash24 compares with an implementation written from the paper
// (Aumasson and Bernstein, "SipHash: a fast short-input PRF", section 2),
// which keeps its state in words and pads the input instead of unrolling.
func FuzzSipHash24(f *testing.F) {
	for _, s := range []string{"", "a", "1234567", "12345678", "123456789", "invoice_gen/SUB-1234"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := uint64(lockkey.SipHash24(s).Number), paperSipHash24(s); got != want {
			t.Errorf("SipHash24(%q) = %#x, the paper's algorithm gives %#x", s, got, want)
		}
	})
}

func paperSipHash24(s string) uint64 {
	key := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	k0, k1 := binary.LittleEndian.Uint64(key), binary.LittleEndian.Uint64(key[8:])
	v := [4]uint64{
		k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d,
		k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573,
	}
	round := func() {
		v[0] += v[1]
		v[2] += v[3]
		v[1] = bits.RotateLeft64(v[1], 13) ^ v[0]
		v[3] = bits.RotateLeft64(v[3], 16) ^ v[2]
		v[0] = bits.RotateLeft64(v[0], 32)
		v[2] += v[1]
		v[0] += v[3]
		v[1] = bits.RotateLeft64(v[1], 17) ^ v[2]
		v[3] = bits.RotateLeft64(v[3], 21) ^ v[0]
		v[2] = bits.RotateLeft64(v[2], 32)
	}
	padded := []byte(s)
	for len(padded)%8 != 7 {
		padded = append(padded, 0)
	}
	padded = append(padded, byte(len(s)))
	for ; len(padded) > 0; padded = padded[8:] {
		m := binary.LittleEndian.Uint64(padded)
		v[3] ^= m
		round()
		round()
		v[0] ^= m
	}
	v[2] ^= 0xff
	for range 4 {
		round()
	}
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}
