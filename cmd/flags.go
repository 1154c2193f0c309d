package cmd

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/visible"
)

// envPrefix and a flag's name in capitals make the flag's variable.
const envPrefix = "PGLEAD_"

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// readFlags gives flags the values of their variables, and refuses values that they can't have.
func readFlags(flags *pflag.FlagSet) error {
	// Only the first mistake is reported; looking for the others does no harm.
	return cmp.Or(fromEnvironment(flags), checkDashes(flags), checkChoices(flags))
}

// fromEnvironment gives flags that are not on the command line the values of
// their variables. An empty variable counts as unset, as in a crontab's KEY= line.
func fromEnvironment(flags *pflag.FlagSet) error {
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		value := os.Getenv(envName(f.Name))
		if f.Changed || value == "" || f.Name == "help" || failed != nil {
			return
		}
		if f.Name == "dsn" && value == withheld {
			return // chooseDatabase says so, if it gets that far
		}
		values := []string{value}
		switch f.Value.Type() {
		case "bool":
			also := map[string]string{"yes": "true", "on": "true", "no": "false", "off": "false"}
			values[0] = cmp.Or(also[strings.ToLower(value)], value)
		case "stringArray":
			values = strings.Split(strings.TrimRight(value, "\n"), "\n")
		}
		for _, v := range values {
			if err := flags.Set(f.Name, v); err != nil {
				failed = usagef("", "%w", badValue(envName(f.Name), f, value, errors.Unwrap(err)))
				return
			}
		}
		_ = flags.SetAnnotation(f.Name, ofVariable, values) // the flag exists
	})
	return failed
}

// ofVariable marks a flag that has its variable's value.
const ofVariable = "variable"

// sourceOf says, for messages, where a flag's value comes from.
func sourceOf(f *pflag.Flag) string {
	if f.Annotations[ofVariable] != nil {
		return envName(f.Name)
	}
	return "--" + f.Name
}

// choice is a flag that takes one of several words. The usage text, the check and the
// completion all take the words from here.
type choice struct {
	value string
	words []string
}

// choose makes a choice. The first word is the default.
func choose(words ...string) choice { return choice{words[0], words} }

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return "string" } // so that help quotes the default

// Set takes any word. They are checked when all flags are read.
func (c *choice) Set(s string) error {
	c.value = s
	return nil
}

// list is the words in a sentence.
func (c *choice) list() string {
	last := len(c.words) - 1
	return strings.Join(c.words[:last], ", ") + " or " + c.words[last]
}

func checkChoices(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		if c, ok := f.Value.(*choice); ok && err == nil && !slices.Contains(c.words, c.value) {
			err = usagef("", "%s %s: %s", sourceOf(f), printable(c.value), c.list())
		}
	})
	return err
}

// commandEnvironment is pglead's own without the variables that are only for this pglead: those
// of all commands' flags, those about the lock of an outer pglead, and systemd's.
func commandEnvironment(called *cobra.Command) []string {
	notForIt := slices.Concat(ownVariables(called), systemdVariables())
	return slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(notForIt, name)
	})
}

// ownVariables are the variables about the lock of an outer pglead, and those of the called
// command's flags. If the environment has any other PGLEAD_ variable, ownVariables makes all
// commands, to add the variables of their flags.
func ownVariables(called *cobra.Command) []string {
	known := lockVariables()
	add := func(f *pflag.Flag) { known = append(known, envName(f.Name)) }
	called.Flags().VisitAll(add)
	others := slices.ContainsFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return strings.HasPrefix(name, envPrefix) && !slices.Contains(known, name)
	})
	if others {
		for _, cmd := range newRootCmd("", newUI(nil), nil).Commands() {
			cmd.Flags().VisitAll(add)
		}
	}
	return known
}

// lockVariables are the variables that tell a command about its lock.
func lockVariables() (names []string) {
	for _, v := range commandVariables() {
		names = append(names, v[0])
	}
	return names
}

// duration is a flag that takes Go's durations or a bare number of seconds.
type duration struct {
	value        time.Duration
	mayBeForever bool // "forever" is allowed
}

func (d *duration) String() string {
	switch d.value {
	case lock.Forever:
		return "forever"
	case 0:
		return "0"
	}
	return visible.Duration(d.value)
}

func (d *duration) Type() string { return "D" } // its name in help, as in REFERENCE.md

func (d *duration) Set(s string) error {
	if d.mayBeForever && s == "forever" {
		d.value = lock.Forever
		return nil
	}
	parsed, err := parseDuration(s)
	if err != nil {
		return err
	}
	d.value = parsed
	return nil
}

// longest is the longest duration that a flag takes. Sums and small multiples of it still fit into
// a time.Duration.
const longest = 10 * 365 * day

const day = 24 * time.Hour

func parseDuration(s string) (time.Duration, error) {
	if seconds, err := strconv.ParseFloat(s, 64); err == nil {
		switch {
		case math.IsNaN(seconds), seconds < 0:
			return 0, notALength(s)
		case seconds > longest.Seconds():
			return 0, tooLong(s)
		}
		return time.Duration(seconds * float64(time.Second)), nil
	}
	whole, rest := time.Duration(0), s
	if days, behind, found := strings.Cut(s, "d"); found {
		n, err := strconv.Atoi(days)
		switch {
		case err != nil || n < 0:
			return 0, notALength(s)
		case n > int(longest/day):
			return 0, tooLong(s)
		}
		whole, rest = time.Duration(n)*day, cmp.Or(behind, "0")
	}
	d, err := time.ParseDuration(rest)
	switch {
	case err != nil || d < 0 || strings.ContainsAny(rest, "+-"):
		return 0, notALength(s)
	case d > longest-whole:
		return 0, tooLong(s)
	}
	return whole + d, nil
}

func tooLong(s string) error { return fmt.Errorf("%q is too long: at most %dd", s, longest/day) }

func notALength(s string) error {
	return fmt.Errorf("%q is not a length of time such as 30s, 1m30s, 5m, 24h, 1d or a number of seconds", s)
}
