//! Derived keys: made of parts of the request when the caller sends no key.

use super::Key;
use crate::digest::{Parts, hex};
use crate::policy::Part;
use crate::scope::Principal;

/// The prefix of every derived key. It marks derived keys in a listing.
const PREFIX: &str = "drv1_";

impl Key {
    /// The key of requests that have these values in these parts.
    ///
    /// Part, name and value are hashed, each preceded by its length: two different lists have
    /// different keys. The key is a plain digest and not a secret: a person who knows the values
    /// can compute it, and a short value can be guessed from it.
    pub fn derived<'a>(parts: impl IntoIterator<Item = (&'a Part, [u8; 32])>) -> Key {
        let mut hashed = Parts::new("hapax derived key 1");
        for (part, value) in parts {
            hashed.push(part.to_string().as_bytes());
            hashed.push(&value);
        }
        Key::new(format!("{PREFIX}{}", hex(&hashed.finish()))).expect("hexadecimal is a key")
    }
}

impl Part {
    /// The digest of a value that consists of `lines`: the name of a principal, or the lines of a
    /// header field.
    pub fn digest_of<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
        let mut hashed = Parts::new("hapax part 1");
        lines.into_iter().for_each(|line| hashed.push(line));
        hashed.finish()
    }

    /// The digest of a principal.
    pub fn digest_of_principal(principal: &Principal) -> [u8; 32] {
        match principal {
            Principal::Anonymous => Part::digest_of([]),
            Principal::Named(name) => Part::digest_of([name.as_bytes()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_key_is_that_of_its_parts_and_values_alone() {
        let (order, card) = (
            Part::Header("x-order".into()),
            Part::Body("/card".parse().unwrap()),
        );
        let key = |parts: &[(&Part, &[u8])]| {
            Key::derived(
                parts
                    .iter()
                    .map(|(part, value)| (*part, Part::digest_of([*value]))),
            )
        };
        let first = key(&[(&order, b"17"), (&card, b"4242")]);
        assert_eq!(first, key(&[(&order, b"17"), (&card, b"4242")]));
        // Pinned: a change here would turn every repeat into a new request.
        assert_eq!(
            first.as_str(),
            "drv1_fc4d32a3439281f4c8091127c001aede578f30c88b23fbbad0025a2ed7fc890b"
        );
        for other in [
            key(&[(&card, b"4242"), (&order, b"17")]),
            key(&[(&order, b"17")]),
            key(&[(&order, b"174"), (&card, b"242")]),
            key(&[(&card, b"17"), (&order, b"4242")]),
            key(&[]),
        ] {
            assert_ne!(first, other);
        }
        assert_ne!(
            Part::digest_of([&b"a"[..], b"b"]),
            Part::digest_of([&b"ab"[..]])
        );
        assert_ne!(
            Part::digest_of([&b"a"[..], b""]),
            Part::digest_of([&b"a"[..]])
        );
    }
}
