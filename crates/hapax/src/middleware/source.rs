//! Where keys come from other than their field, and what new keys are counted by: parts of the
//! request, its body included.

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
pub(super) struct Told<'a> {
    pub(super) principal: &'a Principal,
    pub(super) headers: &'a HeaderMap,
    /// What its body holds at the policy's [pointers](Policy::pointers); `None` if there are none.
    pub(super) found: Option<&'a Found>,
}

impl Told<'_> {
    /// The key that the request holds somewhere else than in the key field; `None` if it may pass
    /// without one.
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

    /// The value at a place of the body. A body in which the service behind might find another is
    /// refused; one that is no JSON at all, nor says so, has nothing there.
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

    /// What stands for a part of the request; `None` if the part is not there.
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

    /// What a new key of this request counts for, under each rule that finds something to count by.
    /// What cannot be read as JSON counts as one value, so that an odd spelling is no way around a
    /// rule.
    ///
    /// `asker` makes the digest of who is asking: of the principal, or of the peer where that
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
        // Each asker's own: who sends something odd takes nothing from others.
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

/// Whether the request says that its body is JSON.
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
