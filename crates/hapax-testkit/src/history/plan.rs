//! The plan: chooses the next step at random, depending on the records.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::audit::{LogQuery, Signed, Start};
use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::record::Last;
use hapax_core::store::{Change, Claim, Finish, Lifetime, ListQuery, Renewal};
use hapax_core::{
    Answer, AttemptToken, Condition, Fence, Fingerprint, Head, Key, Principal, Put, RecordId,
    RequestId, Scope, State, StateFilter, Timestamp,
};

use crate::random::Random;

/// One step of a history.
pub(super) struct Step {
    /// Its name in the tally.
    pub(super) kind: &'static str,
    pub(super) act: Act,
}

/// The operation to perform on both stores.
#[derive(Debug)]
pub(super) enum Act {
    Put(Put),
    Renew(Vec<Renewal>),
    Sweep(usize),
    Get(Vec<RecordId>),
    List(ListQuery),
    Log(LogQuery),
    Advance(Duration),
}

/// Generates steps.
pub(super) struct Planner {
    random: Random,
    seed: u64,
    records: Vec<Known>,
    /// How many records there have been so far.
    count: usize,
}

/// One of the records of a history, and its past fences.
struct Known {
    id: RecordId,
    scope: Arc<Scope>,
    key: Key,
    fences: Vec<Fence>,
}

#[derive(Clone, Copy)]
enum Kind {
    Claim,
    Takeover,
    Completion,
    Release,
    GivingUp,
    Loss,
    Settlement,
    Forgetting,
    StrayWrite,
    Renewal,
    Sweep,
    Get,
    List,
    Log,
    Clock,
}

/// The weight of each kind of step. The clock moves rarely, so that much happens within one of its
/// ticks.
const KINDS: &[(usize, Kind)] = &[
    (14, Kind::Claim),
    (14, Kind::Takeover),
    (14, Kind::Completion),
    (7, Kind::Release),
    (5, Kind::GivingUp),
    (6, Kind::Loss),
    (8, Kind::Settlement),
    (4, Kind::Forgetting),
    (4, Kind::StrayWrite),
    (8, Kind::Renewal),
    (5, Kind::Sweep),
    (3, Kind::Get),
    (3, Kind::List),
    (3, Kind::Log),
    (14, Kind::Clock),
];

const RECORDS: usize = 5;
/// Larger than the number of records that can be due: the contract does not say which of them a
/// smaller limit would reach first.
const SWEEP_LIMIT: usize = 100;
/// An attempt that a sweep marked as lost has the default lifetime, so now and then days must pass.
const DAYS: u64 = 24 * 60 * 60 * 1_000;

impl Planner {
    pub(super) fn new(seed: u64) -> Self {
        let records = (0..RECORDS)
            .map(|number| Known::new(seed, number))
            .collect();
        Planner {
            random: Random::new(seed),
            seed,
            records,
            count: RECORDS,
        }
    }

    pub(super) fn ids(&self) -> Vec<RecordId> {
        self.records.iter().map(|known| known.id).collect()
    }

    /// Remembers the current fences, to use them when they have become stale.
    pub(super) fn observe(&mut self, heads: &[Option<Head>]) {
        for (known, head) in self.records.iter_mut().zip(heads) {
            known.fences.extend(
                head.as_ref()
                    .map(|head| head.fence)
                    .filter(|fence| known.fences.last() != Some(fence)),
            );
        }
    }

    /// Now and then replaces a record with a new one. Some ends are final, and a long history must
    /// not run out of new records.
    pub(super) fn replaces_a_record(&mut self) -> bool {
        let replaces = self.random.percent(2);
        if replaces {
            let at = self.random.below(RECORDS);
            self.records[at] = Known::new(self.seed, self.count);
            self.count += 1;
        }
        replaces
    }

    /// The next step. `heads` are the current records, in the order of [`Planner::ids`].
    pub(super) fn next(&mut self, heads: &[Option<Head>], now: Timestamp) -> Step {
        let kind = self.random.weighted(KINDS);
        let at = self.random.below(RECORDS);
        let head = heads[at].as_ref();
        match kind {
            Kind::Claim => self.write("claim", at, Condition::Absent, Self::claim),
            Kind::Takeover => self.write_lapsed("takeover", at, head, Self::claim),
            Kind::Completion => self.completion(at, head, now),
            Kind::Release => self.write_held("release", at, head, |planner, _| {
                planner.finish(State::Retryable)
            }),
            Kind::GivingUp => self.write_held("giving up", at, head, |planner, _| {
                planner.finish(State::Unknown)
            }),
            Kind::Loss => self.write_lapsed("loss", at, head, |planner, _| {
                Change::Lose(planner.lifetime())
            }),
            Kind::Settlement => {
                self.write_version("settlement", at, head, |planner, _| planner.settlement())
            }
            Kind::Forgetting => {
                self.write_version("forgetting", at, head, |planner, _| planner.forgetting())
            }
            Kind::StrayWrite => self.stray_write(at, head),
            Kind::Renewal => Step {
                kind: "renewal",
                act: Act::Renew(self.renewals(heads)),
            },
            Kind::Sweep => Step {
                kind: "sweep",
                act: Act::Sweep(SWEEP_LIMIT),
            },
            Kind::Get => Step {
                kind: "get",
                act: Act::Get(self.some_ids()),
            },
            Kind::List => Step {
                kind: "list",
                act: Act::List(self.list()),
            },
            Kind::Log => Step {
                kind: "log",
                act: Act::Log(self.log()),
            },
            Kind::Clock => Step {
                kind: "clock",
                act: Act::Advance(self.turn()),
            },
        }
    }

    fn write(
        &mut self,
        kind: &'static str,
        at: usize,
        condition: Condition,
        change: impl FnOnce(&mut Self, usize) -> Change,
    ) -> Step {
        let change = change(self, at);
        Step {
            kind,
            act: Act::Put(Put {
                id: self.records[at].id,
                condition,
                change,
            }),
        }
    }

    fn write_held(
        &mut self,
        kind: &'static str,
        at: usize,
        head: Option<&Head>,
        change: impl FnOnce(&mut Self, usize) -> Change,
    ) -> Step {
        let fence = self.fence(at, head);
        self.write(kind, at, Condition::Held { fence }, change)
    }

    fn write_lapsed(
        &mut self,
        kind: &'static str,
        at: usize,
        head: Option<&Head>,
        change: impl FnOnce(&mut Self, usize) -> Change,
    ) -> Step {
        let fence = self.fence(at, head);
        self.write(kind, at, Condition::Lapsed { fence }, change)
    }

    fn write_version(
        &mut self,
        kind: &'static str,
        at: usize,
        head: Option<&Head>,
        change: impl FnOnce(&mut Self, usize) -> Change,
    ) -> Step {
        let version = self.version(head);
        self.write(kind, at, Condition::Version { version }, change)
    }

    fn completion(&mut self, at: usize, head: Option<&Head>, now: Timestamp) -> Step {
        let is_late = head.is_some_and(|head| {
            matches!(
                head.state_at(now),
                State::Unknown | State::Expired(Last::Unknown)
            )
        });
        let kind = if is_late {
            "late completion"
        } else {
            "completion"
        };
        self.write_held(kind, at, head, |planner, _| {
            let state = planner
                .random
                .pick(&[State::Completed, State::Completed, State::Failed]);
            planner.finish(state)
        })
    }

    /// Any change under any condition: mostly not a valid transition.
    fn stray_write(&mut self, at: usize, head: Option<&Head>) -> Step {
        let (fence, version) = (self.fence(at, head), self.version(head));
        let conditions = [
            Condition::Absent,
            Condition::Held { fence },
            Condition::Lapsed { fence },
            Condition::Version { version },
        ];
        let condition = self.random.pick(&conditions);
        self.write("stray write", at, condition, |planner, at| {
            match planner.random.below(5) {
                0 => planner.claim(at),
                1 => planner.finish(State::Completed),
                2 => Change::Lose(planner.lifetime()),
                3 => planner.settlement(),
                _ => planner.forgetting(),
            }
        })
    }

    fn claim(&mut self, at: usize) -> Change {
        let policy = self.random.pick(&[
            FingerprintPolicy::default(),
            FingerprintPolicy::json().with_header("x-tenant"),
        ]);
        let fingerprint = Fingerprint {
            digest: [self.random.pick(&[1, 2]); 32],
            policy: Arc::new(policy),
        };
        let token = AttemptToken::from_bytes(self.random.bytes());
        let lease = self.random.millis(&[0, 1, 5, 20, 1_000]);
        let request_id = RequestId::new(self.random.pick(&["", "request-1", "request-2"]));
        let Known { scope, key, .. } = &self.records[at];
        Change::Claim(Claim {
            scope: scope.clone(),
            key: key.clone(),
            fingerprint,
            token,
            lease,
            terms: None,
            request_id,
        })
    }

    fn finish(&mut self, state: State) -> Change {
        Change::Finish(self.end(state))
    }

    fn settlement(&mut self) -> Change {
        let state = self
            .random
            .pick(&[State::Completed, State::Failed, State::Retryable]);
        Change::Settle(self.end(state), self.signed())
    }

    fn forgetting(&mut self) -> Change {
        Change::Forget(self.lifetime(), self.signed())
    }

    fn signed(&mut self) -> Signed {
        let by = self.random.pick(&["ada", "grace"]);
        Signed::new(by, &format!("reason {}", self.random.below(1_000))).expect("both are said")
    }

    fn end(&mut self, state: State) -> Finish {
        let is_definitive = matches!(state, State::Completed | State::Failed);
        let answer = (is_definitive && self.random.percent(80)).then(|| Arc::new(self.answer()));
        let status = if is_definitive {
            Some(self.random.pick(&[200, 201, 404]))
        } else {
            self.random.pick(&[None, Some(503)])
        };
        Finish {
            state,
            status,
            answer,
            lifetime: self.lifetime(),
        }
    }

    fn answer(&mut self) -> Answer {
        let length = self.random.below(40);
        let headers = (0..self.random.below(3))
            .map(|_| ("x-bytes".into(), self.random.bytes::<5>().to_vec().into()))
            .collect();
        Answer {
            headers,
            ..Answer::new(200, self.random.bytes::<40>()[..length].to_vec())
        }
    }

    fn lifetime(&mut self) -> Lifetime {
        let retention = self.random.millis(&[0, 3, 30, 3_000]);
        Lifetime {
            retention,
            tombstone: self.random.millis(&[0, 3, 30, 3_000]),
        }
    }

    /// Mostly the current fence; otherwise an earlier or an invented one.
    fn fence(&mut self, at: usize, head: Option<&Head>) -> Fence {
        let stale = &self.records[at].fences;
        match head {
            Some(head) if self.random.percent(80) => head.fence,
            Some(head) if self.random.percent(30) => Fence::from_u64(head.fence.as_u64() + 1),
            _ if stale.is_empty() => Fence::ZERO,
            _ => self.random.pick(stale),
        }
    }

    /// Mostly the current version.
    fn version(&mut self, head: Option<&Head>) -> u64 {
        let version = head.map_or(0, |head| head.version);
        if self.random.percent(80) {
            version
        } else {
            self.random
                .pick(&[0, version.saturating_sub(1), version + 1])
        }
    }

    /// Each record at most once: the contract does not say what happens if one call renews a lease
    /// twice.
    fn renewals(&mut self, heads: &[Option<Head>]) -> Vec<Renewal> {
        let mut renewals = Vec::new();
        for (at, head) in heads.iter().enumerate() {
            if self.random.percent(40) {
                let fence = self.fence(at, head.as_ref());
                renewals.push(Renewal {
                    id: self.records[at].id,
                    fence,
                    lease: self.random.millis(&[0, 5, 20, 1_000]),
                });
            }
        }
        renewals
    }

    fn some_ids(&mut self) -> Vec<RecordId> {
        let unknown = RecordId::from_bytes(self.random.bytes());
        let known = self.random.pick(&self.ids());
        vec![known, unknown, self.random.pick(&self.ids())]
    }

    fn list(&mut self) -> ListQuery {
        let states = [
            None,
            Some(StateFilter::Running),
            Some(StateFilter::Completed),
            Some(StateFilter::Failed),
            Some(StateFilter::Retryable),
            Some(StateFilter::Unknown),
            Some(StateFilter::Expired),
        ];
        let after = self
            .random
            .percent(30)
            .then(|| self.random.pick(&self.ids()));
        ListQuery {
            state: self.random.pick(&states),
            after,
            limit: self.random.below(RECORDS + 1),
        }
    }

    fn log(&mut self) -> LogQuery {
        let record = self
            .random
            .percent(50)
            .then(|| self.random.pick(&self.ids()));
        let number = self.random.below(20) as u64;
        let from = self
            .random
            .pick(&[Start::After(number), Start::Before(number), Start::End]);
        LogQuery {
            record,
            from,
            limit: self.random.below(10),
        }
    }

    fn turn(&mut self) -> Duration {
        if self.random.percent(20) {
            return Duration::from_micros(1);
        }
        if self.random.percent(3) {
            return Duration::from_millis(2 * DAYS);
        }
        self.random
            .millis(&[1, 1, 1, 3, 5, 20, 20, 30, 1_000, 3_000])
    }
}

impl Known {
    fn new(seed: u64, number: usize) -> Self {
        let principal = if number.is_multiple_of(RECORDS) {
            Principal::Anonymous
        } else {
            Principal::named(format!("principal {number}"))
        };
        let namespace = format!("history-{seed}").into();
        let scope = Scope {
            namespace,
            principal,
            method: "POST".into(),
            path: format!("/orders/{number}").into(),
        };
        let key = Key::new(format!("key-{number}")).expect("a key");
        Known {
            id: RecordId::of(&scope, &key),
            scope: Arc::new(scope),
            key,
            fences: Vec::new(),
        }
    }
}
