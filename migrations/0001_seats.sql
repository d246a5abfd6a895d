-- The seats of fleets: one row is the right of one replica to connect (docs/seats.md). Idempotent.
--
-- The replicas make the rows of their own fleet; the role they log in with needs
--   GRANT SELECT, INSERT, UPDATE ON partitioned_pool_seats TO <role>;

CREATE TABLE IF NOT EXISTS partitioned_pool_seats (
    -- The name of the service: two fleets in one database have rows of their own.
    fleet      text        NOT NULL,
    seat       integer     NOT NULL CHECK (seat BETWEEN 1 AND 9999),
    -- How often it was taken. It tells an old holder from the new one, and is part of application_name,
    -- which has no room for more.
    epoch      bigint      NOT NULL DEFAULT 0 CHECK (epoch BETWEEN 0 AND 9999999999),
    -- Who has it: host, process, and a word that nobody else has; NULL if it was given back.
    holder     text,
    taken_at   timestamptz,
    -- By the clock of this server. Until then nobody else takes it.
    expires_at timestamptz,
    PRIMARY KEY (fleet, seat),
    CHECK ((holder IS NULL) = (expires_at IS NULL))
)
-- Each row is rewritten every few seconds: room for it on its own page.
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
