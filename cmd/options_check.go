package cmd

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/ledger"
)

// check finds what is wrong with the flags before anything happens.
// example is a correct command line.
func (o *options) check(flags *pflag.FlagSet, args []string, example string) error {
	switch {
	case len(o.keys) == 0 && slices.Contains(args, "--"): // a word that isn't a flag has ended the flags
		return usagef("did you mean --key "+printable(args[0])+"?", "--key is missing")
	case len(o.keys) == 0:
		return usagef(example, "--key is missing")
	case len(o.keys) > lockkey.MostKeys:
		return usagef("", "--key is given %d times: at most %d", len(o.keys), lockkey.MostKeys)
	case len(args) == 0:
		return usagef("it follows after --, as in: "+example, "the command to run is missing")
	case o.slots > 1 && o.shared:
		return exclude(flags, "slots", "shared")
	case o.slots > 1 && len(o.keys) > 1:
		return usagef("", "%s takes one --key, not %d", sourceOf(flags.Lookup("slots")), len(o.keys))
	case o.conflictCode < 0 || o.conflictCode > 255:
		return usagef("", "--conflict-exit-code %d: an exit status is from 0 to 255", o.conflictCode)
	case o.quiet && o.verbose:
		return exclude(flags, "quiet", "verbose")
	}
	return cmp.Or(o.checkLedger(flags), o.checkLease(), o.checkTimeout())
}

// exclude is the error for two flags that exclude each other. It says where each comes from.
func exclude(flags *pflag.FlagSet, one, other string) error {
	return usagef("", "%s and %s exclude each other", sourceOf(flags.Lookup(one)), sourceOf(flags.Lookup(other)))
}

func (o *options) checkLedger(flags *pflag.FlagSet) error {
	if o.oncePer == "" {
		return nil
	}
	switch {
	case ledger.Mode(o.ledger.value) == ledger.Off:
		return usagef("", "%s needs a ledger: %s off excludes it", sourceOf(flags.Lookup("once-per")), sourceOf(flags.Lookup("ledger")))
	case o.shared:
		return exclude(flags, "once-per", "shared")
	case o.slots > 1:
		return exclude(flags, "once-per", "slots")
	}
	per, err := ledger.ParsePeriod(o.oncePer)
	if err != nil {
		return usagef("", "--once-per: %w", err)
	}
	if zone := unknownZone(); zone != "" && per == day {
		return usagef("TZ=Europe/Berlin names one; rules such as CET-1CEST are not read",
			"the day of %s is unknown, since TZ names no known time zone: %s", sourceOf(flags.Lookup("once-per")), printable(zone))
	}
	return nil
}

// unknownZone is the time zone that TZ names, if it is not known, so that Go takes UTC for it.
// POSIX spells UTC as a rule, UTC0.
func unknownZone() string {
	name := strings.TrimPrefix(os.Getenv("TZ"), ":")
	if name == "UTC" || name == "UTC0" || time.Local.String() != "UTC" {
		return ""
	}
	return name
}

// checkPlace finds a --key after the word that has ended the flags.
func (o *options) checkPlace(args []string, example string) error {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	late := slices.ContainsFunc(args, func(arg string) bool { return arg == "--key" || strings.HasPrefix(arg, "--key=") })
	if len(o.keys) > 0 || !late {
		return nil
	}
	return usagef("flags come before the command, and a value is one word (--wait 10m), as in: "+example,
		"--key comes too late: %s before it is no flag, and ends pglead's flags", printable(args[0]))
}

func (o *options) checkSlots() error {
	if o.slots < 1 || o.slots > lockkey.MostSlots {
		return usagef("", "--slots %d: from 1 to %d", o.slots, lockkey.MostSlots)
	}
	return nil
}

func (o *options) checkLease() error {
	switch {
	case o.lease.value < leastLease:
		return usagef("", "--lease %s is too short: at least %v", &o.lease, leastLease)
	case o.lease.value > leasetime.Most:
		return usagef("", "--lease %s is too long: at most %s", &o.lease, &duration{value: leasetime.Most})
	}
	return nil
}

func (o *options) checkTimeout() error {
	if o.connectTimeout.value <= 0 {
		return usagef("", "--connect-timeout must be longer than 0")
	}
	return nil
}
