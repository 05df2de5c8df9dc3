//! Work without HTTP: the results of the first caller and of repeats.

#[path = "../common/mod.rs"]
mod common;
mod errors;
mod join;
#[cfg(feature = "json")]
mod json;
mod lines;
mod values;

use std::convert::Infallible;

use bytes::Bytes;
use common::{faulty, quiet};
use hapax::{Done, Hapax, Mode, Once, Operation, Policy, RunError};
use hapax_core::record::Head;
use hapax_core::store::ListQuery;

fn memory() -> Hapax {
    quiet(faulty().0)
}

fn policy(mode: Mode) -> Policy {
    Policy {
        mode,
        ..Policy::default()
    }
}

async fn only_head(hapax: &Hapax) -> Head {
    let all = ListQuery {
        state: None,
        after: None,
        limit: 2,
    };
    hapax.list(all).await.unwrap().remove(0)
}

/// Runs work that ends well.
async fn succeed(once: &Once, key: &str) -> Result<Done<Bytes>, RunError> {
    once.run(key, "", done).await
}

async fn done(_: Operation) -> Result<Bytes, Infallible> {
    Ok("done".into())
}
