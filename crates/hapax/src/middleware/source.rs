//! Keys from other places than their field, and the values by which new keys are counted: parts of
//! the request, including its body.

use hapax_core::fingerprint::find::Value;
use hapax_core::fingerprint::{Found, Pointer};
use hapax_core::key::{Key, KeyError};
use hapax_core::policy::{KeyRule, KeySource, Part, Policy};
use hapax_core::rejection::Rejection;
use hapax_core::scope::Principal;
use http::HeaderMap;
use http::header::CONTENT_TYPE;

use crate::once::Counted;

/// A request whose body has been read.
pub(super) struct RequestData<'a> {
    pub(super) principal: &'a Principal,
    pub(super) headers: &'a HeaderMap,
    /// The values in the body at the policy's [pointers](Policy::pointers); `None` if there are
    /// none.
    pub(super) found: Option<&'a Found>,
}

impl RequestData<'_> {
    /// The key from another place than the key field; `None` if the request may pass without one.
    pub(super) fn key(&self, policy: &Policy) -> Result<Option<Key>, Rejection> {
        let key = match &policy.key_source {
            KeySource::Field => Err(Rejection::KeyMissing),
            KeySource::Body(pointer) => self.key_at(pointer),
            KeySource::Derived(parts) => self.derived_key(parts),
        };
        match key {
            Err(Rejection::KeyMissing | Rejection::KeyPartMissing(_))
                if policy.key == KeyRule::Optional =>
            {
                Ok(None)
            }
            key => key.map(Some),
        }
    }

    fn key_at(&self, pointer: &Pointer) -> Result<Key, Rejection> {
        match self.value_at(pointer)? {
            None => Err(Rejection::KeyPartMissing(Part::Body(pointer.clone()))),
            Some(value) => value
                .text()
                .ok_or(KeyError::NotText)
                .and_then(Key::from_text)
                .map_err(Rejection::KeyMalformed),
        }
    }

    fn derived_key(&self, parts: &[Part]) -> Result<Key, Rejection> {
        let value = |part| {
            self.value(part)?
                .ok_or_else(|| Rejection::KeyPartMissing(Clone::clone(part)))
        };
        let values = parts
            .iter()
            .map(|part| Ok((part, value(part)?)))
            .collect::<Result<Vec<_>, Rejection>>()?;
        Ok(Key::derived(values))
    }

    /// The value at a place in the body. Refuses a body in which the service might find another
    /// value. A body that is not JSON, and not declared as JSON, has no value.
    fn value_at(&self, pointer: &Pointer) -> Result<Option<&Value>, Rejection> {
        let Some(found) = self.found.filter(|found| !found.is_empty()) else {
            return Ok(None);
        };
        let value = found.get(pointer);
        match found.odd() {
            Some(odd) if value.is_some() || is_json(self.headers) => {
                Err(Rejection::KeyMalformed(odd.into()))
            }
            Some(_) => Ok(None),
            None => Ok(value),
        }
    }

    /// The digest of a part of the request; `None` if the part is missing.
    fn value(&self, part: &Part) -> Result<Option<[u8; 32]>, Rejection> {
        Ok(match part {
            Part::Principal => Some(Part::digest_of_principal(self.principal)),
            Part::Header(name) => {
                let mut lines = self.headers.get_all(&**name).iter().peekable();
                lines
                    .peek()
                    .is_some()
                    .then(|| Part::digest_of(lines.map(http::HeaderValue::as_bytes)))
            }
            Part::Body(pointer) => self.value_at(pointer)?.map(Value::digest),
        })
    }

    /// What a new key of this request counts for, under each rule that finds a value to count by.
    /// All bodies that cannot be read as JSON count as one value, so that an odd spelling does not
    /// evade a rule.
    ///
    /// `asker` computes the digest of the caller: of the principal, or of the peer where the peer
    /// counts in its place.
    pub(super) fn counted(
        &self,
        policy: &Policy,
        within: &[&str],
        asker: impl Fn() -> [u8; 32],
    ) -> Vec<Counted> {
        if policy.velocity.is_empty() {
            return Vec::new();
        }
        let asker = asker();
        // Separate for each caller: a caller who sends odd bodies takes no tokens from others.
        let odd = || Some(Part::digest_of([&b"odd"[..], &asker]));
        let is_odd = self
            .found
            .is_some_and(|found| found.odd().is_some() && !found.is_empty());
        let rules = policy.velocity.iter().filter_map(|rule| {
            let value = match &rule.by {
                Part::Principal => Some(asker),
                Part::Body(_) if is_odd => odd(),
                by => self.value(by).unwrap_or_else(|_| odd()),
            };
            Some(Counted::new(rule, within, asker, value?))
        });
        rules.collect()
    }
}

/// Whether the request declares its body as JSON.
fn is_json(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_TYPE).iter().any(|line| {
        let media_type = line
            .as_bytes()
            .split(|&b| b == b';')
            .next()
            .unwrap_or_default()
            .trim_ascii()
            .to_ascii_lowercase();
        media_type == b"application/json" || media_type.ends_with(b"+json")
    })
}
