package lock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// The fencing token is drawn from the server's transaction numbers once all locks of a claim are
// held. The query that draws it also announces the start, and notes it in the ledger.

// tokenSQL is an SQL expression for the token. Its value is the same everywhere in a transaction.
const tokenSQL = "(" + session.TimelineSQL + " << 48 | pg_catalog.pg_current_xact_id()::text::bigint)"

// systemSQL is an SQL expression for the cluster that the token belongs to.
const systemSQL = "(pg_catalog.pg_control_system()).system_identifier"

// The columns of a row of drawQuery that noteDrawn reads. Others follow, and lockColumns are the
// last.
const (
	drawnToken   = iota // NULL in a row that is about a lock of another session
	drawnSystem         // the cluster that the token belongs to
	_                   // set_config
	_                   // pg_logical_emit_message
	drawnStarted        // the ledger's word, or NULL
	drawnDormant        // how many are dormant, or NULL
	drawnListens        // somebody listens or, in another session's row, that session does
)

// These end a query, after its own columns. The last three columns name a lock. The locks are from
// the function behind the view pg_locks: a new backend takes three times as long for the view as
// for the whole of this query. isOwn is the condition that this session holds the lock. A session
// has locks in its own database only.
const (
	lockColumns = "classid, objid, objsubid"
	fromLocks   = "\nFROM pg_catalog.pg_lock_status()"
	areAdvisory = "\nWHERE locktype = 'advisory' AND "
	isOwn       = "granted AND pid = pg_catalog.pg_backend_pid()"
)

// isListed says whether a row that ends with lockColumns shows this lock.
func isListed(l advisory.Lock, row []string) bool {
	columns := fmt.Sprint(l.ClassID(), l.ObjID(), l.ObjSubID())
	return len(row) >= 3 && strings.Join(row[len(row)-3:], " ") == columns
}

// drawQuery is the query that starts a tenure. If the session has none of the locks, it draws
// nothing. Otherwise it does all of this in one commit, so that others see all of it or nothing:
//
//	draws the token                   once
//	starts the run in the ledger      once, if no start that was heard can be in its way
//	asks who listens, who is dormant  not for a list
//	shows the token in the session's  for later looks
//	name
//	evaluates further columns         for example to leave the line; once for each lock
//	announces the start               on each lock's channel, if somebody listens
//	lists the locks                   a row for each that the session has, for areListed
//
// A transaction number is used up for good once its WAL is on disk. So there has to be something to
// log, which is the message, and the commit has to wait for the disk, but for no standby, whatever
// the role's default is: hence 'local'.
func (b *Bid) drawQuery(locks []advisory.Lock, columns ...string) string {
	started := "NULL"
	if b.startsWithToken(locks) {
		// A subquery, so that it is evaluated once, and not at all without the lock.
		started = "(SELECT " + b.cfg.ledgerRun().StartSQL(b.cfg.ledgerLocks(locks)[0], tokenSQL, systemSQL+"::text") + ")"
	}
	return b.cfg.drawQueryOf(locks, started, b.place.joined(), columns...)
}

// drawQueryOf is drawQuery for a bid whose start in the ledger is the SQL expression started, or
// NULL.
//
// It asks for those in line in one of two ways. A bid that has waited, or for several locks, asks
// for their numbers, since they may be many. Otherwise there are mostly none, and the bid asks for
// a row for each: a new backend takes 0.25 ms less for that than for the aggregates (medians of 300
// logins in turns). Such a bid has the lock already: the start is announced in the others' rows.
func (cfg *Config) drawQueryOf(locks []advisory.Lock, started string, inLine bool, columns ...string) string {
	once := []string{
		tokenSQL, systemSQL, "pg_catalog.set_config('synchronous_commit', 'local', true)",
		"pg_catalog.pg_logical_emit_message(true, 'pglead', '')", started,
	}
	more := columns
	if cfg.showsToken() {
		more = append([]string{cfg.showSQL(tokenSQL, "")}, more...)
	}
	own := isOwn
	if inLine || cfg.OfList { // the session has other locks, such as a ticket
		own += " AND " + advisory.Among(idsOf(locks))
	}
	dormant, listens, from, rows := "NULL", "NULL", fromLocks, own
	switch {
	case cfg.OfList:
	case inLine || len(locks) > 1:
		dormant, listens = "audience.dormant", "audience.listens"
		from += ", (" + cfg.Claim.audienceQuery(locks) + ") AS audience"
	default:
		var others string
		others, listens = cfg.Claim.audienceRowsSQL(locks)
		rows = fmt.Sprintf("(%s OR %s)", own, others)
		once, more = onlyIf(own, once), onlyIf(own, more)
	}
	all := slices.Concat(once, []string{dormant, listens}, more)
	for _, l := range locks {
		condition := listens
		if cfg.OfList {
			condition = advisory.Among(idsOf([]advisory.Lock{l})) // only in this lock's row
		}
		all = append(all, onlyIf(condition, []string{notifySQL(evidence.Channel(l.ID), cfg.startPayloadSQL(l, tokenSQL))})...)
	}
	return "SELECT " + strings.Join(append(all, lockColumns), ",\n\t") + from + areAdvisory + rows
}

// onlyIf makes SQL expressions NULL, and not evaluated, unless a condition is true.
func onlyIf(condition string, columns []string) (conditional []string) {
	for _, c := range columns {
		conditional = append(conditional, fmt.Sprintf("CASE WHEN %s THEN %s END", condition, c))
	}
	return conditional
}

// noteDrawn notes what drawQuery returned.
func (b *Bid) noteDrawn(rows session.Rows) error {
	var own session.Rows
	dormant, common := 0, strconv.FormatUint(uint64(advisory.CommonTicket), 10)
	for _, row := range rows {
		if len(row) <= drawnListens {
			return session.NotPostgreSQL()
		}
		listens := row[drawnListens] == "t"
		b.grant.listened = b.grant.listened || listens
		switch {
		case row[drawnToken] != "":
			own = append(own, row)
		case !listens: // a ticket
			dormant++
		case row[len(row)-1] == "2" && row[len(row)-2] != common: // a mark; its session has a ticket, too
			dormant--
		}
	}
	if err := b.areListed(own); err != nil {
		return err
	}
	if len(own) == 0 {
		return session.NotPostgreSQL()
	}
	counted, _ := strconv.Atoi(own[0][drawnDormant])
	b.grant.recorded, b.grant.dormant = own[0][drawnStarted] == ledger.Started, dormant+counted > 0
	return b.keepToken(own[0][drawnToken], own[0][drawnSystem])
}

// areListed makes sure that the rows, which end with lockColumns, show all locks that are held.
func (b *Bid) areListed(rows session.Rows) error {
	for _, l := range b.grant.Locks {
		if !slices.ContainsFunc(rows, func(row []string) bool { return isListed(l, row) }) {
			return session.Errorf(session.Unsafe, "only PostgreSQL's own advisory locks exclude anyone",
				"the server granted lock %s but does not list it in pg_locks", b.cfg.Claim)
		}
	}
	return nil
}

func (b *Bid) keepToken(token, systemID string) error {
	number, err := strconv.ParseInt(token, 10, 64)
	_, err2 := strconv.ParseInt(systemID, 10, 64)
	if err != nil || err2 != nil || number <= 0 { // both go into the command's environment
		return session.Errorf(session.Unsafe, "", "the server's token is no number")
	}
	b.grant.Token, b.grant.SystemID = number, systemID
	return nil
}

// drawAndAnnounce draws the token and announces the start. With no ledger it is certain by now that
// the command may start. The command's first deadline counts from the draw's last round trip on the
// lock's own session.
func (b *Bid) drawAndAnnounce(ctx context.Context) error {
	if b.grant.drawn() {
		return nil
	}
	if b.cfg.Session.UsesSecondSession() {
		return b.drawOnSecond(ctx)
	}
	ctx, cancel := untilAnswered(ctx)
	defer cancel()
	answers, err := b.s.Ask(ctx, session.Request{SQL: append([]string{b.drawQuery(b.grant.Locks)}, b.leaveQuery()...)})
	b.noteLeft()
	if err != nil {
		return b.cfg.rejected(err)
	}
	return b.noteDrawn(answers[0])
}

// untilAnswered returns the context for a request that may announce a start, or note it in the
// ledger. The server carries out such a request even if a signal ends ctx meanwhile. So this
// process still waits for the answer, and then knows what to end: otherwise the run would seem to
// be lost. The new context ends lateMost after ctx, since the server may be silent.
func untilAnswered(ctx context.Context) (later context.Context, cancel context.CancelFunc) {
	if ctx.Err() != nil { // the request will not be sent
		return ctx, func() {}
	}
	later, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(lateMost, func() { end(context.Cause(ctx)) })
	})
	return later, func() {
		stop()
		end(nil)
	}
}

// showHolding makes the session's comment say what it holds.
func (b *Bid) showHolding() {
	d := b.cfg.Describe()
	d.Token, d.Slot, d.Since = b.grant.Token, b.grant.Slot, time.Now()
	b.s.SetComment(d.Comment())
}
