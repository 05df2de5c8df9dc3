//! Versions of entities: stale ones, gaps, and what waits for them.

use crate::place::{Database, ask};

async fn batch(
    session: &tokio_postgres::Client,
    gaps: &str,
    messages: &[(&str, &str, i64)],
) -> String {
    let messages: Vec<String> = messages
        .iter()
        .map(|(id, entity, version)| format!("[\"{id}\", null, \"{entity}\", {version}]"))
        .collect();
    let sql = format!(
        "SELECT hapax.receive_all('c', '[{}]', '{gaps}')",
        messages.join(",")
    );
    ask(session, &sql).await.expect("receives")
}

#[tokio::test]
async fn stale_versions_are_told_and_receipted() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    // An entity that was never seen takes any version.
    assert_eq!(
        batch(
            &session,
            "apply",
            &[("a", "e", 5), ("b", "e", 4), ("c", "e", 9), ("d", "f", 1)]
        )
        .await,
        "nsnn"
    );
    assert_eq!(
        batch(
            &session,
            "apply",
            &[("b", "e", 4), ("x", "e", 9), ("y", "e", 10)]
        )
        .await,
        "dsn"
    );
    assert_eq!(
        database
            .ask("SELECT string_agg(version::text, ' ' ORDER BY version) FROM hapax.versions")
            .await,
        "1 10"
    );
    // Another consumer compares for itself.
    let other = r#"SELECT hapax.receive_all('d', '[["a", null, "e", 3]]')"#;
    assert_eq!(ask(&session, other).await.expect("receives"), "n");
    // A rollback takes the version back.
    session.batch_execute("BEGIN").await.expect("begins");
    assert_eq!(batch(&session, "apply", &[("z", "e", 20)]).await, "n");
    session.batch_execute("ROLLBACK").await.expect("rolls back");
    assert_eq!(batch(&session, "apply", &[("q", "e", 11)]).await, "n");
}

#[tokio::test]
async fn a_gap_is_parked_and_released_when_it_closes() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    assert_eq!(
        batch(
            &session,
            "park",
            &[("a", "e", 7), ("c", "e", 9), ("d", "e", 10), ("c", "e", 9)]
        )
        .await,
        "nggg"
    );
    for (id, version) in [("c", 9), ("d", 10)] {
        let sql = format!(
            "SELECT hapax.park('c', '{id}', 'gap', 'waits', entity => 'e', version => {version}, payload => '\\x01')"
        );
        assert_eq!(ask(&session, &sql).await.expect("parks"), "t");
        assert_eq!(
            ask(&session, &sql).await.expect("parks"),
            "f",
            "a redelivery is absorbed"
        );
    }
    let next = "SELECT id FROM hapax.parked_take('c')";
    assert_eq!(ask(&session, next).await.expect("takes"), "no row");
    assert_eq!(batch(&session, "park", &[("b", "e", 8)]).await, "n");
    for (id, version) in [("c", "9"), ("d", "10")] {
        assert_eq!(ask(&session, next).await.expect("takes"), id);
        assert_eq!(
            ask(&session, &format!("SELECT hapax.parked_done('c', '{id}')"))
                .await
                .expect("done"),
            "t"
        );
        assert_eq!(
            database
                .ask("SELECT version::text FROM hapax.versions")
                .await,
            version
        );
    }
    assert_eq!(ask(&session, next).await.expect("takes"), "no row");
    assert_eq!(
        batch(
            &session,
            "park",
            &[("c", "e", 9), ("d", "e", 10), ("e", "e", 11)]
        )
        .await,
        "ddn"
    );
}

/// The version before is applied while the gap is on its way to be parked.
#[tokio::test]
async fn a_gap_that_closes_meanwhile_is_not_left_behind() {
    let Some(database) = Database::new().await else {
        return;
    };
    let (session, other) = (database.session().await, database.session().await);
    assert_eq!(batch(&session, "park", &[("a", "e", 1)]).await, "n");
    session.batch_execute("BEGIN").await.expect("begins");
    assert_eq!(batch(&session, "park", &[("c", "e", 3)]).await, "g");
    session.batch_execute("COMMIT").await.expect("commits");
    other.batch_execute("BEGIN").await.expect("begins");
    assert_eq!(batch(&other, "park", &[("b", "e", 2)]).await, "n");
    // Parking waits for the version that closes the gap.
    let park = ask(
        &session,
        "SELECT hapax.park('c', 'c', 'gap', entity => 'e', version => 3)",
    );
    let commit = async {
        database.until_waiting(1).await;
        other.batch_execute("COMMIT").await.expect("commits");
    };
    let (parked, ()) = tokio::join!(park, commit);
    assert_eq!(parked.expect("parks"), "t");
    assert_eq!(
        ask(&session, "SELECT id FROM hapax.parked_take('c')")
            .await
            .expect("takes"),
        "c"
    );
}

#[tokio::test]
async fn a_skipped_version_lets_the_next_one_go_on_and_a_late_one_is_stale() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    assert_eq!(
        batch(&session, "park", &[("a", "e", 1), ("c", "e", 3)]).await,
        "ng"
    );
    for (id, kind, version) in [("b", "failed", 2), ("c", "gap", 3)] {
        let sql = format!(
            "SELECT hapax.park('c', '{id}', '{kind}', entity => 'e', version => {version})"
        );
        assert_eq!(ask(&session, &sql).await.expect("parks"), "t");
    }
    assert_eq!(
        ask(
            &session,
            "SELECT hapax.parked_skip('c', 'b', 'ada', 'broken')"
        )
        .await
        .expect("skips"),
        "t"
    );
    assert_eq!(
        ask(&session, "SELECT id FROM hapax.parked_take('c')")
            .await
            .expect("takes"),
        "c"
    );
    assert_eq!(
        ask(&session, "SELECT hapax.parked_done('c', 'c')")
            .await
            .expect("done"),
        "t"
    );
    assert_eq!(
        batch(&session, "park", &[("b", "e", 2), ("d", "e", 4)]).await,
        "dn"
    );
    // A message that failed, and that a later version overtook, is not applied.
    let sql = "SELECT hapax.park('c', 'late', 'failed', entity => 'e', version => 3), hapax.parked_retry('c', 'late', false, 'ada', 'again')";
    session.batch_execute(sql).await.expect("parks");
    assert_eq!(
        ask(&session, "SELECT hapax.parked_done('c', 'late')")
            .await
            .expect("done"),
        "f"
    );
    assert_eq!(
        database
            .ask("SELECT count(*)::text FROM hapax.parked")
            .await,
        "0"
    );
}

#[tokio::test]
async fn after_a_skipped_version_the_next_one_is_after_no_gap() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    assert_eq!(batch(&session, "park", &[("a", "e", 1)]).await, "n");
    let sql = "SELECT hapax.park('c', 'b', 'failed', entity => 'e', version => 2), hapax.parked_skip('c', 'b', 'ada', 'broken')";
    session.batch_execute(sql).await.expect("skips");
    assert_eq!(
        batch(&session, "park", &[("d", "e", 4), ("c", "e", 3)]).await,
        "gn"
    );
}

#[tokio::test]
async fn after_the_greatest_version_there_is_none() {
    let Some(database) = Database::new().await else {
        return;
    };
    let session = database.session().await;
    let parked =
        "SELECT hapax.park('c', 'z', 'gap', entity => 'e', version => 9223372036854775807)";
    assert_eq!(ask(&session, parked).await.expect("parks"), "t");
    assert_eq!(
        batch(
            &session,
            "park",
            &[("a", "e", i64::MAX), ("b", "e", i64::MIN)]
        )
        .await,
        "ns"
    );
    assert_eq!(
        ask(&session, "SELECT id FROM hapax.parked_take('c')")
            .await
            .expect("takes"),
        "z"
    );
}
