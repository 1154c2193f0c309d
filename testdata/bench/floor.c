/* The least that a program can do to run a command under an advisory lock:
   connect, take the lock, draw the token (by pglead's own SQL, drawQuery in
   runner/lock/token.go, but for what is said to those who wait or look),
   start the command, wait for it, exit. No heartbeat, no settings: if it loses
   its session, the command goes on.

   floor [-g] try|wait|say|hear NUMBER [COMMAND [ARG...]]

   wait waits in the server. say and hear keep the rule by which nobody does:
   say is try, and announces its end before it frees the lock; hear listens,
   and then tries until the lock is free, and draws the token, in one message.

   With -g a guard, made beforehand, starts the command and reaps all that it
   started, as pglead's does. Without it, if floor is killed, the command goes
   on.

   The database is that of the PG* variables. Exit status 75 is a lock that is
   held elsewhere, 69 all that is wrong. */
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "guard.h"

static const char token[] =
	"SELECT (('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint << 48 | pg_catalog.pg_current_xact_id()::text::bigint),\n"
	"	(pg_catalog.pg_control_system()).system_identifier,\n"
	"	pg_catalog.set_config('synchronous_commit', 'local', true),\n"
	"	pg_catalog.pg_logical_emit_message(true, 'pglead', ''),\n"
	"	pg_catalog.pg_notify('pglead.1.%lld', 'started ' || (('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint << 48 | pg_catalog.pg_current_xact_id()::text::bigint) || ' 15000 0'), classid, objid, objsubid\n"
	"FROM pg_catalog.pg_lock_status()\n"
	"WHERE locktype = 'advisory' AND granted AND pid = pg_catalog.pg_backend_pid() AND classid = '0' AND objid = '%lld'";

/* As waiter.burstQuery. */
static const char burst[] =
	"SELECT won FROM (SELECT CASE WHEN i = 0 OR pg_catalog.pg_sleep(CASE WHEN i <= 20 THEN 0.001 ELSE 0.006 END) IS NOT NULL THEN pg_catalog.pg_try_advisory_lock(%lld)::int END AS won\n"
	"	FROM pg_catalog.generate_series(0, 49) AS i) AS t WHERE won > 0 LIMIT 1";

/* heard waits until the end of a command is announced. */
static int heard(PGconn *conn) {
	struct pollfd socket = {PQsocket(conn), POLLIN, 0};

	for (;;) {
		for (PGnotify *n; (n = PQnotifies(conn)); PQfreemem(n))
			if (!strcmp(n->extra, "clean"))
				return 1;
		if (poll(&socket, 1, -1) < 0 || !PQconsumeInput(conn))
			return 0;
	}
}

/* asked sends a query, and says whether its last answer is one row. */
static int asked(PGconn *conn, const char *sql) {
	PGresult *answer = PQexec(conn, sql);
	int done = PQresultStatus(answer) == PGRES_TUPLES_OK && PQntuples(answer) == 1;

	if (!done)
		fputs(PQerrorMessage(conn), stderr);
	PQclear(answer);
	return done;
}

int main(int argc, char **argv) {
	char sql[4096];
	long long number;
	int status, says, hears, length = 0, guard = -1;
	PGresult *answer;
	pid_t pid;

	if (argc > 1 && !strcmp(argv[1], "-g")) {
		argv++, argc--;
		if ((guard = makeGuard(argv + 3, NULL)) < 0)
			return 69;
	}
	if (argc < 3 || sscanf(argv[2], "%lld", &number) != 1)
		return 64;
	says = !strcmp(argv[1], "say");
	hears = !strcmp(argv[1], "hear");
	PGconn *conn = PQconnectdb("");
	if (PQstatus(conn) != CONNECTION_OK) {
		fputs(PQerrorMessage(conn), stderr);
		return 69;
	}
	if (hears) {
		/* The ticket shows that somebody waits. */
		snprintf(sql, sizeof sql, "LISTEN \"pglead.1.%lld\"; SELECT pg_catalog.pg_advisory_lock(1, %lld)", number, number);
		if (!asked(conn, sql) || !heard(conn))
			return 69;
		length = snprintf(sql, sizeof sql, burst, number);
		length += snprintf(sql + length, sizeof sql - length, ";\n");
	} else {
		snprintf(sql, sizeof sql, "SELECT pg_catalog.pg_%sadvisory_lock(%lld)", strcmp(argv[1], "wait") ? "try_" : "", number);
		answer = PQexec(conn, sql);
		if (PQresultStatus(answer) != PGRES_TUPLES_OK)
			return 69;
		if (!strcmp(PQgetvalue(answer, 0, 0), "f")) {
			PQfinish(conn);
			return 75;
		}
	}
	snprintf(sql + length, sizeof sql - length, token, number, number);
	if (!asked(conn, sql))
		return 69;
	if (guard >= 0) {
		if (write(guard, "", 1) != 1 || read(guard, &status, sizeof status) != sizeof status)
			return 69;
	} else if (argc > 3) {
		if (posix_spawnp(&pid, argv[3], NULL, NULL, argv + 3, environ))
			return 127;
		if (waitpid(pid, &status, 0) != pid)
			return 69;
	}
	if (says) {
		snprintf(sql, sizeof sql, "BEGIN; SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('pglead.1.%lld', 'clean'); COMMIT; SELECT pg_catalog.pg_advisory_unlock(%lld)", number, number);
		if (!asked(conn, sql))
			return 69;
	}
	PQfinish(conn);
	return 0;
}
