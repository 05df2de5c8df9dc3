//! Known bugs in the SQL, planted by changing its text. See [`hapax_core::planted`].

use hapax_core::planted::Bug;

/// A bug, and how it changes the schema: every occurrence of the first text is replaced by the
/// second.
type Plant = (Bug, &'static [(&'static str, &'static str)]);

const PLANTS: &[Plant] = &[
    (
        Bug::PgStaleTakeover,
        &[(
            "WHERE o.id = ids[place] AND o.fence = fences[place]
                AND ((o.state = 1 AND o.lease_until <= moment) OR (o.state IN (4, 5) AND o.expires_at > moment))",
            "WHERE o.id = ids[place] AND EXISTS (
                SELECT FROM hapax.heads AS seen WHERE seen.id = ids[place] AND seen.fence = fences[place]
                AND ((seen.state = 1 AND seen.lease_until <= moment) OR (seen.state IN (4, 5) AND seen.expires_at > moment)))",
        )],
    ),
    (
        Bug::PgStaleTombstone,
        &[("WHERE o.id = ids[place] AND hapax.is_gone(o.state, o.tombstone_until, moment)", "WHERE o.id = ids[place]")],
    ),
    (Bug::PgUnfencedCompletion, &[("o.fence = fences[1] AND o.state IN (1, 5, 13)", "o.state IN (1, 5, 13)")]),
    (Bug::PgUnfencedBatch, &[("o.fence = g.fence AND o.state IN (1, 5, 13)", "o.state IN (1, 5, 13)")]),
    (Bug::PgConflictIsWon, &[("ON CONFLICT (id) DO NOTHING", "ON CONFLICT (id) DO UPDATE SET id = excluded.id")]),
    (
        Bug::PgAnswerByFence,
        &[
            ("k.fence = h.fence AND k.id = h.id AND h.slot", "k.fence = h.fence AND h.slot"),
            ("a.fence = h.fence AND a.id = h.id LIMIT 1", "a.fence = h.fence LIMIT 1"),
        ],
    ),
    (Bug::PgAnswersInOneTable, &[("(only_slot OR g.slot IS NOT DISTINCT FROM into_slot)", "true")]),
    (
        Bug::PgRingTurnsEarly,
        &[("moment >= (bucket + 1) * width", "moment >= bucket * width"), ("FOR back IN 1 .. 2 LOOP", "FOR back IN 0 .. 1 LOOP")],
    ),
    (Bug::PgFloorForgotten, &[("pace.floor := greatest(pace.floor, fence_max);", "")]),
    (
        Bug::PgLogByMaximum,
        &[(
            "UPDATE hapax.meta SET logged = logged + 1 RETURNING logged INTO number;",
            "SELECT coalesce(max(a.sequence), 0) + 1 INTO number FROM hapax.audit AS a;",
        )],
    ),
    (
        Bug::PgRenewalOfAnyFence,
        &[
            (
                "WHERE o.fence = g.fence AND o.state = 1 FOR NO KEY UPDATE OF o SKIP LOCKED",
                "WHERE o.state = 1 FOR NO KEY UPDATE OF o SKIP LOCKED",
            ),
            ("WHERE o.id IS NULL OR o.fence <> g.fence OR o.state <> 1;", "WHERE o.id IS NULL OR o.state <> 1;"),
        ],
    ),
    (
        Bug::PgSettlementKeepsFence,
        &[(
            "state = as_state, status = as_status, fence = greatest(moment, pace.floor + 1, o.fence + 1),",
            "state = as_state, status = as_status,",
        )],
    ),
    (
        Bug::PgSweepRemovesUnresolved,
        &[(
            "AND hapax.is_gone(o.state, o.tombstone_until, moment)\n            LIMIT",
            "AND o.state <> 1 AND o.tombstone_until <= moment\n            LIMIT",
        )],
    ),
    (Bug::PgForgetKeepsEpoch, &[("UPDATE hapax.meta SET epoch = epoch + 1;", "")]),
    (Bug::PgCommitsAreNotWaitedFor, &[("PERFORM set_config('synchronous_commit', 'on', true);", "NULL;")]),
    (
        Bug::PgUnfencedJoin,
        &[
            ("o.id = of_id AND o.fence = of_fence AND o.state IN (1, 5, 13)", "o.id = of_id AND o.state IN (1, 5, 13)"),
            ("IF h.fence IS DISTINCT FROM of_fence THEN", "IF h.fence IS NULL THEN"),
        ],
    ),
    (
        Bug::PgJoinReplacesAnswer,
        &[("o.fence = of_fence AND o.state IN (1, 5, 13)", "o.fence = of_fence AND o.state IN (1, 2, 3, 5, 13)")],
    ),
    (
        Bug::PgJoinOfAnyOperation,
        &[
            ("OR substr(proof, 1, 8) <> substr(first_rule, 1, 8)", ""),
            ("IF substr(proof, 9) <> (CASE", "IF false AND substr(proof, 9) <> (CASE"),
        ],
    ),
    (Bug::PgJoinOfAnyLife, &[("IF substr(proof, 9) <> (CASE", "IF false AND substr(proof, 9) <> (CASE")]),
    (
        Bug::PgClockIsBelieved,
        &[
            ("moment > pace.clock_floor + 3600000000 AND pace.clock_floor > 0", "false"),
            ("pace.skew := pace.clock_floor - here;", "NULL;"),
        ],
    ),
    (Bug::PgStandbyIsRead, &[("IF pg_is_in_recovery() THEN", "IF false THEN")]),
    (
        Bug::PgStartOnlyLocks,
        &[
            ("CASE WHEN NOT EXISTS (SELECT FROM hapax.heads AS r WHERE r.id = of_id)", "CASE WHEN true"),
            (
                "ON CONFLICT (id) DO NOTHING RETURNING o.* INTO h;",
                "ON CONFLICT (id) DO UPDATE SET fence = excluded.fence, state = 1, token = excluded.token RETURNING o.* INTO h;",
            ),
        ],
    ),
    (
        Bug::PgStartOfAnyFingerprint,
        &[
            ("h.fingerprint IS DISTINCT FROM of_fingerprint OR", ""),
            ("ELSIF h.fingerprint <> start.fingerprint THEN", "ELSIF false THEN"),
        ],
    ),
    (
        Bug::PgAnswerOutside,
        &[
            ("IF NOT EXISTS (SELECT FROM pg_trigger AS t", "IF false AND NOT EXISTS (SELECT FROM pg_trigger AS t"),
            (
                "IF store.terms IS NULL OR NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = 'hapax.heads'::regclass AND t.tgname = 'must_be_completed') THEN",
                "IF store.terms IS NULL THEN",
            ),
            ("AND EXISTS (SELECT FROM pg_trigger AS g WHERE g.tgrelid = 'hapax.heads'::regclass AND g.tgname = 'must_be_completed')", ""),
        ],
    ),
    (
        Bug::FlowReceiptsDroppedEarly,
        &[
            ("widest := coalesce((SELECT max(c.time_window) FROM hapax.consumers AS c), 0);", "widest := 0;"),
            ("UPDATE hapax.consumers AS c SET since = oldest WHERE c.time_window IS NOT NULL AND c.since < oldest;", ""),
        ],
    ),
];

/// The SQL in which the texts are searched.
const MIGRATIONS: [&str; 7] = [
    super::STORE,
    super::LIVES,
    super::COUNTS,
    super::REQUEST_ID,
    super::TWO_CALLS,
    super::START_RECORD,
    super::INBOX,
];

/// The SQL of a migration with the active bugs. Every text is searched in all migrations, whichever
/// bug is active: a text that no longer occurs would plant nothing, and a test that then finds no
/// bug would prove nothing.
pub(super) fn plant(sql: &str, is_alive: fn(Bug) -> bool) -> String {
    let mut planted = sql.to_owned();
    for (bug, places) in PLANTS {
        for (right, wrong) in *places {
            let has_place = MIGRATIONS.iter().any(|sql| sql.contains(right));
            assert!(
                has_place,
                "{bug:?} has no place in the schema any more: {right:?} is not there"
            );
            if is_alive(*bug) {
                planted = planted.replace(right, wrong);
            }
        }
    }
    planted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_has_its_place_in_the_schema() {
        for sql in MIGRATIONS {
            assert_eq!(plant(sql, |_| false), sql);
        }
        for (bug, places) in PLANTS {
            for (right, wrong) in *places {
                assert!(!wrong.contains(right), "{bug:?} changes nothing");
            }
        }
    }
}
