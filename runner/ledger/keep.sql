-- pause_1 keeps a key from starting, in all its slots. A run that has begun goes on.
CREATE OR REPLACE FUNCTION pglead.pause_1(p_number bigint, p_sub smallint, p_key text, p_until timestamptz, p_by text, p_note text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
DECLARE
	-- Not [[:cntrl:]], which also has 128 to 159: with SQL_ASCII these are bytes of characters.
	who text := left(regexp_replace(p_by, E'[\\x01-\\x1f\\x7f]', '?', 'g'), 200);
	why text := left(regexp_replace(p_note, E'[\\x01-\\x1f\\x7f]', '?', 'g'), 300);
BEGIN
	-- A time that is too far off for its microseconds to fit into a bigint would be every reader's error.
	IF p_number IS NULL OR (p_sub IN (1, 2)) IS NOT TRUE OR p_until IS NULL OR p_until <> 'infinity' AND p_until > now() + interval '100 years' THEN
		RAISE EXCEPTION 'pglead: this is no pause' USING ERRCODE = '22023';
	END IF;
	-- Starts that are under way share these.
	PERFORM pg_advisory_xact_lock(pglead.marker_1(p_number, p_sub, 0)),
		pg_advisory_xact_lock(hashtextextended(concat('pglead pause ', left(p_key, 500)), 0));
	INSERT INTO pglead.lock AS l (number, sub, key, paused_until, paused_by, note) VALUES (p_number, p_sub, left(p_key, 500), p_until, who, why)
	ON CONFLICT (number, sub, reader) DO UPDATE SET key = coalesce(l.key, excluded.key), paused_until = p_until, paused_by = who, note = why;
	UPDATE pglead.lock AS l SET paused_until = p_until, paused_by = who, note = why
	WHERE l.key = left(p_key, 500) AND pglead.slots_1(l.number, l.sub, l.key, p_number, p_sub) AND l.reader = 0 AND l.number <> p_number;
	RETURN 'paused';
END $$;

-- resume_1 ends a pause, and says whether there was one.
CREATE OR REPLACE FUNCTION pglead.resume_1(p_number bigint, p_sub smallint) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
	WITH resumed AS (
		UPDATE pglead.lock AS l SET paused_until = NULL, paused_by = NULL, note = NULL
		WHERE l.paused_until IS NOT NULL AND (l.number = p_number AND l.sub = p_sub
			OR l.key = (SELECT o.key FROM pglead.lock AS o WHERE o.number = p_number AND o.sub = p_sub AND o.reader = 0)
				AND pglead.slots_1(l.number, l.sub, l.key, p_number, p_sub))
		RETURNING l.paused_until)
	SELECT EXISTS (SELECT FROM resumed)
$$;

-- missing_1 notes that there was nothing to run: the command was not found (127), or
-- could not be executed (126). Nobody took the lock for it, so it has no token.
CREATE OR REPLACE FUNCTION pglead.missing_1(p_number bigint, p_sub smallint, p_key text, p_host text, p_os_user text, p_pid integer, p_command text, p_status integer) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
	INSERT INTO pglead.lock (number, sub, key) SELECT p_number, p_sub, left(p_key, 500) WHERE p_sub IN (1, 2) ON CONFLICT DO NOTHING;
	INSERT INTO pglead.run (number, sub, started, token, key, host, os_user, pid, command, role, ended, outcome, status)
	SELECT p_number, p_sub, now(), 0, left(p_key, 500), left(p_host, 200), left(p_os_user, 200), p_pid, left(p_command, 200), session_user, now(), 'failed', p_status
	WHERE p_status IN (126, 127) AND p_sub IN (1, 2)
	ON CONFLICT DO NOTHING;
	SELECT pglead.tidy_1(p_number, p_sub) WHERE random() < 1.0 / 64;
$$;

-- prune_locks_1 and prune_runs_1 forget what is older than p_older: keys that have not run since,
-- and of the other keys all runs but the last success. Each call looks, in a short transaction, at
-- 5,000 rows after the row that the other parameters name. (The limit is a constant: otherwise the
-- rows would be sorted instead of found by the index.) It returns how many of them are gone, and
-- the last row at which it has looked, or NULLs at the end. It leaves alone what somebody else has
-- locked: no start waits for a prune, and no prune for a start.
--
-- Both run with the caller's rights, so only a role that may delete from the tables can forget other
-- roles' runs.
--
-- A row is needed while its run is open or its key is paused, and as long as its tick could come
-- again: without the row a tick that has had its success would run a second time. The lock's own row
-- is needed as long as any reader's row is: it has the last success of the readers.
DROP FUNCTION IF EXISTS pglead.prune_1(interval);
CREATE OR REPLACE FUNCTION pglead.prune_locks_1(p_older interval, p_number bigint, p_sub smallint, p_reader bigint,
	OUT gone bigint, OUT number bigint, OUT sub smallint, OUT reader bigint)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
	WITH looked AS MATERIALIZED (
		SELECT l.ctid AS place, l.number, l.sub, l.reader FROM pglead.lock AS l
		WHERE (l.number, l.sub, l.reader) > (p_number, p_sub, p_reader) ORDER BY l.number, l.sub, l.reader LIMIT 5000),
	over AS MATERIALIZED (
		SELECT l.ctid AS place FROM pglead.lock AS l WHERE l.ctid = ANY (ARRAY(SELECT k.place FROM looked AS k))
			AND p_older >= '0' AND (l.paused_until IS NULL OR l.paused_until <= clock_timestamp())
			AND (l.ended < now() - p_older AND (l.ok_tick IS NULL OR l.ok_tick < now() - interval '3 days')
				OR l.started IS NULL AND l.reader = 0
				AND NOT EXISTS (SELECT FROM pglead.run AS u WHERE u.number = l.number AND u.sub = l.sub AND u.ended >= now() - p_older))
			AND (l.reader <> 0 OR NOT EXISTS (SELECT FROM pglead.lock AS o
				WHERE o.number = l.number AND o.sub = l.sub AND o.reader <> 0 AND (o.ended < now() - p_older) IS NOT TRUE))
		FOR UPDATE SKIP LOCKED),
	forgotten AS (DELETE FROM pglead.lock AS l WHERE l.ctid = ANY (ARRAY(SELECT o.place FROM over AS o)) RETURNING l.number)
	SELECT (SELECT count(*) FROM forgotten), k.number, k.sub, k.reader
	FROM (SELECT) AS one LEFT JOIN (SELECT * FROM looked ORDER BY number DESC, sub DESC, reader DESC LIMIT 1) AS k ON true
$$;

CREATE OR REPLACE FUNCTION pglead.prune_runs_1(p_older interval, p_number bigint, p_sub smallint, p_started timestamptz, p_token bigint,
	OUT gone bigint, OUT number bigint, OUT sub smallint, OUT started timestamptz, OUT token bigint)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
	WITH looked AS MATERIALIZED (
		SELECT u.ctid AS place, u.number, u.sub, u.started, u.token, u.ended FROM pglead.run AS u
		WHERE (u.number, u.sub, u.started, u.token) > (p_number, p_sub, p_started, p_token) ORDER BY u.number, u.sub, u.started, u.token LIMIT 5000),
	kept AS MATERIALIZED (
		SELECT k.number, k.sub, (SELECT o.started FROM pglead.run AS o WHERE o.number = k.number AND o.sub = k.sub AND o.outcome = 'ok' ORDER BY o.started DESC LIMIT 1) AS last
		FROM (SELECT DISTINCT l.number, l.sub FROM looked AS l) AS k
		WHERE EXISTS (SELECT FROM pglead.lock AS l WHERE l.number = k.number AND l.sub = k.sub)),
	over AS MATERIALIZED (
		SELECT u.ctid AS place FROM pglead.run AS u WHERE u.ctid = ANY (ARRAY(
			SELECT k.place FROM looked AS k LEFT JOIN kept AS s USING (number, sub)
			WHERE p_older >= '0' AND k.ended < now() - p_older AND k.started IS DISTINCT FROM s.last))
		FOR UPDATE SKIP LOCKED),
	forgotten AS (DELETE FROM pglead.run AS u WHERE u.ctid = ANY (ARRAY(SELECT o.place FROM over AS o)) RETURNING u.number)
	SELECT (SELECT count(*) FROM forgotten), k.number, k.sub, k.started, k.token
	FROM (SELECT) AS one LEFT JOIN (SELECT * FROM looked ORDER BY number DESC, sub DESC, started DESC, token DESC LIMIT 1) AS k ON true
$$;

-- Any role with USAGE may call all functions, whatever default privileges their owner has set.
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pglead TO PUBLIC;
