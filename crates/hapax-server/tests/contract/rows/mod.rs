//! The rows: each sets up a world in which one answer is due.

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

/// The kinds of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// A rejection of the table, with retry advice.
    Rejection { code: &'static str, again: bool },
    /// A problem of the gateway about an unguarded request, without retry advice.
    Problem(&'static str),
    /// The upstream's answer, kept from now on.
    First,
    /// The upstream's answer, not kept.
    Passed,
    /// The upstream's answer, unchanged, with retry advice: it does not tell whether the effect is
    /// done.
    Held { again: bool },
    /// The stored answer.
    Replay,
}

/// Changes the gateway's configuration before it starts.
type Settle = Box<dyn Fn(&mut Config)>;

/// Provokes the answer. Returns the world too, because some rows start another one.
type Provoke = Box<dyn Fn(World) -> Pin<Box<dyn Future<Output = (World, Answer)>>>>;

pub struct Row {
    pub name: &'static str,
    pub status: u16,
    pub says: Says,
    /// The number of effects that the upstream has counted at the end.
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

    /// Sets one route for all paths, with this policy.
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

    /// Stores the records in Postgres.
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

    /// For rows that need several worlds, one after another.
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

/// Like [`rejected`], with the advice to retry.
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
