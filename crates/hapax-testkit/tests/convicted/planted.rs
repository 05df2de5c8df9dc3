//! A store with one selectable bug. Without a bug it behaves like the reference store.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use hapax_core::audit::{self, LogEntry, LogQuery, Note, Signed, Start};
use hapax_core::guard::{self, Due, Refused};
use hapax_core::record::Last;
use hapax_core::scope::PrincipalId;
use hapax_core::store::{
    Change, Claim, Counts, KnownPrincipal, Lifetime, ListQuery, Reading, Renewal, Reply, Seen,
    StoreInfo, Swept, Won, Written,
};
use hapax_core::{
    Answer, Condition, Fence, FingerprintPolicy, Head, Principal, Put, Record, RecordId, Scope,
    Secret, State, Store, Timestamp,
};
use hapax_testkit::ManualClock;

/// The bugs, by the rule they break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    AbsentIsNotAsked,
    CheckThenAct,
    LosersSeeNoAnswer,
    LosersLeaveATrace,
    UnresolvedIsGone,
    UnfencedFinish,
    LateIsLost,
    UnconditionalTakeover,
    CompletedIsLapsed,
    TakeoverOfAnyFence,
    TakeoverChangesFingerprint,
    TakeoverKeepsAnswer,
    ReleasedIsLost,
    VersionIsNotAsked,
    SettlementKeepsFence,
    AnythingIsSettled,
    ForgetKeepsAnswer,
    ForgetKeepsFingerprint,
    ForgetKeepsEpoch,
    EveryWriteRaisesEpoch,
    FinishUnderLapsed,
    RenewalBumpsFence,
    RenewalOfAnyFence,
    RenewalsOutOfOrder,
    FencesByClockAlone,
    FencesByCount,
    FloorIsForgotten,
    HeadersAreSorted,
    PoliciesAreForgotten,
    AnonymousIsAName,
    ReadingsOutOfOrder,
    ListIgnoresState,
    ListIgnoresAfter,
    TimeRunsBack,
    SweepLosesTheLiving,
    AnswersOutliveRetention,
    ListsWithoutTime,
    SweepKeepsAnswers,
    SweepRemovesUnresolved,
    SweepIgnoresLimit,
    ChangesAreNotLogged,
    LosersAreLogged,
    AttemptsAreLogged,
    LogsWhatWasStored,
    LogNumbersHaveGaps,
    LogIgnoresRecord,
    LogIgnoresStart,
    LogPagesAreEndless,
    LogWordsAreTrimmed,
    LogGoesWithItsRecord,
    LogAgesEarly,
    LogNeverAges,
    TombstonesAreNotCounted,
    EveryReleaseIsRefused,
    LastPrincipalCounts,
    PrincipalsAreKnownForEver,
}

pub(crate) struct Planted {
    bug: Bug,
    clock: ManualClock,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    records: BTreeMap<RecordId, Record>,
    floor: Fence,
    epoch: u64,
    principals: BTreeMap<PrincipalId, Timestamp>,
    readings: u64,
    log: Vec<LogEntry>,
    logged: u64,
}

impl Planted {
    pub(crate) fn new(bug: Bug, clock: ManualClock) -> Self {
        Planted {
            bug,
            clock,
            inside: Mutex::default(),
        }
    }

    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap()
    }

    fn judge(&self, put: &Put) -> Result<Record, Refused> {
        let inside = self.inside();
        let current = inside.records.get(&put.id);
        let (pretended, put) = self.pretend(current.map(|record| record.head.clone()), put.clone());
        let head = guard::judge(pretended.as_ref(), &put, self.clock.now(), inside.floor)?;
        Ok(self.tamper(current, &put, head))
    }

    /// Changes the inputs of the judgement, according to the bug.
    fn pretend(&self, current: Option<Head>, mut put: Put) -> (Option<Head>, Put) {
        let now = self.clock.now();
        let Some(mut head) = current else {
            return (None, put);
        };
        match (self.bug, put.condition) {
            (Bug::AbsentIsNotAsked, Condition::Absent) => return (None, put),
            (Bug::UnresolvedIsGone, Condition::Absent)
                if head.tombstone_until <= now && head.state == State::Unknown =>
            {
                head.state = State::Retryable;
            }
            (Bug::UnfencedFinish, Condition::Held { .. }) => {
                put.condition = Condition::Held { fence: head.fence }
            }
            (Bug::LateIsLost, Condition::Held { .. }) if head.state_at(now) != State::Running => {
                head.state = State::Retryable;
            }
            (Bug::UnconditionalTakeover, Condition::Lapsed { .. }) => {
                head.lease_until = Timestamp::ZERO;
            }
            (Bug::CompletedIsLapsed, Condition::Lapsed { .. })
                if head.state == State::Completed =>
            {
                head.state = State::Retryable;
            }
            (Bug::TakeoverOfAnyFence, Condition::Lapsed { .. }) => {
                put.condition = Condition::Lapsed { fence: head.fence }
            }
            (Bug::ReleasedIsLost, Condition::Lapsed { .. })
                if matches!(put.change, Change::Lose(_)) =>
            {
                (head.state, head.lease_until) = (State::Running, Timestamp::ZERO);
            }
            (Bug::VersionIsNotAsked, Condition::Version { .. }) => {
                put.condition = Condition::Version {
                    version: head.version,
                }
            }
            (Bug::AnythingIsSettled, Condition::Version { .. })
                if matches!(put.change, Change::Settle(..)) =>
            {
                head.state = State::Unknown;
            }
            (Bug::FinishUnderLapsed, Condition::Lapsed { fence })
                if matches!(put.change, Change::Finish(_)) =>
            {
                put.condition = Condition::Held { fence };
            }
            _ => {}
        }
        (Some(head), put)
    }

    /// Changes the result of the judgement before it is written, according to the bug.
    fn tamper(&self, current: Option<&Record>, put: &Put, mut head: Head) -> Record {
        let mut answer = put.change.answer().cloned();
        let before = current.map(|record| &record.head);
        match (self.bug, &put.change) {
            (Bug::TakeoverChangesFingerprint, Change::Claim(claim)) => {
                head.fingerprint = Some(claim.fingerprint.clone());
            }
            (Bug::TakeoverKeepsAnswer, Change::Claim(_)) => {
                answer = current.and_then(|record| record.answer.clone());
            }
            (Bug::SettlementKeepsFence, Change::Settle(..)) => head.fence = before.unwrap().fence,
            (Bug::ForgetKeepsAnswer, Change::Forget(..)) => {
                answer = current.and_then(|record| record.answer.clone());
            }
            (Bug::ForgetKeepsFingerprint, Change::Forget(..)) => {
                head.fingerprint = before.unwrap().fingerprint.clone();
            }
            (Bug::FencesByClockAlone, Change::Claim(_)) => {
                head.fence = Fence::from_u64(self.clock.now().as_micros());
            }
            (Bug::FencesByCount, Change::Claim(_)) => {
                head.fence = Fence::from_u64(before.map_or(1, |head| head.fence.as_u64() + 1));
            }
            (Bug::PoliciesAreForgotten, Change::Claim(claim)) => {
                head.fingerprint = Some(without_policy(claim));
            }
            (Bug::AnonymousIsAName, Change::Claim(claim)) => head.scope = named(&claim.scope),
            (Bug::HeadersAreSorted, _) => answer = answer.map(|answer| sorted(&answer)),
            _ => {}
        }
        Record { head, answer }
    }

    fn write(&self, put: &Put, record: Record) -> Written {
        let mut inside = self.inside();
        let raises = matches!(put.change, Change::Forget(..)) && !self.is(Bug::ForgetKeepsEpoch);
        inside.epoch += u64::from(raises || self.is(Bug::EveryWriteRaisesEpoch));
        let head = record.head.clone();
        let before = inside.records.insert(put.id, record);
        self.log_change(
            &mut inside,
            put,
            before.as_ref().map(|record| &record.head),
            &head,
        );
        Written::Won(Won {
            head,
            now: self.clock.now(),
        })
    }

    fn refuse(&self, put: &Put) -> Written {
        let mut inside = self.inside();
        let mut record = self.read(&inside, &put.id);
        if let Some(seen) = record.as_mut().filter(|_| self.is(Bug::LosersSeeNoAnswer)) {
            seen.answer = None;
        }
        if let Some(stored) = inside
            .records
            .get_mut(&put.id)
            .filter(|_| self.is(Bug::LosersLeaveATrace))
        {
            stored.head.version += 1;
        }
        if let Some(stored) = record.as_ref().filter(|_| self.is(Bug::LosersAreLogged)) {
            self.log_change(&mut inside, put, Some(&stored.head), &stored.head);
        }
        Written::Lost(Seen {
            record,
            now: self.clock.now(),
        })
    }

    fn log_change(&self, inside: &mut Inside, put: &Put, before: Option<&Head>, after: &Head) {
        let now = self.clock.now();
        let mut entry = LogEntry::of(put, before, after, now);
        match (self.bug, &mut entry) {
            (Bug::ChangesAreNotLogged, entry) => *entry = None,
            (Bug::AttemptsAreLogged, entry @ None) => {
                let signed = Signed::new("an attempt", "it ran").unwrap();
                *entry = LogEntry::of(
                    &Put {
                        change: Change::Forget(Lifetime::default(), signed),
                        ..put.clone()
                    },
                    before,
                    after,
                    now,
                );
            }
            (Bug::LogsWhatWasStored, Some(entry)) => {
                entry.touched.as_mut().unwrap().before = before.unwrap().state;
            }
            (Bug::LogWordsAreTrimmed, Some(entry)) => {
                entry.signed =
                    Signed::new(entry.signed.by().trim(), entry.signed.reason().trim()).unwrap();
            }
            _ => {}
        }
        if let Some(entry) = entry {
            self.write_log(inside, entry);
        }
    }

    fn write_log(&self, inside: &mut Inside, entry: LogEntry) -> LogEntry {
        inside.logged += if self.is(Bug::LogNumbersHaveGaps) {
            2
        } else {
            1
        };
        let entry = LogEntry {
            sequence: inside.logged,
            ..entry
        };
        inside.log.push(entry.clone());
        entry
    }

    fn read_log(&self, query: &LogQuery) -> Vec<LogEntry> {
        let mut log = self.inside().log.clone();
        let record = query.record.filter(|_| !self.is(Bug::LogIgnoresRecord));
        log.retain(|entry| {
            record.is_none_or(|id| {
                entry
                    .touched
                    .as_ref()
                    .is_some_and(|touched| touched.id == id)
            })
        });
        match query.from {
            Start::After(sequence) => {
                log.retain(|entry| entry.sequence > sequence || self.is(Bug::LogIgnoresStart));
            }
            Start::Before(sequence) => log.retain(|entry| entry.sequence < sequence),
            Start::End => {}
        }
        if !matches!(query.from, Start::After(_)) {
            log.reverse();
        }
        log.truncate(if self.is(Bug::LogPagesAreEndless) {
            query.limit
        } else {
            query.rows()
        });
        log
    }

    /// Removes entries that are too old, with the bug applied.
    fn sweep_log(&self, inside: &mut Inside, limit: usize) -> usize {
        let kept_for = match self.bug {
            Bug::LogNeverAges => return 0,
            Bug::LogAgesEarly => audit::KEPT_FOR / 2,
            _ => audit::KEPT_FOR,
        };
        let now = self.clock.now();
        let count = inside
            .log
            .iter()
            .take_while(|entry| entry.at.after(kept_for) <= now)
            .take(limit)
            .count();
        inside.log.drain(..count);
        count
    }

    /// The record as of now.
    fn read(&self, inside: &Inside, id: &RecordId) -> Option<Record> {
        let Record { head, answer } = inside.records.get(id)?.clone();
        if self.is(Bug::AnswersOutliveRetention) {
            return Some(Record { head, answer });
        }
        // Only retention hides an answer here. An answer that `forget` failed to erase stays
        // visible.
        let is_over = head.state_at(self.clock.now()) != head.state && head.state != State::Running;
        Some(Record {
            head: head.at(self.clock.now()),
            answer: answer.filter(|_| !is_over),
        })
    }

    fn renew_one(&self, renewal: &Renewal) -> bool {
        let mut inside = self.inside();
        let Some(record) = inside.records.get_mut(&renewal.id) else {
            return false;
        };
        let fence = if self.is(Bug::RenewalOfAnyFence) {
            record.head.fence
        } else {
            renewal.fence
        };
        let Ok(mut head) = guard::renew(
            Some(&record.head),
            &Renewal { fence, ..*renewal },
            self.clock.now(),
        ) else {
            return false;
        };
        if self.is(Bug::RenewalBumpsFence) {
            head.fence = Fence::from_u64(head.fence.as_u64() + 1);
        }
        record.head = head;
        true
    }

    /// What is due, with the bug applied.
    fn due(&self, head: &Head) -> Option<Due> {
        let now = self.clock.now();
        let mut head = head.clone();
        match head.state {
            State::Running if self.is(Bug::SweepLosesTheLiving) => {
                head.lease_until = Timestamp::ZERO;
            }
            State::Unknown | State::Expired(Last::Unknown)
                if self.is(Bug::SweepRemovesUnresolved) =>
            {
                head.state = State::Expired(Last::Failed);
            }
            _ => {}
        }
        guard::due(&head, Lifetime::default(), now)
            .filter(|due| *due != Due::Buried || !self.is(Bug::SweepKeepsAnswers))
    }
}

impl Store for Planted {
    fn get(&self, mut ids: Vec<RecordId>) -> Reply<'_, Reading> {
        Box::pin(async move {
            if self.is(Bug::ReadingsOutOfOrder) {
                ids.sort_unstable();
            }
            let mut inside = self.inside();
            inside.readings += 1;
            let records = ids.iter().map(|id| self.read(&inside, id)).collect();
            let back = if self.is(Bug::TimeRunsBack) {
                inside.readings
            } else {
                0
            };
            Ok(Reading {
                records,
                now: Timestamp::from_micros(self.clock.now().as_micros() - back),
            })
        })
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        Box::pin(async move {
            let judged = self.judge(&put);
            if self.is(Bug::CheckThenAct) {
                tokio::task::yield_now().await;
            }
            Ok(match judged {
                Ok(record) => self.write(&put, record),
                Err(Refused) => self.refuse(&put),
            })
        })
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        Box::pin(async move {
            let mut renewed: Vec<_> = renewals
                .iter()
                .map(|renewal| self.renew_one(renewal))
                .collect();
            if self.is(Bug::RenewalsOutOfOrder) {
                renewed.sort_unstable();
            }
            Ok(renewed)
        })
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        Box::pin(async move {
            let state = query.state.filter(|_| !self.is(Bug::ListIgnoresState));
            let after = query.after.filter(|_| !self.is(Bug::ListIgnoresAfter));
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let inside = self.inside();
            let now = if self.is(Bug::ListsWithoutTime) {
                Timestamp::ZERO
            } else {
                self.clock.now()
            };
            let heads = inside
                .records
                .range((from, Bound::Unbounded))
                .map(|(_, record)| record.head.clone().at(now));
            Ok(heads
                .filter(|head| state.is_none_or(|filter| filter.matches(head.state)))
                .take(query.limit)
                .collect())
        })
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        Box::pin(async move {
            let limit = if self.is(Bug::SweepIgnoresLimit) {
                usize::MAX
            } else {
                limit
            };
            let mut inside = self.inside();
            let due: Vec<_> = inside
                .records
                .iter()
                .filter_map(|(id, record)| Some((*id, self.due(&record.head)?)))
                .take(limit)
                .collect();
            let mut swept = Swept::default();
            for (id, due) in due {
                swept.count(&due);
                inside.apply(id, due, self.bug);
            }
            swept.unlogged = self.sweep_log(&mut inside, limit - swept.total());
            Ok(swept)
        })
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        Box::pin(async move {
            let (now, inside) = (self.clock.now(), self.inside());
            let live = || {
                inside
                    .records
                    .values()
                    .map(|record| &record.head)
                    .filter(|head| !head.is_gone(now))
            };
            let refused = live().filter(|head| {
                head.is_refused() || (self.is(Bug::EveryReleaseIsRefused) && head.status.is_some())
            });
            let records = if self.is(Bug::TombstonesAreNotCounted) {
                live().filter(|head| head.expires_at > now).count()
            } else {
                live().count()
            };
            let counts = Some(Counts {
                records: records as u64,
                refused: refused.count() as u64,
            });
            Ok(StoreInfo {
                now,
                epoch: inside.epoch,
                secret: Secret::from_bytes([7; 32]),
                lives_since: Timestamp::ZERO,
                counts,
            })
        })
    }

    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        Box::pin(async move {
            for KnownPrincipal { id, until } in principals {
                let mut inside = self.inside();
                let known = inside.principals.entry(id).or_insert(until);
                *known = if self.is(Bug::LastPrincipalCounts) {
                    until
                } else {
                    until.max(*known)
                };
            }
            Ok(())
        })
    }

    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool> {
        let is_known = |until: &Timestamp| {
            self.is(Bug::PrincipalsAreKnownForEver) || *until > self.clock.now()
        };
        let known = self
            .inside()
            .principals
            .get(&principal)
            .is_some_and(is_known);
        Box::pin(async move { Ok(known) })
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        Box::pin(async move { Ok(self.read_log(&query)) })
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        Box::pin(async move {
            Ok(self.write_log(&mut self.inside(), LogEntry::noted(note, self.clock.now())))
        })
    }
}

impl Inside {
    fn apply(&mut self, id: RecordId, due: Due, bug: Bug) {
        match due {
            Due::Lost(head) => drop(self.records.insert(
                id,
                Record {
                    head: *head,
                    answer: None,
                },
            )),
            Due::Buried => {
                let record = self.records.get_mut(&id).unwrap();
                record.head.kept = false;
                record.answer = None;
            }
            Due::Removed => {
                let removed = self.records.remove(&id).unwrap();
                if bug == Bug::LogGoesWithItsRecord {
                    self.log.retain(|entry| {
                        entry
                            .touched
                            .as_ref()
                            .is_none_or(|touched| touched.id != id)
                    });
                }
                if bug != Bug::FloorIsForgotten {
                    self.floor = self.floor.max(removed.head.fence);
                }
            }
        }
    }
}

fn without_policy(claim: &Claim) -> hapax_core::Fingerprint {
    hapax_core::Fingerprint {
        policy: Arc::new(FingerprintPolicy::default()),
        ..claim.fingerprint.clone()
    }
}

fn named(scope: &Scope) -> Arc<Scope> {
    Arc::new(Scope {
        principal: Principal::named(scope.principal.to_string()),
        ..scope.clone()
    })
}

fn sorted(answer: &Answer) -> Arc<Answer> {
    let mut answer = answer.clone();
    answer.headers.sort();
    Arc::new(answer)
}
