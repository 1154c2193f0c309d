-- What pglead remembers of its runs: version 1.
--
-- Any role that may create a schema in the database can install this; nothing here needs a
-- superuser. A role takes part if it has USAGE on the schema. If this is run again it adds what is
-- missing, and replaces the functions; no version takes a column away.

-- Each login asks for the ledger by this function. A server that was built without libxml rejects it
-- once the query has a row, and would then let no run start.
DO $$ BEGIN PERFORM pg_catalog.query_to_xml('SELECT 1', false, true, ''); END $$;

CREATE SCHEMA IF NOT EXISTS pglead;
COMMENT ON SCHEMA pglead IS 'the ledger of pglead: its runs, and how they ended; pglead ledger status, pglead ledger uninstall';

CREATE TABLE IF NOT EXISTS pglead.setting (
	one boolean PRIMARY KEY DEFAULT true CHECK (one),
	version integer NOT NULL,
	keep integer NOT NULL CHECK (keep BETWEEN 1 AND 1000000)
);

-- The facts: a row for the last run of each lock. The run is open, which means that its command may
-- be alive, while it has started and not ended. A shared lock has a row with reader 0, and one more
-- for each of its readers. A row without a token was made by a pause, or by a command that was not
-- found.
--
-- There is no CHECK, since each would slow down the first statement of every session. The functions
-- check what callers give them, and nobody else writes.
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
	alone boolean, -- true: certainly no reader has a row
	PRIMARY KEY (number, sub, reader)
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS lock_key ON pglead.lock (key);

-- An earlier version made the table without this column. ALTER TABLE waits for all who read the
-- table, and everybody then waits for the ALTER TABLE, so it is called only if it is needed.
DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = 'pglead.lock'::pg_catalog.regclass AND attname = 'alone') THEN
		ALTER TABLE pglead.lock ADD COLUMN alone boolean, DROP CONSTRAINT IF EXISTS lock_sub_check, DROP CONSTRAINT IF EXISTS lock_outcome_check;
	END IF;
END $$;

-- The history: a row is written once, at the end of a run. A start reads it only to see whether a
-- run of which it has heard has ended. It does no harm to truncate it.
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

-- A restore that was interrupted has left out the primary keys, on which ON CONFLICT relies.
DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_catalog.pg_index WHERE indrelid = 'pglead.setting'::pg_catalog.regclass AND indisprimary) THEN
		ALTER TABLE pglead.setting ADD PRIMARY KEY (one);
	END IF;
	IF NOT EXISTS (SELECT FROM pg_catalog.pg_index WHERE indrelid = 'pglead.lock'::pg_catalog.regclass AND indisprimary) THEN
		ALTER TABLE pglead.lock ADD PRIMARY KEY (number, sub, reader);
	END IF;
	IF NOT EXISTS (SELECT FROM pg_catalog.pg_index WHERE indrelid = 'pglead.run'::pg_catalog.regclass AND indisprimary) THEN
		ALTER TABLE pglead.run ADD PRIMARY KEY (number, sub, started, token);
	END IF;
END $$;

GRANT SELECT ON pglead.setting, pglead.lock, pglead.run TO PUBLIC;
