package doctor

import (
	"context"
	"net"
	"time"

	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/session"
)

// A proxy may end a connection that is silent for a while, as HAProxy does after its
// `timeout client`. A holder whose host is cut off is silent, and the server frees the lock
// as soon as the proxy ends the server's side. That must not happen before the holder's
// command is dead. Nobody announces such an end: the server doesn't know why its client
// has gone, and the holder can't hear of it. So it has to be tested beforehand.

// silence keeps a connection silent for as long as a cut-off holder's connection
// may be. A waiter's is silent for a third of that at most.
func (x *examination) silence(ctx context.Context) checkup.Check {
	client, err := session.OpenAnyClient(ctx, x.cfg)
	if err != nil {
		return failed(err)
	}
	defer client.Close()
	if tcp, ok := client.Socket().(*net.TCPConn); ok {
		// A host that is cut off sends no probes either.
		_ = tcp.SetKeepAlive(false)
	}
	quiet := &examination{cfg: x.cfg, client: client}
	sql := "SELECT pg_catalog.set_config('idle_session_timeout', '0', false)"
	if x.cfg.Transaction {
		sql = "BEGIN; SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true), pg_catalog.set_config('idle_session_timeout', '0', true)"
	}
	if _, err := quiet.Query(ctx, sql); err != nil {
		return failed(err)
	}
	after, err := quiet.answersAfter(ctx, x.cfg.Lease)
	if err != nil {
		const (
			advice = "have what is in between keep silent connections for longer than the lease " +
				"(HAProxy: timeout tunnel, or both timeout client and timeout server), " +
				"go a way round it, or give all nodes a shorter --lease"
			seen = "a connection ended when it had been silent for %v (%s), within the lease of %v: " +
				"a holder whose host is cut off loses the lock before its command is dead, and whoever comes then starts at once"
		)
		return checkup.Failf(advice, seen, after.Round(100*time.Millisecond), err, x.cfg.Lease)
	}
	return checkup.Okf("a connection that was silent for %v still answers", x.cfg.Lease)
}

// answersAfter returns no error if the connection still works after a silence of that length.
// Otherwise it returns when it ended, and why.
func (x *examination) answersAfter(ctx context.Context, silent time.Duration) (time.Duration, error) {
	began := time.Now()
	quiet, cancel := context.WithTimeout(ctx, silent)
	defer cancel()
	// It listens to no channel, so no notification will come.
	if err := x.client.AwaitEnd(quiet); err != nil {
		return time.Since(began), err
	}
	took := time.Since(began)
	_, err := x.Query(ctx, session.PlainBeatQuery)
	return took, err
}
