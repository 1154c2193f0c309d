package cmd

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// ledgerConnection asks the ledger over a client's connection. If somebody has locked a table, the
// server gives up after 3 s.
type ledgerConnection struct{ client *session.Client }

func (c ledgerConnection) Query(ctx context.Context, queries ...string) (session.Rows, error) {
	rows, err := c.client.Query(ctx, append([]string{"SET LOCAL lock_timeout = '3s'"}, queries...)...)
	return rows, ledger.Rejected(err, c.client.Target())
}

// foundLedger is what this role can see of a ledger.
type foundLedger struct {
	on     session.Connection
	access ledger.Access
	role   string // as SQL writes it
	where  string // the database, for messages
}

func findLedger(ctx context.Context, client *session.Client) (foundLedger, error) {
	on := ledgerConnection{client}
	access, role, err := ledger.ReadAccess(ctx, on)
	return foundLedger{on, access, role, visible.Text(client.Target())}, err
}

// denial is nil if this role can read and write the ledger.
func (f foundLedger) denial() error {
	switch f.access {
	case ledger.Granted:
		return nil
	case ledger.Foreign:
		return session.Errorf(session.Denied, ledger.UntrustedHint, "the ledger in %s can't be trusted: %s", f.where, ledger.Untrusted)
	case ledger.Denied:
		return session.Errorf(session.Denied, "as its owner: GRANT USAGE ON SCHEMA pglead TO "+f.role,
			"the ledger in %s is not for the role %s", f.where, visible.Text(f.role))
	}
	return session.Errorf(session.Denied, "pglead ledger install, as the owner of the database, makes one",
		"there is no ledger in %s, so that nothing is remembered", f.where)
}

// grantedLedger asks over a client's connection. It is nil if this role has no ledger there.
func grantedLedger(ctx context.Context, client *session.Client) (session.Connection, error) {
	on := ledgerConnection{client}
	access, _, err := ledger.ReadAccess(ctx, on)
	if err != nil || access != ledger.Granted {
		return nil, err
	}
	return on, nil
}

// numbersOf are the numbers under which the ledger may have a key: its own, and those of
// its slots. Without --slots that means all possible slots.
func (f *lookFlags) numbersOf(key string) ([]lockkey.ID, error) {
	scheme, err := f.scheme()
	if err != nil {
		return nil, err
	}
	id, err := scheme.ID(key)
	if err != nil {
		return nil, usagef("", "%s: %w", printable(key), err)
	}
	ids := []lockkey.ID{id}
	slots := f.slots
	if slots == 1 {
		slots = describe.MostSlots
	}
	for i := range slots {
		if slot, err := scheme.Slot(key, i+1); err == nil { // some schemes have no slots
			ids = append(ids, slot)
		}
	}
	return ids, nil
}

// withLedger connects, and calls do with the ledger. It fails if this role has none.
func (f *lookFlags) withLedger(cmd *cobra.Command, open opener, do func(ctx context.Context, on session.Connection) error) error {
	return f.connect(cmd, open, func(ctx context.Context, client *session.Client) error {
		found, err := findLedger(ctx, client)
		if err == nil {
			err = found.denial()
		}
		if err != nil {
			return err
		}
		return do(ctx, found.on)
	})
}

// mostMatched limits the locks that one command shows or changes.
const mostMatched = 10_000

// mostRemembered limits the keys whose past a list of locks shows.
const mostRemembered = 1000

// factsFor are the facts of the keys that match, or none without a ledger.
func factsFor(ctx context.Context, client *session.Client, patterns []string) (ledger.Facts, error) {
	on, err := grantedLedger(ctx, client)
	if on == nil {
		return ledger.Facts{}, err
	}
	return ledger.FactsMatching(ctx, on, patterns, mostRemembered)
}
