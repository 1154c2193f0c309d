package cmd

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// lookFlags are the flags of the commands that look at locks, or ask for something about them.
type lookFlags struct {
	options
	server session.Config // how to connect; set by locate
	warned []string       // what of the ledger can't be read
	cut    bool           // that it has more pauses than are shown; this has been said, too
}

// serverFlags say where the locks are.
func (f *lookFlags) serverFlags(cmd *cobra.Command) {
	f.register(cmd, "dsn connect-timeout")
	cmd.Flags().Lookup("connect-timeout").Usage = "how long each attempt to connect may take, and each answer if longer than 30s"
}

// lockFlags are the flags of a command about one key: they say which locks, and where.
func (f *lookFlags) lockFlags(cmd *cobra.Command) {
	f.serverFlags(cmd)
	f.register(cmd, "key-scheme slots")
	cmd.Flags().Lookup("slots").Usage = "the key has `N` slots; needed only if none is held or waited for"
}

// withLocksOf connects to the primary, asks for the locks of a key, and calls do with them.
func (f *lookFlags) withLocksOf(
	cmd *cobra.Command, key string,
	do func(ctx context.Context, client *session.Client, claim lock.Claim, locks []*inspect.Lock) error,
) error {
	f.keys = []string{key}
	claim, _, err := f.claim()
	if err != nil {
		return err
	}
	return f.connect(cmd, session.OpenClient, func(ctx context.Context, client *session.Client) error {
		claim, locks, err := f.locksOf(ctx, client, claim)
		if err != nil {
			return err
		}
		return do(ctx, client, claim, locks)
	})
}

// locksOf asks the server for the locks of a key. Without --slots it infers the number of slots
// from what holders and waiters say, or otherwise from the slots that are held. It returns
// the claim with that many slots.
func (f *lookFlags) locksOf(ctx context.Context, client *session.Client, claim lock.Claim) (lock.Claim, []*inspect.Lock, error) {
	sought := claim.Sought()
	slots := map[lockkey.ID]int{}
	scheme, _ := f.scheme() // claim has checked it
	if gate, err := scheme.Gate(f.keys[0]); err == nil && f.slots == 1 {
		sought.Lines, sought.Gates = append(slices.Clone(sought.Lines), gate), []lockkey.ID{gate}
		sought.Locks = slices.Clone(sought.Locks)
		for slot := range describe.MostSlots + 1 { // the gate is slot 0
			id, _ := scheme.Slot(f.keys[0], slot)
			sought.Locks = append(sought.Locks, id)
			slots[id] = slot
		}
	}
	views, err := inspect.Views(ctx, client, sought)
	if err != nil {
		return claim, nil, err
	}
	if f.shared {
		views = slices.DeleteFunc(views, func(v inspect.View) bool { return v.Granted && v.Shared })
	}
	locks := slices.DeleteFunc(inspect.Locks(views), func(l *inspect.Lock) bool { return !slices.Contains(sought.Locks, l.Number()) })
	most := 0
	for _, l := range locks {
		if slot, ok := slots[l.Number()]; ok {
			l.Slot = slot // this role may be unable to see the holder's own words
			most = max(most, slot, l.Slots)
		}
	}
	if most > 1 {
		inspect.Sort(locks)
		f.slots = most
		claim, _, err = f.claim()
	}
	return claim, locks, err
}

func oneKey(cmd *cobra.Command, args []string) error {
	example := cmd.CommandPath() + " invoice_gen/SUB-1234"
	switch len(args) {
	case 0:
		return usagef(example, "a key is missing")
	case 1:
		return nil
	}
	return usagef(example, "%s takes one key, not %d", cmd.CommandPath(), len(args))
}

func (f *lookFlags) target() string { return session.Target(f.server.Database) }

// opener opens a connection: session.OpenClient to the primary, openWriter to the primary, to
// change the ledger, and openReader to read the ledger.
type opener func(ctx context.Context, server session.Config) (*session.Client, error)

func openWriter(ctx context.Context, server session.Config) (*session.Client, error) {
	client, err := session.OpenClient(ctx, server)
	if err == nil {
		client.MayWrite()
	}
	return client, err
}

// openReader connects to a standby if there is no primary, since it has a copy of the ledger. It
// can't know which runs are lost by now, since it has none of the primary's locks.
func (f *lookFlags) openReader(ctx context.Context, server session.Config) (*session.Client, error) {
	client, standby, err := session.OpenReader(ctx, server)
	if err == nil && standby {
		text := "a standby answers in " + f.target() +
			": it may lag behind the primary, and can't know whether what it shows as running still runs"
		f.u.say(slog.LevelWarn, text, session.StandbyError().Hint, "event", "ledger")
	}
	return client, err
}

// connect finds out where the locks are, and calls do with a connection. A signal ends both.
func (f *lookFlags) connect(cmd *cobra.Command, open opener, do doWithClient) error {
	if err := f.locate(cmd); err != nil {
		return err
	}
	return untilSignal(func(ctx context.Context) error { return f.withClient(ctx, open, do) })
}

// locate finds out, at its first call, where the locks are.
func (f *lookFlags) locate(cmd *cobra.Command) (err error) {
	if f.server.Database == nil {
		f.server, _, err = f.connection(cmd)
	}
	return err
}

type doWithClient func(ctx context.Context, client *session.Client) error

// withClient opens a connection, calls do with it, and closes it.
func (f *lookFlags) withClient(ctx context.Context, open opener, do doWithClient) error {
	client, err := open(ctx, f.server)
	if err != nil {
		return err
	}
	defer client.Close()
	return do(ctx, client)
}

// untilSignal calls do with a context that a signal ends. If do then fails, this process dies of
// that signal, since a shell's loop would go on after an exit status. A second signal ends it at
// once, and one that was ignored when it started stays ignored.
func untilSignal(do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	caught := make(chan os.Signal, 1)
	defer signal.Stop(caught)
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(caught, sig)
		}
	}
	go func() {
		select {
		case sig := <-caught:
			signal.Stop(caught)
			cancel(&silentExit{sig: sig.(unix.Signal)})
		case <-ctx.Done():
		}
	}()
	err := do(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
