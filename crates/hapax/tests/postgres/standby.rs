//! A standby may lack the latest writes, and then a key that has run looks new.

use hapax::Postgres;
use hapax_core::Store;
use hapax_testkit::servers;

use crate::lanes::{claim, won};
use crate::place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_no_store() {
    let Some(primary) = servers::Postgres::in_memory(&[]) else {
        return;
    };
    let url = primary.database();
    place::migrate(&url).await;
    let standby = primary.synchronous_standby();
    let head = won(place::open(&url).await.put_if(claim("written")).await);

    let url = standby.url(url.rsplit('/').next().expect("a database"));
    for url in [url.clone(), format!("{url}?target_session_attrs=any")] {
        let Err(error) = Postgres::open(&url).await else {
            panic!("{url} was opened")
        };
        assert!(error.to_string().contains("standby"), "{error}");
    }
    // It also refuses reads of a session that a pooler has moved to the standby.
    let session = place::session(&url).await;
    let read = session
        .query(
            "SELECT * FROM hapax.get($1)",
            &[&vec![&head.id.as_bytes()[..]]],
        )
        .await;
    assert_eq!(
        read.expect_err("it was read")
            .code()
            .map(|code| code.code()),
        Some("25006")
    );
    for sql in [
        "hapax.pulse()",
        "hapax.list(NULL, NULL, 10)",
        "hapax.log(NULL, NULL, NULL, 10)",
    ] {
        let read = session.query(&format!("SELECT * FROM {sql}"), &[]).await;
        assert_eq!(
            read.expect_err("it was read")
                .code()
                .map(|code| code.code()),
            Some("25006"),
            "{sql}"
        );
    }
}
