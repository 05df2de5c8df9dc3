//! A node on a database, with work for one driver.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hapax::{Done, Hapax, Mode, Once, Operation, Policy, RecordId, Rejection, RunError};
use hapax_testkit::{Fault, Faulty, Verb};

use crate::place::{Place, messages_agree};
use crate::script::{Driver, Failed, Script};

pub struct World<D> {
    pub place: Place,
    pub driver: Arc<D>,
    pub faulty: Arc<Faulty>,
    pub once: Once,
    began: Arc<Mutex<Vec<Operation>>>,
}

pub type Work = Result<hapax::Kept, Failed>;

impl<D: Driver> World<D> {
    /// `None`, after printing why, if there is no server.
    pub async fn new() -> Option<World<D>> {
        let place = Place::new::<D>().await?;
        let driver = D::new(place.at());
        Some(World::on(place, driver).await)
    }

    pub async fn on(place: Place, driver: D) -> World<D> {
        let faulty = Arc::new(Faulty::new(place.store().await));
        let once = once(
            Hapax::builder_shared(faulty.clone()).sweep(None).build(),
            LONG,
        );
        World {
            place,
            driver: Arc::new(driver),
            faulty,
            once,
            began: Arc::default(),
        }
    }

    /// Another node on the same database.
    pub async fn another(&self) -> Once {
        once(
            Hapax::builder_shared(self.place.store().await)
                .sweep(None)
                .build(),
            LONG,
        )
    }

    /// The same node with short leases whose renewals fail, so that its attempts lapse at once.
    pub fn unrenewed(&self) -> Once {
        self.faulty
            .fail_next(Verb::Renew, Fault::ErrorBefore, usize::MAX);
        once(
            Hapax::builder_shared(self.faulty.clone())
                .sweep(None)
                .build(),
            SHORT,
        )
    }

    /// Runs the script under a key.
    pub async fn run(&self, key: &str, script: Script) -> Result<Done<Bytes>, RunError> {
        self.run_on(&self.once, key, script).await
    }

    pub async fn run_on(
        &self,
        once: &Once,
        key: &str,
        script: Script,
    ) -> Result<Done<Bytes>, RunError> {
        self.work(once, key, async move |driver: Arc<D>, operation| {
            driver.perform(&operation, &script).await
        })
        .await
    }

    /// Runs the given work under a key.
    pub async fn work<F, W>(&self, once: &Once, key: &str, work: W) -> Result<Done<Bytes>, RunError>
    where
        W: FnOnce(Arc<D>, Operation) -> F + Send + 'static,
        F: Future<Output = Work> + Send + 'static,
    {
        let (driver, began) = (self.driver.clone(), self.began.clone());
        let work = move |operation: Operation| async move {
            began.lock().unwrap().push(operation.clone());
            let kept = work(driver, operation).await?;
            Ok::<_, Failed>(kept.into_response().into_body())
        };
        once.run(key, "order", work).await
    }

    /// Runs the script under a key until it has an answer.
    pub async fn drive(&self, once: &Once, key: &str, script: &Script) -> Done<Bytes> {
        loop {
            match self.run_on(once, key, script.clone()).await {
                Ok(ran) => return ran,
                // The lease runs by the store's clock, which a test cannot advance.
                Err(
                    RunError::Lost { .. }
                    | RunError::Rejected(Rejection::InFlight { .. } | Rejection::StoreUnavailable),
                ) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{key}: {error:?}"),
            }
        }
    }

    /// The last attempt that has begun.
    pub fn last(&self) -> Operation {
        self.began
            .lock()
            .unwrap()
            .last()
            .expect("something has begun")
            .clone()
    }

    /// How many attempts have begun.
    pub fn attempts(&self) -> usize {
        self.began.lock().unwrap().len()
    }

    /// How many effects the key of the last attempt has.
    pub async fn effects(&self) -> i64 {
        messages_agree(&self.place.rows().await);
        self.place.effects(self.record()).await
    }

    pub fn record(&self) -> RecordId {
        self.last().record()
    }
}

/// Longer than every test that sets no lease itself.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(100);

pub fn once(hapax: Hapax, lease: Duration) -> Once {
    let policy = Policy {
        mode: Mode::Transaction,
        lease,
        ..Policy::default()
    };
    hapax
        .namespace("shop")
        .once("order")
        .policy(policy)
        .expect("a store that takes part in transactions")
}
