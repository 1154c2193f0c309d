package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
)

func (o *options) onceFlag(flags *pflag.FlagSet) {
	flags.StringVar(&o.oncePer, "once-per", "",
		"do nothing if a run has succeeded in this `PERIOD`, such as 5m, hour or day (the local date, by TZ); needs a ledger")
}

func (o *options) checkLedger(flags *pflag.FlagSet) error {
	if o.oncePer == "" {
		return nil
	}
	switch {
	case ledger.Mode(o.ledger.value) == ledger.Off:
		return usagef("%s needs a ledger: %s off excludes it", sourceOf(flags.Lookup("once-per")), sourceOf(flags.Lookup("ledger")))
	case o.shared:
		return exclude(flags, "once-per", "shared")
	case o.slots > 1:
		return exclude(flags, "once-per", "slots")
	}
	per, err := ledger.ParsePeriod(o.oncePer)
	if err != nil {
		return usagef("--once-per: %w", err)
	}
	if zone := unknownZone(); zone != "" && per == day {
		return &usageError{
			err:  fmt.Errorf("the day of %s is unknown, since TZ names no known time zone: %s", sourceOf(flags.Lookup("once-per")), printable(zone)),
			hint: "TZ=Europe/Berlin names one; rules such as CET-1CEST are not read",
		}
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

// remembering is what the flags, after check, ask of a ledger. The tick is that of this
// process's start, before it waits for anything.
func (o *options) remembering() ledger.Use {
	use := ledger.Use{Mode: ledger.Mode(o.ledger.value)}
	if o.oncePer != "" {
		per, _ := ledger.ParsePeriod(o.oncePer)
		use.Tick = ledger.TickOf(per, time.Now)
	}
	return use
}

// missingPatience is how long noteMissing may take.
const missingPatience = 3 * time.Second

// noteMissing notes in the ledger, if there is one, that a command should have run but
// could not be executed: there may be a mistake in a crontab. It takes no lock, since
// another node may have the command. If it fails, that is not worth a second error.
func (o *options) noteMissing(u *ui, cmd *cobra.Command, claim lock.Claim, missing *child.LookupError) {
	if ledger.Mode(o.ledger.value) == ledger.Off {
		return
	}
	status, _ := status(missing)
	if err := o.tellMissing(cmd, claim, missing.Name, status); err != nil {
		u.log.Info("the ledger was not told of it: "+err.Error(), "event", "ledger")
	}
}

func (o *options) tellMissing(cmd *cobra.Command, claim lock.Claim, name string, status int) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), missingPatience, errors.New("the database did not answer in time"))
	defer cancel()
	client, err := openAside(ctx, cmd, "pglead "+cmd.Name(), missingPatience)
	if err != nil {
		return err
	}
	defer client.Close()
	client.MayWrite()
	ask, err := grantedLedger(ctx, client)
	if ask == nil {
		return err
	}
	d := o.description(filepath.Base(name), o.note)
	if claim.Gate != nil {
		claim.IDs = claim.IDs[:1] // any slot stands for the key
	}
	for i, id := range claim.IDs {
		run := ledger.Run{Host: d.Host, User: d.User, Command: d.Command, PID: d.PID}
		if _, err := ask(ctx, run.MissingQuery(ledger.Lock{ID: id, Key: claim.Key(i)}, status)); err != nil {
			return err
		}
	}
	return nil
}
