//! What is measured, once it runs.

use crate::client::Request;
use crate::directory::Directory;

use super::process::Process;

/// Where orders go.
pub(super) const ORDERS: &str = "/v1/charges";

/// A server that accepts orders.
pub(super) struct Server {
    /// The one whose processor time counts.
    pub(super) process: Process,
    /// What it needs behind it instead of the upstream that the others share.
    pub(super) service: Option<Process>,
    pub(super) address: String,
    pub(super) order: Request,
    pub(super) without_key: Request,
    /// Goes when nobody uses it any more.
    pub(super) _directory: Option<Directory>,
}
