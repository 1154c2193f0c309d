package cmd

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

func newWhoCmd(u *ui) *cobra.Command {
	f := lookFlags{options: newOptions(u)}
	cmd := &cobra.Command{
		Use:   "who KEY [flags]",
		Short: "Show the holder of a key; exit 0 held, 1 free",
		Long: `Show the holders of a key, a line each. The exit status is 0 if there are any,
and 1 if the lock is free.`,
		Example: `  pglead who invoice_gen/SUB-1234
  pglead who render -o json`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.withLocksOf(cmd, args[0], func(ctx context.Context, client *session.Client, claim lock.Claim, locks []*inspect.Lock) error {
				locks, err := f.withPauses(ctx, client, locks, func(on session.Connection, most int) (ledger.Facts, error) {
					return ledger.PausesOf(ctx, on, ledger.Lock{ID: claim.IDs[0], Key: args[0]}, most) // any slot stands for the key
				})
				if err != nil {
					return err
				}
				return f.writeHolders(cmd.OutOrStdout(), locks)
			})
		},
	}
	f.register(cmd, "output")
	f.lockFlags(cmd)
	f.register(cmd, "shared")
	cmd.Flags().Lookup("shared").Usage = "only a holder that would keep a --shared run from starting: an exclusive one"
	return cmd
}

func (f *lookFlags) writeHolders(w io.Writer, locks []*inspect.Lock) (err error) {
	lines := holderLines(locks)
	held := len(lines) > 0
	if !held {
		lines = []string{f.freeText()}
	}
	lines = append(lines, pausedLines(pausesOf(locks), 0)...)
	err = f.print(w, locks, strings.Join(lines, "\n")+"\n")
	if err == nil && !held {
		err = &silentExit{code: exitNo}
	}
	return err
}

// freeText says that nobody holds the one key.
func (f *lookFlags) freeText() string {
	return printable(f.keys[0]) + " is free in " + visible.Text(f.target())
}

func holderLines(locks []*inspect.Lock) (lines []string) {
	for _, l := range locks {
		for _, h := range l.Holders {
			as := ""
			switch {
			case l.Slot > 0:
				as = fmt.Sprintf("slot %d: ", l.Slot)
			case h.Shared:
				as = "shared: "
			}
			line := as + h.String()
			switch n := len(l.Waiters); n {
			case 0:
			case 1:
				line += "; 1 waits"
			default:
				line += fmt.Sprintf("; %d wait", n)
			}
			lines = append(lines, line)
		}
	}
	return lines
}
