package cmd

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pglead/pglead/runner/ledger"
)

// confirm has somebody at a terminal agree to what an uninstallation takes away. Without
// a terminal only --yes does.
func (a *ledgerAdmin) confirm(ctx context.Context) error {
	if a.yes {
		return nil
	}
	what := "the ledger in " + a.where
	if a.access == ledger.Granted { // in another's schema nothing is touched
		s, err := ledger.ReadState(ctx, a.ask)
		if err != nil {
			return err
		}
		what += fmt.Sprintf(", with %s of %s", plural(s.Runs, "run"), plural(s.Keys, "key"))
	}
	if !isTerminal(os.Stdin) || !isTerminal(os.Stderr) {
		return &usageError{err: fmt.Errorf("this would remove %s", what), hint: "--yes says that this is meant"}
	}
	fmt.Fprintf(os.Stderr, "This removes %s. Go on? [y/N] ", what)
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n') // its end is a no
	if !slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer))) {
		fmt.Fprintln(os.Stderr, "Nothing was removed.")
		return &silentExit{exitFree}
	}
	return nil
}
