//! The guard: under which condition a record may change, and what it then becomes.
//!
//! Every change of every record in every store is one of the transitions here. A store calls
//! [`judge`] with its own clock, inside the atomic step that makes the change. The model checker
//! calls the same function.

use crate::planted::{self, Bug};
use crate::record::{Fence, Head, State};
use crate::store::{Change, Claim, Condition, Finish, Lifetime, Put, Renewal, Swept};
use crate::time::Timestamp;

/// The condition did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Judges one write. Returns the new head of the record, or a refusal.
///
/// `floor` is the highest fence of any record the store has ever removed.
pub fn judge(
    current: Option<&Head>,
    put: &Put,
    now: Timestamp,
    floor: Fence,
) -> Result<Head, Refused> {
    match (&put.change, put.condition) {
        (Change::Claim(claim), Condition::Absent) => {
            if current.is_some_and(|head| !head.is_gone(now)) && !planted::is(Bug::CheckThenAct) {
                return Err(Refused);
            }
            Ok(first_claim(put, claim, current, now, floor))
        }
        (Change::Claim(claim), Condition::Lapsed { fence }) => {
            let head = current
                .filter(|head| is_over(head, fence, now))
                .ok_or(Refused)?;
            Ok(next_claim(head, claim, now, floor))
        }
        (Change::Finish(finish), Condition::Held { fence }) if is_end(finish.state) => {
            let head = current
                .filter(|head| is_held(head, fence) || skips_ownership(finish))
                .ok_or(Refused)?;
            Ok(ended(head, finish, now))
        }
        (Change::Lose(lifetime), Condition::Lapsed { fence }) => {
            let head = current
                .filter(|head| head.state == State::Running && is_over(head, fence, now))
                .ok_or(Refused)?;
            Ok(lost(head, *lifetime, now))
        }
        // A settlement must name a known outcome, so `Unknown` is refused.
        (Change::Settle(finish, _), Condition::Version { version })
            if is_end(finish.state) && finish.state != State::Unknown =>
        {
            let head = current
                .filter(|head| head.version == version && head.is_unresolved(head.state_at(now)))
                .ok_or(Refused)?;
            let fence = Fence::mint(head.fence, floor, now);
            Ok(Head {
                fence,
                ..ended(head, finish, now)
            })
        }
        (Change::Forget(lifetime, _), Condition::Version { version }) => {
            let head = current
                .filter(|head| head.version == version && head.state_at(now) != State::Running)
                .ok_or(Refused)?;
            Ok(forgotten(head, *lifetime, now, floor))
        }
        // All other combinations of change and condition are invalid.
        _ => Err(Refused),
    }
}

/// Judges one renewal: a running attempt keeps its lease while it owns its fence. An attempt whose
/// lease has expired gets it back if no other write has followed.
pub fn renew(current: Option<&Head>, renewal: &Renewal, now: Timestamp) -> Result<Head, Refused> {
    let head = current
        .filter(|head| head.fence == renewal.fence && head.state == State::Running)
        .ok_or(Refused)?;
    let fence = if planted::is(Bug::RenewalBumpsFence) {
        Fence::mint(head.fence, Fence::ZERO, now)
    } else {
        head.fence
    };
    Ok(Head {
        lease_until: now.after(renewal.lease),
        version: head.version + 1,
        fence,
        ..head.clone()
    })
}

/// A change of a record that is due by time. A sweep writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// The lease is over: the record gets this head.
    Lost(Box<Head>),
    /// Retention is over: the answer is removed. The head stays; its times make it a tombstone.
    Buried,
    /// The tombstone is over: the record is removed.
    Removed,
}

/// What a sweep has to do with a record at `now`. `lifetime` is for lost attempts, since their
/// policy is not available here.
pub fn due(head: &Head, lifetime: Lifetime, now: Timestamp) -> Option<Due> {
    match (head.state, head.state_at(now)) {
        (State::Running, State::Unknown) => Some(Due::Lost(Box::new(lost(head, lifetime, now)))),
        // The answer goes first and the head in a later step.
        (_, State::Expired(_)) if head.kept => Some(Due::Buried),
        _ if head.is_gone(now) => Some(Due::Removed),
        _ => None,
    }
}

/// When a sweep should look at this record next. `None` for a record that was never resolved.
pub fn due_at(head: &Head) -> Option<Timestamp> {
    match head.state {
        State::Running => Some(head.lease_until),
        state if state.is_open() => None,
        _ if head.kept => Some(head.expires_at),
        _ => Some(head.tombstone_until),
    }
}

impl Swept {
    /// Counts one record.
    pub fn count(&mut self, due: &Due) {
        match due {
            Due::Lost(_) => self.lost += 1,
            Due::Buried => self.buried += 1,
            Due::Removed => self.removed += 1,
        }
    }
}

/// Whether an attempt can end in this state.
fn is_end(state: State) -> bool {
    matches!(
        state,
        State::Completed | State::Failed | State::Retryable | State::Unknown
    )
}

/// `Held`: running, or counted as lost with no later change. Lease and retention do not matter: a
/// late attempt may still end.
fn is_held(head: &Head, fence: Fence) -> bool {
    head.fence == fence && head.state.is_open() && head.fingerprint.is_some()
}

/// `Lapsed`: the attempt is over, by the store's clock or because it ended by itself. A completed
/// record is never lapsed, though its fence is the same: the late attempt may have completed
/// between the reading and this write.
fn is_over(head: &Head, fence: Fence, now: Timestamp) -> bool {
    let lease_is_over = head.lease_until <= now || planted::is(Bug::UnconditionalTakeover);
    let is_over = match head.state {
        State::Running => lease_is_over,
        State::Unknown | State::Retryable => head.expires_at > now,
        State::Completed | State::Failed | State::Expired(_) => false,
    };
    head.fence == fence && is_over
}

fn skips_ownership(finish: &Finish) -> bool {
    match finish.state {
        State::Retryable => planted::is(Bug::UnownedRelease),
        State::Completed => planted::is(Bug::UnfencedCompletion),
        _ => false,
    }
}

fn first_claim(
    put: &Put,
    claim: &Claim,
    gone: Option<&Head>,
    now: Timestamp,
    floor: Fence,
) -> Head {
    let (fence, version) = gone.map_or((Fence::ZERO, 0), |head| (head.fence, head.version));
    let fence = Fence::mint(fence, floor, now);
    Head {
        id: put.id,
        scope: claim.scope.clone(),
        key: claim.key.clone(),
        state: State::Running,
        fence,
        token: claim.token,
        // Above every version of an earlier record with this id, so that an operator who read the
        // earlier record cannot change this one.
        version: fence.as_u64().max(version + 1),
        attempts: 1,
        lease_until: now.after(claim.lease),
        fingerprint: Some(claim.fingerprint.clone()),
        created_at: now,
        claimed_at: now,
        finished_at: Timestamp::ZERO,
        expires_at: Timestamp::ZERO,
        tombstone_until: Timestamp::ZERO,
        status: None,
        kept: false,
        request_id: claim.request_id.clone(),
    }
}

/// The head after a further attempt. The fingerprint of the first request stays: every repeat is
/// compared with it, under its policy.
fn next_claim(head: &Head, claim: &Claim, now: Timestamp, floor: Fence) -> Head {
    Head {
        state: State::Running,
        fence: Fence::mint(head.fence, floor, now),
        token: claim.token,
        version: head.version + 1,
        attempts: head.attempts.saturating_add(1),
        lease_until: now.after(claim.lease),
        claimed_at: now,
        status: None,
        kept: false,
        request_id: claim.request_id.clone(),
        ..head.clone()
    }
}

/// The head after an attempt that owns its record has ended, as [`judge`] makes it.
pub fn ended(head: &Head, finish: &Finish, now: Timestamp) -> Head {
    Head {
        state: finish.state,
        status: finish.status,
        kept: finish.answer.is_some(),
        version: head.version + 1,
        finished_at: now,
        expires_at: now.after(finish.lifetime.retention),
        tombstone_until: now
            .after(finish.lifetime.retention)
            .after(finish.lifetime.tombstone),
        ..head.clone()
    }
}

fn lost(head: &Head, lifetime: Lifetime, now: Timestamp) -> Head {
    ended(
        head,
        &Finish {
            state: State::Unknown,
            status: None,
            answer: None,
            lifetime,
        },
        now,
    )
}

fn forgotten(head: &Head, lifetime: Lifetime, now: Timestamp, floor: Fence) -> Head {
    Head {
        state: State::Expired(head.state_at(now).last()),
        fence: Fence::mint(head.fence, floor, now),
        fingerprint: None,
        request_id: None,
        status: None,
        kept: false,
        version: head.version + 1,
        finished_at: now,
        expires_at: now,
        // Never earlier than without `forget`: forgetting a record must not let its request run
        // again sooner.
        tombstone_until: now.after(lifetime.tombstone).max(head.tombstone_until),
        ..head.clone()
    }
}
