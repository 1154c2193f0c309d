package lockkey

import (
	"crypto/sha1" //nolint:gosec // DistributedLock's choice; it protects nothing
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
)

// withAdvisoryLock is the rule of the gem with_advisory_lock for PostgreSQL
// and a lock name that is a string: a pair of the CRC-32 without its highest
// bit, and 0 (lib/with_advisory_lock/postgresql_advisory.rb and
// core_advisory.rb, 7.5.0). The second number differs only where
// WITH_ADVISORY_LOCK_PREFIX is set to one: then use int-pair.
func withAdvisoryLock(key string) ID {
	const positive = 1<<31 - 1
	return pair(int32(crc32.ChecksumIEEE([]byte(key))&positive), 0)
}

// distributedLock is PostgresAdvisoryLockKey(key, allowHashing: true) of
// DistributedLock for .NET
// (src/DistributedLock.Postgres/PostgresAdvisoryLockKey.cs): a short ASCII key
// is packed into a pair, 16 hexadecimal digits are the number, two times 8
// with a comma are the pair, and any other key is hashed with SHA-1.
func distributedLock(key string) ID {
	if id, ok := packASCII(key); ok {
		return id
	}
	if id, ok := unhex(key); ok {
		return id
	}
	sum := sha1.Sum([]byte(key)) //nolint:gosec // as above
	return ID{Number: int64(binary.LittleEndian.Uint64(sum[:]))}
}

// packASCII packs 7 bits a character from the top, then a 0, then ones.
func packASCII(key string) (ID, bool) {
	const most = 9
	if len(key) > most {
		return ID{}, false
	}
	var n uint64
	for _, b := range []byte(key) {
		if b > 0x7f {
			return ID{}, false
		}
		n = n<<7 | uint64(b)
	}
	padding := 7 * (most - len(key))
	return ID{Number: int64(n<<(1+padding) | (1<<padding - 1)), Pair: true}, true
}

func unhex(key string) (ID, bool) {
	const half = 8
	isPair := len(key) == 2*half+1 && key[half] == ','
	if isPair {
		key = key[:half] + key[half+1:]
	}
	// ParseUint accepts no sign, prefix or underscore if the base is given.
	n, err := strconv.ParseUint(key, 16, 64)
	if err != nil || len(key) != 2*half {
		return ID{}, false
	}
	return ID{Number: int64(n), Pair: isPair}, true
}

// djangoPglock is the rule of django-pglock for a lock id that is a string
// (pglock/core.py, _cast_lock_id, 1.8.0): the first 8 bytes of the SHA-256.
func djangoPglock(key string) ID {
	sum := sha256.Sum256([]byte(key))
	return ID{Number: int64(binary.LittleEndian.Uint64(sum[:]))}
}

// golangMigrate is GenerateAdvisoryLockId of golang-migrate
// (database/util.go, v4.19.1), whose decimal digits its drivers pass as a
// bigint: never negative, and never above 32 bits. The drivers postgres and
// pgx give it the database, the schema and the table of the migrations; other
// and older drivers omit names from the right, and so may the key. A name
// with a slash can't be written here: the scheme int takes its number.
func golangMigrate(key string) (ID, error) {
	const salt = 1486364155
	names := strings.Split(key, "/")
	switch {
	case slices.Contains(names, ""):
		return ID{}, errors.New("a name is missing in DATABASE/SCHEMA/TABLE")
	case len(names) > 3:
		return ID{}, errors.New("there are more names than DATABASE/SCHEMA/TABLE")
	}
	hashed := strings.Join(append(names[1:], names[0]), "\x00")
	return ID{Number: int64(crc32.ChecksumIEEE([]byte(hashed)) * salt)}, nil
}

// sqlx is generate_lock_id of sqlx (sqlx-postgres/src/migrate.rs, 0.9.0-alpha.1): the
// CRC-32 of the database's name times a constant, in 64 bits.
func sqlx(key string) (ID, error) {
	const salt = 0x3d32ad9e
	return ID{Number: salt * int64(crc32.ChecksumIEEE([]byte(key)))}, nil
}
