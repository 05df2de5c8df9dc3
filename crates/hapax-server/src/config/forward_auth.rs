//! How another service is asked who is asking.

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;

/// How another service is asked who is asking: `[forward_auth]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardAuth {
    /// The field of its answer that names the caller.
    pub principal_field: HeaderName,
    /// Fields of the request that it is shown, besides `Authorization` and `Cookie`.
    pub forward: Vec<HeaderName>,
    /// Fields of its answer that the upstream is shown. Clients cannot set them.
    pub pass: Vec<HeaderName>,
    /// How long it may take, from asking to the last byte of its answer.
    pub timeout: Duration,
    /// How many requests may be asked about at the same time.
    pub concurrency_max: usize,
    /// Whom to believe, besides the system's authorities, when it shows its certificate.
    pub ca_file: Option<PathBuf>,
}

impl ForwardAuth {
    /// Everything at its default.
    pub fn new(principal_field: HeaderName) -> ForwardAuth {
        ForwardAuth {
            principal_field,
            forward: Vec::new(),
            pass: Vec::new(),
            timeout: Duration::from_secs(2),
            concurrency_max: 256,
            ca_file: None,
        }
    }
}
