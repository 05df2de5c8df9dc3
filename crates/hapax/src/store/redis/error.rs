//! What an error of Redis means for a call.

use hapax_core::store::{StoreError, StoreErrorKind};
use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::address::{AddressError, Host};

/// Why a Redis cannot be used as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The address cannot be read.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The server could not be reached, or it failed.
    #[error("{address}: {source}")]
    Connect {
        /// The address, without passwords.
        address: String,
        /// What went wrong.
        source: StoreError,
    },
    /// The server removes records to make room.
    #[error("{address} may not keep what it is given: {reason}")]
    Unfit {
        /// The address, without passwords.
        address: String,
        /// What is wrong, and what to set.
        reason: String,
    },
    /// The store is being copied, or was moved.
    #[error("{address} {refusal}")]
    Standing {
        /// The address, without passwords.
        address: String,
        /// Its standing, and what to do.
        refusal: String,
    },
}

/// What to do after an error that a server has answered with. None of them has changed anything.
pub(super) enum Refused {
    /// The server lacks the script: send its text.
    NoScript,
    /// The slot is at another node.
    Moved,
    /// This call, and only this one, belongs to another node.
    Ask(Host),
    /// This is not the master any more: find it.
    NotMaster(StoreError),
    /// For a moment only: try again.
    Later(StoreError),
    /// It will not do better next time.
    Final(StoreError),
}

pub(super) fn refused(error: &RedisError, asked: &Host) -> Refused {
    let unavailable = |what: &str| StoreError::unavailable(format!("{what} ({asked}: {error})"));
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoScript) => Refused::NoScript,
        ErrorKind::Server(ServerErrorKind::Moved) => Refused::Moved,
        ErrorKind::Server(ServerErrorKind::Ask) => match redirected(error, asked) {
            Some(host) => Refused::Ask(host),
            None => Refused::Later(unavailable("Redis names no node for a slot")),
        },
        ErrorKind::Server(ServerErrorKind::ReadOnly) => {
            Refused::NotMaster(unavailable("this Redis is a replica and takes no writes"))
        }
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown,
        ) => Refused::Later(unavailable("Redis is not ready")),
        _ => by_text(error, asked),
    }
}

/// Errors that the client does not tell apart.
fn by_text(error: &RedisError, asked: &Host) -> Refused {
    let text = error.to_string();
    let unavailable = |what: &str| StoreError::unavailable(format!("{what} ({asked})"));
    let (code, has) = (error.code().unwrap_or_default(), |word: &str| {
        text.contains(word)
    });
    // Redis 6 wraps what a command in a script is refused with.
    if has("READONLY") {
        Refused::NotMaster(unavailable("this Redis is a replica and takes no writes"))
    } else if has("HAPAXCLOSED") {
        Refused::Final(unavailable(
            "this store takes no writes: it is being copied, or was moved",
        ))
    } else if has("HAPAXFULL") {
        Refused::Final(unavailable(
            "too many records are running or unknown: settle unknown ones, or raise open_records_max",
        ))
    } else if has("HAPAXFORMAT") {
        Refused::Final(StoreError::new(
            StoreErrorKind::Unsupported,
            "a record was written by another version of Hapax",
        ))
    } else if code == "OOM" || has("OOM ") {
        Refused::Final(unavailable(
            "Redis is full: raise its maxmemory, or shorten retention",
        ))
    } else if code == "NOREPLICAS" || has("NOREPLICAS") {
        Refused::Later(unavailable(
            "Redis has fewer replicas than min-replicas-to-write",
        ))
    } else if code == "BUSY" {
        Refused::Later(unavailable("Redis runs a script that takes long"))
    } else if code == "MISCONF" || has("MISCONF") {
        Refused::Final(unavailable(
            "Redis cannot write to its disk and takes no writes",
        ))
    } else {
        Refused::Final(StoreError::unavailable(format!(
            "Redis refused a command ({asked}: {error})"
        )))
    }
}

/// The node that a redirection names. An empty name stands for the node that was asked.
fn redirected(error: &RedisError, asked: &Host) -> Option<Host> {
    let (address, _) = error.redirect_node()?;
    let (name, port) = address.rsplit_once(':')?;
    let name = name.trim_matches(['[', ']']);
    Some(Host {
        name: if name.is_empty() { &asked.name } else { name }.to_owned(),
        port: port.parse().ok()?,
    })
}

/// An error of the connection: the call may have been executed or not.
pub(super) fn lost(
    host: &Host,
    error: impl std::error::Error + Send + Sync + 'static,
) -> StoreError {
    StoreError::unavailable(format!(
        "the connection to Redis at {host} was lost: {error}"
    ))
    .because(error)
}
