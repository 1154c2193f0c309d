-- pause_1 keeps a key from starting, in all its slots. A run that has begun goes on.
CREATE OR REPLACE FUNCTION pglead.pause_1(p_number bigint, p_sub smallint, p_key text, p_until timestamptz, p_by text, p_note text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
DECLARE
	running text;
	who text := left(regexp_replace(p_by, '[[:cntrl:]]', '?', 'g'), 200);
	why text := left(regexp_replace(p_note, '[[:cntrl:]]', '?', 'g'), 300);
BEGIN
	IF p_number IS NULL OR p_sub IS NULL OR p_until IS NULL THEN
		RAISE EXCEPTION 'pglead: this is no pause' USING ERRCODE = '22023';
	END IF;
	INSERT INTO pglead.lock AS l (number, sub, key, paused_until, paused_by, note) VALUES (p_number, p_sub, left(p_key, 500), p_until, who, why)
	ON CONFLICT (number, sub, reader) DO UPDATE SET key = coalesce(l.key, excluded.key), paused_until = p_until, paused_by = who, note = why;
	UPDATE pglead.lock AS l SET paused_until = p_until, paused_by = who, note = why
	WHERE l.key = left(p_key, 500) AND l.reader = 0 AND (l.number, l.sub) <> (p_number, p_sub);
	SELECT 'running ' || coalesce(l.host, '') INTO running FROM pglead.lock AS l
	WHERE (l.number = p_number AND l.sub = p_sub OR l.key = left(p_key, 500)) AND l.started IS NOT NULL AND l.ended IS NULL ORDER BY l.started LIMIT 1;
	RETURN coalesce(running, 'paused');
END $$;

-- resume_1 ends a pause, and says whether there was one.
CREATE OR REPLACE FUNCTION pglead.resume_1(p_number bigint, p_sub smallint) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
	WITH resumed AS (
		UPDATE pglead.lock AS l SET paused_until = NULL, paused_by = NULL, note = NULL
		WHERE l.paused_until IS NOT NULL AND (l.number = p_number AND l.sub = p_sub
			OR l.key = (SELECT o.key FROM pglead.lock AS o WHERE o.number = p_number AND o.sub = p_sub AND o.reader = 0))
		RETURNING l.paused_until)
	SELECT EXISTS (SELECT FROM resumed)
$$;

-- missing_1 notes that there was nothing to run: the command was not found (127), or
-- could not be executed (126). Nobody took the lock for it, so it has no token.
CREATE OR REPLACE FUNCTION pglead.missing_1(p_number bigint, p_sub smallint, p_key text, p_host text, p_os_user text, p_pid integer, p_command text, p_status integer) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
	INSERT INTO pglead.lock (number, sub, key) VALUES (p_number, p_sub, left(p_key, 500)) ON CONFLICT DO NOTHING;
	INSERT INTO pglead.run (number, sub, started, token, key, host, os_user, pid, command, role, ended, outcome, status)
	SELECT p_number, p_sub, now(), 0, left(p_key, 500), left(p_host, 200), left(p_os_user, 200), p_pid, left(p_command, 200), session_user, now(), 'failed', p_status
	WHERE p_status IN (126, 127)
	ON CONFLICT DO NOTHING;
	SELECT pglead.tidy_1(p_number, p_sub) WHERE random() < 1.0 / 64;
$$;

-- prune_1 forgets what is older: keys that have not come back since, and of the others
-- all runs but the last success. It says how many rows that were.
CREATE OR REPLACE FUNCTION pglead.prune_1(p_older interval) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
DECLARE
	gone bigint;
	rows bigint;
BEGIN
	IF p_older IS NULL OR p_older < '0' THEN
		RAISE EXCEPTION 'pglead: prune needs a length of time' USING ERRCODE = '22023';
	END IF;
	-- A row whose run is open, or that is paused, is a fact that somebody needs.
	-- So is a tick that has had its success, or it would have another.
	DELETE FROM pglead.lock AS l WHERE l.ended < clock_timestamp() - p_older AND (l.paused_until IS NULL OR l.paused_until <= clock_timestamp())
		AND (l.ok_tick IS NULL OR l.ok_tick < clock_timestamp() - interval '3 days');
	GET DIAGNOSTICS gone = ROW_COUNT;
	DELETE FROM pglead.lock AS l WHERE l.started IS NULL AND l.reader = 0 AND (l.paused_until IS NULL OR l.paused_until <= clock_timestamp())
		AND NOT EXISTS (SELECT FROM pglead.lock AS o WHERE o.number = l.number AND o.sub = l.sub AND o.reader <> 0)
		AND NOT EXISTS (SELECT FROM pglead.run AS u WHERE u.number = l.number AND u.sub = l.sub AND u.ended >= clock_timestamp() - p_older);
	GET DIAGNOSTICS rows = ROW_COUNT;
	gone := gone + rows;
	DELETE FROM pglead.run AS u WHERE u.ended < clock_timestamp() - p_older AND NOT (
		EXISTS (SELECT FROM pglead.lock AS l WHERE l.number = u.number AND l.sub = u.sub)
		AND u.started = (SELECT max(o.started) FROM pglead.run AS o WHERE o.number = u.number AND o.sub = u.sub AND o.outcome = 'ok'));
	GET DIAGNOSTICS rows = ROW_COUNT;
	RETURN gone + rows;
END $$;
