/* The least that pglead each does, in C: many items on one session, each with a lock and a
   token of its own. While a command runs, one message says how the last one ended, frees its
   lock, tries for the next item's, and draws the token, for all workers that want it by then
   (Exchange in runner/lock). Each worker has a guard. No heartbeat, no settings, nothing that
   can fail.

   floor_each WORKERS ITEMS COMMAND

   runs COMMAND 1, COMMAND 2, ... COMMAND ITEMS. */
#define _GNU_SOURCE
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "guard.h"

#define TOKEN \
	"(('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint << 48 | pg_catalog.pg_current_xact_id()::text::bigint)"

enum { MOST = 16 };

/* A worker's items, by number; 0 is none. */
static struct {
	int guard;
	int runs;  /* the command of this item is under way */
	int next;  /* this item's lock was asked for */
	int has;   /* ... and is held */
	int ended; /* this item's lock can be freed */
} workers[MOST];

static int count, last, left;
static char *command[3];

/* ask sends what all workers want. It says whether there was anything. */
static int ask(PGconn *conn) {
	static char words[8192], frees[2048], tries[2048], starts[8192], list[512], sql[32768];
	char *w = words, *f = frees, *t = tries, *s = starts, *l = list;
	int length = 0;

	*w = *f = *t = *s = *l = 0;
	for (int i = 0; i < count; i++) {
		if (workers[i].ended) {
			w += sprintf(w, ", pg_catalog.pg_notify('pglead.1.each.1', '%d ok'), pg_catalog.pg_notify('pglead.1.%d', pg_catalog.concat('clean ', 281474977056578, ' 15000 0', ' lsn=', pg_catalog.pg_logical_emit_message(false, 'pglead', '')))", workers[i].ended, workers[i].ended);
			f += sprintf(f, " + pg_catalog.pg_advisory_unlock(%d)::int", workers[i].ended);
			workers[i].ended = 0;
		}
		if (!workers[i].next && last > 0) {
			workers[i].next = last--;
			t += sprintf(t, ", pg_catalog.pg_try_advisory_lock(%d)::int", workers[i].next);
			s += sprintf(s, ", CASE WHEN objid = '%d' THEN pg_catalog.pg_notify('pglead.1.%d', pg_catalog.concat('started ', " TOKEN ", ' 15000 0')) END", workers[i].next, workers[i].next);
			l += sprintf(l, "%s'%d'", *list ? ", " : "", workers[i].next);
		}
	}
	if (!*frees && !*tries)
		return 0;
	if (*words)
		length = sprintf(sql, "BEGIN; SELECT pg_catalog.set_config('synchronous_commit', 'off', true)%s; COMMIT; ", words);
	length += sprintf(sql + length, "SELECT 0%s%s", frees, tries);
	if (*list)
		sprintf(sql + length, "; SELECT " TOKEN ", (pg_catalog.pg_control_system()).system_identifier, pg_catalog.set_config('synchronous_commit', 'local', true), pg_catalog.pg_logical_emit_message(true, 'pglead', '')%s, classid, objid, objsubid FROM pg_catalog.pg_lock_status() WHERE locktype = 'advisory' AND granted AND pid = pg_catalog.pg_backend_pid() AND classid = '0' AND objid IN (%s)", starts, list);
	return PQsendQuery(conn, sql) && PQflush(conn) == 0 ? 1 : -1;
}

/* answered reads what has come. It says whether the answer is complete. */
static int answered(PGconn *conn) {
	PGresult *r;

	if (!PQconsumeInput(conn))
		return -1;
	while (!PQisBusy(conn)) {
		if (!(r = PQgetResult(conn)))
			return 1;
		if (PQresultStatus(r) != PGRES_TUPLES_OK && PQresultStatus(r) != PGRES_COMMAND_OK)
			return -1;
		PQclear(r);
	}
	return 0;
}

static int reaped(int i) {
	int status;

	if (read(workers[i].guard, &status, sizeof status) != sizeof status || status)
		return 0;
	workers[i].ended = workers[i].runs;
	workers[i].runs = 0;
	left--;
	return 1;
}

static int start(int i) {
	char item[16];
	int length = sprintf(item, "%d", workers[i].next) + 1;

	workers[i].runs = workers[i].next;
	workers[i].next = workers[i].has = 0;
	return write(workers[i].guard, item, length) == length;
}

int main(int argc, char **argv) {
	struct pollfd fds[MOST + 1];
	int asks = 0;

	if (argc != 4 || (count = atoi(argv[1])) < 1 || count > MOST)
		return 64;
	last = left = atoi(argv[2]);
	command[0] = argv[3];
	for (int i = 0; i < count; i++)
		if ((workers[i].guard = fds[i].fd = makeGuard(command, &command[1])) < 0)
			return 69;
	PGconn *conn = PQconnectdb("");
	if (PQstatus(conn) != CONNECTION_OK)
		return 69;
	fds[count].fd = PQsocket(conn);
	for (int i = 0; i <= count; i++)
		fds[i].events = POLLIN;
	for (;;) {
		for (int i = 0; i < count; i++)
			if (workers[i].has && !workers[i].runs && !start(i))
				return 69;
		if (!asks && (asks = ask(conn)) < 0)
			return 69;
		if (!left && !asks)
			break;
		if (poll(fds, count + 1, -1) < 0)
			return 69;
		for (int i = 0; i < count; i++)
			if (fds[i].revents && !reaped(i))
				return 69;
		if (fds[count].revents) {
			int done = answered(conn);
			if (done < 0) {
				fputs(PQerrorMessage(conn), stderr);
				return 69;
			}
			for (int i = 0; done && i < count; i++)
				workers[i].has = workers[i].next;
			asks = !done;
		}
	}
	PQfinish(conn);
	for (int i = 0; i < count; i++)
		close(workers[i].guard);
	while (wait(NULL) > 0)
		;
	return 0;
}
