//! An exhaustive search of the rules: the real steps of a call ([`Step::next`], which calls
//! `decide`) and the real guard run in a small world of nodes that crash and a network that loses
//! and delays messages. The search visits every interleaving.
//!
//! # The world
//!
//! A store keeps a record for each key. Three nodes serve requests; a node serves one request of a
//! key at a time. A request sends puts to the store in sequence, as its steps say; a put reaches
//! the store at any later time, or never. The effect is counted in a ledger outside the record, as
//! an upstream would count it.
//!
//! Some different events are one step here:
//!
//! - *Lost and late replies.* A node that gets no reply sends the same put again. The first copy
//!   stays in the network as a late put, which the store judges at any time without a listener. If
//!   it is judged before the second copy, its reply was lost; if after, the put itself was late.
//! - *Slow nodes.* A node acts on a reply by sending its next put, which waits in the network with
//!   a fence that may be stale. A node pauses only between a won claim and the dispatch, since a
//!   crash there is a separate case.
//! - *Transactions.* In transaction mode the upstream writes the finish, and its effect commits in
//!   the same step: the effect happened if the finish won.
//! - *The upstream's answer.* Dispatching puts the finish into the network at once. A node that
//!   dies while it waits for the upstream is a node that dies with its finish in the network, never
//!   to arrive.
//!
//! # Bounds
//!
//! Not part of this world: reading before claiming, being refused by a limit, locked and unreadable
//! records, and letting go and giving up while the work runs. The table in `step/tests.rs` covers
//! them. In a transaction the work always joins; its other ends are in that table too.
//!
//! [`Bounds`] limits the requests, crashes, repeated puts and settlements of a world; each search
//! is exhaustive within them. Time stands still: when the store's clock passes a lease, a step
//! moves the lease before the current time instead of advancing the clock. So retention never ends
//! here, and `forget` is not part of this world. Nodes are interchangeable and so are keys: worlds
//! that differ only by such a swap count once.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use hapax_core::audit::Signed;
use hapax_core::guard::{self, Due};
use hapax_core::step::{Caller, Claiming, Conclusion, Event, Running, Step as Act};
use hapax_core::store::{Change, Claim, Finish, Lifetime, Renewal, Seen, Won};
use hapax_core::{
    Answer, Ask, AttemptToken, Condition, Fence, Fingerprint, FingerprintPolicy, Head, Key, Loss,
    Mode, Outcome, Policy, Principal, Put, Record, RecordId, Rejection, Scope, State, Timestamp,
};
use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 3;
const KEYS: usize = 2;
/// At most one late put for each crash and each repeated put.
const LATE: usize = 4;

/// The only time in this world. It is small, so that fences count from one.
const NOW: Timestamp = Timestamp::from_micros(1);
const LEASE: Duration = Duration::from_micros(1);
/// Every write raises the version, but only whether an operator's reading is stale matters. So each
/// step begins at this version.
const VERSION: u64 = 10;
/// The answer of a settlement by an operator; an attempt's answer is its fence.
const SETTLED: u8 = 99;
static SIGNED: LazyLock<Signed> =
    LazyLock::new(|| Signed::new("an operator", "it was found out").expect("both are said"));

#[test]
fn hold_keeps_its_promises_in_every_interleaving() {
    let bounds = Bounds {
        mode: Mode::Hold,
        keys: 2,
        requests: 3,
        crashes: 2,
        repeats: 1,
        settlements: 0,
        attempts: 100,
        ends: &[End::Kept],
    };
    let sights = [
        Sight::LateCompletion,
        Sight::CrashBeforeDispatch,
        Sight::CrashAfterDispatch,
        Sight::ClaimAdopted,
        Sight::ClaimReleasedByToken,
        Sight::RetryAfterRelease,
        Sight::LeaseRegained,
        Sight::Replay,
    ];
    search("hold, two keys", bounds, &sights, 2_000_000);
}

#[test]
fn hold_keeps_its_promises_whatever_the_upstream_and_the_operator_say() {
    let bounds = Bounds {
        mode: Mode::Hold,
        keys: 1,
        requests: 4,
        crashes: 2,
        repeats: 2,
        settlements: 1,
        attempts: 3,
        ends: &[End::Kept, End::Released, End::Unknown],
    };
    let sights = [
        Sight::LateCompletion,
        Sight::RetryAfterRelease,
        Sight::FencedOutRefused,
        Sight::Settlement,
        Sight::StaleSettlementRefused,
        Sight::EndAfterSettlementRefused,
        Sight::DispatchAfterSettlement,
    ];
    search("hold, one key, settled", bounds, &sights, 1_500_000);
}

#[test]
fn rerun_keeps_its_promises_in_every_interleaving() {
    let bounds = Bounds {
        mode: Mode::Rerun,
        keys: 2,
        requests: 2,
        crashes: 2,
        repeats: 1,
        settlements: 0,
        attempts: 100,
        ends: &[End::Kept],
    };
    let sights = [
        Sight::Takeover,
        Sight::TakeoverRefused,
        Sight::FencedOutRefused,
        Sight::CrashBeforeDispatch,
        Sight::LateCompletion,
    ];
    search("rerun, two keys", bounds, &sights, 450_000);
}

#[test]
fn rerun_keeps_its_promises_whatever_the_upstream_and_the_operator_say() {
    let bounds = Bounds {
        mode: Mode::Rerun,
        keys: 1,
        requests: 3,
        crashes: 2,
        repeats: 2,
        settlements: 1,
        attempts: 2,
        ends: &[End::Kept, End::Released, End::Unknown],
    };
    let sights = [
        Sight::Takeover,
        Sight::TakeoverRefused,
        Sight::FencedOutRefused,
        Sight::RetryAfterRelease,
        Sight::Settlement,
        Sight::StaleSettlementRefused,
        Sight::EndAfterSettlementRefused,
        Sight::AttemptsExhausted,
    ];
    search("rerun, one key, settled", bounds, &sights, 740_000);
}

#[test]
fn in_transactions_an_effect_is_there_iff_its_record_is_complete_in_every_interleaving() {
    let bounds = Bounds {
        mode: Mode::Transaction,
        keys: 1,
        requests: 3,
        crashes: 2,
        repeats: 2,
        settlements: 1,
        attempts: 3,
        ends: &[End::Kept, End::Released, End::Unknown],
    };
    let sights = [
        Sight::Takeover,
        Sight::TakeoverRefused,
        Sight::FencedOutRefused,
        Sight::LateCompletion,
        Sight::RetryAfterRelease,
        Sight::Settlement,
        Sight::EndAfterSettlementRefused,
        Sight::Replay,
    ];
    search("transaction, one key, settled", bounds, &sights, 1_600_000);
}

/// The limits of a world.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    mode: Mode,
    keys: usize,
    /// For each key.
    requests: u8,
    crashes: u8,
    /// Puts that a node sends a second time because it got no reply, either to continue or to give
    /// up cleanly.
    repeats: u8,
    /// Operators who read a record and settle it.
    settlements: u8,
    /// The limit on attempts for one key in the policy.
    attempts: u32,
    /// The possible answers of the upstream.
    ends: &'static [End],
}

/// Visits every world within the bounds. Fails if the search has not seen the given sights, since
/// it would then prove nothing.
fn search(name: &str, bounds: Bounds, sights: &[Sight], worlds_min: usize) {
    let begun = Instant::now();
    let checker = Search::new(bounds)
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let worlds = checker.unique_state_count();
    println!(
        "{name}: {worlds} worlds, depth {}, in {:.1?}",
        checker.max_depth(),
        begun.elapsed()
    );
    checker.assert_properties();
    // There is no limit on states, depth or time: without a failure, the search ends only after it
    // has visited every state.
    assert!(checker.is_done(), "{name}: the search did not end");
    for sight in sights {
        let count = checker.model().count(*sight);
        println!("{name}: {sight:?} {count} times");
        assert!(count > 0, "{name}: {sight:?} was never seen");
    }
    assert!(
        worlds >= worlds_min,
        "{name}: {worlds} worlds are fewer than {worlds_min}: the bounds have shrunk"
    );
}

// === The world ===

/// The whole world at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct World {
    nodes: [[Slot; KEYS]; NODES],
    keys: [Place; KEYS],
    crashes_left: u8,
    repeats_left: u8,
    settlements_left: u8,
    breach: Option<Breach>,
}

/// What a node remembers of the request it serves for one key. A crash empties it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Slot {
    Idle,
    /// A put is in the network and the node waits for its reply.
    Asked(What),
    /// The same, but the caller has gone: if the claim exists, it is released.
    GaveUp(What),
    /// The claim was won, the effect has not begun.
    Owns(u8),
}

/// A put with its fence, reduced to what can differ in this world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum What {
    Claim(Under),
    Lose(u8),
    /// Ends a claim with this fence that was never dispatched.
    Release(Under, u8),
    Finish(u8, End),
}

/// What a claim follows: nothing, or an attempt with this fence, which may have been lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Under {
    fence: Option<u8>,
    is_lost: bool,
}

/// What an attempt ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum End {
    Kept,
    Released,
    Unknown,
}

/// A put in the network whose reply no node waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Late {
    what: What,
    token: u8,
}

/// One key: its record, and the state outside the store that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place {
    record: Option<Kept>,
    late: [Option<Late>; LATE],
    requests_left: u8,
    /// A bit for each dispatched fence whose attempt has not ended as retryable; in transaction
    /// mode, for each fence whose effect has committed.
    ledger: u16,
    /// The fence of the settlement, once there is one.
    settled: u8,
    operator: Operator,
}

/// The parts of a head that can differ in this world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Kept {
    state: Stage,
    fence: u8,
    token: u8,
    attempts: u8,
    is_live: bool,
    answer: u8,
}

/// [`State`] with an order and without tombstones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    Running,
    Completed,
    Retryable,
    Unknown,
}

/// Whether an operator's settlement is in the network, and whether its reading is current or stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Operator {
    Away,
    Settling,
    SettlingStale,
}

/// Forbidden events, recorded when they happen: they concern a step, and a state does not show the
/// step that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Breach {
    SecondDispatch,
    SecondEffect,
    ReleasedAfterDispatch,
    LeaseCutShort,
    FenceDidNotGrow,
    VersionDidNotGrow,
    EndedByAnother,
    CompletedChanged,
    EndedAfterSettlement,
    SettledUnseen,
    AcknowledgedUnstored,
}

/// What can happen next. A put that lands is answered; a late one is judged without a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Arrives { node: usize, key: usize },
    Lands { node: usize, key: usize },
    LandsLate { key: usize, which: usize },
    SendsAgain { node: usize, key: usize },
    GivesUp { node: usize, key: usize },
    Dispatches { node: usize, key: usize, end: End },
    EndsAfterAll { node: usize, key: usize, end: End },
    Renews { node: usize, key: usize },
    Crashes { node: usize },
    Lapses { key: usize },
    Sweeps { key: usize },
    OperatorLooks { key: usize },
    OperatorSettles { key: usize },
}

impl World {
    /// The representative of all worlds that differ only in the numbering of nodes and keys and in
    /// the order of late puts.
    fn sorted(self) -> World {
        let mut swapped = self;
        swapped.keys.reverse();
        swapped.nodes.iter_mut().for_each(|slots| slots.reverse());
        self.nodes_sorted().min(swapped.nodes_sorted())
    }

    fn nodes_sorted(mut self) -> World {
        let mut order: [usize; NODES] = std::array::from_fn(|node| node);
        order.sort_by_key(|&node| {
            (
                self.nodes[node],
                self.keys.map(|place| place.mentions(token_of(node))),
            )
        });
        let nodes = self.nodes;
        self.nodes = order.map(|node| nodes[node]);
        for (key, place) in self.keys.iter_mut().enumerate() {
            // A token matters only while its node serves the request.
            place.rename(|token| {
                let node = order.iter().position(|&node| token_of(node) == token);
                node.filter(|&node| self.nodes[node][key] != Slot::Idle)
                    .map_or(NO_TOKEN, token_of)
            });
            place.late.sort_unstable();
        }
        self
    }

    /// Whether nothing more can happen without a new request.
    fn is_at_rest(&self) -> bool {
        self.nodes == [[Slot::Idle; KEYS]; NODES]
            && self.keys.iter().all(|place| place.late == [None; LATE])
    }

    fn note(&mut self, breach: Breach, happened: bool) {
        if happened {
            self.breach = self.breach.or(Some(breach));
        }
    }
}

impl Place {
    /// The put stays in the network, but no node waits for its reply.
    fn leave(&mut self, what: What, token: u8) {
        let free = self.late.iter_mut().find(|late| late.is_none());
        *free.expect("a late put for each crash and each repeat, and no more") =
            Some(Late { what, token });
    }

    fn mentions(&self, token: u8) -> (bool, usize) {
        let is_kept = self.record.is_some_and(|kept| kept.token == token);
        (
            is_kept,
            self.late
                .iter()
                .flatten()
                .filter(|late| late.token == token)
                .count(),
        )
    }

    fn rename(&mut self, name: impl Fn(u8) -> u8) {
        self.record
            .iter_mut()
            .for_each(|kept| kept.token = name(kept.token));
        self.late
            .iter_mut()
            .flatten()
            .for_each(|late| late.token = name(late.token));
    }

    fn store(&mut self, new: Kept) {
        self.record = Some(new);
        if self.operator == Operator::Settling {
            self.operator = Operator::SettlingStale;
        }
    }
}

impl Slot {
    /// The attempt that this slot believes it owns: not dispatched, or dispatched and about to end.
    fn owned(self) -> Option<u8> {
        match self {
            Slot::Owns(fence) => Some(fence),
            Slot::Asked(What::Release(_, fence) | What::Finish(fence, _))
            | Slot::GaveUp(What::Release(_, fence)) => Some(fence),
            _ => None,
        }
    }
}

impl Kept {
    fn of(head: &Head) -> Kept {
        let state = match head.state {
            State::Running => Stage::Running,
            State::Completed => Stage::Completed,
            State::Retryable => Stage::Retryable,
            State::Unknown => Stage::Unknown,
            other => unreachable!("no step of this world leads to {other:?}"),
        };
        assert_eq!(
            head.kept,
            state == Stage::Completed,
            "an answer is there iff it was kept"
        );
        Kept {
            state,
            fence: small(head.fence),
            token: head.token.as_bytes()[0],
            attempts: u8::try_from(head.attempts).unwrap(),
            is_live: state == Stage::Running && head.lease_until > NOW,
            answer: if head.kept {
                head.status.map_or(0, |status| (status - 200) as u8)
            } else {
                0
            },
        }
    }
}

fn small(fence: Fence) -> u8 {
    u8::try_from(fence.as_u64()).expect("fences count from one here")
}

fn large(fence: u8) -> Fence {
    Fence::from_u64(fence.into())
}

fn bit(fence: u8) -> u16 {
    1 << fence.min(15)
}

/// The token of the request that a node serves: the node's number plus one, since it serves one
/// request of each key at a time.
fn token_of(node: usize) -> u8 {
    node as u8 + 1
}

/// The token of a request that is no longer served.
const NO_TOKEN: u8 = 0;

fn claiming(under: Under) -> Claiming {
    Claiming {
        condition: under
            .fence
            .map_or(Condition::Absent, |fence| Condition::Lapsed {
                fence: large(fence),
            }),
        follows: under.is_lost.then_some(Loss::Lapsed),
        may_be_written: true,
        is_orphan: false,
    }
}

fn under(claiming: &Claiming) -> Under {
    Under {
        fence: match claiming.condition {
            Condition::Lapsed { fence } => Some(small(fence)),
            _ => None,
        },
        is_lost: claiming.follows.is_some(),
    }
}

fn seen(head: Option<Head>) -> Seen {
    Seen {
        record: head.map(|head| Record { head, answer: None }),
        now: NOW,
    }
}

// === The search ===

struct Search {
    bounds: Bounds,
    policy: Policy,
    scope: Arc<Scope>,
    key: Key,
    id: RecordId,
    fingerprint: Fingerprint,
    answer: Arc<Answer>,
    seen: [AtomicU64; SIGHTS],
}

/// Events that a search must have seen to be meaningful. They are counted outside the worlds,
/// because each would double the number of worlds.
#[derive(Clone, Copy, Debug)]
enum Sight {
    Takeover,
    TakeoverRefused,
    LateCompletion,
    CrashBeforeDispatch,
    CrashAfterDispatch,
    ClaimAdopted,
    ClaimReleasedByToken,
    FencedOutRefused,
    RetryAfterRelease,
    AttemptsExhausted,
    Settlement,
    StaleSettlementRefused,
    EndAfterSettlementRefused,
    DispatchAfterSettlement,
    LeaseRegained,
    Replay,
}

const SIGHTS: usize = Sight::Replay as usize + 1;

/// The store's reply to a put.
enum Reply {
    Won(Head),
    Lost(Option<Head>),
}

impl Search {
    fn new(bounds: Bounds) -> Search {
        let scope = Arc::new(Scope {
            namespace: "n".into(),
            principal: Principal::Anonymous,
            method: "POST".into(),
            path: "/".into(),
        });
        let key = Key::new("k").unwrap();
        Search {
            bounds,
            policy: Policy {
                mode: bounds.mode,
                attempts_max: bounds.attempts,
                ..Policy::default()
            },
            id: RecordId::of(&scope, &key),
            scope,
            key,
            fingerprint: Fingerprint {
                digest: [1; 32],
                policy: Arc::new(FingerprintPolicy::default()),
            },
            answer: Arc::new(Answer::new(200, "")),
            seen: Default::default(),
        }
    }

    fn see(&self, sight: Sight, happened: bool) {
        if happened {
            self.seen[sight as usize].fetch_add(1, Relaxed);
        }
    }

    fn count(&self, sight: Sight) -> u64 {
        self.seen[sight as usize].load(Relaxed)
    }

    /// The real head. Both keys have the same id, which no rule compares.
    fn head(&self, kept: &Kept) -> Head {
        let is_running = kept.state == Stage::Running;
        let far = NOW.after(Lifetime::default().retention);
        Head {
            id: self.id,
            scope: Arc::clone(&self.scope),
            key: self.key.clone(),
            state: match kept.state {
                Stage::Running => State::Running,
                Stage::Completed => State::Completed,
                Stage::Retryable => State::Retryable,
                Stage::Unknown => State::Unknown,
            },
            fence: large(kept.fence),
            token: AttemptToken::from_bytes([kept.token; 16]),
            version: VERSION,
            attempts: kept.attempts.into(),
            lease_until: if kept.is_live { NOW.after(LEASE) } else { NOW },
            fingerprint: Some(self.fingerprint.clone()),
            created_at: NOW,
            claimed_at: NOW,
            finished_at: if is_running { Timestamp::ZERO } else { NOW },
            expires_at: if is_running { Timestamp::ZERO } else { far },
            tombstone_until: if is_running { Timestamp::ZERO } else { far },
            status: (kept.answer > 0).then(|| 200 + u16::from(kept.answer)),
            kept: kept.state == Stage::Completed,
            request_id: None,
        }
    }

    fn put(&self, what: What, token: u8) -> Put {
        let claim = || {
            Change::Claim(Claim {
                scope: Arc::clone(&self.scope),
                key: self.key.clone(),
                fingerprint: self.fingerprint.clone(),
                token: AttemptToken::from_bytes([token; 16]),
                lease: LEASE,
                terms: None,
                request_id: None,
            })
        };
        let put = |condition, change| Put {
            id: self.id,
            condition,
            change,
        };
        let lapsed = |fence| Condition::Lapsed {
            fence: large(fence),
        };
        match what {
            What::Claim(under) => put(claiming(under).condition, claim()),
            What::Lose(fence) => put(lapsed(fence), Change::Lose(Lifetime::default())),
            What::Release(under, fence) => {
                let claimed = put(claiming(under).condition, claim());
                claiming(under).release(&claimed, large(fence), Lifetime::default())
            }
            // The work itself writes this, in its own transaction.
            What::Finish(fence, End::Kept) if self.bounds.mode == Mode::Transaction => self
                .running(fence, token)
                .put(self.finish(fence, End::Kept)),
            What::Finish(fence, end) => match self.ended(fence, end, token, false) {
                Act::WriteEnd(end) => end.running.put(end.finish),
                other => unreachable!("an attempt that ends does {other:?}"),
            },
        }
    }

    /// The next step of a node whose work has ended.
    fn ended(&self, fence: u8, end: End, token: u8, is_joined: bool) -> Act {
        let outcome = match end {
            End::Kept => Outcome::Kept {
                status: 200 + u16::from(fence),
                answer: Some(Arc::clone(&self.answer)),
            },
            End::Released => Outcome::Released { status: None },
            End::Unknown => Outcome::Lost(Loss::TimedOut),
        };
        let ended = Event::Ended {
            outcome,
            is_joined,
            has_acted_outside: false,
        };
        Act::Run(Box::new(self.running(fence, token))).next(ended, &self.caller(token))
    }

    fn running(&self, fence: u8, token: u8) -> Running {
        let claimed = Kept {
            state: Stage::Running,
            fence,
            token,
            attempts: 1,
            is_live: true,
            answer: 0,
        };
        Running {
            head: self.head(&claimed),
            follows: None,
            is_given_up: false,
        }
    }

    fn caller(&self, token: u8) -> Caller<'_> {
        Caller {
            ask: Ask {
                fingerprint: &self.fingerprint,
                deadline: None,
                token_until: None,
            },
            policy: &self.policy,
            token: AttemptToken::from_bytes([token; 16]),
        }
    }

    fn finish(&self, answer: u8, end: End) -> Finish {
        let (state, kept) = match end {
            End::Kept => (State::Completed, Some(Arc::clone(&self.answer))),
            End::Released => (State::Retryable, None),
            End::Unknown => (State::Unknown, None),
        };
        Finish {
            state,
            status: kept.as_ref().map(|_| 200 + u16::from(answer)),
            answer: kept,
            lifetime: Lifetime::default(),
        }
    }

    /// The store judges a put with the real guard.
    fn judge(&self, world: &mut World, key: usize, put: &Put) -> Reply {
        let before = world.keys[key].record.map(|kept| self.head(&kept));
        match guard::judge(before.as_ref(), put, NOW, Fence::ZERO) {
            Err(guard::Refused) => {
                self.refused(&world.keys[key], put);
                Reply::Lost(before)
            }
            Ok(after) => {
                self.written(world, key, put, &after);
                Reply::Won(after)
            }
        }
    }

    /// Judges a put that a node has sent. An attempt that was dispatched must never be released as
    /// if it had not run.
    fn judge_sent(&self, world: &mut World, key: usize, what: What, token: u8) -> Reply {
        let ledger = world.keys[key].ledger;
        let reply = self.judge(world, key, &self.put(what, token));
        if let (What::Release(_, fence), Reply::Won(_)) = (what, &reply) {
            world.note(Breach::ReleasedAfterDispatch, ledger & bit(fence) != 0);
        }
        reply
    }

    fn refused(&self, place: &Place, put: &Put) {
        let current = place.record.map(|kept| large(kept.fence));
        match (&put.change, put.condition) {
            (Change::Finish(_), Condition::Held { fence }) if current != Some(fence) => {
                self.see(Sight::FencedOutRefused, place.settled == 0);
                self.see(Sight::EndAfterSettlementRefused, place.settled > 0);
            }
            (Change::Claim(_), Condition::Lapsed { fence }) => {
                self.see(Sight::TakeoverRefused, current == Some(fence));
            }
            (Change::Settle(..), _) => {
                let is_unresolved = place
                    .record
                    .is_some_and(|kept| kept.state == Stage::Unknown);
                self.see(
                    Sight::StaleSettlementRefused,
                    is_unresolved && place.operator == Operator::SettlingStale,
                );
            }
            _ => {}
        }
    }

    /// A put took place: records forbidden events and expected sights.
    fn written(&self, world: &mut World, key: usize, put: &Put, after: &Head) {
        let (old, new) = (world.keys[key].record, Kept::of(after));
        let was = |state| old.is_some_and(|old| old.state == state);
        let old_fence = old.map_or(0, |old| old.fence);

        let mints = matches!(put.change, Change::Claim(_) | Change::Settle(..));
        world.note(
            Breach::FenceDidNotGrow,
            if mints {
                new.fence <= old_fence
            } else {
                new.fence != old_fence
            },
        );
        world.note(
            Breach::LeaseCutShort,
            old.is_some_and(|old| old.is_live) && !matches!(put.change, Change::Finish(_)),
        );
        world.note(Breach::CompletedChanged, was(Stage::Completed));
        world.note(
            Breach::VersionDidNotGrow,
            old.is_some() && after.version <= VERSION,
        );
        match (&put.change, put.condition) {
            (Change::Claim(_), _) => {
                self.see(Sight::Takeover, was(Stage::Running) || was(Stage::Unknown));
                self.see(Sight::RetryAfterRelease, was(Stage::Retryable));
            }
            (Change::Finish(_), Condition::Held { fence }) => {
                let fence = small(fence);
                world.note(Breach::EndedByAnother, fence != old_fence);
                world.note(
                    Breach::EndedAfterSettlement,
                    fence < world.keys[key].settled,
                );
                if new.state == Stage::Retryable {
                    world.keys[key].ledger &= !bit(fence);
                }
                if self.bounds.mode == Mode::Transaction && new.state == Stage::Completed {
                    world.note(Breach::SecondEffect, world.keys[key].ledger != 0);
                    world.keys[key].ledger |= bit(fence);
                }
                self.see(
                    Sight::LateCompletion,
                    was(Stage::Unknown) && new.state == Stage::Completed,
                );
            }
            (Change::Settle(..), _) => {
                world.note(
                    Breach::SettledUnseen,
                    world.keys[key].operator == Operator::SettlingStale,
                );
                world.keys[key].settled = new.fence;
                self.see(Sight::Settlement, true);
            }
            _ => {}
        }
        world.keys[key].store(new);
    }

    /// The step of a node that has sent this put.
    fn act(&self, what: What, token: u8, is_orphan: bool) -> Act {
        let orphan = |under| Claiming {
            is_orphan,
            ..claiming(under)
        };
        match what {
            What::Claim(under) => Act::Claim {
                claiming: orphan(under),
                seen: None,
            },
            What::Lose(fence) => Act::WriteLost(Condition::Lapsed {
                fence: large(fence),
            }),
            What::Release(under, fence) => Act::Release {
                claiming: orphan(under),
                fence: large(fence),
            },
            What::Finish(fence, end) => self.ended(fence, end, token, false),
        }
    }

    /// The node gets the reply to its put.
    fn replied(&self, world: &mut World, node: usize, key: usize, what: What, reply: Reply) {
        let (mine, gave_up) = (
            token_of(node),
            matches!(world.nodes[node][key], Slot::GaveUp(_)),
        );
        let (was_won, event) = match reply {
            Reply::Won(head) => (true, Event::Won(Won { head, now: NOW })),
            Reply::Lost(head) => (false, Event::Seen(seen(head))),
        };
        let next = match (what, event) {
            // The put was the transaction of the work.
            (What::Finish(fence, End::Kept), event) if self.bounds.mode == Mode::Transaction => {
                match (event, self.ended(fence, End::Kept, mine, true)) {
                    (Event::Won(won), Act::Conclude(Conclusion::InTransaction(None))) => {
                        Act::Conclude(Conclusion::InTransaction(Some(seen(Some(won.head)))))
                    }
                    (Event::Seen(seen), _) => Act::Conclude(Conclusion::FencedOut(seen)),
                    other => unreachable!("an attempt that joined does {other:?}"),
                }
            }
            (_, event) => self
                .act(what, mine, gave_up)
                .next(event, &self.caller(mine)),
        };
        if matches!(what, What::Claim(_)) {
            self.see(Sight::ClaimAdopted, !was_won && matches!(next, Act::Run(_)));
            self.see(
                Sight::ClaimReleasedByToken,
                matches!(next, Act::Release { .. }),
            );
        }
        world.nodes[node][key] = self.follow(world, node, key, next);
    }

    /// The node gets no reply. Its put stays in the network.
    fn hears_nothing(
        &self,
        world: &mut World,
        node: usize,
        key: usize,
        is_time_left: bool,
    ) -> Option<()> {
        let (what, gave_up) = match world.nodes[node][key] {
            Slot::Asked(what) => (what, false),
            Slot::GaveUp(what) => (what, true),
            _ => return None,
        };
        world.repeats_left -= 1;
        world.keys[key].leave(what, token_of(node));
        let failed = Event::Failed {
            rejection: Rejection::StoreUnavailable,
            is_time_left,
        };
        // The node asks again whether the work's own transaction committed.
        if matches!(what, What::Finish(_, End::Kept)) && self.bounds.mode == Mode::Transaction {
            return Some(());
        }
        let mine = token_of(node);
        let next = self
            .act(what, mine, gave_up)
            .next(failed, &self.caller(mine));
        world.nodes[node][key] = match next {
            Act::Claim { claiming, .. } => {
                assert!(claiming.may_be_written, "it was sent before");
                let what = What::Claim(under(&claiming));
                if claiming.is_orphan {
                    Slot::GaveUp(what)
                } else {
                    Slot::Asked(what)
                }
            }
            Act::Abandon { claiming, .. } => Slot::GaveUp(What::Claim(under(&claiming))),
            Act::WriteEnd(_) => Slot::Asked(what),
            other => self.follow(world, node, key, other),
        };
        Some(())
    }

    /// Performs the next step of the call.
    fn follow(&self, world: &mut World, node: usize, key: usize, next: Act) -> Slot {
        match next {
            Act::Claim { claiming, .. } => {
                assert!(!claiming.may_be_written, "a new claim was never sent");
                // A new claim has a new token, so copies of an earlier claim no longer belong to
                // it.
                let mine = token_of(node);
                world.keys[key].rename(|token| if token == mine { NO_TOKEN } else { token });
                Slot::Asked(What::Claim(under(&claiming)))
            }
            Act::Release { claiming, fence } => {
                let what = What::Release(under(&claiming), small(fence));
                if claiming.is_orphan {
                    Slot::GaveUp(what)
                } else {
                    Slot::Asked(what)
                }
            }
            Act::WriteLost(Condition::Lapsed { fence }) => Slot::Asked(What::Lose(small(fence))),
            Act::Run(running) => Slot::Owns(small(running.head.fence)),
            Act::Replay(seen) => {
                self.see(Sight::Replay, true);
                self.acknowledge(world, key, &seen)
            }
            Act::Reject { rejection, .. } => {
                self.see(
                    Sight::AttemptsExhausted,
                    rejection == Rejection::AttemptsExhausted,
                );
                Slot::Idle
            }
            Act::Wait(_) | Act::Over => Slot::Idle,
            Act::Conclude(Conclusion::Written(seen) | Conclusion::InTransaction(Some(seen))) => {
                self.acknowledge(world, key, &seen)
            }
            // A loser discards its outcome and replays the stored record. It never begins another
            // attempt.
            Act::Conclude(Conclusion::FencedOut(seen)) => {
                match self.caller(token_of(node)).decide(seen) {
                    Act::Replay(seen) => self.acknowledge(world, key, &seen),
                    _ => Slot::Idle,
                }
            }
            other => unreachable!("nothing here leads to {other:?}"),
        }
    }

    /// The client gets its answer. The stored answer stays the same, since no completed record ever
    /// changes.
    fn acknowledge(&self, world: &mut World, key: usize, seen: &Seen) -> Slot {
        let head = seen.record.as_ref().map(|record| Kept::of(&record.head));
        let Some(Kept {
            state: Stage::Completed,
            answer,
            ..
        }) = head
        else {
            return Slot::Idle;
        };
        let is_stored = world.keys[key]
            .record
            .is_some_and(|kept| kept.state == Stage::Completed && kept.answer == answer);
        world.note(Breach::AcknowledgedUnstored, !is_stored);
        Slot::Idle
    }

    fn dispatches(&self, world: &mut World, node: usize, key: usize, end: End) -> Option<()> {
        let Slot::Owns(fence) = world.nodes[node][key] else {
            return None;
        };
        let ledger = world.keys[key].ledger;
        let forbids = if self.bounds.mode == Mode::Hold {
            ledger
        } else {
            ledger & bit(fence)
        };
        world.note(Breach::SecondDispatch, forbids != 0);
        self.see(
            Sight::DispatchAfterSettlement,
            fence < world.keys[key].settled,
        );
        if self.bounds.mode != Mode::Transaction {
            world.keys[key].ledger |= bit(fence);
        }
        world.nodes[node][key] = Slot::Asked(What::Finish(fence, end));
        Some(())
    }

    /// An attempt that counts as lost still ends, whether or not the loss has been written.
    fn ends_after_all(world: &mut World, node: usize, key: usize, end: End) -> Option<()> {
        let Slot::Asked(What::Finish(fence, End::Unknown)) = world.nodes[node][key] else {
            return None;
        };
        world.repeats_left -= 1;
        world.keys[key].leave(What::Finish(fence, End::Unknown), NO_TOKEN);
        world.nodes[node][key] = Slot::Asked(What::Finish(fence, end));
        Some(())
    }

    fn crashes(&self, world: &mut World, node: usize) {
        world.crashes_left -= 1;
        for (key, place) in world.keys.iter_mut().enumerate() {
            let slot = std::mem::replace(&mut world.nodes[node][key], Slot::Idle);
            self.see(Sight::CrashBeforeDispatch, matches!(slot, Slot::Owns(_)));
            self.see(
                Sight::CrashAfterDispatch,
                matches!(slot, Slot::Asked(What::Finish(..))),
            );
            if let Slot::Asked(what) | Slot::GaveUp(what) = slot {
                place.leave(what, token_of(node));
            }
        }
    }

    fn renews(&self, world: &mut World, node: usize, key: usize) -> Option<()> {
        let fence = world.nodes[node][key].owned()?;
        let old = world.keys[key].record?;
        let renewal = Renewal {
            id: self.id,
            fence: large(fence),
            lease: LEASE,
        };
        let new = Kept::of(&guard::renew(Some(&self.head(&old)), &renewal, NOW).ok()?);
        world.note(Breach::FenceDidNotGrow, new.fence != old.fence);
        world.note(Breach::EndedByAnother, old.fence != fence);
        self.see(Sight::LeaseRegained, new.is_live && !old.is_live);
        // Renewing a live lease is a write too: it leaves the record unchanged but makes an
        // operator's reading stale.
        let matters = new != old || world.keys[key].operator == Operator::Settling;
        matters.then(|| world.keys[key].store(new))
    }

    fn sweeps(&self, world: &mut World, key: usize) -> Option<()> {
        let old = world.keys[key].record?;
        let Due::Lost(head) = guard::due(&self.head(&old), Lifetime::default(), NOW)? else {
            unreachable!("retention never ends here")
        };
        let new = Kept::of(&head);
        world.note(Breach::LeaseCutShort, old.is_live);
        world.note(Breach::FenceDidNotGrow, new.fence != old.fence);
        world.keys[key].store(new);
        Some(())
    }

    fn operator_settles(&self, world: &mut World, key: usize) {
        let is_stale = world.keys[key].operator == Operator::SettlingStale;
        let condition = Condition::Version {
            version: if is_stale { VERSION - 1 } else { VERSION },
        };
        self.judge(
            world,
            key,
            &Put {
                id: self.id,
                condition,
                change: Change::Settle(self.finish(SETTLED, End::Kept), SIGNED.clone()),
            },
        );
        world.keys[key].operator = Operator::Away;
    }

    /// The possible next steps of a node for its request of one key.
    fn steps_of_node(&self, world: &World, node: usize, key: usize, steps: &mut Vec<Step>) {
        let slot = world.nodes[node][key];
        match slot {
            Slot::Idle if world.keys[key].requests_left > 0 => {
                steps.push(Step::Arrives { node, key });
            }
            Slot::Idle => {}
            Slot::Owns(_) => steps.extend(self.bounds.ends.iter().map(|&end| Step::Dispatches {
                node,
                key,
                end,
            })),
            Slot::Asked(_) | Slot::GaveUp(_) => steps.push(Step::Lands { node, key }),
        }
        if matches!(slot, Slot::Owns(_) | Slot::Asked(What::Finish(..))) {
            steps.push(Step::Renews { node, key });
        }
        if world.repeats_left == 0 {
            return;
        }
        // A lost reply to `Lose` changes nothing for its caller, which gets the same answer either
        // way.
        if !matches!(
            slot,
            Slot::Idle | Slot::Owns(_) | Slot::Asked(What::Lose(_))
        ) {
            steps.push(Step::SendsAgain { node, key });
        }
        match slot {
            Slot::Asked(What::Claim(_)) => {
                steps.push(Step::GivesUp { node, key });
            }
            Slot::Asked(What::Finish(_, End::Unknown)) => {
                steps.extend([End::Kept, End::Released].map(|end| Step::EndsAfterAll {
                    node,
                    key,
                    end,
                }));
            }
            _ => {}
        }
    }

    /// The possible next steps of one key that no node takes.
    fn steps_of_store(world: &World, key: usize, steps: &mut Vec<Step>) {
        let place = &world.keys[key];
        steps.extend(
            (0..LATE)
                .filter(|&which| place.late[which].is_some())
                .map(|which| Step::LandsLate { key, which }),
        );
        if place.record.is_some_and(|kept| kept.is_live) {
            steps.push(Step::Lapses { key });
        }
        steps.push(Step::Sweeps { key });
        // A careless operator, who settles any record.
        if world.settlements_left > 0 && place.record.is_some() {
            steps.push(Step::OperatorLooks { key });
        }
        if place.operator != Operator::Away {
            steps.push(Step::OperatorSettles { key });
        }
    }
}

impl Model for Search {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let Bounds {
            keys,
            requests,
            crashes,
            repeats,
            settlements,
            ..
        } = self.bounds;
        let place = |key| {
            // A key outside the bounds gets no requests.
            let requests_left = if key < keys { requests } else { 0 };
            Place {
                record: None,
                late: [None; LATE],
                requests_left,
                ledger: 0,
                settled: 0,
                operator: Operator::Away,
            }
        };
        vec![World {
            nodes: [[Slot::Idle; KEYS]; NODES],
            keys: std::array::from_fn(place),
            crashes_left: crashes,
            repeats_left: repeats,
            settlements_left: settlements,
            breach: None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for key in 0..KEYS {
            (0..NODES).for_each(|node| self.steps_of_node(world, node, key, steps));
            Search::steps_of_store(world, key, steps);
        }
        if world.crashes_left > 0 {
            let is_busy = |node: &usize| world.nodes[*node] != [Slot::Idle; KEYS];
            steps.extend(
                (0..NODES)
                    .filter(is_busy)
                    .map(|node| Step::Crashes { node }),
            );
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut world = *world;
        match step {
            Step::Arrives { node, key } => {
                world.keys[key].requests_left -= 1;
                // A fresh key is claimed without reading it first.
                world.nodes[node][key] = self.follow(&mut world, node, key, Act::first(false));
            }
            Step::Lands { node, key } => {
                let (Slot::Asked(what) | Slot::GaveUp(what)) = world.nodes[node][key] else {
                    return None;
                };
                let reply = self.judge_sent(&mut world, key, what, token_of(node));
                self.replied(&mut world, node, key, what, reply);
            }
            Step::LandsLate { key, which } => {
                let Late { what, token } = world.keys[key].late[which].take()?;
                self.judge_sent(&mut world, key, what, token);
            }
            Step::SendsAgain { node, key } => self.hears_nothing(&mut world, node, key, true)?,
            Step::GivesUp { node, key } => self.hears_nothing(&mut world, node, key, false)?,
            Step::Dispatches { node, key, end } => self.dispatches(&mut world, node, key, end)?,
            Step::EndsAfterAll { node, key, end } => {
                Search::ends_after_all(&mut world, node, key, end)?;
            }
            Step::Renews { node, key } => self.renews(&mut world, node, key)?,
            Step::Crashes { node } => self.crashes(&mut world, node),
            Step::Lapses { key } => world.keys[key].record.as_mut()?.is_live = false,
            Step::Sweeps { key } => self.sweeps(&mut world, key)?,
            Step::OperatorLooks { key } => {
                world.settlements_left -= 1;
                world.keys[key].operator = Operator::Settling;
            }
            Step::OperatorSettles { key } => self.operator_settles(&mut world, key),
        }
        Some(world.sorted())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "in hold one dispatch, until an attempt ends retryable; one for each fence in rerun",
                |_, world: &World| world.breach != Some(Breach::SecondDispatch),
            ),
            Property::always(
                "a claim that ran is never released as if it had not",
                |_, world: &World| world.breach != Some(Breach::ReleasedAfterDispatch),
            ),
            Property::always("in transactions one effect at most", |_, world: &World| {
                world.breach != Some(Breach::SecondEffect)
            }),
            Property::always(
                "in transactions an effect is there iff its record is complete",
                |search: &Search, world: &World| {
                    search.bounds.mode != Mode::Transaction
                        || world.keys.iter().all(|place| {
                            let complete = place.record.filter(|kept| {
                                kept.state == Stage::Completed && kept.answer != SETTLED
                            });
                            place.ledger == complete.map_or(0, |kept| bit(kept.fence))
                        })
                },
            ),
            Property::always(
                "a lease that is not over is never taken or declared lost",
                |_, world: &World| world.breach != Some(Breach::LeaseCutShort),
            ),
            Property::always("no two nodes own one fence", |_, world: &World| {
                (0..KEYS).all(|key| {
                    let [a, b, c] = world.nodes.map(|slots| slots[key].owned());
                    (a.is_none() || a != b && a != c) && (b.is_none() || b != c)
                })
            }),
            Property::always("fences only grow", |_, world: &World| {
                world.breach != Some(Breach::FenceDidNotGrow)
            }),
            Property::always("every write is counted", |_, world: &World| {
                world.breach != Some(Breach::VersionDidNotGrow)
            }),
            Property::always(
                "an attempt is ended by nobody but itself",
                |_, world: &World| world.breach != Some(Breach::EndedByAnother),
            ),
            Property::always(
                "a completed record holds the answer of its own fence",
                |_, world: &World| {
                    world.keys.iter().all(|place| {
                        place.record.is_none_or(|kept| {
                            kept.state != Stage::Completed
                                || kept.answer == kept.fence
                                || kept.answer == SETTLED && kept.fence == place.settled
                        })
                    })
                },
            ),
            Property::always("a completed record stays as it is", |_, world: &World| {
                world.breach != Some(Breach::CompletedChanged)
            }),
            Property::always("an operator settles what they saw", |_, world: &World| {
                world.breach != Some(Breach::SettledUnseen)
            }),
            Property::always("nothing ends after it was settled", |_, world: &World| {
                world.breach != Some(Breach::EndedAfterSettlement)
            }),
            Property::always(
                "an acknowledged answer is the stored one",
                |_, world: &World| world.breach != Some(Breach::AcknowledgedUnstored),
            ),
            Property::always(
                "no more attempts than the policy allows",
                |search: &Search, world: &World| {
                    world.keys.iter().all(|place| {
                        place
                            .record
                            .is_none_or(|kept| u32::from(kept.attempts) <= search.bounds.attempts)
                    })
                },
            ),
            // False unknowns are defects too. In rerun, a late takeover may outlive its request,
            // and the next request runs again.
            Property::always(
                "in hold nothing stays unresolved but after a crash, or by the upstream's word",
                |search: &Search, world: &World| {
                    let Bounds {
                        mode,
                        crashes,
                        ends,
                        ..
                    } = search.bounds;
                    let is_unresolved = |place: &Place| match place.record.map(|kept| kept.state) {
                        Some(Stage::Running) => true,
                        Some(Stage::Unknown) => place.ledger == 0 || !ends.contains(&End::Unknown),
                        _ => false,
                    };
                    mode != Mode::Hold
                        || world.crashes_left < crashes
                        || !world.is_at_rest()
                        || !world.keys.iter().any(is_unresolved)
                },
            ),
        ]
    }
}
