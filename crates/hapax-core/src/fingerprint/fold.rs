//! Names that some readers take for one name: those that differ only in letter case.
//!
//! Go's `encoding/json` assigns `Amount` to the field `amount` and takes the last of both; .NET and
//! Jackson can be told to do the same. Go compares by Unicode simple folding, in which `ſ` is an
//! `s` and the Kelvin sign is a `k`. The folding here is coarser (it takes `ß` for `ss`, too): a
//! name too many makes a text count byte for byte, a name too few could merge two requests.

/// Whether two names are different names that some reader takes for one.
pub(super) fn differ_only_in_case(one: &str, other: &str) -> bool {
    one != other && folded(one).eq(folded(other))
}

/// Equal for names that [differ only in case](differ_only_in_case). FNV-1a, since it decides what a
/// stored digest covers and so must never change. A collision makes a text count byte for byte,
/// which harms nobody.
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

/// To lower case first, so that `ẞ` meets `ß`; then to upper case, so that `ſ`, `ς` and `µ` meet
/// `s`, `σ` and `μ`; then back.
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
