package lock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// The fencing token is drawn from the server's transaction numbers once all locks of a claim are
// held. The query that draws it also announces the start, and notes it in the ledger.

// drawn is a drawn token, and what is known of its start; before the draw, nothing.
type drawn struct {
	// Token is the fencing token; 0 before the draw. It grows with every start in this cluster: the
	// timeline in the upper 16 bits, the transaction number that this start used up in the lower 48.
	Token    int64
	SystemID string // of the cluster that the token belongs to
	// audience is what the draw has shown of those in line: that nobody listens, or that somebody
	// does not (dormant). A draw on the second session shows neither.
	audience struct{ nobody, dormant bool }
	record   record
}

// tokenSQL is an SQL expression for the token. Its value is the same everywhere in a transaction.
const tokenSQL = "(" + session.TimelineSQL + " << 48 | pg_catalog.pg_current_xact_id()::text::bigint)"

// systemSQL is an SQL expression for the cluster that the token belongs to.
const systemSQL = "(pg_catalog.pg_control_system()).system_identifier"

// The columns of a row of drawQuery that noteDrawn reads. Others follow, and lockColumnsSQL are the
// last.
const (
	drawnToken   = iota
	drawnSystem  // the cluster that the token belongs to
	_            // set_config
	_            // pg_logical_emit_message
	drawnStarted // the ledger's word, or NULL
	drawnDormant // how many are dormant, or NULL
	drawnListens // whether somebody listens, or NULL
)

// A query that lists the session's own locks ends with these, after columns of its own.
// lockColumnsSQL names the lock of the row. The locks are from the function behind the view
// pg_locks: a new backend takes three times as long for the view as for the whole of this query.
// areOwnSQL keeps those that this session holds. A session has locks in its own database only.
const (
	lockColumnsSQL = "classid, objid, objsubid"
	fromLocksSQL   = "\nFROM pg_catalog.pg_lock_status()"
	areOwnSQL      = "\nWHERE locktype = 'advisory' AND granted AND pid = pg_catalog.pg_backend_pid()"
)

// isListed says whether a row that ends with lockColumnsSQL shows this lock.
func isListed(l advisory.Lock, row []string) bool {
	columns := fmt.Sprint(l.ClassID(), l.ObjID(), l.ObjSubID())
	return len(row) >= 3 && strings.Join(row[len(row)-3:], " ") == columns
}

// drawQuery is the query that starts a run. If the session has none of the locks, it draws
// nothing. Otherwise it does all of this in one commit, so that others see all of it or nothing:
//
//	draws the token                   once
//	starts the run in the ledger      once, if no start that was heard can be in its way
//	asks who listens, who is dormant  not in an exchange
//	shows it in the session's name    for later looks
//	evaluates further columns         for example to leave the line; once for each lock
//	announces the start               on each lock's channel, if somebody listens; in an exchange, in
//	                                  any case
//	lists the locks                   a row for each that the session has, for checkListed
//
// A transaction number is used up for good once its WAL is on disk. So there has to be something to
// log, which is the message, and the commit has to wait for the disk, but for no standby, whatever
// the role's default is: hence 'local'.
func (b *bid) drawQuery(locks []advisory.Lock, columns ...string) string {
	started := "NULL"
	if b.drawStartsRun(locks) {
		// A subquery, so that it is evaluated once, and not at all without the lock.
		started = "(SELECT " + b.cfg.ledgerRun().StartSQL(b.cfg.ledgerLocks(locks)[0], tokenSQL, systemSQL+"::text") + ")"
	}
	return b.cfg.bareDrawQuery(locks, started, true, columns...)
}

// bareDrawQuery is drawQuery for a bid whose start in the ledger is the SQL expression started, or
// NULL. An exchange doesn't ask who listens: the question costs more than a NOTIFY.
func (cfg *Config) bareDrawQuery(locks []advisory.Lock, started string, asksWhoListens bool, columns ...string) string {
	all := []string{
		tokenSQL, systemSQL, "pg_catalog.set_config('synchronous_commit', 'local', true)",
		"pg_catalog.pg_logical_emit_message(true, 'pglead', '')", started,
	}
	once, from, listens := "", fromLocksSQL, "true"
	if asksWhoListens {
		all = append(all, "audience.dormant", "audience.listens")
		once, from = onceSQL, "\nFROM locks, ("+cfg.Claim.audienceQuery()+") AS audience"
		listens = "audience.listens"
	} else {
		all = append(all, "NULL", "NULL")
	}
	if cfg.showsToken() {
		all = append(all, describe.ShowTokenSQL(cfg.Session.ApplicationName, tokenSQL, false))
	}
	all = append(all, columns...)
	var ids []lockkey.ID
	for _, l := range locks {
		ids = append(ids, l.ID)
		inItsRow := advisory.AmongSQL([]lockkey.ID{l.ID})
		all = append(all, fmt.Sprintf("CASE WHEN %s AND %s THEN %s END", listens, inItsRow, notifySQL(evidence.Channel(l.ID), cfg.startPayloadSQL(l, tokenSQL))))
	}
	// The session may have other locks, such as a ticket.
	return once + "SELECT " + strings.Join(append(all, lockColumnsSQL), ",\n\t") + from + areOwnSQL + " AND " + advisory.AmongSQL(ids)
}

// noteDrawn notes what drawQuery returned.
func (b *bid) noteDrawn(rows session.Rows) error {
	if err := b.checkListed(rows); err != nil {
		return err
	}
	if len(rows) == 0 || len(rows[0]) <= drawnListens {
		return session.NotPostgreSQL()
	}
	row := rows[0] // the others say the same
	b.audience.nobody = row[drawnListens] != "t"
	dormant, _ := strconv.Atoi(row[drawnDormant])
	b.audience.dormant = dormant > 0
	err := b.keepToken(row[drawnToken], row[drawnSystem])
	if err == nil && ledger.HasStarted(row[drawnStarted]) {
		b.record = record{token: b.Token, owed: b.Locks()}
	}
	return err
}

// checkListed makes sure that the rows, which end with lockColumnsSQL, show all locks that are
// held.
func (b *bid) checkListed(rows session.Rows) error {
	for _, l := range b.Locks() {
		if !slices.ContainsFunc(rows, func(row []string) bool { return isListed(l, row) }) {
			return session.Errorf(session.Unsafe, "only PostgreSQL's own advisory locks exclude anyone",
				"the server granted lock %s but does not list it in pg_locks", b.cfg.Claim)
		}
	}
	return nil
}

func (b *bid) keepToken(token, systemID string) error {
	number, err := strconv.ParseInt(token, 10, 64)
	_, err2 := strconv.ParseInt(systemID, 10, 64)
	if err != nil || err2 != nil || number <= 0 { // both go into the command's environment
		return session.Errorf(session.Unsafe, "", "the server's token is no number")
	}
	b.Token, b.SystemID = number, systemID
	return nil
}

// drawAndAnnounce draws the token and announces the start. With no ledger it is certain by now that
// the command may start. The command's first deadline counts from the draw's last round trip on the
// lock's own session.
func (b *bid) drawAndAnnounce(ctx context.Context) error {
	if b.Token != 0 {
		return nil
	}
	if b.cfg.Session.UsesSecondSession() {
		return b.drawOnSecond(ctx)
	}
	ctx, cancel := untilAnswered(ctx)
	defer cancel()
	answers, err := b.Session.Ask(ctx, session.Request{SQL: append([]string{b.drawQuery(b.Locks())}, b.leaveQueries()...)})
	b.forgetPlace()
	if err != nil && (len(answers) == 0 || len(answers[0]) == 0) {
		return b.cfg.Claim.rejected(err)
	}
	// If only the rest was rejected, the ledger may have the start, which then has to be stopped.
	return cmp.Or(b.noteDrawn(answers[0]), b.cfg.Claim.rejected(err))
}

// showHolding makes the session's comment say what it holds.
func (h *Held) showHolding() {
	d := h.cfg.describe()
	d.Token, d.Slot, d.Since = h.Token, h.Slot(), time.Now()
	h.show(d)
}
