//! How a record is stored: the layout of `prelude.lua`, read and written by Rust.

use std::sync::Arc;

use hapax_core::fingerprint::{Fingerprint, FingerprintPolicy};
use hapax_core::key::Key;
use hapax_core::record::{AttemptToken, Fence, Head};
use hapax_core::scope::{RecordId, Scope};
use hapax_core::store::{Claim, StoreError, StoreErrorKind};
use hapax_core::time::Timestamp;
use parking_lot::Mutex;

use crate::store::codec;

/// The layout that this version writes.
const FORMAT: u8 = 2;

/// Stored where a record has no status.
pub(in crate::store) const NO_STATUS: u32 = u32::MAX;

/// The part of a head that never changes: namespace, principal, method, path and key.
pub(in crate::store) fn identity(scope: &Scope, key: &Key) -> Vec<u8> {
    let principal = codec::principal(scope);
    let mut bytes = vec![u8::from(principal.is_some())];
    let parts = [
        &*scope.namespace,
        principal.unwrap_or_default(),
        &scope.method,
        &scope.path,
        key.as_str(),
    ];
    for part in parts {
        push(&mut bytes, part.as_bytes());
    }
    bytes
}

/// A fingerprint: its digest, and the policy that made it.
pub(in crate::store) fn fingerprint(fingerprint: &Fingerprint) -> Vec<u8> {
    let mut bytes = fingerprint.digest.to_vec();
    bytes.extend_from_slice(fingerprint.policy.to_string().as_bytes());
    bytes
}

/// What a claim sends of a head: the part that the scripts store as it is.
pub(super) fn rest(claim: &Claim) -> Vec<u8> {
    let request_id = claim.request_id.as_ref().map_or("", |id| id.as_str());
    let fingerprint = fingerprint(&claim.fingerprint);
    let identity = identity(&claim.scope, &claim.key);
    let mut bytes = Vec::with_capacity(24 + fingerprint.len() + request_id.len() + identity.len());
    push_rest(
        &mut bytes,
        &claim.token,
        &fingerprint,
        request_id,
        &identity,
    );
    bytes
}

fn push_rest(
    bytes: &mut Vec<u8>,
    token: &AttemptToken,
    fingerprint: &[u8],
    request_id: &str,
    identity: &[u8],
) {
    bytes.extend_from_slice(token.as_bytes());
    bytes.extend_from_slice(&(fingerprint.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&(request_id.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&(identity.len() as u32).to_be_bytes());
    bytes.extend_from_slice(fingerprint);
    bytes.extend_from_slice(request_id.as_bytes());
    bytes.extend_from_slice(identity);
}

/// The head as the scripts store it. Only a copy writes heads from here.
pub(in crate::store) fn encode(head: &Head) -> Vec<u8> {
    let fingerprint = head.fingerprint.as_ref().map_or(Vec::new(), fingerprint);
    let request_id = head.request_id.as_ref().map_or("", |id| id.as_str());
    let mut bytes = vec![FORMAT, codec::state_code(head.state) as u8];
    bytes.extend_from_slice(&head.version.to_be_bytes());
    for time in [head.finished_at, head.expires_at, head.tombstone_until] {
        push_time(&mut bytes, time);
    }
    bytes.extend_from_slice(&head.status.map_or(NO_STATUS, u32::from).to_be_bytes());
    bytes.push(head.kept.into());
    bytes.extend_from_slice(&head.fence.as_u64().to_be_bytes());
    for time in [head.lease_until, head.claimed_at, head.created_at] {
        push_time(&mut bytes, time);
    }
    bytes.extend_from_slice(&head.attempts.to_be_bytes());
    let identity = identity(&head.scope, &head.key);
    push_rest(&mut bytes, &head.token, &fingerprint, request_id, &identity);
    bytes
}

fn push_time(bytes: &mut Vec<u8>, time: Timestamp) {
    bytes.extend_from_slice(&time.as_micros().min(TIME_MAX).to_be_bytes());
}

/// The latest time that the scripts can count with.
const TIME_MAX: u64 = (1 << 53) - 1;

/// Reads a stored head, and returns with it what is stored after it: the answer, if one is kept.
/// With the claim that asked for it, scope and key are taken from there: a record with the same id
/// has the same.
pub(in crate::store) fn decode<'a>(
    id: RecordId,
    stored: &'a [u8],
    policies: &Policies,
    claim: Option<&Claim>,
) -> Result<(Head, &'a [u8]), StoreError> {
    let mut rest = Reader(stored);
    if rest.byte()? != FORMAT {
        return Err(StoreError::new(
            StoreErrorKind::Unsupported,
            "a record was written by another version of Hapax",
        ));
    }
    let state = codec::state(rest.byte()?.into())?;
    let version = rest.u64()?;
    let finished_at = rest.time()?;
    let expires_at = rest.time()?;
    let tombstone_until = rest.time()?;
    let status = u16::try_from(u32::from_be_bytes(rest.array()?)).ok();
    let kept = rest.byte()? == 1;
    let fence = Fence::from_u64(rest.u64()?);
    let lease_until = rest.time()?;
    let claimed_at = rest.time()?;
    let created_at = rest.time()?;
    let attempts = u32::from_be_bytes(rest.array()?);
    let token = AttemptToken::from_bytes(rest.array()?);
    let (fingerprint_len, request_id_len) = (rest.u16()?, rest.u16()?);
    let identity_len = u32::from_be_bytes(rest.array()?);
    let fingerprint = rest.take(fingerprint_len.into())?;
    let request_id = rest.take(request_id_len.into())?;
    let mut identity = Reader(rest.take(identity_len as usize)?);
    let (scope, key) = match claim {
        Some(claim) => (claim.scope.clone(), claim.key.clone()),
        None => identity.identity()?,
    };
    let head = Head {
        id,
        scope,
        key,
        state,
        fence,
        token,
        version,
        attempts,
        lease_until,
        fingerprint: policies.fingerprint(fingerprint)?,
        created_at,
        claimed_at,
        finished_at,
        expires_at,
        tombstone_until,
        status,
        kept,
        request_id: match request_id {
            [] => None,
            bytes => Some(codec::request_id(utf8(bytes)?)?),
        },
    };
    Ok((head, rest.0))
}

/// Fingerprint policies by their text, so that each is parsed once.
#[derive(Default)]
pub(in crate::store) struct Policies(Mutex<Vec<(Box<str>, Arc<FingerprintPolicy>)>>);

/// A service has a handful of policies. Beyond this many the oldest is parsed again.
const POLICIES_MAX: usize = 64;

impl Policies {
    fn fingerprint(&self, stored: &[u8]) -> Result<Option<Fingerprint>, StoreError> {
        if stored.is_empty() {
            return Ok(None);
        }
        let mut rest = Reader(stored);
        Ok(Some(Fingerprint {
            digest: rest.array()?,
            policy: self.parse(utf8(rest.0)?)?,
        }))
    }

    fn parse(&self, text: &str) -> Result<Arc<FingerprintPolicy>, StoreError> {
        let mut known = self.0.lock();
        if let Some((_, policy)) = known.iter().find(|(known, _)| **known == *text) {
            return Ok(policy.clone());
        }
        let policy = codec::policy(text)?;
        if known.len() >= POLICIES_MAX {
            known.remove(0);
        }
        known.push((text.into(), policy.clone()));
        Ok(policy)
    }
}

/// Bytes with their length in front.
pub(in crate::store) fn push(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&(part.len() as u32).to_be_bytes());
    bytes.extend_from_slice(part);
}

/// Takes values from the front of stored bytes.
pub(in crate::store) struct Reader<'a>(pub(in crate::store) &'a [u8]);

impl<'a> Reader<'a> {
    pub(in crate::store) fn take(&mut self, length: usize) -> Result<&'a [u8], StoreError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(in crate::store) fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| damaged())
    }

    pub(in crate::store) fn byte(&mut self) -> Result<u8, StoreError> {
        Ok(self.array::<1>()?[0])
    }

    pub(in crate::store) fn u16(&mut self) -> Result<u16, StoreError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(in crate::store) fn u64(&mut self) -> Result<u64, StoreError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(in crate::store) fn time(&mut self) -> Result<Timestamp, StoreError> {
        self.u64().map(Timestamp::from_micros)
    }

    /// Bytes that were written by [`push`].
    pub(in crate::store) fn bytes(&mut self) -> Result<&'a [u8], StoreError> {
        let length = u32::from_be_bytes(self.array()?);
        self.take(length as usize)
    }

    /// A text that was written by [`push`].
    pub(in crate::store) fn text(&mut self) -> Result<&'a str, StoreError> {
        utf8(self.bytes()?)
    }

    fn identity(&mut self) -> Result<(Arc<Scope>, Key), StoreError> {
        let is_named = self.byte()? == 1;
        let namespace = self.text()?;
        let principal = Some(self.text()?).filter(|_| is_named);
        let (method, path) = (self.text()?, self.text()?);
        let key = codec::key(self.text()?)?;
        let scope = codec::scope(namespace, principal, method, path);
        Ok((Arc::new(scope), key))
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, StoreError> {
    std::str::from_utf8(bytes)
        .map_err(|error| StoreError::corrupt("a text in a record is no text").because(error))
}

pub(in crate::store) fn damaged() -> StoreError {
    StoreError::corrupt("a record in Redis is not as it was written")
}
