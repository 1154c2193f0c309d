package cmd

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/lock"
)

// keyOptions are the flags that say which locks a command is about.
type keyOptions struct {
	keys      []string
	keyScheme string
	shared    bool
	slots     int
}

func newKeyOptions() keyOptions { return keyOptions{slots: 1} }

func (k *keyOptions) keyFlags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&k.keys, "key", nil, "lock this `KEY` (required); repeat it to hold several")
	k.schemeFlag(flags)
	flags.BoolVarP(&k.shared, "shared", "s", false, "share the lock with other --shared runs, and with no exclusive one")
	flags.IntVar(&k.slots, "slots", k.slots, "up to `N` holders at once")
}

func (k *keyOptions) schemeFlag(flags *pflag.FlagSet) {
	flags.StringVar(&k.keyScheme, "key-scheme", lockkey.DefaultScheme, "how a key becomes a number: a `SCHEME` of pglead key --help")
}

// scheme is the scheme of --key-scheme.
func (k *keyOptions) scheme() (lockkey.Scheme, error) { return schemeByName(k.keyScheme) }

func (k *keyOptions) checkSlots() error {
	if k.slots < 1 || k.slots > lockkey.MostSlots {
		return usagef("--slots %d: from 1 to %d", k.slots, lockkey.MostSlots)
	}
	return nil
}

// claim makes the locks from the keys. It returns the keys, too, in the order of their locks.
func (k *keyOptions) claim() (claim lock.Claim, keys []string, err error) {
	if err := k.checkSlots(); err != nil {
		return claim, nil, err
	}
	scheme, err := k.scheme()
	if err != nil {
		return claim, nil, err
	}
	ids := map[string]lockkey.ID{}
	for _, key := range k.keys {
		if _, twice := ids[key]; twice {
			return claim, nil, usagef("--key %s is given twice", printable(key))
		}
		if ids[key], err = scheme.ID(key); err != nil {
			return claim, nil, usagef("--key %s: %w", printable(key), err)
		}
	}
	keys = slices.Clone(k.keys)
	slices.SortFunc(keys, func(a, b string) int { return ids[a].Compare(ids[b]) })
	if k.slots > 1 {
		claim.Keys = keys
		gate, err := scheme.Gate(keys[0])
		if err != nil {
			return claim, nil, usagef("--slots: %w", err)
		}
		claim.Gate = &gate
		for i := range k.slots {
			id, err := scheme.Slot(keys[0], i+1)
			if err != nil {
				return claim, nil, usagef("--slots: %w", err)
			}
			claim.IDs = append(claim.IDs, id)
		}
		return claim, keys, nil
	}
	claim.Shared = k.shared
	for _, key := range keys {
		if id := ids[key]; !slices.Contains(claim.IDs, id) { // two keys with one number are one lock
			claim.IDs, claim.Keys = append(claim.IDs, id), append(claim.Keys, key)
		}
	}
	return claim, keys, nil
}

// description is what a session says about itself, besides its keys and what everyone sees.
func (k *keyOptions) description(command, note string) describe.Description {
	d := describe.Description{
		Scheme: k.keyScheme, PID: os.Getpid(), Command: filepath.Base(command),
		Note: cmp.Or(note, jobAddress(os.Getenv)),
	}
	if k.slots > 1 {
		d.Slots = k.slots
	}
	d.Host, _ = os.Hostname()
	// Not from the user database, which may be on a network that is down.
	for _, variable := range []string{"LOGNAME", "USER"} {
		if d.User == "" {
			d.User = os.Getenv(variable)
		}
	}
	switch {
	case d.User != "":
	case os.Getuid() == 0:
		d.User = "root"
	default:
		d.User = "uid " + strconv.Itoa(os.Getuid())
	}
	return d
}
