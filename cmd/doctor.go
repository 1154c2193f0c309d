package cmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/doctor"
	"github.com/pglead/pglead/runner/session"
)

// diagnosis is what `pglead doctor -o json` prints.
type diagnosis struct {
	Target   string          `json:"target"`
	Database []checkup.Check `json:"database"`
	Host     string          `json:"host"`
	Machine  []checkup.Check `json:"machine"`
	Status   int             `json:"exit_status"`
}

func newDoctorCmd(v *voice, stdout io.Writer) *cobra.Command {
	o := newOptions()
	var output string
	var idle bool
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Can this database, this path to it and this machine keep the promise?",
		Long: `Connect as pglead run would, take a lock of its own for a trial, have a guard
run a command for a trial, and list what was seen and what to do about it.

  ok    as it should be
  note  good to know; nothing has to be done
  warn  may get in the way
  fail  breaks the promise, or no lock can be had

The exit status is 0 without a fail, else that of pglead run, or 78.`,
		Example: `  pglead doctor --lease 10s
  pglead doctor --dsn postgresql://app@pooler.example:6432/app --transaction
  pglead doctor --dsn postgresql://app@haproxy.example/app --idle`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dsnOnCommandLine := cmd.Flags().Changed("dsn")
			if err := fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			if output != "text" && output != "json" {
				return usagef("--output %s: text or json", printable(output))
			}
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			d, err := o.diagnose(ctx, v, cmd, dsnOnCommandLine, idle)
			if err != nil {
				return err
			}
			if output == "json" {
				err = writeJSON(stdout, d)
			} else {
				err = d.write(stdout)
			}
			if err != nil || d.Status == 0 {
				return err
			}
			return &listError{d.Status}
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&o.keys, "key", nil, "print the number of this `KEY` too; may be repeated")
	o.schemeFlag(flags)
	o.takeoverFlags(flags)
	o.modeFlags(flags)
	o.dsnFlag(flags)
	o.connectTimeoutFlag(flags)
	flags.BoolVar(&idle, "idle", false, "also have a connection idle for a lease: does anything in between end it?")
	flags.StringVarP(&output, "output", "o", "text", "`text` or json")
	return cmd
}

func (o *options) diagnose(ctx context.Context, v *voice, cmd *cobra.Command, dsnOnCommandLine, idle bool) (*diagnosis, error) {
	if err := o.checkSession(); err != nil {
		return nil, err
	}
	if _, err := o.claim(); err != nil {
		return nil, err
	}
	if !cmd.Flags().Changed("lock-delay") {
		o.lockDelay.value = session.TakeoverDelay(o.lease.value)
	}
	db, err := o.database(v, cmd.Flags(), dsnOnCommandLine)
	if err != nil {
		return nil, err
	}
	d := &diagnosis{Target: session.Target(db.config)}
	found, err := doctor.Examine(ctx, doctor.Config{
		Session: session.Config{
			Database:        db.config,
			Lease:           o.lease.value,
			ConnectTimeout:  o.connectTimeout.value,
			ApplicationName: "pglead doctor",
			Transaction:     o.transaction,
			Quorum:          o.quorum,
		},
		Description: o.description("pglead"), LockDelay: o.lockDelay.value, Idle: idle,
	})
	if ctx.Err() != nil {
		return nil, err
	}
	keys, keyErr := o.keyChecks()
	if keyErr != nil {
		return nil, keyErr
	}
	d.Database, d.Machine = slices.Concat(found.Database, keys), found.Machine
	d.Host, _ = os.Hostname()
	failed := func(c checkup.Check) bool { return c.Status == checkup.Fail }
	switch {
	case err != nil:
		d.Status, _ = status(err)
	case slices.ContainsFunc(d.Database, failed), slices.ContainsFunc(d.Machine, failed):
		d.Status = exitUnsafe
	}
	return d, nil
}

// keyChecks are the keys' numbers.
func (o *options) keyChecks() ([]checkup.Check, error) {
	scheme, err := o.scheme()
	if err != nil {
		return nil, err
	}
	var list []checkup.Check
	for _, key := range o.keys {
		id, err := scheme.ID(key)
		if err != nil {
			return nil, usagef("--key %s: %w", printable(key), err)
		}
		c := checkup.Okf("%s is number %s (classid %d, objid %d, objsubid %d in pg_locks)", printable(key), id, id.ClassID(), id.ObjID(), id.ObjSubID())
		c.Name = "key"
		list = append(list, c)
	}
	return list, nil
}

func (d *diagnosis) write(w io.Writer) error {
	var b strings.Builder
	writeChecks(&b, "database "+d.Target, d.Database)
	b.WriteByte('\n')
	writeChecks(&b, "machine "+d.Host, d.Machine)
	b.WriteByte('\n')
	if d.Status == 0 {
		b.WriteString("They can keep the promise.\n")
	} else {
		var names []string
		for _, c := range slices.Concat(d.Database, d.Machine) {
			if c.Status == checkup.Fail {
				names = append(names, c.Name)
			}
		}
		fmt.Fprintf(&b, "Like this they can't keep the promise: %s (exit status %d).\n", strings.Join(names, ", "), d.Status)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// The columns of a terminal of the usual width.
const (
	checkIndent = 20
	textWidth   = 80 - checkIndent
)

func writeChecks(b *strings.Builder, heading string, checks []checkup.Check) {
	b.WriteString(oneLine(heading) + "\n")
	for _, c := range checks {
		margin := fmt.Sprintf("  %-4s  %-10s  ", c.Status, c.Name)
		for _, line := range wrap(oneLine(c.Seen), textWidth) {
			b.WriteString(margin + line + "\n")
			margin = strings.Repeat(" ", checkIndent)
		}
		if c.Advice == "" {
			continue
		}
		margin += "-> "
		for _, line := range wrap(oneLine(c.Advice), textWidth-3) {
			b.WriteString(margin + line + "\n")
			margin = strings.Repeat(" ", checkIndent+3)
		}
	}
}

// wrap breaks a text at its spaces. A word that is longer than a line stands
// alone.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}
