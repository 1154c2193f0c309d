-- due_1 says whether a tick is still to be run: the lock's last tick with a success is an earlier
-- one, and the caller's clock is right, and the tick is not in its future.
CREATE OR REPLACE FUNCTION pglead.due_1(p_ok timestamptz, p_tick timestamptz, p_per interval, p_clock timestamptz) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
	SELECT (p_ok IS NULL OR p_ok < p_tick)
		AND p_clock - clock_timestamp() BETWEEN - least(p_per / 2, '00:05') AND least(p_per / 2, '00:05')
		AND p_tick <= p_clock + CASE WHEN p_per >= '24:00' THEN interval '15:00' ELSE '0' END
$$;

-- slots_1 says whether two locks with the same key are slots of that key, so that a pause of one
-- concerns the other. A lock whose key is its own number, or pair of numbers, has no slots: another
-- lock that has the same text as its key is a different lock.
CREATE OR REPLACE FUNCTION pglead.slots_1(a_number bigint, a_sub smallint, the_key text, b_number bigint, b_sub smallint) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT the_key NOT IN (
		CASE a_sub WHEN 1 THEN a_number::text ELSE (a_number >> 32) || ',' || (a_number << 32 >> 32) END,
		CASE b_sub WHEN 1 THEN b_number::text ELSE (b_number >> 32) || ',' || (b_number << 32 >> 32) END)
$$;

-- start_1 makes the usual start: of one lock, exclusively, by the session that has the lock, after
-- a run that has ended. It returns 'started', or nothing: then start_rest_1 says why. In plpgsql it
-- would cost a new backend several times as much, and each table, operator and type costs
-- something, too. So it leaves to others what is rare, and the lease and the grace are bounded
-- where they are read. The conditions are in a CASE so that the planner does not estimate how many
-- rows fulfil them.
--
-- That the caller can take the lock shows that nobody else has it. A caller that did not have it,
-- but finds it free, has it for the length of the transaction. The second number that is taken is
-- the marker of the last run, which that run's transactions have shared: see fence.
--
-- With numbers of 32 bits two keys may have the same one. The row has the key of the last run, and a
-- pause of another key may be at another row, so that key's start is left to start_rest_1.
CREATE OR REPLACE FUNCTION pglead.start_1(p_number bigint, p_sub smallint, p_key text, p_token bigint, p_system text,
	p_host text, p_os_user text, p_pid integer, p_command text, p_lease interval, p_grace interval, p_waited interval,
	p_tick timestamptz, p_per interval, p_clock timestamptz) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
	UPDATE pglead.lock AS l SET key = left(p_key, 500), system = p_system, token = p_token, host = left(p_host, 200),
		os_user = left(p_os_user, 200), pid = p_pid, command = left(p_command, 200), role = session_user,
		lease = p_lease, grace = p_grace, tick = p_tick, waited = p_waited,
		started = clock_timestamp(), cut = NULL, ended = NULL, outcome = NULL, status = NULL
	WHERE number = p_number AND sub = p_sub AND reader = 0 AND CASE WHEN alone
			AND ended IS NOT NULL AND system = p_system AND token >> 48 = p_token >> 48 AND key = left(p_key, 500)
			AND p_lease IS NOT NULL AND p_grace IS NOT NULL
			AND (paused_until IS NULL OR paused_until <= clock_timestamp())
			AND (p_tick IS NULL OR pglead.due_1(ok_tick, p_tick, p_per, p_clock))
			AND CASE p_sub WHEN 1 THEN pg_try_advisory_xact_lock(p_number)
				ELSE pg_try_advisory_xact_lock((p_number >> 32)::integer, (p_number << 32 >> 32)::integer) END
		THEN pg_try_advisory_xact_lock(hashtextextended(concat('pglead fence ', number, ' ', sub, ' ', token), 0)) END
	RETURNING 'started'
$$;

-- marker_1 is the number of the advisory lock that the transactions of a run have shared. It has 64
-- bits, so that two runs do not have the same one.
CREATE OR REPLACE FUNCTION pglead.marker_1(p_number bigint, p_sub smallint, p_token bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT hashtextextended(concat('pglead fence ', p_number, ' ', p_sub, ' ', p_token), 0)
$$;

-- start_rest_1 starts a run of any number of locks, with all of them or with none, or says what is
-- in its way:
--
--	started
--	paused UNTIL, BY, NOTE      on three lines; UNTIL in seconds since 1970, or infinity
--	done WHEN HOST              this tick has had its success
--	clock SECONDS               the caller's clock is ahead of the server's by this much
--	busy I                      the caller does not have its lock number I
--	lost I TOKEN LEASE GRACE HOST
--	                            a run of lock I whose command may be alive, one a line; LEASE and
--	                            GRACE in milliseconds
--	unknown                     nothing is known of earlier runs
--	fenced PID ROLE             this session's transaction, of the last run, can't be ended
--
-- The caller says what it knows by itself. p_sure: no command is alive under a lock of which the
-- ledger knows nothing. p_closes: for each lock a token; nothing is alive of that run and of
-- earlier ones; or -1, which closes no run, but is p_sure for this lock alone. p_heard: tokens of
-- announced starts, of which the ledger must know that they have ended. p_backend: the session that
-- has the locks, if that is not the caller's.
--
-- A start that knows an open run to be dead closes it. Any other start leaves it open, since that
-- start may still give up, but cuts the run off: its fences refuse from then on.
CREATE OR REPLACE FUNCTION pglead.start_rest_1(p_numbers bigint[], p_subs smallint[], p_keys text[], p_shared boolean, p_token bigint, p_system text,
	p_host text, p_os_user text, p_pid integer, p_command text, p_lease interval, p_grace interval, p_waited interval,
	p_tick timestamptz, p_per interval, p_clock timestamptz,
	p_backend integer, p_sure boolean, p_closes bigint[], p_heard bigint[]) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
DECLARE
	n integer := cardinality(p_numbers);
	r pglead.lock;
	p record;
	known boolean;
	started_already integer;
	done_already integer;
	lost text;
	since timestamptz;
	marker bigint;
	began timestamptz := clock_timestamp();
	drift interval;
BEGIN
	IF p_numbers IS NULL OR p_subs IS NULL OR p_keys IS NULL OR p_shared IS NULL OR p_token IS NULL OR p_system IS NULL OR p_lease IS NULL
		OR p_grace IS NULL OR p_sure IS NULL OR n NOT BETWEEN 1 AND 1000 OR cardinality(p_subs) <> n OR cardinality(p_keys) <> n
		OR cardinality(p_closes) <> n OR (p_tick IS NULL) <> (p_per IS NULL) OR (p_tick IS NULL) <> (p_clock IS NULL)
		OR array_position(p_numbers, NULL) IS NOT NULL OR NOT p_subs <@ '{1,2}' OR p_token <= 0 OR p_system !~ '^-?[0-9]{1,20}$' THEN
		RAISE EXCEPTION 'pglead: this is no start' USING ERRCODE = '22023';
	END IF;
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		-- An older snapshot would show as ended what is not.
		RAISE EXCEPTION 'pglead: a start needs READ COMMITTED' USING ERRCODE = '22023';
	END IF;
	IF p_token & 281474976710655 > pg_current_xact_id()::text::bigint THEN
		RAISE EXCEPTION 'pglead: the token % has not been drawn', p_token USING ERRCODE = '22023';
	END IF;

	IF p_tick IS NOT NULL THEN
		drift := p_clock - clock_timestamp();
		IF p_per <= '0' OR drift NOT BETWEEN - least(p_per / 2, '00:05') AND least(p_per / 2, '00:05') THEN
			RETURN 'clock ' || round(extract(epoch FROM drift));
		ELSIF p_tick > p_clock + (CASE WHEN p_per >= '24:00' THEN interval '15:00' ELSE '0' END) THEN
			RAISE EXCEPTION 'pglead: % is no tick of %', p_tick, p_clock USING ERRCODE = '22023';
		END IF;
	END IF;

	-- All is checked twice: before the last runs' transactions are ended, and afterwards with the
	-- rows locked. Those transactions may have locked the rows before.
	FOR pass IN 1 .. 2 LOOP
		started_already := 0;
		done_already := 0;
		lost := NULL;
		known := true;
		p := NULL;
		FOR i IN 1 .. n LOOP
			IF pass = 2 THEN
				-- A pause, of this number or of this key, waits for the commit of the start: it may not see
				-- the row that the start makes.
				PERFORM pg_advisory_xact_lock_shared(pglead.marker_1(p_numbers[i], p_subs[i], 0)),
					pg_advisory_xact_lock_shared(hashtextextended(concat('pglead pause ', left(p_keys[i], 500)), 0));
				-- A reader has the lock's own row for itself only to change it. Otherwise readers that
				-- start at the same time would wait for each other's commits.
				PERFORM FROM pglead.lock AS l WHERE l.number = p_numbers[i] AND l.sub = p_subs[i] AND (NOT p_shared OR l.reader = 0
					AND (l.alone IS NOT FALSE OR l.started IS NOT NULL AND l.ended IS NULL OR l.system IS DISTINCT FROM p_system OR l.token >> 48 IS DISTINCT FROM p_token >> 48))
					ORDER BY l.reader FOR UPDATE;
			END IF;
			-- The session p_backend may have lost the locks by now, and another run may have started.
			IF (p_backend IS NULL AND NOT CASE
				WHEN p_shared AND p_subs[i] = 1 THEN pg_try_advisory_xact_lock_shared(p_numbers[i])
				WHEN p_shared THEN pg_try_advisory_xact_lock_shared((p_numbers[i] >> 32)::integer, (p_numbers[i] << 32 >> 32)::integer)
				WHEN p_subs[i] = 1 THEN pg_try_advisory_xact_lock(p_numbers[i])
				ELSE pg_try_advisory_xact_lock((p_numbers[i] >> 32)::integer, (p_numbers[i] << 32 >> 32)::integer) END)
			OR p_backend IS NOT NULL AND NOT EXISTS (SELECT FROM pg_lock_status() AS s, LATERAL pg_stat_get_activity(s.pid) AS a
				WHERE s.locktype = 'advisory' AND s.granted AND s.pid = p_backend AND s.objsubid = p_subs[i]
					AND s.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
					AND s.classid::bigint = (p_numbers[i] >> 32) & 4294967295 AND s.objid::bigint = p_numbers[i] & 4294967295
					AND (p_shared OR s.mode = 'ExclusiveLock')
					AND a.usesysid = (SELECT o.oid FROM pg_roles AS o WHERE o.rolname = session_user))
			THEN
				RETURN 'busy ' || i;
			END IF;
			SELECT l.paused_until, l.paused_by, l.note INTO p FROM pglead.lock AS l
				WHERE l.paused_until > clock_timestamp() AND (l.number = p_numbers[i] AND l.sub = p_subs[i]
					OR l.key = left(p_keys[i], 500) AND pglead.slots_1(l.number, l.sub, l.key, p_numbers[i], p_subs[i]))
				ORDER BY l.paused_until DESC LIMIT 1;
			IF FOUND THEN
				RETURN concat_ws(E'\n', 'paused ' || CASE WHEN p.paused_until = 'infinity' THEN 'infinity' ELSE ceil(extract(epoch FROM p.paused_until))::text END,
					coalesce(p.paused_by, ''), coalesce(p.note, ''));
			END IF;
			SELECT l.* INTO r FROM pglead.lock AS l WHERE l.number = p_numbers[i] AND l.sub = p_subs[i] AND l.reader = 0;
			IF (NOT FOUND OR r.system IS DISTINCT FROM p_system OR r.token >> 48 IS DISTINCT FROM p_token >> 48) AND p_closes[i] IS DISTINCT FROM -1 THEN
				known := false;
			END IF;
			IF r.ok_tick >= p_tick THEN
				done_already := done_already + 1;
				since := r.ok_ended;
			END IF;
			FOR r IN SELECT l.* FROM pglead.lock AS l WHERE l.number = p_numbers[i] AND l.sub = p_subs[i]
				AND (l.reader = 0 OR NOT p_shared OR l.reader = p_token) AND l.started IS NOT NULL AND l.ended IS NULL ORDER BY l.reader
			LOOP
				IF r.token = p_token AND r.system = p_system AND r.role = session_user THEN
					started_already := started_already + 1;
				ELSIF r.token > coalesce(p_closes[i], 0) THEN
					lost := concat_ws(E'\n', lost, concat_ws(' ', 'lost', i, r.token, round(extract(epoch FROM least(greatest(r.lease, '0'), '24:00')) * 1000)::bigint,
						round(extract(epoch FROM least(greatest(r.grace, '0'), '24:00')) * 1000)::bigint, regexp_replace(r.host, '[[:space:]]', '?', 'g')));
				END IF;
			END LOOP;
		END LOOP;
		IF started_already = n THEN
			RETURN 'started';
		ELSIF done_already = n THEN
			SELECT l.ok_host INTO r.ok_host FROM pglead.lock AS l WHERE l.number = p_numbers[1] AND l.sub = p_subs[1] AND l.reader = 0;
			RETURN concat_ws(' ', 'done', floor(extract(epoch FROM since)), regexp_replace(r.ok_host, '[[:space:]]', '?', 'g'));
		ELSIF lost IS NOT NULL THEN
			-- SKIP LOCKED: a transaction of the job may have locked the row. The start that follows
			-- will end that transaction, which harms nobody until then.
			FOR i IN 1 .. n LOOP
				FOR r IN SELECT l.* FROM pglead.lock AS l WHERE l.number = p_numbers[i] AND l.sub = p_subs[i] AND (l.reader = 0 OR NOT p_shared)
					AND l.started IS NOT NULL AND l.ended IS NULL AND l.cut IS NULL AND l.token <> p_token FOR UPDATE SKIP LOCKED
				LOOP
					UPDATE pglead.lock AS l SET cut = clock_timestamp() WHERE l.number = r.number AND l.sub = r.sub AND l.reader = r.reader;
				END LOOP;
			END LOOP;
			RETURN lost;
		ELSIF NOT p_sure AND (NOT known OR EXISTS (SELECT FROM unnest(p_heard) AS h(token) WHERE
			NOT EXISTS (SELECT FROM pglead.run AS u WHERE u.number = ANY (p_numbers) AND u.token = h.token AND u.system = p_system)
			AND NOT EXISTS (SELECT FROM pglead.lock AS l WHERE l.number = ANY (p_numbers) AND l.token = h.token AND l.system = p_system AND l.ended IS NOT NULL))) THEN
			RETURN 'unknown';
		END IF;
		IF pass = 2 THEN
			EXIT;
		END IF;

		-- The command is dead, but its work in this server may go on: an idle transaction, a
		-- statement, a commit that waits for a standby. (The lock's own row has not started if a
		-- reader made it. Then its token is that reader's, who may be alive.)
		FOR r IN SELECT l.* FROM pglead.lock AS l JOIN unnest(p_numbers, p_subs) AS w(number, sub) USING (number, sub)
			WHERE l.started IS NOT NULL AND (l.reader = 0 OR NOT p_shared) ORDER BY l.number, l.sub, l.reader
		LOOP
			marker := pglead.marker_1(r.number, r.sub, r.token);
			-- Readers start beside each other. So where the run's fences refuse already, a reader doesn't
			-- take the marker, and only looks whether anybody shares it.
			WHILE CASE WHEN p_shared AND coalesce(r.ended, r.cut) IS NOT NULL
				THEN EXISTS (SELECT FROM pg_lock_status() AS s WHERE s.locktype = 'advisory' AND s.granted AND s.mode = 'ShareLock' AND s.objsubid = 1
					AND s.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
					AND s.classid::bigint = (marker >> 32) & 4294967295 AND s.objid::bigint = marker & 4294967295)
				ELSE NOT pg_try_advisory_xact_lock(marker) END
			LOOP
				-- A prepared transaction has no pid. A start, which has the marker exclusively, must not be ended.
				FOR p IN SELECT s.pid, o.rolname, o.oid AS role, o.rolsuper AS super FROM pg_lock_status() AS s, LATERAL pg_stat_get_activity(s.pid) AS a
					JOIN pg_roles AS o ON o.oid = a.usesysid
					WHERE s.locktype = 'advisory' AND s.granted AND s.mode = 'ShareLock' AND s.objsubid = 1 AND s.pid IS NOT NULL AND s.pid <> pg_backend_pid()
						AND s.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
						AND s.classid::bigint = (marker >> 32) & 4294967295 AND s.objid::bigint = marker & 4294967295
				LOOP
					IF NOT p.super AND has_schema_privilege(p.role, 'pglead', 'USAGE') THEN
						BEGIN
							PERFORM pg_terminate_backend(p.pid);
						EXCEPTION WHEN insufficient_privilege THEN
							NULL; -- it may end by itself
						END;
					END IF;
				END LOOP;
				-- This waits in the queue: otherwise other transactions could go on to share the
				-- marker for ever.
				BEGIN
					PERFORM set_config('lock_timeout', '200ms', true);
					PERFORM pg_advisory_xact_lock(marker);
				EXCEPTION WHEN lock_not_available THEN
					NULL;
				END;
				PERFORM set_config('lock_timeout', '3s', true);
				IF clock_timestamp() - began > least(p_lease / 4, '2 s') THEN -- a holder has 3/5 of its lease for all of the answer
					RETURN concat_ws(' ', 'fenced', p.pid, regexp_replace(p.rolname, '[[:space:]]', '?', 'g'));
				END IF;
			END LOOP;
		END LOOP;
	END LOOP;

	FOR i IN 1 .. n LOOP
		FOR r IN SELECT l.* FROM pglead.lock AS l WHERE l.number = p_numbers[i] AND l.sub = p_subs[i]
			AND (l.reader = 0 OR NOT p_shared) AND l.started IS NOT NULL AND l.ended IS NULL
		LOOP
			UPDATE pglead.lock AS l SET ended = coalesce(r.cut, clock_timestamp()), outcome = 'lost', status = NULL
			WHERE l.number = r.number AND l.sub = r.sub AND l.reader = r.reader;
			INSERT INTO pglead.run (number, sub, started, token, system, key, host, os_user, pid, command, role, ended, outcome, status, waited)
			VALUES (r.number, r.sub, r.started, r.token, r.system, r.key, r.host, r.os_user, r.pid, r.command, r.role, coalesce(r.cut, clock_timestamp()), 'lost', NULL, r.waited)
			ON CONFLICT DO NOTHING;
		END LOOP;
		-- Readers that have ended are forgotten, unless transactions of theirs go on. Their last success
		-- becomes that of the lock, as in tidy_1, which may not have been called yet. A reader leaves
		-- that to tidy_1, since it would wait for other readers, which may have the rows of several
		-- locks in another order.
		WITH forgotten AS (
			DELETE FROM pglead.lock AS l WHERE l.ctid IN (SELECT o.ctid FROM pglead.lock AS o
				WHERE o.number = p_numbers[i] AND o.sub = p_subs[i] AND o.reader <> 0 AND o.ended IS NOT NULL
					AND (NOT p_shared OR (o.ok_ended IS NULL OR o.ok_ended <= (SELECT k.ok_ended FROM pglead.lock AS k
							WHERE k.number = p_numbers[i] AND k.sub = p_subs[i] AND k.reader = 0))
						AND pg_try_advisory_xact_lock(pglead.marker_1(o.number, o.sub, o.token)))
				LIMIT 1000 FOR UPDATE SKIP LOCKED)
			RETURNING l.ok_started, l.ok_ended, l.ok_host)
		UPDATE pglead.lock AS l SET ok_started = f.ok_started, ok_ended = f.ok_ended, ok_host = f.ok_host
		FROM (SELECT o.* FROM forgotten AS o WHERE o.ok_ended IS NOT NULL ORDER BY o.ok_ended DESC LIMIT 1) AS f
		WHERE NOT p_shared AND l.number = p_numbers[i] AND l.sub = p_subs[i] AND l.reader = 0 AND (l.ok_ended IS NULL OR l.ok_ended < f.ok_ended);
		INSERT INTO pglead.lock AS l (number, sub, key, system, token, host, os_user, pid, command, role, lease, grace, tick, waited, started, alone)
		SELECT p_numbers[i], p_subs[i], left(p_keys[i], 500), p_system, p_token, left(p_host, 200), left(p_os_user, 200), p_pid, left(p_command, 200), session_user,
			p_lease, p_grace, p_tick, p_waited, CASE WHEN p_shared THEN NULL ELSE clock_timestamp() END,
			NOT p_shared AND NOT EXISTS (SELECT FROM pglead.lock AS o WHERE o.number = p_numbers[i] AND o.sub = p_subs[i] AND o.reader <> 0)
		WHERE NOT p_shared OR NOT EXISTS (SELECT FROM pglead.lock AS o WHERE o.number = p_numbers[i] AND o.sub = p_subs[i] AND o.reader = 0
			AND o.system = p_system AND o.token >> 48 = p_token >> 48)
		ON CONFLICT (number, sub, reader) DO UPDATE SET key = excluded.key, system = excluded.system, token = excluded.token, host = excluded.host,
			os_user = excluded.os_user, pid = excluded.pid, command = excluded.command, role = excluded.role, lease = excluded.lease, grace = excluded.grace,
			tick = excluded.tick, waited = excluded.waited, started = excluded.started, cut = NULL, ended = NULL, outcome = NULL, status = NULL, alone = excluded.alone
		WHERE NOT p_shared OR l.system IS DISTINCT FROM excluded.system OR l.token >> 48 IS DISTINCT FROM excluded.token >> 48;
		IF p_shared THEN
			UPDATE pglead.lock AS l SET alone = false WHERE l.number = p_numbers[i] AND l.sub = p_subs[i] AND l.reader = 0 AND l.alone IS NOT FALSE;
			INSERT INTO pglead.lock (number, sub, reader, key, system, token, host, os_user, pid, command, role, lease, grace, waited, started)
			VALUES (p_numbers[i], p_subs[i], p_token, left(p_keys[i], 500), p_system, p_token, left(p_host, 200), left(p_os_user, 200), p_pid, left(p_command, 200), session_user,
				p_lease, p_grace, p_waited, clock_timestamp())
			ON CONFLICT DO NOTHING;
		END IF;
	END LOOP;
	RETURN 'started';
END $$;

-- finish_1 notes the end of a run of one lock, whose command has been dead for p_ago. It needs no
-- lock, only the token, and the role that started the run. It doesn't use greatest, least, or IN
-- with a variable: the first of them in a session makes the server look through all operator
-- classes for the type, which would take a fifth of the function's time.
CREATE OR REPLACE FUNCTION pglead.finish_1(p_number bigint, p_sub smallint, p_token bigint, p_outcome text, p_status integer, p_ago interval) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
	WITH ended AS (
		UPDATE pglead.lock SET ended = CASE WHEN statement_timestamp() - p_ago > started THEN statement_timestamp() - p_ago ELSE started END,
			outcome = p_outcome, status = p_status,
			ok_tick = CASE WHEN p_outcome = 'ok' AND (ok_tick IS NULL OR tick > ok_tick) THEN tick ELSE ok_tick END,
			ok_started = CASE WHEN p_outcome = 'ok' THEN started ELSE ok_started END,
			ok_ended = CASE WHEN p_outcome = 'ok' THEN CASE WHEN statement_timestamp() - p_ago > started THEN statement_timestamp() - p_ago ELSE started END ELSE ok_ended END,
			ok_host = CASE WHEN p_outcome = 'ok' THEN host ELSE ok_host END
		WHERE number = p_number AND sub = p_sub AND token = p_token
			AND started IS NOT NULL AND ended IS NULL AND role = session_user AND p_ago >= '0'
			AND p_outcome IN ('ok', 'failed', 'timeout', 'lost', 'killed', 'stopped')
		RETURNING number, sub, started, token, system, key, host, os_user, pid, command, role, ended, outcome, status, waited)
	INSERT INTO pglead.run (number, sub, started, token, system, key, host, os_user, pid, command, role, ended, outcome, status, waited)
	SELECT * FROM ended ON CONFLICT DO NOTHING
	RETURNING token
$$;

-- tidy_1 is called after the end of a reader, and now and then after that of any run. It makes the
-- last success of the readers that of the lock, and keeps only the newest runs of each lock. Those
-- that were stopped before their commands began don't count among them, since nobody is shown them: of
-- these it keeps as many. A ledger that was restored without its rows has no setting, so it keeps the
-- default number of runs.
CREATE OR REPLACE FUNCTION pglead.tidy_1(p_number bigint, p_sub smallint) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
	UPDATE pglead.lock AS l SET ok_started = r.ok_started, ok_ended = r.ok_ended, ok_host = r.ok_host
	FROM (SELECT o.* FROM pglead.lock AS o WHERE o.number = p_number AND o.sub = p_sub AND o.reader <> 0 AND o.ok_ended IS NOT NULL
		ORDER BY o.ok_ended DESC LIMIT 1) AS r
	WHERE l.number = p_number AND l.sub = p_sub AND l.reader = 0 AND (l.ok_ended IS NULL OR l.ok_ended < r.ok_ended);
	DELETE FROM pglead.run AS u WHERE u.number = p_number AND u.sub = p_sub AND u.started < (
		SELECT o.started FROM pglead.run AS o WHERE o.number = p_number AND o.sub = p_sub AND (o.outcome <> 'stopped' OR o.status IS NOT NULL)
		ORDER BY o.started DESC OFFSET coalesce((SELECT s.keep FROM pglead.setting AS s), 1000) - 1 LIMIT 1)
		AND u.started IS DISTINCT FROM (SELECT max(o.started) FROM pglead.run AS o WHERE o.number = p_number AND o.sub = p_sub AND o.outcome = 'ok');
	DELETE FROM pglead.run AS u WHERE u.number = p_number AND u.sub = p_sub AND u.outcome = 'stopped' AND u.status IS NULL AND u.started < (
		SELECT o.started FROM pglead.run AS o WHERE o.number = p_number AND o.sub = p_sub AND o.outcome = 'stopped' AND o.status IS NULL
		ORDER BY o.started DESC OFFSET coalesce((SELECT s.keep FROM pglead.setting AS s), 1000) - 1 LIMIT 1);
$$;
