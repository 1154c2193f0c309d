package cmd

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/pglead/pglead/runner/ledger"
)

func (o *options) ledgerFlag(flags *pflag.FlagSet) {
	flags.Var(&o.ledger, "ledger", o.ledger.usage()+": go by the database's ledger if it has one, always, or never")
}

func (o *options) onceFlag(flags *pflag.FlagSet) {
	flags.StringVar(&o.oncePer, "once-per", "", "do nothing if this `PERIOD`, such as 5m, hour or day (the local date, by TZ), has had its success; needs a ledger")
}

func (o *options) checkLedger() error {
	if o.oncePer == "" {
		return nil
	}
	switch {
	case ledger.Mode(o.ledger.value) == ledger.Off:
		return usagef("--once-per needs a ledger: --ledger off excludes it")
	case o.shared:
		return usagef("--once-per and --shared exclude each other")
	case o.slots > 1:
		return usagef("--once-per and --slots exclude each other")
	}
	if _, err := ledger.ParsePeriod(o.oncePer); err != nil {
		return usagef("--once-per: %w", err)
	}
	return nil
}

// remembering is what the flags, which were checked, ask of a ledger. The tick is that
// of this process's start, before it waits for anything.
func (o *options) remembering() ledger.Use {
	use := ledger.Use{Mode: ledger.Mode(o.ledger.value)}
	if o.oncePer != "" {
		per, _ := ledger.ParsePeriod(o.oncePer)
		use.Tick = ledger.TickOf(per, time.Now)
	}
	return use
}
