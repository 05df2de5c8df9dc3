//! The database's clock jumps ahead: finished records must neither count as expired nor be removed.

use std::time::{Duration, SystemTime};

use hapax::{Postgres, Store};
use hapax_core::Timestamp;
use hapax_core::store::Written;

use super::alarm;
use super::subject::{LONG, Subject, answer, kept};
use super::world::{Server, open, prepared, session};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The server's clock plus an offset that the test sets.
const CLOCK: &str = "
    CREATE TABLE public.jump (by int8 NOT NULL);
    INSERT INTO public.jump VALUES (0);
    CREATE OR REPLACE FUNCTION hapax.clock() RETURNS int8 LANGUAGE sql VOLATILE AS
        $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 + jump.by FROM public.jump $$;
";

struct World {
    user: tokio_postgres::Client,
    store: Postgres,
    url: String,
}

impl World {
    async fn new() -> Option<World> {
        let server = Server::shared()?;
        let url = prepared(server).await;
        let user = session(&url).await;
        user.batch_execute(CLOCK).await.unwrap();
        let store = open(&url).await;
        store.sweep(100).await.unwrap();
        Some(World { user, store, url })
    }

    async fn jump(&self, by: Duration) {
        self.user
            .batch_execute(&format!("UPDATE public.jump SET by = {}", by.as_micros()))
            .await
            .unwrap();
    }

    /// Completes a key with the lifetime [`kept`], which is over by the clock that jumps.
    async fn completed(&self, key: &str) -> Subject {
        let subject = Subject::new(key);
        let Ok(Written::Won(won)) = self.store.put_if(subject.claim(LONG)).await else {
            panic!("{key}")
        };
        let ended = self
            .store
            .put_if(subject.complete(won.head.fence, &answer(key), kept()))
            .await;
        assert!(matches!(ended, Ok(Written::Won(_))), "{ended:?}");
        subject
    }

    /// Whether the key could be claimed again.
    async fn runs_again(&self, subject: &Subject) -> bool {
        matches!(
            self.store.put_if(subject.claim(LONG)).await,
            Ok(Written::Won(_))
        )
    }

    async fn now(&self) -> Timestamp {
        self.store.info().await.unwrap().now
    }
}

fn wall() -> Timestamp {
    Timestamp::from_system_time(SystemTime::now())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_ahead_removes_nothing_and_lets_nothing_run_again() {
    alarm::listen();
    let Some(world) = World::new().await else {
        return;
    };
    let (first, second) = (
        world.completed("first").await,
        world.completed("second").await,
    );
    let running = Subject::new("running");
    assert!(matches!(
        world.store.put_if(running.claim(LONG)).await,
        Ok(Written::Won(_))
    ));
    let heard = alarm::heard("clock of the database").len();

    world.jump(400 * DAY).await;
    assert!(
        !world.runs_again(&first).await,
        "at once, before anybody has swept"
    );
    for _ in 0..5 {
        let swept = world.store.sweep(1000).await.unwrap();
        assert_eq!(swept.total(), 0, "{swept:?}");
    }
    assert!(!world.runs_again(&second).await && !world.runs_again(&running).await);
    let read = world.store.get(vec![first.id, second.id]).await.unwrap();
    assert!(
        read.records
            .iter()
            .all(|record| record.as_ref().unwrap().answer.is_some()),
        "they replay: {read:?}"
    );
    assert!(
        world.now().await < wall().after(DAY),
        "time goes on from where it was"
    );
    assert_eq!(
        alarm::heard("clock of the database").len(),
        heard + 1,
        "told once"
    );
    assert!(
        world.store.stats().clock_ahead_seconds > (399 * DAY).as_secs(),
        "{:?}",
        world.store.stats()
    );
    // Other nodes detect it too, also those that start later.
    let other = open(&world.url).await;
    other.sweep(100).await.unwrap();
    assert!(other.stats().clock_ahead_seconds > 0);
    world.completed("meanwhile").await;

    // The clock is corrected: no damage is left.
    world.jump(Duration::ZERO).await;
    world.store.sweep(100).await.unwrap();
    assert_eq!(world.store.stats().clock_ahead_seconds, 0);
    let (now, wall) = (world.now().await, wall());
    assert!(
        now < wall.after(Duration::from_secs(60)) && now.after(Duration::from_secs(60)) > wall,
        "{now:?} is not {wall:?}"
    );
    assert!(!world.runs_again(&first).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_in_which_nobody_was_there_passes() {
    let Some(world) = World::new().await else {
        return;
    };
    // Simulates that the last sweep was ten days ago, by a correct clock.
    let past = format!(
        "UPDATE hapax.pace SET clock_floor = clock_floor - {}, lapsed_to = 0",
        (10 * DAY).as_micros()
    );
    world.user.batch_execute(&past).await.unwrap();
    let subject = world.completed("fresh").await;
    assert!(world.now().await.after(Duration::from_secs(60)) > wall());
    assert_eq!(world.store.stats().clock_ahead_seconds, 0);
    assert!(!world.runs_again(&subject).await);
}
