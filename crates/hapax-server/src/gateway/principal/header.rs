//! `header`: a field that names the caller.
//!
//! As the first source, or where trusted proxies are configured, only a trusted proxy sets the
//! field. From other clients it was removed before ([`forward`](crate::gateway::forward)), in every
//! spelling that a service could read as the same name, and a guarded request then has no
//! principal. After another source, and without trusted proxies, the caller sets it: it then
//! divides the records of one caller, and gives no access to those of another.

use hapax::Principal;
use http::{HeaderMap, HeaderName};

use super::{name, only};
use crate::gateway::forward::Client;

pub(super) struct Header {
    field: HeaderName,
    /// Only trusted proxies may set the field.
    is_proxys: bool,
    is_required: bool,
}

impl Header {
    pub(super) fn new(field: &HeaderName, is_proxys: bool, is_required: bool) -> Header {
        Header {
            field: field.clone(),
            is_proxys,
            is_required,
        }
    }

    /// The caller; `None` if the field is optional and absent. `Err` is the reason why it cannot be
    /// used.
    pub(super) fn identify(
        &self,
        headers: &HeaderMap,
        client: &Client,
    ) -> Result<Option<Principal>, &'static str> {
        let field = &self.field;
        if self.is_proxys && !client.is_trusted() {
            return Err("untrusted_peer");
        }
        let value = match only(headers, field) {
            Err("missing") if !self.is_required => return Ok(None),
            value => value?,
        };
        let name = name(value).ok_or("unreadable")?;
        Ok(Some(Principal::named(format!("header:{field} {name}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELD: HeaderName = HeaderName::from_static("x-user");

    fn ask(
        (is_proxys, is_required): (bool, bool),
        peer: &str,
        values: &[&[u8]],
    ) -> Result<Option<String>, &'static str> {
        let client = Client::new(
            peer.parse().unwrap(),
            false,
            &["10.0.0.0/8".parse().unwrap()],
        );
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(FIELD, http::HeaderValue::from_bytes(value).unwrap());
        }
        let header = Header::new(&FIELD, is_proxys, is_required);
        header
            .identify(&headers, &client)
            .map(|principal| principal.map(|principal| principal.to_string()))
    }

    fn try_identify(peer: &str, values: &[&[u8]]) -> Result<String, &'static str> {
        ask((true, true), peer, values).map(|name| name.expect("a field that is required is there"))
    }

    #[test]
    fn a_trusted_proxy_names_the_caller_once() {
        let long = [b'a'; 513];
        for (peer, values, expected) in [
            ("10.0.0.7", &[&b"ada"[..]][..], Ok("header:x-user ada")),
            ("::ffff:10.0.0.7", &[b" ada\t"], Ok("header:x-user ada")),
            (
                "10.0.0.7",
                &["J\u{f6}rg Ada".as_bytes()],
                Ok("header:x-user J\u{f6}rg Ada"),
            ),
            ("10.0.0.7", &[], Err("missing")),
            ("10.0.0.7", &[b"ada", b"ada"], Err("repeated")),
            ("10.0.0.7", &[b""], Err("unreadable")),
            ("10.0.0.7", &[b"  "], Err("unreadable")),
            ("10.0.0.7", &[b"a\tb"], Err("unreadable")),
            ("10.0.0.7", &[b"ad\xe4"], Err("unreadable")),
            ("10.0.0.7", &[&long], Err("unreadable")),
            ("11.0.0.7", &[b"ada"], Err("untrusted_peer")),
            ("127.0.0.1", &[], Err("untrusted_peer")),
        ] {
            assert_eq!(
                try_identify(peer, values),
                expected.map(str::to_owned),
                "{peer} {values:?}"
            );
        }
    }

    #[test]
    fn behind_another_source_it_may_be_absent_and_without_proxies_the_caller_says_it() {
        let ada = || Ok(Some("header:x-user ada".to_owned()));
        for (is_proxys, peer, values, expected) in [
            (true, "10.0.0.7", &[&b"ada"[..]][..], ada()),
            (true, "10.0.0.7", &[], Ok(None)),
            (true, "11.0.0.7", &[], Err("untrusted_peer")),
            (false, "11.0.0.7", &[b"ada"], ada()),
            (false, "11.0.0.7", &[], Ok(None)),
            (false, "11.0.0.7", &[b"ada", b"eve"], Err("repeated")),
            (false, "11.0.0.7", &[b""], Err("unreadable")),
        ] {
            assert_eq!(
                ask((is_proxys, false), peer, values),
                expected,
                "{peer} {values:?}"
            );
        }
    }
}
