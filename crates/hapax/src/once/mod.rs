//! Once: the only driver of [`decide`](hapax_core::decide()).
//!
//! A request becomes a call; the engine finds out what is remembered of it, and has its work run
//! once. What a call does next is decided by [`Step`](hapax_core::step::Step), and done here:
//! `drive.rs` is the path of a call through this node, `lead.rs` takes its steps up to the claim,
//! `attempt.rs` those from the work on; the other files are what those lean on.
//!
//! Without HTTP, use [`Once`]:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::{Hapax, Key};
//!
//! let hapax = Hapax::new(hapax::store::memory());
//! let once = hapax.once("send-invoice");
//! let send = async |key: &str| once.run(Key::new(key)?, "invoice 17", async |_operation| Ok("sent".into())).await;
//!
//! let first = send("2026-11/17").await?;
//! let again = send("2026-11/17").await?;
//! assert_eq!((first.replayed, again.replayed), (false, true));
//! assert_eq!(first.body, again.body);
//! # Ok(()) }
//! ```

mod attempt;
mod cache;
mod call;
mod capacity;
mod drive;
mod engine;
mod flights;
mod lead;
mod operation;
mod operators;
mod quota_store;
mod remote;
mod renew;
mod shadow;
mod sweep;
mod usage;
mod velocity;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::answer::Answer;
use hapax_core::key::{Key, KeyError};
use hapax_core::outcome::{Loss, Outcome};
use hapax_core::policy::{Mode, Part, Policy, PolicyError};
use hapax_core::rejection::Rejection;
use hapax_core::scope::{Principal, RecordId, Scope};
use hapax_core::store::Store;

pub(crate) use call::{Call, Ended, Fingerprinting, Reply, Request, UnverifiedCall};
pub(crate) use engine::Engine;
pub use engine::{Drained, Limits};
pub(crate) use operation::Joined;
pub use operation::Operation;
pub use operators::{Audit, OperatorError, Settlement};
pub use quota_store::Quotas;
pub(crate) use shadow::Foreseen;
pub use sweep::Sweep;
pub(crate) use sweep::run_once as sweep_once;
pub(crate) use usage::Reserved;
pub use usage::Usage;
pub(crate) use velocity::Counted;

/// Runs named work once per key, without HTTP: for jobs, queues and command-line tools.
#[derive(Clone)]
pub struct Once {
    engine: Arc<Engine>,
    policy: Arc<Policy>,
    scope: Scope,
}

/// What came of [`Once::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// What the work returned, now or the first time.
    pub body: Bytes,
    /// The work did not run now.
    pub replayed: bool,
    /// The work refused, definitively.
    pub refused: bool,
}

/// How work can end other than well.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// It may have had its effect. What every `?` becomes.
    Lost(Box<dyn std::error::Error + Send + Sync>),
    /// It is known to have had no effect: a repeat may run it again.
    NotDone(Box<dyn std::error::Error + Send + Sync>),
    /// A definitive refusal, kept and replayed like a result.
    Refused(Bytes),
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Lost(Box::new(error))
    }
}

/// Why [`Once::run`] has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The key is none.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Hapax answered by itself; [`Rejection::row`] says whether to try again.
    #[error("{}", .0.detail(hapax_core::policy::KEY_FIELD))]
    Rejected(Rejection),
}

impl From<Rejection> for RunError {
    fn from(rejection: Rejection) -> Self {
        RunError::Rejected(rejection)
    }
}

/// An error and what caused it, in a line.
pub(crate) fn because(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    for cause in causes.map(ToString::to_string) {
        // Many say what caused them by themselves.
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

const DONE: u16 = 200;
const REFUSED: u16 = 400;

fn is_refusal(status: u16) -> bool {
    (400..500).contains(&status)
}

impl Once {
    pub(crate) fn new(engine: Arc<Engine>, namespace: Arc<str>, name: &str) -> Self {
        let scope = Scope {
            namespace,
            principal: Principal::Anonymous,
            method: "RUN".into(),
            path: name.into(),
        };
        Once {
            engine,
            policy: Arc::default(),
            scope,
        }
    }

    /// Keeps this principal's keys apart from everybody else's.
    #[must_use]
    pub fn principal(mut self, principal: Principal) -> Self {
        self.scope.principal = principal;
        self
    }

    /// Sets mode, retention and limits.
    pub fn policy(mut self, policy: Policy) -> Result<Self, PolicyError> {
        policy.validate()?;
        if policy.mode == Mode::Probe {
            return Err(PolicyError::NoProbe);
        }
        if policy.mode == Mode::Transaction && self.engine.store.joins().is_none() {
            return Err(PolicyError::NoTransactions);
        }
        self.policy = Arc::new(policy);
        Ok(self)
    }

    /// What a new key counts for. Without HTTP there are no headers, and of the request no more is
    /// known than that it is the work's.
    fn counted(&self) -> Arc<[Counted]> {
        let Scope {
            namespace,
            principal,
            path,
            ..
        } = &self.scope;
        let rules = self
            .policy
            .velocity
            .iter()
            .filter(|rule| rule.by == Part::Principal);
        let name = Part::digest_of_principal(principal);
        rules
            .map(|rule| Counted::new(rule, &[namespace, path], name, name))
            .collect()
    }

    /// Runs `work` unless it ran under this key before; then returns what it returned.
    ///
    /// `request` is what the work is asked to do: the same key with another request is refused. The
    /// work runs on a task of its own: dropping this future does not stop it. An `Err` or a panic
    /// is held as unknown unless the error says otherwise.
    pub async fn run<W, F>(
        &self,
        key: Key,
        request: impl Into<Bytes>,
        work: W,
    ) -> Result<Ran, RunError>
    where
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = Result<Bytes, Failure>> + Send + 'static,
    {
        let scope = Arc::new(self.scope.clone());
        let call = Call {
            id: RecordId::of(&scope, &key),
            request: Arc::new(call::Plain {
                scope: scope.clone(),
                body: request.into(),
            }),
            scope,
            key,
            policy: self.policy.clone(),
            request_id: None,
            counted: self.counted(),
            unverified: None,
            wait: self.policy.wait,
            deadline: None,
            token_until: None,
        };
        let policy = self.policy.clone();
        let reply = self.engine.drive(call, move |operation| async move {
            let kept = |status, body: Bytes| {
                let answer = (policy.keep_answers && body.len() <= policy.answer_bytes_max)
                    .then(|| Arc::new(Answer::new(status, Bytes::copy_from_slice(&body))));
                Ended {
                    outcome: Outcome::Kept { status, answer },
                    live: Ok((status, body)),
                }
            };
            match work(operation.clone()).await {
                Ok(body) => kept(DONE, body),
                Err(Failure::Refused(body)) => kept(REFUSED, body),
                Err(Failure::NotDone(error)) => {
                    operation.note_cause(because(&*error));
                    let rejection = Rejection::UpstreamUnreachable;
                    Ended {
                        outcome: Outcome::Released { status: None },
                        live: Err(rejection),
                    }
                }
                Err(Failure::Lost(error)) => {
                    operation.note_cause(because(&*error));
                    Ended {
                        outcome: Outcome::Lost(Loss::NoAnswer),
                        live: Err(Rejection::lost(&policy, false)),
                    }
                }
            }
        });
        match reply.await? {
            Reply::First { live, .. } => {
                let (status, body) = live?;
                Ok(Ran {
                    body,
                    replayed: false,
                    refused: is_refusal(status),
                })
            }
            Reply::Joined {
                answer: Some(answer),
                ..
            } => Ok(Ran {
                body: answer.body.clone(),
                replayed: false,
                refused: is_refusal(answer.status),
            }),
            Reply::Joined {
                head,
                live,
                answer: None,
            } => {
                let not_kept = Rejection::AnswerNotKept {
                    status: head.answered(),
                    at: head.finished_at,
                };
                let (status, body) = live.unwrap_or(Err(not_kept))?;
                Ok(Ran {
                    body,
                    replayed: false,
                    refused: is_refusal(status),
                })
            }
            Reply::Replay { answer, .. } => Ok(Ran {
                body: answer.body.clone(),
                replayed: true,
                refused: is_refusal(answer.status),
            }),
        }
    }

    /// Waits so long for a running attempt before giving up with `in-flight`.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        let mut policy = Policy::clone(&self.policy);
        policy.wait = wait.min(policy.wait_max);
        self.policy = Arc::new(policy);
        self
    }
}
