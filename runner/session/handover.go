package session

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
)

// PostgreSQL frees the lock of a session that it ends by itself, or that ends
// with the server, while the holder may not know yet. Whoever is granted the
// lock next has to know which kind of end it was. So a holder announces, on a
// NOTIFY channel of the lock's own, when it starts its command and, in a
// transaction before the one that frees the lock, that the command is dead.
//
// Channel: pglead.1.NUMBER, where 1 is the version of what follows and NUMBER
// that of the lock. Payload: four fields with a space between them,
//
//	started TOKEN LEASE GRACE [shared]
//	clean TOKEN LEASE GRACE
//
// the fencing token in decimal, the lease and the lost-grace in milliseconds,
// and whether the lock is held with others: of these nobody can say that the
// last is dead. More fields may be added at the end. A payload of another form is nothing
// heard. The numbers of the promise follow from LEASE and GRACE: at most
// 2/3 LEASE + GRACE after it could last be sure of its lock, a holder's
// command is dead.

// A third word is not the holder's, but of somebody who has asked it to step
// down: whoever is granted the lock within SECONDS and is not on HOST lets the
// others in line have it, once.
//
//	prefer HOST SECONDS
//
// The request itself is anything said on the channel pglead.1.stepdown.NUMBER,
// to which a holder listens soon after its command's start; what is said is who asks.
// HOST and that are encoded as in a URL's query.

// stepdownChannel is where a lock's holder is asked to step down.
func stepdownChannel(id lockkey.ID) string { return "pglead.1.stepdown." + id.String() }

// Announcement is an event of a lock's life.
type Announcement struct {
	Clean     bool // the holder's command is dead and the lock about to be freed; else it is about to start
	Shared    bool // the holder is one of many
	Token     int64
	Lease     time.Duration
	LostGrace time.Duration
}

// sharedMode is the field of a payload that says so.
const sharedMode = "shared"

func channel(id lockkey.ID) string { return fmt.Sprintf("pglead.1.%s", id) }

// longestAnnounced bounds what a stranger with a login can make others wait.
const longestAnnounced = 24 * time.Hour

func parseAnnouncement(payload string) (a Announcement, ok bool) {
	fields := strings.Split(payload, " ")
	if len(fields) < 4 || fields[0] != "started" && fields[0] != "clean" {
		return a, false
	}
	var numbers [3]int64
	for i := range numbers {
		n, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil || n < 0 {
			return a, false
		}
		numbers[i] = n
	}
	// Shortened and not dropped: else the event before it would be the last.
	most := longestAnnounced.Milliseconds()
	numbers[1], numbers[2] = min(numbers[1], most), min(numbers[2], most)
	return Announcement{
		Clean: fields[0] == "clean", Shared: len(fields) > 4 && fields[4] == sharedMode, Token: numbers[0],
		Lease: time.Duration(numbers[1]) * time.Millisecond, LostGrace: time.Duration(numbers[2]) * time.Millisecond,
	}, true
}

// Evidence is what a waiter has heard of the lock since it began to listen.
type Evidence struct {
	shared      bool // it is for a shared lock, which other shared ones don't bar
	events      bool
	last        Announcement
	lastStarted Announcement
	startHeard  bool
	deaf        bool // it isn't collected at the moment
}

func (e *Evidence) hear(a Announcement) {
	if e.shared && a.Shared {
		return
	}
	e.events, e.last = true, a
	if !a.Clean {
		e.lastStarted, e.startHeard = a, true
	}
}

// outdated is what is left of the evidence when it is no longer collected: after
// that, any clean end is that of the last holder.
func (e Evidence) outdated() Evidence {
	left := Evidence{shared: e.shared, deaf: true}
	if e.events && !e.Clean() {
		left.events, left.last = true, e.last
		left.last.Clean = false
	}
	return left
}

// Clean says whether the lock's last holder is known to be dead: its own word
// was the last heard, and nobody else has started since.
func (e Evidence) Clean() bool {
	return e.events && e.last.Clean && (!e.startHeard || e.lastStarted.Token == e.last.Token)
}

// Delay is how long the one who has been granted the lock waits before it
// starts, so that a former holder that doesn't know of its loss is dead by
// then: not at all after a clean end, else lockDelay or, if that is longer,
// what the former holder's own settings come to. With a lockDelay of 0 it
// never waits.
func (e Evidence) Delay(lockDelay time.Duration) time.Duration {
	if lockDelay == 0 || e.Clean() {
		return 0
	}
	if e.events {
		return max(lockDelay, TakeoverDelay(e.last.Lease)+e.last.LostGrace)
	}
	return lockDelay
}

// preferred is whom somebody wants to have the lock next, until when.
type preferred struct {
	host  string
	until time.Duration // boot time
}

// longestPreferred bounds what a stranger with a login can keep others from.
const longestPreferred = time.Minute

// parsePreferred reads the announcement of who is to have the lock next.
func parsePreferred(payload string) (host string, d time.Duration, ok bool) {
	fields := strings.Split(payload, " ")
	if len(fields) < 3 || fields[0] != "prefer" {
		return "", 0, false
	}
	seconds, err := strconv.ParseUint(fields[2], 10, 16)
	host, err2 := url.QueryUnescape(fields[1])
	return host, min(time.Duration(seconds)*time.Second, longestPreferred), err == nil && err2 == nil
}

// Yield says, once, that somebody else is to have a granted lock.
func (h *Hold) Yield() bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	for _, l := range h.held {
		p, ok := h.s.preferred[channel(l.ID)]
		if ok && p.host != h.s.cfg.Description.Host && h.s.clock.now() < p.until {
			delete(h.s.preferred, channel(l.ID))
			return true
		}
	}
	return false
}

// HeedStepDown has requests to step down delivered from now on: who asks. In a
// transaction nothing can be heard.
func (h *Hold) HeedStepDown(ctx context.Context, asked chan<- string) {
	if h.s.cfg.Transaction {
		return
	}
	for _, l := range h.held {
		_ = h.s.Subscribe(ctx, stepdownChannel(l.ID), func(payload string) {
			by, _ := url.QueryUnescape(payload)
			select {
			case asked <- by:
			default: // it is stepping down already
			}
		})
	}
}

// AskToStepDown asks the holder of a lock to stop its command and give the lock
// back and, if a host is named, those in line to let it have it.
func (v *Viewer) AskToStepDown(ctx context.Context, id lockkey.ID, by, prefer string) error {
	if prefer != "" {
		payload := fmt.Sprintf("prefer %s %d", url.QueryEscape(prefer), int(longestPreferred.Seconds()))
		if _, err := v.rows(ctx, tell(channel(id), payload)); err != nil {
			return err
		}
	}
	_, err := v.rows(ctx, tell(stepdownChannel(id), url.QueryEscape(by)))
	return err
}

// Heard says whether there is any evidence.
func (e Evidence) Heard() bool { return e.events }

// Listen begins to collect what Evidence returns.
func (h *Hold) Listen(ctx context.Context) error {
	_, err := h.s.query(ctx, h.listen())
	return h.error(err)
}

// listen is the query that does, which is about to be asked.
func (h *Hold) listen() string {
	var listen strings.Builder
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	for _, l := range h.claim.Locks {
		if e := h.s.evidence[channel(l.ID)]; e != nil {
			e.deaf = false
		} else {
			h.s.evidence[channel(l.ID)] = &Evidence{shared: l.Shared}
		}
		fmt.Fprintf(&listen, `LISTEN "%s";`, channel(l.ID))
	}
	return listen.String()
}

// Unlisten ends that, until the next Listen. What was heard of a clean end counts
// for nothing then. That somebody had started does count, however: until a clean
// end is heard, he may be alive.
func (h *Hold) Unlisten(ctx context.Context) error {
	var unlisten strings.Builder
	for _, l := range h.claim.Locks {
		fmt.Fprintf(&unlisten, `UNLISTEN "%s";`, channel(l.ID))
	}
	_, err := h.s.query(ctx, unlisten.String())
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	for _, l := range h.claim.Locks {
		if e := h.s.evidence[channel(l.ID)]; e != nil {
			*e = e.outdated()
		}
		delete(h.s.preferred, channel(l.ID))
	}
	return h.error(err)
}

// Prepare has the server plan Confirm's query and, while the session has no lock
// at all and nothing comes of it, run it: the server reads now from its catalogs
// what would otherwise cost some milliseconds between the grant and the command's
// start. No other hold of the session may have any.
func (h *Hold) Prepare(ctx context.Context) error {
	sql := h.s.confirmation(h.claim.Locks) + ofOwnLocks
	if h.claim.Gate != nil { // it is not known yet which of them to announce
		_, err := h.s.query(ctx, h.s.confirmation(nil)+ofOwnLocks)
		return h.error(err)
	}
	queries := []string{"PREPARE pglead_confirm AS " + sql}
	if len(h.held) == 0 && h.aside == nil {
		queries = append(queries, "EXECUTE pglead_confirm")
	}
	_, err := h.s.query(ctx, queries...)
	h.prepared = err == nil
	return h.error(err)
}

// Listens says whether what happens to a lock is being collected.
func (s *Session) Listens(id lockkey.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.evidence[channel(id)]
	return e != nil && !e.deaf
}

// Evidence is what has been heard of a lock up to now. What was announced
// before the server granted the lock is heard with the grant.
func (s *Session) Evidence(id lockkey.ID) Evidence {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.evidence[channel(id)]; e != nil {
		return *e
	}
	return Evidence{}
}

// hear takes note of another session's announcement.
func (s *Session) hear(pid uint32, channel, payload string) {
	a, ok := parseAnnouncement(payload)
	s.mu.Lock()
	if e := s.evidence[channel]; e != nil && !e.deaf && ok && pid != s.pid {
		e.hear(a)
	}
	if ok && !a.Clean { // its turn is over, or it has come
		delete(s.preferred, channel)
	}
	if host, d, ok := parsePreferred(payload); ok {
		s.preferred[channel] = preferred{host, s.clock.now() + d}
	}
	heed := s.heed[channel]
	s.mu.Unlock()
	if heed != nil {
		heed(payload)
	}
}

// Subscribe has what other sessions say on a channel given to a function, by
// the session's reader: it must not block. What was said before a lock was
// freed is heard before the grant of that lock is.
func (s *Session) Subscribe(ctx context.Context, channel string, heed func(payload string)) error {
	s.mu.Lock()
	s.heed[channel] = heed
	s.mu.Unlock()
	_, err := s.query(ctx, fmt.Sprintf(`LISTEN "%s"`, channel))
	return err
}

// Tell says something on a channel. Neither may have quotes.
func (s *Session) Tell(ctx context.Context, channel, payload string) error {
	_, err := s.query(ctx, tell(channel, payload))
	return err
}

// tell is SQL that says something on a channel. Its commit waits for nothing:
// after a crash nobody would listen.
func tell(channel, payload string) string {
	return fmt.Sprintf("SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('%s', '%s')", channel, payload)
}

// FirstTryDelay is how long someone who got the lock without waiting for it
// has to wait before the start: the rest of lockDelay on a server that came up
// or was promoted less than that ago, since before that the lock may have had
// a holder. Where the server is on unix sockets only, there is no network that
// could keep a holder from learning of its server's end.
func (s *Session) FirstTryDelay(lockDelay time.Duration) time.Duration {
	return max(0, lockDelay-s.age-(s.clock.now()-s.opened))
}

// serverAge are SQL expressions from which ageOf tells for how long a lock that
// was taken on this server can have been lost only by the end of its session.
// It counts from the latest of
//   - the postmaster's start,
//   - the reset of the statistics, by which a restart after the crash of some
//     backend shows, which leaves the postmaster's start as it is,
//   - for a server that was a standby, its last checkpoint, which is not older
//     than its promotion unless the timeline says so.
//
// A backend in its first moments reads from the catalogs whatever a statement
// names, so there is no more in them than most servers need; the view
// pg_stat_bgwriter alone, for the function in it, would cost as much as all of
// them.
const serverAge = `pg_catalog.current_setting('listen_addresses'), pg_catalog.inet_server_port(), pg_catalog.pg_last_wal_replay_lsn() IS NOT NULL,
	pg_catalog.clock_timestamp(), pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_stat_get_bgwriter_stat_reset_time()`

// promotedAge is for a server that was a standby.
const promotedAge = `SELECT CASE WHEN timeline_id <> ` + timeline + ` THEN 0
	ELSE extract(epoch FROM pg_catalog.clock_timestamp() - checkpoint_time) END FROM pg_catalog.pg_control_checkpoint()`

// ageFormats are those in which ageOf takes the values: what the server says of
// an instant in text goes by its settings, and its arithmetic costs more than
// all the rest.
func ageFormats() []int16 {
	const inText, inBinary = 0, 1 // of the protocol: libpq's resultFormat
	return []int16{inText, inText, inText, inBinary, inBinary, inBinary}
}

// ageOf reads the values of serverAge.
func ageOf(ctx context.Context, pg *pgconn.PgConn, values [][]byte) (time.Duration, error) {
	addresses, port, replayed := values[0], values[1], values[2]
	if len(addresses) == 0 && port == nil {
		return math.MaxInt64 / 2, nil // old enough, and room to reckon with
	}
	var instants [3]int64 // in microseconds
	for i, value := range values[3:] {
		switch {
		case len(value) == 8:
			instants[i] = int64(binary.BigEndian.Uint64(value))
		case i == 2 && value == nil: // the statistics were never reset
			instants[i] = math.MinInt64
		default:
			return 0, unsafe("", "the server does not answer as PostgreSQL does")
		}
	}
	now, started, reset := instants[0], instants[1], instants[2]
	age := time.Duration(now-max(started, reset)) * time.Microsecond
	if string(replayed) == "f" {
		return age, nil
	}
	results, err := pg.Exec(ctx, promotedAge).ReadAll()
	if err != nil {
		return 0, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 1 {
		return 0, unsafe("", "the server does not answer as PostgreSQL does")
	}
	promoted, err := parseAge(results[0].Rows[0][0])
	return min(age, promoted), err
}

func parseAge(seconds []byte) (time.Duration, error) {
	age, err := strconv.ParseFloat(string(seconds), 64)
	if err != nil {
		return 0, unsafe("", "the server's age %q is no number", seconds)
	}
	return time.Duration(age * float64(time.Second)), nil
}

// timeline is an SQL expression: the first eight hex digits of a WAL file's
// name are its timeline.
const timeline = `('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint`
