//! Compares what happened to an input with what must happen.

use crate::answers::{Answer, Outcome};
use crate::cases::{Expect, First};
use crate::upstreams::Seen;

/// Targets of requests that were broken off, and whether they may be complete. An upstream may
/// record them only after it has seen the probe.
#[derive(Default)]
pub struct Stragglers(Vec<(String, bool)>);

impl Stragglers {
    pub fn expect(&mut self, expect: &Expect, nonce: &str, seen: &[Seen]) {
        if let Expect::BrokenOff(first) | Expect::MayPass(first) = expect {
            let target = first.target.replace("{n}", nonce);
            if !seen.iter().any(|seen| seen.target == target) {
                self.0.push((target, matches!(expect, Expect::MayPass(_))));
            }
        }
    }

    /// Whether this is a late record of an earlier request that was broken off. Each is accepted
    /// once.
    pub fn forgive(&mut self, seen: &Seen) -> bool {
        let known = self.0.iter().position(|(target, may_be_whole)| {
            *target == seen.target && (*may_be_whole || !seen.whole)
        });
        known.map(|index| self.0.swap_remove(index)).is_some()
    }
}

/// One input, sent once.
pub struct Run {
    pub is_http2: bool,
    pub nonce: String,
    pub key: Option<String>,
    pub outcome: Outcome,
    /// What the upstream saw meanwhile.
    pub seen: Vec<Seen>,
    pub expect: Expect,
}

impl Run {
    /// The text of this run in the table.
    pub fn cell(&self) -> String {
        let answer = |answer: &Option<Answer>| match answer {
            Some(Answer { status: 0, .. }) => "4xx".to_owned(),
            Some(answer) => answer.status.to_string(),
            None => "-".to_owned(),
        };
        let [first, second] = &self.outcome.answers;
        let ended = self
            .outcome
            .ended
            .as_ref()
            .map(|ended| format!(" {ended}"))
            .unwrap_or_default();
        let seen: Vec<_> = self.seen.iter().map(|seen| self.name(seen)).collect();
        format!(
            "{} {}{ended} saw {}",
            answer(first),
            answer(second),
            if seen.is_empty() {
                "-".to_owned()
            } else {
                seen.join("+")
            }
        )
    }

    fn name(&self, seen: &Seen) -> &'static str {
        match seen.whole {
            _ if self.is_second(seen) => "2",
            true => "1",
            false if seen.refused.is_some() => "1 (it refused)",
            false => "1 (its beginning)",
        }
    }

    /// `Err` says what is wrong.
    pub fn verdict(&self) -> Result<(), String> {
        if let Some(surplus) = &self.outcome.surplus {
            return Err(format!("an answer too many, or half of one: {surplus:?}"));
        }
        self.seen_only_what_was_sent()?;
        self.answered_each_as_itself()?;
        match &self.expect {
            Expect::Refused(status) => self.is_refused(*status),
            Expect::BrokenOff(_) => self.is_broken_off(),
            Expect::MayPass(_) => Ok(()),
            Expect::Passes(first) => self.arrived(first).and_then(|()| self.second_arrived()),
            Expect::Alone(first) => self.arrived(first).and_then(|()| self.nothing_more(None)),
            Expect::ThenRefused(first, status) => self
                .arrived(first)
                .and_then(|()| self.nothing_more(Some(*status))),
        }
        .map_err(|error| {
            format!(
                "{error}: {:?}, the upstream saw {:?}",
                self.outcome, self.seen
            )
        })
    }

    /// The upstream saw only the first request, at most once, and the second, at most once.
    fn seen_only_what_was_sent(&self) -> Result<(), String> {
        let (mut first, mut second) = (0, 0);
        for seen in &self.seen {
            if self.is_second(seen) {
                second += 1;
            } else if self.is_first(seen) {
                first += 1;
            } else {
                return Err(format!(
                    "DESYNCHRONISED: the upstream saw what it must not see: {seen:?}, after {:?}",
                    self.outcome
                ));
            }
        }
        if first > 1 || second > 1 {
            return Err(format!(
                "DESYNCHRONISED: the upstream saw a request twice: {:?}",
                self.seen
            ));
        }
        Ok(())
    }

    fn is_second(&self, seen: &Seen) -> bool {
        let plain = seen.whole
            && seen.body.is_empty()
            && seen.field("idempotency-key").is_empty()
            && seen.field("hapax-fence").is_empty();
        plain && seen.method == "GET" && seen.target == format!("/second-{}", self.nonce)
    }

    fn is_first(&self, seen: &Seen) -> bool {
        let first = match &self.expect {
            Expect::Refused(_) => return false,
            // An unguarded request is forwarded before its end is known to be invalid.
            Expect::BrokenOff(first) => {
                return self.key.is_none()
                    && !seen.whole
                    && seen.method == first.method
                    && seen.target == self.filled(&first.target);
            }
            Expect::MayPass(first)
            | Expect::Passes(first)
            | Expect::Alone(first)
            | Expect::ThenRefused(first, _) => first,
        };
        let is_it = seen.method == first.method && seen.target == self.filled(&first.target);
        // The upstream may not have read a request that it refused itself.
        is_it
            && (seen.refused.is_some()
                || (seen.whole
                    && seen.body == self.filled(&first.body)
                    && self.is_framed(seen)
                    && self.is_signed(seen)))
    }

    /// There is exactly one length, and it is unambiguous.
    fn is_framed(&self, seen: &Seen) -> bool {
        match (
            &seen.field("content-length")[..],
            &seen.field("transfer-encoding")[..],
        ) {
            ([], []) => seen.body.is_empty(),
            ([length], []) => {
                length.parse() == Ok(seen.body.len()) || seen.target.starts_with("/early")
            }
            ([], ["chunked"]) => true,
            _ => false,
        }
    }

    /// A guarded request carries the key and a fence from the gateway; another has no fence, and no
    /// key that was not sent with it.
    fn is_signed(&self, seen: &Seen) -> bool {
        let keys = seen.field("idempotency-key");
        let fences = seen.field("hapax-fence");
        let host_is_one = seen.field("host").len() <= 1;
        let is_guarded = self.key.is_some() && seen.method == "POST";
        let fence_is_ours = if is_guarded {
            fences.len() == 1 && fences[0].len() > 5
        } else {
            fences.is_empty()
        };
        host_is_one
            && fence_is_ours
            && keys == self.key.iter().map(String::as_str).collect::<Vec<_>>()
    }

    /// An answer of the upstream belongs to the request in whose place it came.
    fn answered_each_as_itself(&self) -> Result<(), String> {
        let [first, second] = &self.outcome.answers;
        let target = match &self.expect {
            Expect::Refused(_) | Expect::BrokenOff(_) => None,
            Expect::MayPass(first)
            | Expect::Passes(first)
            | Expect::Alone(first)
            | Expect::ThenRefused(first, _) => {
                Some(format!("{} {}", first.method, self.filled(&first.target)))
            }
        };
        if let Some(saw) = first.as_ref().and_then(Answer::saw)
            && Some(saw) != target.as_deref()
        {
            return Err(format!(
                "DESYNCHRONISED: the first was answered with {saw:?}"
            ));
        }
        if let Some(saw) = second.as_ref().and_then(Answer::saw)
            && saw != format!("GET /second-{}", self.nonce)
        {
            return Err(format!(
                "DESYNCHRONISED: the second was answered with {saw:?}"
            ));
        }
        Ok(())
    }

    fn is_refused(&self, status: u16) -> Result<(), String> {
        let [first, second] = &self.outcome.answers;
        if self.is_http2 {
            // Over HTTP/2 the second request has its own stream and is not affected.
            let refused = first
                .as_ref()
                .map_or(self.outcome.ended.is_some(), Answer::is_refusal);
            return check(refused, "it is not refused");
        }
        check(
            first
                .as_ref()
                .is_some_and(|first| first.status == status && first.is_ours()),
            "it is not refused as it should be",
        )?;
        check(
            second.is_none() && self.seen.is_empty(),
            "the connection goes on",
        )
    }

    fn is_broken_off(&self) -> Result<(), String> {
        let [first, second] = &self.outcome.answers;
        check(
            first.as_ref().is_none_or(Answer::is_refusal),
            "it is answered as if it were good",
        )?;
        check(
            self.is_http2
                || (second.is_none() && !self.seen.iter().any(|seen| self.is_second(seen))),
            "the connection goes on",
        )
    }

    fn arrived(&self, first: &First) -> Result<(), String> {
        let seen = self
            .seen
            .iter()
            .find(|seen| !self.is_second(seen))
            .ok_or("it did not arrive")?;
        let answer = self.outcome.answers[0]
            .as_ref()
            .ok_or("it is not answered")?;
        let saw = format!("{} {}", first.method, self.filled(&first.target));
        match seen.refused {
            // The client's answer agrees with the upstream's record.
            Some(status) => check(
                answer.status == status || answer.is_refusal(),
                "the upstream's refusal is not its answer",
            ),
            None => check(
                answer.status == 200 && answer.saw() == Some(&saw),
                "it is not answered as itself",
            ),
        }
    }

    fn second_arrived(&self) -> Result<(), String> {
        check(
            self.seen.iter().any(|seen| self.is_second(seen)),
            "the second did not arrive",
        )?;
        check(
            self.outcome.answers[1]
                .as_ref()
                .is_some_and(|second| second.status == 200 && second.saw().is_some()),
            "the second is not answered",
        )
    }

    fn nothing_more(&self, status: Option<u16>) -> Result<(), String> {
        check(
            !self.seen.iter().any(|seen| self.is_second(seen)),
            "the second arrived",
        )?;
        let given = self.outcome.answers[1].as_ref().map(|second| second.status);
        check(
            given == status,
            "what follows is not answered as it should be",
        )
    }

    fn filled(&self, template: &str) -> String {
        template.replace("{n}", &self.nonce)
    }
}

impl Answer {
    /// Not from the upstream, and not a success.
    fn is_refusal(&self) -> bool {
        self.saw().is_none() && (self.status >= 400 || self.status == 0)
    }
}

fn check(good: bool, otherwise: &str) -> Result<(), String> {
    if good {
        Ok(())
    } else {
        Err(otherwise.to_owned())
    }
}
