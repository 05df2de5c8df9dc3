
    -- Receipts of messages that commit with the effect of the message: see src/inbox/.

    -- Who receives, and for how long receipts are kept.
    CREATE TABLE hapax_consumers (
        id          INTEGER PRIMARY KEY,
        name        TEXT    NOT NULL UNIQUE,
        time_window INTEGER,                      -- microseconds, by the time that the producer gave a message; null: for ever
        since       INTEGER NOT NULL DEFAULT 0,   -- no older message is accepted: its receipt may be gone
        created_at  INTEGER NOT NULL
    );

    CREATE TABLE hapax_receipts (
        id       BLOB    PRIMARY KEY NOT NULL,    -- the first half of a SHA-256: see docs/internals/inbox.md
        consumer INTEGER NOT NULL,
        at       INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX hapax_receipts_over ON hapax_receipts (consumer, at);

    -- The version of an entity that a consumer applied last.
    CREATE TABLE hapax_versions (
        id       BLOB    PRIMARY KEY NOT NULL,    -- a digest of the consumer's name and the entity's
        version  INTEGER NOT NULL,
        consumer INTEGER NOT NULL
    ) WITHOUT ROWID;

    -- Messages that were not applied, and are kept for an operator.
    CREATE TABLE hapax_parked (
        number      INTEGER PRIMARY KEY AUTOINCREMENT,
        consumer    INTEGER NOT NULL,
        receipt     BLOB    NOT NULL,
        id          TEXT    NOT NULL,
        state       INTEGER NOT NULL,             -- 0: it failed and is still tried, 1: parked, 2: to be tried again
        kind        INTEGER NOT NULL,             -- 1: failed, 2: too old, 3: ahead of the clock, 4: after a gap, 5: without an id
        attempts    INTEGER NOT NULL DEFAULT 0,   -- counted before each
        reason      TEXT,
        not_applied INTEGER NOT NULL DEFAULT 0,   -- an operator has said so: its age does not matter
        topic       TEXT,
        key         TEXT,
        entity      BLOB,
        version     INTEGER,
        at          INTEGER,
        headers     TEXT,
        payload     BLOB,
        parked_at   INTEGER NOT NULL,             -- in state 0: when it failed last
        UNIQUE (consumer, receipt)
    );
    CREATE INDEX hapax_parked_failed ON hapax_parked (parked_at) WHERE state = 0;
    CREATE INDEX hapax_parked_again ON hapax_parked (consumer, number) WHERE state = 2;
    CREATE INDEX hapax_parked_gaps ON hapax_parked (entity, version) WHERE state = 1 AND kind = 4;
