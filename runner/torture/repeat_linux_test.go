package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
)

// word is a last word that was heard.
type word struct{ channel, payload string }

// mostWords is how many are remembered, so that they come late, and not only those
// of long ago.
const mostWords = 20

// repeat has a session of the contenders' role, and a stranger, say again what
// holders and their heirs have said at an end: all that is as true as it was.
func (a *arena) repeat(ctx context.Context) {
	for ctx.Err() == nil {
		_ = a.repeating(ctx)
		pause(ctx, 200*time.Millisecond)
	}
}

// repeating goes on for as long as the server does.
func (a *arena) repeating(ctx context.Context) error {
	var words []word
	conn, err := a.hears(ctx, a.server.DSN("postgres"), func(n *pgconn.Notification) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if said := strings.Fields(n.Payload); len(said) < 4 || said[0] != "clean" && said[0] != "dead" || slices.Contains(a.strangers, n.PID) {
			return
		}
		if len(words) == mostWords {
			words = words[1:]
		}
		payload, _, _ := strings.Cut(n.Payload, " to=") // it is somebody else's turn by now
		words = append(words, word{n.Channel, payload})
	})
	if err != nil {
		return err
	}
	defer closeSoon(conn)
	a.mu.Lock()
	a.strangers = append(a.strangers, conn.PID())
	a.mu.Unlock()
	foreign, err := a.strange(ctx, "pglead")
	if err != nil {
		return err
	}
	defer closeSoon(foreign)
	for ctx.Err() == nil {
		pause(ctx, time.Duration(rand.Int64N(int64(500*time.Millisecond))))
		if err := conn.Exec(ctx, "SELECT 1").Close(); err != nil { // hears what there is
			return err
		}
		if len(words) == 0 {
			continue
		}
		w, speaker := words[rand.IntN(len(words))], conn
		if rand.IntN(4) == 0 {
			speaker = foreign
		}
		if err := say(ctx, speaker, w.channel, w.payload); err != nil {
			return err
		}
	}
	return nil
}

// overhear notes all that is said of the locks, for those who want to know why, and
// who has said that it starts.
func (a *arena) overhear(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := a.hears(ctx, a.server.DSN("postgres"), func(n *pgconn.Notification) {
			a.note("%d: %s", n.PID, n.Payload[:min(len(n.Payload), 60)])
			if strings.HasPrefix(n.Payload, "started ") {
				a.mu.Lock()
				a.started[strconv.Itoa(int(n.PID))] = true
				a.mu.Unlock()
			}
		})
		if err == nil {
			for conn.WaitForNotification(ctx) == nil {
			}
			closeSoon(conn)
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// note adds to what the pgleads say themselves.
func (a *arena) note(format string, args ...any) {
	file, err := os.OpenFile(filepath.Join(a.logs, "arena.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		a.t.Error(err)
		return
	}
	defer file.Close()
	line, _ := json.Marshal(map[string]any{"time": time.Now(), "msg": fmt.Sprintf(format, args...)})
	_, _ = file.Write(append(line, '\n'))
}

func closeSoon(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// hears is a session that listens to what is said of the locks.
func (a *arena) hears(ctx context.Context, dsn string, hear func(*pgconn.Notification)) (*pgconn.PgConn, error) {
	cfg, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { hear(n) }
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	locks, _ := a.mode.ids()
	listen := func(id lockkey.ID) error { return conn.Exec(ctx, `LISTEN "pglead.1.`+id.String()+`"`).Close() }
	for _, id := range locks {
		if err := listen(id); err != nil {
			closeSoon(conn)
			return nil, err
		}
	}
	return conn, nil
}
