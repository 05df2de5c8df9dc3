//! `header`: a proxy in front has checked who is asking, and says so in a field.
//!
//! Its word is worth what its address is: of anybody else the field was taken off before ([`forward`](crate::gateway::forward)), in
//! every spelling that a service behind could read as the same, and a guarded request then has nobody who sends it.

use hapax::Principal;
use http::{HeaderMap, HeaderName};

use super::{Refused, name, only};
use crate::gateway::forward::Client;

pub(super) fn of(field: &HeaderName, headers: &HeaderMap, client: &Client) -> Result<Principal, Refused> {
    if !client.is_trusted() {
        return Err(Refused::Missing("untrusted_peer"));
    }
    let value = only(headers, field).map_err(Refused::Missing)?;
    let name = name(value).ok_or(Refused::Missing("unreadable"))?;
    Ok(Principal::named(format!("header:{field} {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELD: HeaderName = HeaderName::from_static("x-user");

    fn told(peer: &str, values: &[&[u8]]) -> Result<String, &'static str> {
        let client = Client::new(peer.parse().unwrap(), false, &["10.0.0.0/8".parse().unwrap()]);
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(FIELD, http::HeaderValue::from_bytes(value).unwrap());
        }
        match of(&FIELD, &headers, &client) {
            Ok(principal) => Ok(principal.to_string()),
            Err(Refused::Missing(reason)) => Err(reason),
            Err(_) => panic!("there is nothing else that a field can lack"),
        }
    }

    #[test]
    fn a_trusted_proxy_names_the_caller_once() {
        let long = [b'a'; 513];
        for (peer, values, expected) in [
            ("10.0.0.7", &[&b"ada"[..]][..], Ok("header:x-user ada")),
            ("::ffff:10.0.0.7", &[b" ada\t"], Ok("header:x-user ada")),
            ("10.0.0.7", &["J\u{f6}rg Ada".as_bytes()], Ok("header:x-user J\u{f6}rg Ada")),
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
            assert_eq!(told(peer, values), expected.map(str::to_owned), "{peer} {values:?}");
        }
    }
}
