-- What pglead remembers of its runs: version 1.
--
-- Installed by any role that may create a schema in the database; nothing here needs
-- a superuser. Who has USAGE on the schema takes part. Run again it changes nothing
-- but what is missing; columns are only ever added.

CREATE SCHEMA IF NOT EXISTS pglead;

CREATE TABLE IF NOT EXISTS pglead.setting (
	one boolean PRIMARY KEY DEFAULT true CHECK (one),
	version integer NOT NULL,
	keep integer NOT NULL CHECK (keep BETWEEN 1 AND 1000000)
);

-- The facts: of each lock the last run. It is open, which means that its command may
-- be alive, while it has started and not ended. Beside that row, of reader 0, each
-- reader of a shared lock has one. A row that has no token
-- was made by a pause, or by a command that was not found.
--
-- There is no CHECK, since each costs the first statement of every session; what
-- comes from callers is checked by the functions, and nobody else writes.
CREATE TABLE IF NOT EXISTS pglead.lock (
	number bigint NOT NULL,
	sub smallint NOT NULL, -- 1: a bigint, 2: a pair of integers
	reader bigint NOT NULL DEFAULT 0,
	key text,
	system text,
	token bigint,
	host text,
	os_user text,
	pid integer,
	command text,
	role text,
	lease interval,
	grace interval,
	tick timestamptz,
	waited interval,
	started timestamptz,
	cut timestamptz,
	ended timestamptz,
	outcome text,
	status integer,
	ok_tick timestamptz,
	ok_started timestamptz,
	ok_ended timestamptz,
	ok_host text,
	paused_until timestamptz,
	paused_by text,
	note text,
	alone boolean, -- certainly: no reader has a row
	PRIMARY KEY (number, sub, reader)
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS lock_key ON pglead.lock (key);

-- A table that an earlier version made. ALTER TABLE would wait for all who read it,
-- and everybody for that, so it isn't called without need.
DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = 'pglead.lock'::pg_catalog.regclass AND attname = 'alone') THEN
		ALTER TABLE pglead.lock ADD COLUMN alone boolean, DROP CONSTRAINT IF EXISTS lock_sub_check, DROP CONSTRAINT IF EXISTS lock_outcome_check;
	END IF;
END $$;

-- The history: written once, at the end of a run. No start reads it, but to see that
-- one which it has heard of has ended; to truncate it does no harm.
CREATE TABLE IF NOT EXISTS pglead.run (
	number bigint NOT NULL,
	sub smallint NOT NULL,
	started timestamptz NOT NULL,
	token bigint NOT NULL,
	system text,
	key text,
	host text,
	os_user text,
	pid integer,
	command text,
	role text,
	ended timestamptz,
	outcome text,
	status integer,
	waited interval,
	PRIMARY KEY (number, sub, started, token) -- a restored cluster draws old tokens again
);
CREATE INDEX IF NOT EXISTS run_key ON pglead.run (key, started);

GRANT SELECT ON pglead.setting, pglead.lock, pglead.run TO PUBLIC;
