//! Minimal services in memory that follow the rules of `fenced` or of `probe`, and some that break
//! one of them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};

use crate::harness::{Asked, Gate, Part, Reply, broken_off, in_parts, whole, with};
use crate::ledger::Effects;
use crate::world::{PROBE, Serve};

/// The body of every order's answer.
pub const ORDERED: &str = "ordered: a hat";

/// Which rules it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Those of `fenced`: it repeats the answer of an applied operation, refuses lower fences, and
    /// applies the rest.
    Fenced,
    /// It breaks the first rule of `fenced`: it only checks for a higher fence.
    HighestFenceOnly,
    /// Those of `probe` only: it refuses lower fences, and reports what was done or bars it.
    Probed,
    /// It reports that an attempt was not done, without barring it.
    BarsNothing,
    /// It reports what it has forgotten as not done.
    BarsWhatItForgot,
}

/// Its answer to the next probe.
#[derive(Clone, Copy, Debug)]
pub enum Says {
    /// Closes the connection without an answer.
    Nothing,
    Word(&'static str),
    Stalls,
    Status(u16),
    Words(&'static [(&'static str, &'static str)]),
    TooMuch,
    /// An answer whose body breaks off, or stalls.
    BreaksOff,
    StallsWithin,
}

#[derive(Default)]
struct State {
    operations: HashMap<String, Known>,
    effects: Effects,
    /// The fences of all dispatched requests.
    dispatched: Vec<u64>,
    /// The fences of all probes.
    asked: Vec<u64>,
    refused: usize,
    /// Fields that a caller has smuggled in beside a probe.
    smuggled: Vec<String>,
    says: VecDeque<Says>,
    has_forgotten: bool,
}

struct Known {
    fence: u64,
    is_applied: bool,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Done,
    Refused,
}

pub struct Reference {
    kind: Kind,
    state: Mutex<State>,
    /// Where work waits whose attempt was lost but is still running.
    pub slow: Gate,
    /// Where a request waits before it does anything.
    pub door: Gate,
}

impl Reference {
    pub fn new(kind: Kind) -> Arc<Reference> {
        Arc::new(Reference {
            kind,
            state: Mutex::default(),
            slow: Gate::default(),
            door: Gate::default(),
        })
    }

    pub fn effects(&self) -> Effects {
        self.state.lock().unwrap().effects.clone()
    }

    pub fn dispatched(&self) -> Vec<u64> {
        self.state.lock().unwrap().dispatched.clone()
    }

    pub fn asked(&self) -> Vec<u64> {
        self.state.lock().unwrap().asked.clone()
    }

    /// The number of attempts that were refused as too late.
    pub fn refused(&self) -> usize {
        self.state.lock().unwrap().refused
    }

    /// Fields of probes that the gateway did not send.
    pub fn smuggled(&self) -> Vec<String> {
        self.state.lock().unwrap().smuggled.clone()
    }

    /// Gives this answer to the next probe, and correct answers after it.
    pub fn say_next(&self, says: Says) {
        self.state.lock().unwrap().says.push_back(says);
    }

    /// Forgets all operations.
    pub fn forget(&self) {
        let mut state = self.state.lock().unwrap();
        state.operations.clear();
        state.has_forgotten = true;
    }

    /// Runs one attempt atomically.
    fn attempt(&self, asked: &Asked) -> Verdict {
        let (fence, mut state) = (asked.fence(), self.state.lock().unwrap());
        let State {
            operations,
            effects,
            refused,
            ..
        } = &mut *state;
        let known = operations
            .entry(asked.operation().to_owned())
            .or_insert(Known {
                fence,
                is_applied: false,
            });
        if known.is_applied && self.kind == Kind::Fenced {
            return Verdict::Done;
        }
        if known.fence > fence {
            *refused += 1;
            return Verdict::Refused;
        }
        *known = Known {
            fence,
            is_applied: true,
        };
        effects
            .entry(asked.key().to_owned())
            .or_default()
            .push(fence);
        Verdict::Done
    }

    /// Answers a probe: the operation is done, or barred from now on.
    fn ask(&self, asked: &Asked) -> Option<&'static str> {
        let (fence, mut state) = (asked.fence(), self.state.lock().unwrap());
        let has_forgotten = state.has_forgotten;
        match state.operations.get_mut(asked.operation()) {
            Some(known) if known.is_applied => return Some("done"),
            // A missing operation may be one that was forgotten.
            None if has_forgotten && self.kind != Kind::BarsWhatItForgot => return None,
            _ if self.kind == Kind::BarsNothing => return Some("barred"),
            Some(known) => known.fence = known.fence.max(fence),
            None => {
                state.operations.insert(
                    asked.operation().to_owned(),
                    Known {
                        fence,
                        is_applied: false,
                    },
                );
            }
        }
        Some("barred")
    }

    async fn probed(&self, asked: &Asked) -> io::Result<Reply> {
        if asked.operation().is_empty() {
            let fields = asked
                .headers
                .keys()
                .map(ToString::to_string)
                .filter(|name| name.contains("hapax"));
            self.state.lock().unwrap().smuggled.extend(fields);
            return Ok(whole(404, "no such operation"));
        }
        assert_eq!(asked.field("hapax-probe"), "ask");
        let says = {
            let mut state = self.state.lock().unwrap();
            state.asked.push(asked.fence());
            state.says.pop_front()
        };
        let done = || {
            with(
                with(whole(200, ORDERED), "hapax-probe", "done"),
                "hapax-status",
                "201",
            )
        };
        let begun = |then| {
            let parts = [Part::Data("ordered: a".into()), then];
            done().map(|_| in_parts(200, parts).into_body())
        };
        Ok(match says {
            None => match self.ask(asked) {
                Some("done") => with(done(), "content-type", "text/plain"),
                Some(word) => with(whole(200, ""), "hapax-probe", word),
                None => whole(200, "I do not know"),
            },
            Some(Says::Nothing) => return Err(broken_off()),
            Some(Says::Word(word)) => with(whole(200, ""), "hapax-probe", word),
            Some(Says::Stalls) => std::future::pending().await,
            Some(Says::Status(status)) => with(whole(status, ""), "hapax-probe", "barred"),
            Some(Says::Words(fields)) => fields
                .iter()
                .fold(whole(200, ORDERED), |answer, (name, value)| {
                    with(answer, name, value)
                }),
            Some(Says::TooMuch) => done().map(|_| whole(200, vec![b'x'; 2 << 20]).into_body()),
            Some(Says::BreaksOff) => begun(Part::BreaksOff),
            Some(Says::StallsWithin) => begun(Part::Stalls),
        })
    }
}

impl Serve for Reference {
    async fn serve(self: Arc<Self>, asked: Asked) -> io::Result<Reply> {
        if asked.uri.path() == PROBE {
            return self.probed(&asked).await;
        }
        self.state.lock().unwrap().dispatched.push(asked.fence());
        match asked.field("x-do") {
            "break off" => return Err(broken_off()),
            "do it, break off" => {
                self.attempt(&asked);
                return Err(broken_off());
            }
            "break off, do it later" => {
                tokio::spawn(async move {
                    self.slow.pass().await;
                    self.attempt(&asked);
                    self.slow.done();
                });
                return Err(broken_off());
            }
            "wait, do it" => {
                self.door.pass().await;
                let verdict = self.attempt(&asked);
                self.door.done();
                return Ok(answer(verdict));
            }
            "refuse" => return Ok(answer(Verdict::Refused)),
            told => assert_eq!(told, "do it"),
        }
        Ok(answer(self.attempt(&asked)))
    }
}

fn answer(verdict: Verdict) -> Reply {
    match verdict {
        Verdict::Done => with(whole(201, ORDERED), "content-type", "text/plain"),
        Verdict::Refused => with(
            whole(409, "a higher fence was here"),
            "hapax-refused",
            "fence",
        ),
    }
}
