//! Member names that some readers treat as equal: names that differ only in letter case.
//!
//! Go's `encoding/json` assigns `Amount` to the field `amount` and takes the last of both; .NET and
//! Jackson can be configured to do the same. Go compares by Unicode simple folding, in which `ſ` is
//! an `s` and the Kelvin sign is a `k`. The folding here is coarser (it takes `ß` for `ss`, too).
//! That is the safe side: folding too many names makes a text count byte for byte, while folding
//! too few could merge two requests.

/// Whether two names differ, but some readers treat them as equal.
pub(super) fn differ_only_in_case(one: &str, other: &str) -> bool {
    one != other && folded(one).eq(folded(other))
}

/// A hash that is equal for names that [differ only in case](differ_only_in_case). It uses FNV-1a,
/// which must never change, because the result decides what a stored digest covers. A collision
/// only makes a text count byte for byte, which is safe.
pub(super) fn folded_hash(name: &str) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let start = 0xcbf2_9ce4_8422_2325;
    if name.is_ascii() {
        return name
            .bytes()
            .map(|byte| byte.to_ascii_lowercase())
            .fold(start, hash);
    }
    let mut buffer = [0; 4];
    folded(name).fold(start, |so_far, char| {
        char.encode_utf8(&mut buffer).bytes().fold(so_far, hash)
    })
}

/// Folds to lower case first, so that `ẞ` becomes `ß`; then to upper case, so that `ſ`, `ς` and `µ`
/// become the same as `s`, `σ` and `μ`; then back to lower case.
fn folded(name: &str) -> impl Iterator<Item = char> {
    name.chars()
        .flat_map(char::to_lowercase)
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_go_folds_into_one_are_found() {
        for (one, other) in [
            ("amount", "Amount"),
            ("AMOUNT", "amount"),
            ("kind", "\u{212a}ind"),
            ("\u{212a}IND", "kind"),
            ("status", "\u{17f}tatus"),
            ("straße", "STRA\u{1e9e}E"),
            ("τέλος", "ΤΈΛΟΣ"),
            ("µ", "μ"),
            ("\u{1c4}", "\u{1c5}"),
            ("\u{345}", "ι"),
            ("\u{1c80}", "в"),
            ("\u{ab70}", "\u{13a0}"),
        ] {
            assert!(differ_only_in_case(one, other), "{one} {other}");
            assert_eq!(folded_hash(one), folded_hash(other), "{one} {other}");
        }
        for (one, other) in [
            ("amount", "amount"),
            ("amount", "amounts"),
            ("a_b", "a-b"),
            ("é", "e"),
            ("", "a"),
        ] {
            assert!(!differ_only_in_case(one, other), "{one} {other}");
        }
        assert_ne!(folded_hash("amount"), folded_hash("amounts"));
    }
}
