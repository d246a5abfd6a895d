-- The shop of the scenario: what a checkout reads and writes. In a schema of its own, so that a server which somebody
-- named keeps what it has; the scenario removes it when it ends.
DROP SCHEMA IF EXISTS reporting_starves_checkout CASCADE;
CREATE SCHEMA reporting_starves_checkout;
SET search_path = reporting_starves_checkout;

CREATE TABLE item (
    id     bigint PRIMARY KEY,
    name   text   NOT NULL,
    cents  bigint NOT NULL CHECK (cents > 0),
    stock  bigint NOT NULL CHECK (stock >= 0)
);

CREATE TABLE orders (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer  bigint      NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE order_line (
    order_id  bigint NOT NULL REFERENCES orders,
    item_id   bigint NOT NULL REFERENCES item,
    quantity  bigint NOT NULL CHECK (quantity > 0),
    cents     bigint NOT NULL,
    PRIMARY KEY (order_id, item_id)
);

-- Checkouts go round the items one after the other: at 200 a second the same row comes again after 50 s, so that no
-- checkout ever waits for the lock of another, and all that can delay it is what the scenario is about.
INSERT INTO item
SELECT id, 'item ' || id, 100 + id % 900, 1000000
FROM generate_series(1, 10000) AS id;

ANALYZE item;
