//! Estimates from a key's spelling how hard the key is to guess.
//!
//! A random key cannot be told from one that only looks random. The opposite can be detected: a key
//! that is short, is a counter or a time, repeats itself or is made of words. The estimate errs on
//! the side of more bits.

use super::Key;

/// A pattern that lets an attacker guess a key from one seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pattern {
    /// A counter, perhaps after a word: `17`, `order-000017`.
    Counter,
    /// A time, perhaps after a word: seconds or smaller units since 1970, or a date with a time.
    Clock,
}

impl Pattern {
    /// The name of this pattern in metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Pattern::Counter => "counter",
            Pattern::Clock => "clock",
        }
    }
}

/// Characters that separate the words of a key and add no bits.
const SEPARATORS: &[u8] = b" -_.:/|#@";
/// A run of letters of one case up to this length counts as a word; longer runs rarely are words.
const WORD_MAX: usize = 12;
/// Bits for each letter of a word: English has one to two.
const WORD_BITS: f64 = 2.0;
/// The number of characters that count in a run that continues predictably.
const RUN_COUNTED: usize = 3;
/// The longest period at which a repetition is detected.
const PERIOD_MAX: usize = 16;

/// A number with more digits than this, leading zeros aside, is not taken for a counter.
const COUNTER_DIGITS_MAX: usize = 9;
/// Moments between 2015 and 2040, in seconds since 1970.
const MOMENTS: std::ops::Range<u64> = 1_420_000_000..2_210_000_000;

impl Key {
    /// Roughly how many bits an attacker would have to guess. A version 4 UUID has over 120,
    /// `order-17` under 20.
    pub fn bits(&self) -> u32 {
        let key = self.as_str().as_bytes();
        let per_letter = alphabet(key).log2();
        let is_hexadecimal = is_hexadecimal(key);
        let mut bits = 0.0;
        let mut at = 0;
        for token in key.split(|byte| SEPARATORS.contains(byte)) {
            let per_letter = match token {
                // A piece of a hexadecimal key may be all letters or all digits by chance.
                _ if is_hexadecimal => per_letter,
                _ if is_word(token) => WORD_BITS,
                digits if digits.iter().all(u8::is_ascii_digit) => 10_f64.log2(),
                _ => per_letter,
            };
            let counted = (at..at + token.len())
                .filter(|&i| !is_foreseen(key, i))
                .count();
            bits += per_letter * f64::from(u32::try_from(counted).expect("a key is short"));
            at += token.len() + 1;
        }
        // Positive, and under eight bits for each of at most 255 characters.
        bits.floor() as u32
    }

    /// The pattern of the key, if the next key could be guessed from it. Keys with random parts,
    /// such as UUIDs of any version and ULIDs, have no pattern.
    pub fn looks_like(&self) -> Option<Pattern> {
        let key = self.as_str();
        let rest = &key[key.find(|c: char| c.is_ascii_digit())?..];
        if is_moment(rest) {
            return Some(Pattern::Clock);
        }
        let is_counter = rest.bytes().all(|b| b.is_ascii_digit())
            && rest.trim_start_matches('0').len() <= COUNTER_DIGITS_MAX;
        is_counter.then_some(Pattern::Counter)
    }
}

/// The size of the alphabet that each character is chosen from, by the kinds of characters in the
/// key.
fn alphabet(key: &[u8]) -> f64 {
    let has = |kind: fn(&u8) -> bool| key.iter().any(kind);
    if is_hexadecimal(key) {
        return 16.0;
    }
    let is_other = |byte: &u8| !byte.is_ascii_alphanumeric() && !SEPARATORS.contains(byte);
    let kinds = [
        (has(u8::is_ascii_digit), 10.0),
        (has(u8::is_ascii_lowercase), 26.0),
        (has(u8::is_ascii_uppercase), 26.0),
        (key.iter().any(is_other), 16.0),
    ];
    // At least one, for a key of separators only.
    kinds
        .iter()
        .filter(|(is_there, _)| *is_there)
        .map(|(_, letters)| letters)
        .sum::<f64>()
        .max(1.0)
}

/// Whether the key has only digits and letters from a to f, in one case, and at least one of each.
fn is_hexadecimal(key: &[u8]) -> bool {
    let letters = || key.iter().filter(|byte| !SEPARATORS.contains(byte));
    let all = |kind: fn(&u8) -> bool| letters().all(|byte| byte.is_ascii_digit() || kind(byte));
    let is_of_one_case =
        all(|byte| matches!(byte, b'a'..=b'f')) || all(|byte| matches!(byte, b'A'..=b'F'));
    is_of_one_case && letters().any(u8::is_ascii_digit) && letters().any(u8::is_ascii_alphabetic)
}

/// Whether the token has only letters, in one case except for the first.
fn is_word(token: &[u8]) -> bool {
    let rest = token.get(1..).unwrap_or_default();
    token.len() <= WORD_MAX
        && token.first().is_some_and(u8::is_ascii_alphabetic)
        && (rest.iter().all(u8::is_ascii_lowercase) || token.iter().all(u8::is_ascii_uppercase))
}

/// Whether the character at `i` continues the characters before it: the same character, the next
/// one up or down, or a repetition of an earlier part.
fn is_foreseen(key: &[u8], i: usize) -> bool {
    let Some(start) = i.checked_sub(RUN_COUNTED) else {
        return false;
    };
    let run = &key[start..=i];
    let step = |pair: &[u8]| i16::from(pair[1]) - i16::from(pair[0]);
    let first = step(run);
    let goes_on = (-1..=1).contains(&first) && run.windows(2).all(|pair| step(pair) == first);
    let repeats = |period: usize| {
        start
            .checked_sub(period)
            .is_some_and(|before| key[before..=i - period] == *run)
    };
    goes_on || (2..=PERIOD_MAX).any(repeats)
}

/// Whether the text is a Unix time in a usual unit, or a date with a time.
fn is_moment(text: &str) -> bool {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        let seconds = matches!(text.len(), 10 | 13 | 16 | 19)
            .then(|| text[..10].parse().ok())
            .flatten();
        return seconds.is_some_and(|seconds| MOMENTS.contains(&seconds)) || is_date_and_time(text);
    }
    // Only digits and the characters of dates. Any other letter means that the key has more parts.
    let is_written_so = text
        .bytes()
        .all(|b| b.is_ascii_digit() || b" -_.:/TZtz+".contains(&b));
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    is_written_so && is_date_and_time(&digits)
}

/// Whether the digits begin with a date and a time, as in `20261115174619`. A fraction and a zone
/// may follow.
fn is_date_and_time(digits: &str) -> bool {
    let number = |from: usize, to: usize| {
        digits
            .get(from..to)
            .and_then(|part| part.parse::<u32>().ok())
    };
    let within = |from, to, range: std::ops::RangeInclusive<u32>| {
        number(from, to).is_some_and(|number| range.contains(&number))
    };
    (12..=27).contains(&digits.len())
        && within(0, 4, 2015..=2040)
        && within(4, 6, 1..=12)
        && within(6, 8, 1..=31)
        && within(8, 10, 0..=23)
        && within(10, 12, 0..=59)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn random_keys_have_the_bits_they_were_made_of() {
        for (text, bits) in [
            ("8e03978e-40d5-43e8-bc93-6894a57f9324", 120..=128),
            ("8E03978E-40D5-43E8-BC93-6894A57F9324", 120..=128),
            ("8e03978e40d543e8bc936894a57f9324", 120..=128),
            ("018f3c5e-7b2a-7c1d-9e4f-3a5b6c7d8e9f", 100..=128),
            ("01ARZ3NDEKTSV4RRFFQ69G5FAV", 120..=140),
            ("V1StGXR8_Z5jdHi6B-myT", 110..=130),
            (
                "hpx1_00063b5e3f2a8c1d9f0e4b7a6c5d2e1f8a9b3c4d7e6f5a0b1c2d",
                150..=300,
            ),
        ] {
            assert!(
                bits.contains(&key(text).bits()),
                "{text}: {}",
                key(text).bits()
            );
        }
    }

    #[test]
    fn every_random_uuid_has_over_120() {
        // A simple generator with a fixed seed. Only the spread of its numbers matters.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..10_000 {
            let uuid = uuid::Builder::from_random_bytes(
                ((u128::from(next()) << 64) | u128::from(next())).to_be_bytes(),
            )
            .into_uuid();
            let key = key(&uuid.to_string());
            assert!(key.bits() >= 120, "{key}: {}", key.bits());
            assert_eq!(key.looks_like(), None, "{key}");
        }
    }

    #[test]
    fn keys_that_can_be_guessed_have_few() {
        for (text, most) in [
            ("1", 3),
            ("17", 6),
            ("order-17", 20),
            ("order-000017", 32),
            ("payment", 14),
            ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 16),
            ("00000000-0000-0000-0000-000000000000", 20),
            ("123456789012345678901234567890", 40),
            ("abcabcabcabcabcabcabcabcabcabc", 40),
            ("Invoice 2026 November", 50),
            ("correct-horse-battery-staple", 52),
            ("----", 0),
        ] {
            assert!(key(text).bits() <= most, "{text}: {}", key(text).bits());
        }
    }

    #[test]
    fn counters_and_clocks_are_told_by_their_looks() {
        for text in [
            "1",
            "17",
            "000017",
            "order-000017",
            "INV/42",
            "k7",
            "123456789",
        ] {
            assert_eq!(key(text).looks_like(), Some(Pattern::Counter), "{text}");
        }
        for text in [
            "1731692779",
            "1731692779123",
            "1731692779123456",
            "1731692779123456789",
            "charge_1731692779123",
            "2026-11-15T17:46:19Z",
            "2026-11-15 17:46:19.123456",
            "order 2026-11-15T17:46:19+01:00",
            "20261115T174619",
            "20261115174619",
        ] {
            assert_eq!(key(text).looks_like(), Some(Pattern::Clock), "{text}");
        }
        for text in [
            "payment",
            "8e03978e-40d5-43e8-bc93-6894a57f9324",
            "018f3c5e-7b2a-7c1d-9e4f-3a5b6c7d8e9f",
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "order-17-a8f3e1c9",
            "9931692779",
            "48151623424815162342",
            "20269915174619",
        ] {
            assert_eq!(key(text).looks_like(), None, "{text}");
        }
    }
}
