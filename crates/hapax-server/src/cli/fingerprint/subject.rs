//! A request with everything that its fingerprint covers.

use std::sync::Arc;

use hapax::core::fingerprint::canonical::{self, Canonical};
use hapax::core::fingerprint::{Fingerprint, Fingerprinter, RequestHead};
use hapax::{FingerprintPolicy, Key, Principal, RecordId, Scope};

use super::request::Request;

pub(super) struct Subject {
    pub(super) scope: Scope,
    pub(super) target: String,
    pub(super) fingerprint: Fingerprint,
    pub(super) canonical: Canonical,
    /// The id of its record, if the request has a key.
    pub(super) record: Option<RecordId>,
}

impl Subject {
    pub(super) fn new(
        request: Request,
        policy: &FingerprintPolicy,
        namespace: &str,
        principal: Option<&str>,
    ) -> Subject {
        let Request {
            method,
            target,
            path,
            headers,
            body,
        } = request;
        let scope = Scope {
            namespace: namespace.into(),
            principal: principal.map_or(Principal::Anonymous, Principal::named),
            method: method.into(),
            path: path.into(),
        };
        let fields = headers
            .iter()
            .map(|(name, value)| (name.as_str(), &value[..]))
            .collect();
        let head = RequestHead {
            scope: &scope,
            target: &target,
            headers: fields,
        };
        let mut fingerprinter = Fingerprinter::new(&Arc::new(policy.clone()), &head);
        fingerprinter.update(&body);
        let (fingerprint, canonical) =
            (fingerprinter.finish(), canonical::of(policy, &head, &body));
        let record = key(&headers).map(|key| RecordId::of(&scope, &key));
        Subject {
            scope,
            target,
            fingerprint,
            canonical,
            record,
        }
    }
}

fn key(headers: &[(String, Vec<u8>)]) -> Option<Key> {
    let mut lines = headers.iter().filter(|(name, _)| name == "idempotency-key");
    let (_, value) = lines.next().filter(|_| lines.next().is_none())?;
    Key::from_field(value).ok()
}
