/* The least that a program can do to run a command under an advisory lock:
   connect, take the lock, draw the token (by pglead's own SQL, drawing in
   runner/lock/token.go, but for what is said to those who wait or look),
   start the command, wait for it, exit. No guard, no heartbeat, no settings: if
   it is killed, or loses its session, the command goes on.

   floor try|wait NUMBER [COMMAND [ARG...]]

   The database is that of the PG* variables. Exit status 75 is a lock that is
   held elsewhere, 69 all that is wrong. */
#include <libpq-fe.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

static const char token[] =
	"SELECT (('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint << 48 | pg_catalog.pg_current_xact_id()::text::bigint),\n"
	"	(pg_catalog.pg_control_system()).system_identifier,\n"
	"	pg_catalog.set_config('synchronous_commit', 'local', true),\n"
	"	pg_catalog.pg_logical_emit_message(true, 'pglead', ''),\n"
	"	pg_catalog.pg_notify('pglead.1.%lld', 'started ' || (('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint << 48 | pg_catalog.pg_current_xact_id()::text::bigint) || ' 15000 0'), classid, objid, objsubid\n"
	"FROM pg_catalog.pg_lock_status()\n"
	"WHERE locktype = 'advisory' AND granted AND pid = pg_catalog.pg_backend_pid()";

int main(int argc, char **argv) {
	char sql[2048];
	long long number;
	PGresult *answer;
	pid_t pid;
	int status;

	if (argc < 3 || sscanf(argv[2], "%lld", &number) != 1)
		return 64;
	PGconn *conn = PQconnectdb("");
	if (PQstatus(conn) != CONNECTION_OK) {
		fputs(PQerrorMessage(conn), stderr);
		return 69;
	}
	snprintf(sql, sizeof sql, "SELECT pg_catalog.pg_%sadvisory_lock(%lld)", strcmp(argv[1], "try") ? "" : "try_", number);
	answer = PQexec(conn, sql);
	if (PQresultStatus(answer) != PGRES_TUPLES_OK)
		return 69;
	if (!strcmp(PQgetvalue(answer, 0, 0), "f")) {
		PQfinish(conn);
		return 75;
	}
	snprintf(sql, sizeof sql, token, number);
	answer = PQexec(conn, sql);
	if (PQresultStatus(answer) != PGRES_TUPLES_OK || PQntuples(answer) != 1) {
		fputs(PQerrorMessage(conn), stderr);
		return 69;
	}
	if (argc > 3) {
		if (posix_spawnp(&pid, argv[3], NULL, NULL, argv + 3, environ))
			return 127;
		if (waitpid(pid, &status, 0) != pid)
			return 69;
	}
	PQfinish(conn);
	return 0;
}
