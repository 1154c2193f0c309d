package cmd

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/doctor"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// diagnosis is what `pglead doctor -o json` prints.
type diagnosis struct {
	Target   string          `json:"target"`
	Database []checkup.Check `json:"database"`
	Host     string          `json:"host"`
	Machine  []checkup.Check `json:"machine"`
	Status   int             `json:"exit_status"`
}

func newDoctorCmd(u *ui) *cobra.Command {
	o, idle := newOptions(u), false
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check whether database, network and machine are safe for locks",
		Long: `Connect as pglead run would, take a trial lock, have a guard run a trial
command, and list what was seen and what to do about it.

  ok    as it should be
  note  good to know; nothing has to be done
  warn  may get in the way
  fail  breaks the promise, or no lock can be had

The exit status is 0 if nothing fails, that of pglead run if that would fail
(69, 77, 78), and 78 if something else breaks the promise.`,
		Example: `  pglead doctor --lease 10s
  pglead doctor --dsn postgresql://app@pooler.example:6432/app --transaction
  pglead doctor --dsn postgresql://app@haproxy.example/app --idle`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var d *diagnosis
			if err := untilSignal(func(ctx context.Context) (err error) {
				d, err = o.diagnose(ctx, cmd, idle)
				return err
			}); err != nil {
				return err
			}
			if err := o.print(cmd.OutOrStdout(), d, d.text()); err != nil || d.Status == 0 {
				return err
			}
			return &silentExit{code: d.Status}
		},
	}
	flags := cmd.Flags()
	o.register(cmd, "key key-scheme lease lock-delay transaction quorum dsn connect-timeout")
	flags.BoolVar(&idle, "idle", false, "also keep a connection silent for a lease, to see whether anything in between ends it")
	o.register(cmd, "output")
	flags.Lookup("key").Usage = "print the number of this `KEY` too; may be repeated"
	delay := flags.Lookup("lock-delay")
	delay.Usage = strings.Replace(delay.Usage, ", plus the lost-grace, at most the lease", "", 1)
	return cmd
}

func (o *options) diagnose(ctx context.Context, cmd *cobra.Command, idle bool) (*diagnosis, error) {
	_, keys, err := o.claim()
	if err != nil {
		return nil, err
	}
	connection, _, err := o.connection(cmd)
	if err != nil {
		return nil, err
	}
	found, err := doctor.Examine(ctx, doctor.Config{
		Session: connection, Description: o.description("pglead"), LockDelay: o.delay(cmd.Flags()), Idle: idle,
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	d := &diagnosis{Target: session.Target(connection.Database), Database: slices.Concat(found.Database, o.keyChecks(keys)), Machine: found.Machine}
	d.Host, _ = os.Hostname()
	switch {
	case err != nil:
		d.Status, _ = status(err)
	case len(d.failed()) > 0:
		d.Status = exitUnsafe
	}
	return d, nil
}

// failed names the checks that failed.
func (d *diagnosis) failed() (names []string) {
	for _, c := range slices.Concat(d.Database, d.Machine) {
		if c.Status == checkup.Fail {
			names = append(names, c.Name)
		}
	}
	return names
}

// keyChecks show the keys' numbers. claim has checked the keys.
func (o *options) keyChecks(keys []string) (list []checkup.Check) {
	scheme, _ := o.scheme()
	for _, key := range keys {
		id, _ := scheme.ID(key)
		c := checkup.Okf("%s is number %s (classid %d, objid %d, objsubid %d in pg_locks)", printable(key), id, id.ClassID(), id.ObjID(), id.ObjSubID())
		c.Name = "key"
		list = append(list, c)
	}
	return list
}

func (d *diagnosis) text() string {
	var b strings.Builder
	writeChecks(&b, "database "+d.Target, d.Database)
	b.WriteByte('\n')
	writeChecks(&b, "machine "+d.Host, d.Machine)
	b.WriteByte('\n')
	if d.Status == 0 {
		b.WriteString("They can keep the promise.\n")
	} else {
		fmt.Fprintf(&b, "Like this they can't keep the promise: %s (exit status %d).\n", strings.Join(d.failed(), ", "), d.Status)
	}
	return b.String()
}

// writeChecks writes for a terminal of 80 columns.
func writeChecks(b *strings.Builder, heading string, checks []checkup.Check) {
	b.WriteString(visible.Text(heading) + "\n")
	write := func(margin, text string) {
		for _, line := range wrap(visible.Text(text), pageWidth-len(margin)) {
			b.WriteString(margin + line + "\n")
			margin = strings.Repeat(" ", len(margin))
		}
	}
	for _, c := range checks {
		margin := fmt.Sprintf("  %-4s  %-10s  ", c.Status, c.Name)
		write(margin, c.Seen)
		if c.Advice != "" {
			write(strings.Repeat(" ", len(margin))+"-> ", c.Advice)
		}
	}
}
