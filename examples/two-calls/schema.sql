-- The tables of the shop. They live in the database in which Hapax keeps its records, so that an
-- order and the record of its key commit together. The role `orders` exists already.

CREATE TABLE items (
    name text PRIMARY KEY
);
INSERT INTO items VALUES ('hat'), ('coat'), ('scarf');

CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    item text NOT NULL REFERENCES items,
    placed_by text NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
);

-- What the programs may do here. What they may do in the schema `hapax`, `hapax migrate` has said.
GRANT SELECT ON items TO orders;
GRANT SELECT, INSERT ON orders TO orders;
