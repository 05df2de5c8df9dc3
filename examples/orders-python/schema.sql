-- What the orders service keeps, in the database in which Hapax keeps its records: that is what lets both commit together.

-- The service's own role. It may complete a record that it was handed (`hapax migrate --completer orders`), and do what is granted below.
DO $$ BEGIN
    CREATE ROLE orders LOGIN;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

CREATE TABLE IF NOT EXISTS orders (
    -- Given by the caller where it has a number of its own for the order (PUT), else made here (POST).
    id text PRIMARY KEY DEFAULT gen_random_uuid()::text,
    item text NOT NULL,
    quantity int NOT NULL CHECK (quantity > 0),
    state text NOT NULL DEFAULT 'placed' CHECK (state IN ('placed', 'shipped')),
    -- Raised by each change, for whoever changes only what they have seen.
    version int NOT NULL DEFAULT 1
);

-- One line for each time that something was sent: what must not happen twice.
CREATE TABLE IF NOT EXISTS parcels (
    order_id text NOT NULL REFERENCES orders,
    sent_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS stock (
    sku text PRIMARY KEY,
    quantity int NOT NULL CHECK (quantity >= 0)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON orders, stock TO orders;
GRANT INSERT ON parcels TO orders;
