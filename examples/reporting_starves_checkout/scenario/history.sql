-- What reports that scan aggregate: a million sales, the same in every run. About 70 MB, which stay in memory: what such
-- a report takes is processor time and buffers.
SET search_path = reporting_starves_checkout;

CREATE TABLE history (
    id        bigint PRIMARY KEY,
    customer  bigint      NOT NULL,
    item_id   bigint      NOT NULL,
    quantity  bigint      NOT NULL,
    cents     bigint      NOT NULL,
    placed_at timestamptz NOT NULL
);

INSERT INTO history
SELECT id, id * 7919 % 50021, id * 104729 % 10000 + 1, 1 + id % 5, 100 + id % 900,
    timestamptz '2026-01-01 00:00:00+00' + id * interval '10 seconds'
FROM generate_series(1, 1000000::bigint) AS id;
