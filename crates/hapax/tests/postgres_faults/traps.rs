//! Problems seen with other layouts and statements on Postgres, one test for each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::store::postgres::OpenError;
use hapax::{Postgres, Store};
use hapax_core::record::{Fence, State};
use hapax_core::store::{Put, StoreError, StoreErrorKind, Written};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::subject::{LONG, Subject, answer, kept};
use super::world::{Server, name, open, prepared, session};

/// How long a locked record may delay other calls: the batch waits a tenth of a second for the lock
/// and is then sent one by one. The rest allows for a slow machine.
const HELD_UP_MAX: Duration = Duration::from_millis(1500);
/// As many as go into one statement together with the held record.
const OTHERS: usize = 63;
const FRESH: usize = 64;

type Sent = JoinHandle<(Result<Written, StoreError>, Duration)>;

fn send(store: &Arc<Postgres>, put: Put) -> Sent {
    let store = store.clone();
    tokio::spawn(async move {
        let begun = Instant::now();
        let written = store.put_if(put).await;
        (written, begun.elapsed())
    })
}

/// Checks that all of these writes won. Returns the longest time that one took.
async fn won(sent: Vec<Sent>) -> Duration {
    let mut longest = Duration::ZERO;
    for sent in sent {
        let (written, took) = sent.await.unwrap();
        assert!(matches!(written, Ok(Written::Won(_))), "{written:?}");
        longest = longest.max(took);
    }
    longest
}

async fn claimed(store: &Arc<Postgres>, subject: &Subject) -> Fence {
    match store.put_if(subject.claim(LONG)).await {
        Ok(Written::Won(won)) => won.head.fence,
        other => panic!("{other:?}"),
    }
}

async fn completes(
    store: &Arc<Postgres>,
    subject: &Subject,
    fence: Fence,
) -> Result<Written, StoreError> {
    store
        .put_if(subject.complete(fence, &answer("done"), kept()))
        .await
}

/// A session with an open transaction, until the caller ends it.
async fn transaction(url: &str, sql: &str) -> Client {
    let session = session(url).await;
    session
        .batch_execute(&format!("BEGIN; {sql}"))
        .await
        .unwrap();
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_in_an_open_transaction_holds_up_nobody_elses() {
    let Some(server) = Server::shared() else {
        return;
    };
    let url = prepared(server).await;
    let store = Arc::new(open(&url).await);
    let (held, others) = (Subject::new("held"), Subject::many("other", OTHERS));
    let mut fences = Vec::new();
    for subject in others.iter().chain([&held]) {
        fences.push(claimed(&store, subject).await);
    }
    let fence = fences.pop().unwrap();
    let user = transaction(
        &url,
        &format!(
            "UPDATE hapax.heads SET version = version WHERE {}",
            held.row()
        ),
    )
    .await;

    let end_held = send(&store, held.complete(fence, &answer("held"), kept()));
    let mut sent: Vec<_> = others
        .iter()
        .zip(fences)
        .map(|(other, fence)| send(&store, other.complete(fence, &answer("other"), kept())))
        .collect();
    sent.extend(
        Subject::many("fresh", FRESH)
            .iter()
            .map(|fresh| send(&store, fresh.claim(LONG))),
    );
    let longest = won(sent).await;
    hapax_testkit::report!(
        "beside a record that is held: {OTHERS} ends and {FRESH} claims, the longest took {longest:?}; {:?}",
        store.stats()
    );
    assert!(
        longest < HELD_UP_MAX,
        "somebody was held up for {longest:?}"
    );

    let (written, took) = end_held.await.unwrap();
    let error = written.expect_err("nobody can tell while the transaction is open");
    assert_eq!(error.kind(), StoreErrorKind::Locked);
    assert!(
        error
            .to_string()
            .contains("locked by a transaction that has not ended"),
        "{error}"
    );
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(
        store.stats().alone > 0,
        "void: nothing was sent together with what is held"
    );
    user.batch_execute("COMMIT").await.unwrap();
    assert!(matches!(
        completes(&store, &held, fence).await,
        Ok(Written::Won(_))
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncommitted_claim_makes_only_claims_of_the_same_key_wait() {
    let Some(server) = Server::shared() else {
        return;
    };
    let url = prepared(server).await;
    let store = Arc::new(open(&url).await);
    // This claim stores the fingerprint's policy in the database.
    claimed(&store, &Subject::new("first")).await;
    for (round, end) in ["ROLLBACK", "COMMIT"].into_iter().enumerate() {
        let held = Subject::new(&format!("held-{round}"));
        let user = transaction(&url, &held.claim_sql()).await;
        let waiting = send(&store, held.claim(LONG));
        let fresh = Subject::many(&format!("fresh-{round}"), FRESH);
        let longest = won(fresh
            .iter()
            .map(|fresh| send(&store, fresh.claim(LONG)))
            .collect())
        .await;
        hapax_testkit::report!(
            "beside an uncommitted claim: {FRESH} claims, the longest took {longest:?}"
        );
        assert!(
            longest < HELD_UP_MAX,
            "somebody was held up for {longest:?}"
        );
        user.batch_execute(end).await.unwrap();

        // Before the transaction ends, the outcome of the claim cannot be known. If it was given up
        // meanwhile, sending it again shows the outcome.
        let written = match waiting.await.unwrap().0 {
            Ok(written) => written,
            Err(error) => {
                assert!(
                    matches!(
                        error.kind(),
                        StoreErrorKind::Locked | StoreErrorKind::Unavailable
                    ),
                    "{error}"
                );
                store.put_if(held.claim(LONG)).await.unwrap()
            }
        };
        match (end, written) {
            ("ROLLBACK", Written::Won(_)) => {}
            ("COMMIT", Written::Lost(seen)) => {
                assert_ne!(seen.record.unwrap().head.token, held.token);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Holds every insertion into `heads` between its reads and its write while `public.gate` is
/// closed, except for the faster session.
const GATE: &str = "
    CREATE TABLE public.gate (is_open boolean NOT NULL, arrived int NOT NULL);
    INSERT INTO public.gate VALUES (false, 0);
    CREATE SEQUENCE public.arrivals;
    CREATE FUNCTION public.pass() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('application_name') = 'the one who is faster' THEN
            RETURN NULL;
        END IF;
        PERFORM nextval('public.arrivals');
        WHILE NOT (SELECT is_open FROM public.gate) LOOP
            PERFORM pg_sleep(0.002);
        END LOOP;
        RETURN NULL;
    END $$;
    CREATE TRIGGER gate BEFORE INSERT ON hapax.heads FOR EACH STATEMENT EXECUTE FUNCTION public.pass();
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_comes_between_the_look_and_the_write_is_seen_and_not_taken_for_absent() {
    let Some(server) = Server::shared() else {
        return;
    };
    let url = prepared(server).await;
    let store = Arc::new(open(&url).await);
    claimed(&store, &Subject::new("first")).await;
    let user = session(&url).await;
    user.batch_execute(GATE).await.unwrap();
    user.batch_execute("SET application_name = 'the one who is faster'")
        .await
        .unwrap();

    let subject = Subject::new("contended");
    let slower = send(&store, subject.claim(LONG));
    let arrived = async || {
        user.query_one("SELECT is_called FROM public.arrivals", &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    };
    while !arrived().await {
        tokio::task::yield_now().await;
    }
    user.batch_execute(&subject.claim_sql()).await.unwrap();
    user.batch_execute("UPDATE public.gate SET is_open = true")
        .await
        .unwrap();
    let (written, took) = slower.await.unwrap();
    match written {
        Ok(Written::Lost(seen)) => {
            let head = seen.record.expect("it is there").head;
            assert_eq!((head.state, head.attempts), (State::Running, 1));
            assert_ne!(head.token, subject.token, "it is the other's");
        }
        other => panic!("after {took:?}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_isolation_than_read_committed_is_refused_in_so_many_words() {
    let Some(server) = Server::shared() else {
        return;
    };
    for isolation in ["serializable", "repeatable read"] {
        let url = prepared(server).await;
        server.psql(
            "postgres",
            &format!(
                "ALTER DATABASE {} SET default_transaction_isolation = '{isolation}'",
                name(&url)
            ),
        );
        let refused = match Postgres::open(&url).await {
            Err(error) => error.to_string(),
            Ok(store) => match store.put_if(Subject::new("one").claim(LONG)).await {
                Err(error) => error.to_string(),
                Ok(written) => panic!("under {isolation}: {written:?}"),
            },
        };
        assert!(
            refused.contains("READ COMMITTED") && refused.contains(isolation),
            "{refused}"
        );
    }
}

/// A trigger that runs at commit and records the session's `synchronous_commit`.
const WITNESS: &str = "
    CREATE TABLE public.witness (setting text NOT NULL, operation text NOT NULL);
    CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        INSERT INTO public.witness VALUES (current_setting('synchronous_commit'), TG_OP);
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER witness AFTER INSERT OR UPDATE ON hapax.heads DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION public.see();
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_does_not_wait_for_its_disk_waits_for_ours() {
    let Some(server) = Server::shared() else {
        return;
    };
    for (weak, is_enough) in [("off", false), ("local", false), ("remote_write", true)] {
        let url = prepared(server).await;
        server.psql(
            "postgres",
            &format!(
                "ALTER DATABASE {} SET synchronous_commit = '{weak}'",
                name(&url)
            ),
        );
        let user = session(&url).await;
        user.batch_execute(WITNESS).await.unwrap();
        let store = Arc::new(open(&url).await);
        let subject = Subject::new("one");
        let fence = claimed(&store, &subject).await;
        assert!(matches!(
            completes(&store, &subject, fence).await,
            Ok(Written::Won(_))
        ));
        let rows = user
            .query(
                "SELECT operation, setting FROM public.witness ORDER BY 1",
                &[],
            )
            .await
            .unwrap();
        let seen: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let expected = if is_enough { weak } else { "on" };
        assert_eq!(
            seen,
            ["INSERT", "UPDATE"].map(|operation| (operation.to_owned(), expected.to_owned())),
            "where {weak} is the default"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_without_the_schema_is_refused_with_what_to_do() {
    let Some(server) = Server::shared() else {
        return;
    };
    match Postgres::open(&server.database()).await.err() {
        Some(error @ OpenError::NotMigrated { .. }) => {
            assert!(error.to_string().contains("hapax migrate"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}
