
    -- Messages that commit with their effect: see src/outbox/. Any language may insert one: a topic and a payload are enough.
    CREATE TABLE hapax_outbox (
        seq     INTEGER PRIMARY KEY AUTOINCREMENT, -- there is one writer, so this is the order of commits
        topic   TEXT    NOT NULL,
        key     TEXT,                              -- messages of one topic and key are published in order
        payload BLOB    NOT NULL,
        headers TEXT    NOT NULL DEFAULT '{}',     -- a JSON object of texts
        id      BLOB    NOT NULL DEFAULT (randomblob(16)) CHECK (typeof(id) = 'blob' AND length(id) = 16),
        ordered INTEGER NOT NULL DEFAULT 1,        -- 0: it has no place in the order of its key
        version INTEGER,
        at      INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)),
        CHECK (typeof(topic) = 'text' AND length(topic) BETWEEN 1 AND 255),
        CHECK (key IS NULL OR (typeof(key) = 'text' AND length(key) BETWEEN 1 AND 1024)),
        CHECK (typeof(payload) IN ('text', 'blob') AND length(payload) <= 1048576),
        CHECK (json_valid(headers) AND json_type(headers) = 'object'),
        CHECK (ordered IN (0, 1) AND typeof(at) = 'integer' AND (version IS NULL OR typeof(version) = 'integer'))
    );

    -- Destinations, and how far each has got.
    CREATE TABLE hapax_readers (
        name         TEXT    PRIMARY KEY NOT NULL,
        after        INTEGER NOT NULL,             -- all up to this number is published, or set aside
        owner        TEXT,
        fence        INTEGER NOT NULL DEFAULT 0,
        lease_until  INTEGER NOT NULL DEFAULT 0,
        created_at   INTEGER NOT NULL,
        published    INTEGER NOT NULL DEFAULT 0,
        published_at INTEGER,
        set_aside    INTEGER NOT NULL DEFAULT 0,
        stopped      TEXT
    );

    -- Messages that a destination did not take, and the later ones of their keys.
    CREATE TABLE hapax_deliveries (
        reader   TEXT    NOT NULL REFERENCES hapax_readers (name) ON DELETE CASCADE,
        seq      INTEGER NOT NULL,
        state    INTEGER NOT NULL,                 -- 1: to be sent, 2: held for an operator, 3: dead, which holds up nobody
        attempts INTEGER NOT NULL,
        due_at   INTEGER,                          -- null: after an earlier one of its key, or after an operator
        reason   TEXT,
        at       INTEGER NOT NULL,
        id       BLOB    NOT NULL,
        topic    TEXT    NOT NULL,
        key      TEXT,
        ordered  INTEGER NOT NULL,
        version  INTEGER,
        headers  TEXT    NOT NULL,
        payload  BLOB    NOT NULL,
        PRIMARY KEY (reader, seq)
    ) WITHOUT ROWID;
    CREATE INDEX hapax_deliveries_due ON hapax_deliveries (reader, due_at) WHERE state = 1 AND due_at IS NOT NULL;
    CREATE INDEX hapax_deliveries_key ON hapax_deliveries (reader, topic, key, seq) WHERE state <> 3 AND ordered AND key IS NOT NULL;
