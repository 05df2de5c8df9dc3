
    -- What is inserted here ends an attempt, in whichever transaction that is done: see join.rs. Nothing is ever in it.
    CREATE VIEW hapax_join (id, fence, state, status, now, retention, tombstone, answer) AS
        SELECT id, fence, state, status, 0, 0, 0, NULL FROM hapax_heads WHERE 0;

    -- States: 1 running, 2 completed, 3 failed, 4 retryable, 5 unknown, 13 unknown and past its retention.
    CREATE TRIGGER hapax_join_ends INSTEAD OF INSERT ON hapax_join BEGIN
        SELECT RAISE(ROLLBACK, 'HX005: the attempt has finished already: nothing of this transaction was kept')
        WHERE EXISTS (SELECT 1 FROM hapax_heads WHERE id = NEW.id AND fence = NEW.fence AND state IN (2, 3));

        SELECT RAISE(ROLLBACK, 'HX003: the attempt no longer owns its record: nothing of this transaction was kept')
        WHERE NEW.state IS NULL OR NEW.state NOT IN (2, 3, 4, 5) OR NOT EXISTS (
            SELECT 1 FROM hapax_heads
            WHERE id = NEW.id AND fence = NEW.fence AND state IN (1, 5, 13) AND fingerprint IS NOT NULL);

        DELETE FROM hapax_answers WHERE answer = (SELECT answer FROM hapax_heads WHERE id = NEW.id);
        INSERT INTO hapax_answers (content) SELECT NEW.answer WHERE NEW.answer IS NOT NULL;

        UPDATE hapax_heads SET
            state = NEW.state,
            status = NEW.status,
            version = version + 1,
            finished_at = NEW.now,
            expires_at = NEW.now + NEW.retention,
            tombstone_until = NEW.now + NEW.retention + NEW.tombstone,
            answer = CASE WHEN NEW.answer IS NOT NULL THEN last_insert_rowid() END,
            due = CASE
                WHEN NEW.state = 5 THEN NULL
                WHEN NEW.answer IS NOT NULL THEN NEW.now + NEW.retention
                ELSE NEW.now + NEW.retention + NEW.tombstone
            END
        WHERE id = NEW.id;
    END;
