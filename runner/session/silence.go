package session

import (
	"context"
	"net"
	"time"

	"github.com/pglead/pglead/runner/checkup"
)

// What stands in between may end a connection that is silent for a while, as
// HAProxy does after its `timeout client`. A holder whose host is cut off from it
// is silent, and the server frees the lock as soon as its side is ended. So that
// must not come before the holder's command is dead. Nobody tells of such an end:
// neither does the server know why its client went, nor has the holder a way to
// hear it. It can only be tried beforehand.

// silence keeps a connection silent for as long as a cut off holder's may be. A
// waiter's is silent for a third of that at most.
func (x *examination) silence(ctx context.Context) checkup.Check {
	pg, err := connect(ctx, x.cfg, nil)
	if err != nil {
		return failed(err)
	}
	defer (&Viewer{pg}).Close()
	if tcp, ok := socket(pg.Conn()).(*net.TCPConn); ok {
		// A host that is cut off sends no probes either.
		_ = tcp.SetKeepAlive(false)
	}
	quiet := &examination{cfg: x.cfg, pg: pg}
	sql := "SELECT " + set(false, [][2]string{{"idle_session_timeout", "0"}})
	if x.cfg.Transaction {
		sql = "BEGIN; SELECT " + set(true, [][2]string{{"idle_in_transaction_session_timeout", "0"}, {"idle_session_timeout", "0"}})
	}
	if _, err := quiet.rows(ctx, sql); err != nil {
		return failed(err)
	}
	after, err := quiet.answersAfter(ctx, x.cfg.Lease)
	if err != nil {
		return checkup.Failf("have what is in between keep silent connections for longer than the lease (HAProxy: timeout tunnel, or both timeout client and timeout server), go a way round it, or give all nodes a shorter --lease",
			"a connection ended when it had been silent for %v (%s), in less than the lease of %v: a holder whose host is cut off loses the lock before its command is dead, and who comes then starts at once",
			coarse(after), err, x.cfg.Lease)
	}
	return checkup.Okf("a connection that was silent for %v still answers", x.cfg.Lease)
}

// answersAfter returns no error if the connection can be used when it has been
// silent for that long, else when and why it could no longer be.
func (x *examination) answersAfter(ctx context.Context, silent time.Duration) (time.Duration, error) {
	began := time.Now()
	quiet, cancel := context.WithTimeout(ctx, silent)
	defer cancel()
	for quiet.Err() == nil {
		// It listens to nothing: there will be no notification.
		if err := x.pg.WaitForNotification(quiet); err != nil && quiet.Err() == nil {
			return time.Since(began), err
		}
	}
	took := time.Since(began)
	_, err := x.rows(ctx, PlainBeat)
	return took, err
}
