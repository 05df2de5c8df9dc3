//! The rows: each a small world in which one answer is due.

mod keys;
mod limits;
mod principals;
mod running;
mod store;
mod unguarded;
mod upstream;

use std::pin::Pin;

use hapax::Policy;
use hapax_server::config::Config;

use crate::harness::Answer;
use crate::world::{World, everywhere};

/// What an answer has to say about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// Ours, by the table, with advice whether to try again.
    Rejection { code: &'static str, again: bool },
    /// The gateway's own about a request that was not guarded, without such advice.
    Problem(&'static str),
    /// The upstream's, kept from now on.
    First,
    /// The upstream's, not kept.
    Passed,
    /// The upstream's, unchanged, with advice whether to try again: it does not tell whether the
    /// effect is done.
    Held { again: bool },
    /// The stored one.
    Replay,
}

/// What the gateway is told before it starts.
type Settle = Box<dyn Fn(&mut Config)>;

/// What provokes the answer. The world comes back with it, because some rows start another.
type Provoke = Box<dyn Fn(World) -> Pin<Box<dyn Future<Output = (World, Answer)>>>>;

pub struct Row {
    pub name: &'static str,
    pub status: u16,
    pub says: Says,
    /// What the upstream counts in the end.
    pub effects: usize,
    pub needs_small_disk: bool,
    pub needs_database: bool,
    settle: Vec<Settle>,
    provoke: Option<Provoke>,
}

impl Row {
    fn new(name: &'static str, status: u16, says: Says, effects: usize) -> Row {
        Row {
            name,
            status,
            says,
            effects,
            needs_small_disk: false,
            needs_database: false,
            settle: Vec::new(),
            provoke: None,
        }
    }

    /// A route for everything with this policy.
    fn policy(self, change: impl Fn(&mut Policy) + 'static) -> Row {
        self.config(move |config| {
            let mut policy = Policy::default();
            change(&mut policy);
            config.routes = vec![everywhere(policy)];
        })
    }

    fn config(mut self, change: impl Fn(&mut Config) + 'static) -> Row {
        self.settle.push(Box::new(change));
        self
    }

    fn on_small_disk(mut self) -> Row {
        self.needs_small_disk = true;
        self
    }

    /// With its records in a Postgres.
    fn on_database(mut self) -> Row {
        self.needs_database = true;
        self
    }

    fn by(self, provoke: impl AsyncFn(&mut World) -> Answer + Copy + 'static) -> Row {
        self.by_worlds(async move |mut world: World| {
            let got = provoke(&mut world).await;
            (world, got)
        })
    }

    /// For those that need more than one world, one after another.
    fn by_worlds(
        mut self,
        provoke: impl AsyncFn(World) -> (World, Answer) + Copy + 'static,
    ) -> Row {
        self.provoke = Some(Box::new(move |world| {
            Box::pin(async move { provoke(world).await })
        }));
        self
    }

    pub fn settle(&self, config: &mut Config) {
        self.settle.iter().for_each(|change| change(config));
    }

    pub async fn provoke(&self, world: World) -> (World, Answer) {
        let provoke = self
            .provoke
            .as_ref()
            .unwrap_or_else(|| panic!("nothing provokes {:?}", self.name));
        provoke(world).await
    }
}

fn rejected(name: &'static str, status: u16, code: &'static str, effects: usize) -> Row {
    Row::new(
        name,
        status,
        Says::Rejection { code, again: false },
        effects,
    )
}

/// The same, with the advice to try again.
fn deferred(name: &'static str, status: u16, code: &'static str, effects: usize) -> Row {
    Row::new(name, status, Says::Rejection { code, again: true }, effects)
}

pub fn all() -> Vec<Row> {
    [
        keys::rows(),
        limits::rows(),
        principals::rows(),
        running::rows(),
        upstream::rows(),
        store::rows(),
        unguarded::rows(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
