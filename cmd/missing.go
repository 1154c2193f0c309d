package cmd

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
)

// missingPatience is how long noteMissing may take.
const missingPatience = 3 * time.Second

// noteMissing notes in the ledger, if there is one, that a command should have run but
// could not be executed: there may be a mistake in a crontab. It takes no lock, since
// another node may have the command. If it fails, that is not worth a second error.
func (o *options) noteMissing(cmd *cobra.Command, claim lock.Claim, missing *child.LookupError) {
	if ledger.Mode(o.ledger.value) == ledger.Off {
		return
	}
	status, _ := status(missing)
	if err := o.tellMissing(cmd, claim, missing.Name, status); err != nil {
		o.u.log.Info("the ledger was not told of it: "+err.Error(), "event", "ledger")
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
	d := o.description(name)
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
