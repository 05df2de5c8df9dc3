//! Work without HTTP: runs named work once per key.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::answer::Answer;
use hapax_core::key::{Key, KeyError};
use hapax_core::outcome::{Loss, Outcome};
use hapax_core::policy::{Mode, Part, Policy, PolicyError};
use hapax_core::scope::{Principal, RecordId, Scope};
use hapax_core::store::Store;

use super::call::{Call, Ended, Plain, Reply};
use super::drive::not_kept;
use super::engine::Engine;
use super::not_done::{is_not_done, remove_mark};
use super::operation::Operation;
use super::run_error::RunError;
use super::velocity::Counted;
use super::{BoxError, because};

/// Runs named work once per key, without HTTP: for jobs, queues and command-line tools. See the
/// [module](super) for its use.
#[derive(Clone)]
pub struct Once {
    engine: Arc<Engine>,
    policy: Arc<Policy>,
    /// The policy's, unless it is set here.
    wait: Option<Duration>,
    scope: Scope,
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once")
            .field("scope", &self.scope)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// The result of work under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// The value that the work returned, in this call or in an earlier one.
    pub value: T,
    /// The work did not run in this call: the value is the kept one.
    pub replayed: bool,
}

/// A value that can be kept.
pub(crate) trait Value: Sized + Send + 'static {
    /// The bytes to keep. `None` if the value cannot be written.
    fn write(&self) -> Option<Bytes>;

    fn read(kept: &Bytes) -> Result<Self, RunError>;
}

impl Value for Bytes {
    fn write(&self) -> Option<Bytes> {
        // Copied, because it may be a small part of a large buffer.
        Some(Bytes::copy_from_slice(self))
    }

    fn read(kept: &Bytes) -> Result<Self, RunError> {
        Ok(kept.clone())
    }
}

/// The status of a value that the work returned. One that it stored in its transaction has the
/// status of that answer, which a job's caller does not see.
const DONE: u16 = 200;

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
            wait: None,
            scope,
        }
    }

    /// Keeps this principal's keys apart from everybody else's.
    #[must_use]
    pub fn principal(mut self, principal: impl Into<Principal>) -> Self {
        self.scope.principal = principal.into();
        self
    }

    /// Sets mode, retention and limits.
    pub fn policy(mut self, policy: Policy) -> Result<Self, PolicyError> {
        if let Some(mistake) = policy.mistakes().into_iter().next() {
            return Err(mistake);
        }
        if policy.mode == Mode::Probe {
            return Err(PolicyError::NoProbe);
        }
        if policy.mode == Mode::Transaction && self.engine.store.joins().is_none() {
            return Err(PolicyError::NoTransactions);
        }
        self.policy = Arc::new(policy);
        Ok(self)
    }

    /// Waits so long for a running attempt, and at most for the policy's `wait_max`, before giving
    /// up with `in-flight`.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Takes and returns JSON in place of bytes.
    #[cfg(feature = "json")]
    pub fn json(self) -> super::JsonOnce {
        super::JsonOnce::new(self)
    }

    /// Runs `work` and keeps its value. If the work ran under this key before, returns the kept
    /// value.
    ///
    /// `key` is a [`Key`] or a text that becomes one. `request` is what the work is asked to do: the
    /// same key with another request is refused. The work runs on a task of its own: dropping this
    /// future does not stop it.
    ///
    /// # Errors
    ///
    /// An error or a panic of the work is [`RunError::Lost`], because the work may have had its
    /// effect, unless [`NotDoneExt`](super::NotDoneExt) marked the error. To keep a refusal, return
    /// it as a value.
    pub async fn run<K, W, F, E>(
        &self,
        key: K,
        request: impl Into<Bytes>,
        work: W,
    ) -> Result<Done<Bytes>, RunError>
    where
        K: TryInto<Key>,
        K::Error: Into<KeyError>,
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = Result<Bytes, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        self.run_as(key, None, request.into(), work).await
    }

    /// Runs the work, with the content type of its request.
    pub(super) async fn run_as<T, K, W, F, E>(
        &self,
        key: K,
        content_type: Option<&'static str>,
        request: Bytes,
        work: W,
    ) -> Result<Done<T>, RunError>
    where
        T: Value,
        K: TryInto<Key>,
        K::Error: Into<KeyError>,
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let key = key
            .try_into()
            .map_err(|error| RunError::Key(error.into()))?;
        let call = self.call(key, content_type, request);
        let policy = self.policy.clone();
        let work = move |operation| attempt(work, operation, policy);
        done(self.engine.drive(call, work).await?)
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn call(
        &self,
        key: Key,
        content_type: Option<&'static str>,
        request: Bytes,
    ) -> Call {
        let scope = Arc::new(self.scope.clone());
        Call {
            id: RecordId::of(&scope, &key),
            request: Arc::new(Plain {
                scope: scope.clone(),
                content_type,
                body: request,
            }),
            scope,
            key,
            policy: self.policy.clone(),
            request_id: None,
            trace: None,
            counted: self.counted(),
            unverified: None,
            wait: self
                .wait
                .map_or(self.policy.wait, |wait| wait.min(self.policy.wait_max)),
            deadline: None,
            token_until: None,
        }
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
}

/// The caller's result of a reply.
fn done<T: Value>(reply: Reply<Result<T, RunError>>) -> Result<Done<T>, RunError> {
    let (value, replayed) = match reply {
        Reply::First { live, .. } => (live?, false),
        // The value stored with the effect counts, whatever the work returned after it.
        Reply::Joined {
            answer: Some(answer),
            ..
        } => (T::read(&answer.body)?, false),
        Reply::Joined {
            live: Some(Ok(value)),
            ..
        } => (value, false),
        Reply::Joined { head, .. } => return Err(not_kept(&head).into()),
        Reply::Replay { answer, .. } => (T::read(&answer.body)?, true),
    };
    Ok(Done { value, replayed })
}

/// Runs the work and reads its result as an outcome.
async fn attempt<T, W, F, E>(
    work: W,
    operation: Operation,
    policy: Arc<Policy>,
) -> Ended<Result<T, RunError>>
where
    T: Value,
    W: FnOnce(Operation) -> F,
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    let of_work = operation.clone();
    match catch_panic(async move { work(of_work).await }).await {
        Ok(Ok(value)) => keep(value, &policy),
        Ok(Err(error)) => failed(error.into(), &operation, &policy),
        Err(message) => {
            let cause = format!("the work panicked: {message}");
            operation.note_cause(format!("{cause} (key {:?})", operation.key().as_str()));
            lost(Loss::Panicked, cause.into(), &policy)
        }
    }
}

pub(crate) fn keep<T: Value>(value: T, policy: &Policy) -> Ended<Result<T, RunError>> {
    let written = policy.keep_answers.then(|| value.write()).flatten();
    let answer = written
        .filter(|bytes| bytes.len() <= policy.answer_bytes_max)
        .map(|bytes| Arc::new(Answer::new(DONE, bytes)));
    Ended {
        outcome: Outcome::Kept {
            status: DONE,
            answer,
        },
        live: Ok(value),
    }
}

fn failed<T>(
    error: BoxError,
    operation: &Operation,
    policy: &Policy,
) -> Ended<Result<T, RunError>> {
    if !is_not_done(&*error, operation) {
        operation.note_cause(because(&*error));
        return lost(Loss::NoAnswer, error, policy);
    }
    let error = remove_mark(error);
    operation.note_cause(because(&*error));
    Ended {
        outcome: Outcome::Released { status: None },
        live: Err(RunError::NotDone(error)),
    }
}

fn lost<T>(loss: Loss, error: BoxError, policy: &Policy) -> Ended<Result<T, RunError>> {
    let repeat = policy.mode.repeats_lost();
    Ended {
        outcome: Outcome::Lost(loss),
        live: Err(RunError::Lost { error, repeat }),
    }
}

/// Awaits the future. If it panics, returns the message.
pub(crate) async fn catch_panic<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        // Unwind safe: the future is only dropped after its panic.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(message(&*panic))),
        }
    })
    .await
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it gave no message")
        .to_owned()
}
