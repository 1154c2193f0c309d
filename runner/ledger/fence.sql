-- fence is for the beginning of a job's transaction. It raises LE001 unless the run of this token
-- is under way. If it raises nothing, no other run starts before the transaction ends.
--
-- First it takes the run's marker, and then it looks at the row: a start has to take the marker
-- exclusively, so none comes in between unseen. If the transaction's snapshot may be older than a
-- start, it also locks the row, which fails if the row has changed since. In other transactions the
-- lock on the row would only make newcomers wait.
CREATE OR REPLACE FUNCTION pglead.fence(number bigint, token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	r pglead.lock;
BEGIN
	IF fence.number IS NULL OR fence.token IS NULL THEN
		RAISE EXCEPTION 'pglead.fence: NULL is no run' USING ERRCODE = 'LE001';
	END IF;
	-- If the run is over already, this takes no marker, which would keep a start waiting.
	SELECT l.* INTO r FROM pglead.lock AS l WHERE l.number = fence.number AND l.token = fence.token
		AND l.started IS NOT NULL AND l.ended IS NULL AND l.cut IS NULL ORDER BY l.started DESC LIMIT 1;
	IF FOUND THEN
		PERFORM pg_advisory_xact_lock_shared(pglead.marker_1(r.number, r.sub, r.token));
		IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
			PERFORM FROM pglead.lock AS l WHERE l.number = r.number AND l.sub = r.sub AND l.reader = r.reader
				AND l.token = r.token AND l.started IS NOT NULL AND l.ended IS NULL AND l.cut IS NULL FOR SHARE;
		ELSE
			PERFORM FROM pglead.lock AS l WHERE l.number = r.number AND l.sub = r.sub AND l.reader = r.reader
				AND l.token = r.token AND l.started IS NOT NULL AND l.ended IS NULL AND l.cut IS NULL;
		END IF;
		IF FOUND THEN
			RETURN;
		END IF;
	END IF;
	SELECT l.* INTO r FROM pglead.lock AS l WHERE l.number = fence.number ORDER BY l.started DESC NULLS LAST LIMIT 1;
	RAISE EXCEPTION USING ERRCODE = 'LE001', MESSAGE = format(CASE WHEN fence.token > r.token THEN 'run %s of %s is not known' ELSE 'run %s of %s is over' END,
			fence.token, coalesce(r.key, fence.number::text))
		|| CASE WHEN r.token > fence.token AND r.started IS NOT NULL THEN format('; run %s on %s has started', r.token, r.host) ELSE '' END;
END $$;

-- This is the same for the key or, as a text, the number that the job has in its environment. The
-- key of a number may be spelled in several ways, and the row has only one of them.
CREATE OR REPLACE FUNCTION pglead.fence(key text, token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	r pglead.lock;
	whole text := fence.key;
	spelled numeric[] := regexp_match(fence.key, '^([+-]?[0-9]+)(?:,([+-]?[0-9]+))?$')::numeric[];
	n bigint;
BEGIN
	IF getdatabaseencoding() = 'SQL_ASCII' THEN -- left cuts within characters there, where pglead doesn't
		whole := regexp_replace(left(fence.key, 500), E'([\\xc2-\\xdf]|[\\xe0-\\xef][\\x80-\\xbf]?|[\\xf0-\\xf4][\\x80-\\xbf]{0,2})$', '');
	END IF;
	IF fence.key IS NULL OR fence.token IS NULL THEN
		RAISE EXCEPTION 'pglead.fence: NULL is no run' USING ERRCODE = 'LE001';
	END IF;
	IF spelled[2] IS NULL AND spelled[1] BETWEEN -9223372036854775808 AND 9223372036854775807 THEN
		n := spelled[1];
	ELSIF spelled[1] BETWEEN -2147483648 AND 2147483647 AND spelled[2] BETWEEN -2147483648 AND 2147483647 THEN
		n := (spelled[1]::bigint << 32) | (spelled[2]::bigint & 4294967295);
	END IF;
	SELECT l.* INTO r FROM pglead.lock AS l WHERE l.key IN (left(fence.key, 500), whole) OR l.number = n
	ORDER BY l.token = fence.token AND l.started IS NOT NULL DESC NULLS LAST, l.started DESC NULLS LAST LIMIT 1;
	IF NOT FOUND THEN
		RAISE EXCEPTION USING ERRCODE = 'LE001', MESSAGE = format('run %s of %s is not known', fence.token, fence.key);
	END IF;
	PERFORM pglead.fence(r.number, fence.token);
END $$;
