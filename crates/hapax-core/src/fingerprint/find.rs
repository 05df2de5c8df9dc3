//! Finds values in a JSON text: keys that callers send in their body, and the values by which new
//! keys are counted.
//!
//! The code that reads the text for the fingerprint reads it here too, so both find the same texts
//! odd. A service behind Hapax may read a different value from an odd text. [`Found::odd`] reports
//! such a text, and the caller must refuse it.
//!
//! ```
//! use hapax_core::fingerprint::Finder;
//!
//! let mut finder = Finder::new(vec!["/client_token".parse()?, "/card/number".parse()?]);
//! finder.update(br#"{"client_token": "k", "card": {"num"#);
//! finder.update(br#"ber": 4242}}"#);
//! let found = finder.finish();
//! assert_eq!(found.get(&"/client_token".parse()?).and_then(|value| value.text()), Some("k"));
//! assert_eq!(found.get(&"/card/number".parse()?).and_then(|value| value.text()), Some("4242"));
//! # Ok::<(), hapax_core::fingerprint::PointerError>(())
//! ```

use super::canonical::Odd;
use super::json::{Canonical, Digests};
use super::pointer::{Pointer, Step};
use super::{JsonRules, Selection};

/// A string or number longer than this is found without its text, since it cannot be a key.
const TEXT_BYTES_MAX: usize = 1_024;

/// Finds the values at given places of a JSON text that arrives in chunks of any size. Keeps
/// nothing else of the text.
pub struct Finder {
    canonical: Canonical<Digests>,
    odd: Option<Odd>,
    is_empty: bool,
}

/// The values that a [`Finder`] found.
pub struct Found {
    values: Vec<(Pointer, Option<Value>)>,
    odd: Option<Odd>,
    is_empty: bool,
}

/// A value in a JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    digest: [u8; 32],
    text: Option<Box<str>>,
}

impl Finder {
    /// Finds the values at these places. Each pointer must name [exactly one
    /// place](Pointer::is_exact).
    pub fn new(pointers: Vec<Pointer>) -> Self {
        Finder {
            canonical: Canonical::tracing(
                Selection::All,
                JsonRules::default(),
                Trail::new(pointers),
            ),
            odd: None,
            is_empty: true,
        }
    }

    /// Adds the next bytes of the text.
    pub fn update(&mut self, chunk: &[u8]) {
        self.is_empty &= chunk.is_empty();
        if self.odd.is_none() {
            self.odd = self.canonical.update(chunk).err();
        }
    }

    /// Ends the text.
    pub fn finish(mut self) -> Found {
        let ended = match self.odd {
            None => self.canonical.end().err(),
            odd => odd,
        };
        Found {
            values: self.canonical.into_trail().found(),
            odd: ended,
            is_empty: self.is_empty,
        }
    }
}

impl Found {
    /// The value at a place, if there is one. A `null` counts as absent: most services treat it as
    /// a value that was not sent.
    pub fn get(&self, pointer: &Pointer) -> Option<&Value> {
        self.values.iter().find(|(at, _)| at == pointer)?.1.as_ref()
    }

    /// Why another reader may find another value, or none. Values found before the odd place stay
    /// found.
    pub fn odd(&self) -> Option<&Odd> {
        self.odd.as_ref()
    }

    /// Whether the text was empty.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }
}

impl Value {
    /// A digest of the value's kind and content. As in the fingerprint, a number counts by its
    /// exact spelling.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The text, if it could be a key: a string, or the digits of a whole number. A number written
    /// with a fraction or an exponent has no text: some services read `7.0` as 7, others do not.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }
}

/// Follows pointers through a text while the text is folded into digests or values.
pub(super) struct Trail<V> {
    pointers: Vec<Pointer>,
    /// The pointers that lead to the root: all of them.
    root: Vec<usize>,
    levels: Vec<Level>,
    /// The text of the string or whole number that is being read, where a pointer ends.
    text: Option<Box<str>>,
    found: Vec<Option<(V, Option<Box<str>>)>>,
}

/// An open container: the pointers that lead into it, and those that lead on to the value being
/// read.
struct Level {
    within: Vec<usize>,
    next: Vec<usize>,
}

impl<V: Clone> Trail<V> {
    pub(super) fn new(pointers: Vec<Pointer>) -> Self {
        let root = (0..pointers.len()).collect();
        let found = pointers.iter().map(|_| None).collect();
        Trail {
            pointers,
            root,
            levels: Vec::new(),
            text: None,
            found,
        }
    }

    /// Enters a container.
    pub(super) fn open(&mut self) {
        if !self.pointers.is_empty() {
            let level = Level {
                within: self.next().to_vec(),
                next: Vec::new(),
            };
            self.levels.push(level);
        }
    }

    pub(super) fn close(&mut self) {
        self.levels.pop();
    }

    /// The value of the member `name` comes next. If the name differs from a pointer's token only
    /// in letter case, the text is odd: a service that ignores letter case would find a value that
    /// this code does not find.
    pub(super) fn member(&mut self, name: &str) -> Result<(), Odd> {
        if let Some(level) = self.levels.last() {
            let depth = self.levels.len() - 1;
            super::pointer::refuse_letter_case(&self.pointers, &level.within, depth, name)?;
        }
        self.step(&Step::Member(name));
        Ok(())
    }

    /// The value of the element at `place` comes next.
    pub(super) fn element(&mut self, place: u64) {
        self.step(&Step::Index(place));
    }

    fn step(&mut self, to: &Step<'_>) {
        let Some(depth) = self.levels.len().checked_sub(1) else {
            return;
        };
        let (pointers, level) = (&self.pointers, &mut self.levels[depth]);
        level.next.clear();
        level.next.extend(
            level
                .within
                .iter()
                .filter(|&&i| pointers[i].matches(depth, to)),
        );
    }

    /// The value being read is this string.
    pub(super) fn string(&mut self, text: &str) {
        if self.ends().next().is_some() && text.len() <= TEXT_BYTES_MAX {
            self.text = Some(text.into());
        }
    }

    /// The value being read is this number.
    pub(super) fn number(&mut self, spelling: &str) {
        let digits = spelling.strip_prefix('-').unwrap_or(spelling);
        if digits.bytes().all(|byte| byte.is_ascii_digit()) && spelling != "-0" {
            self.string(spelling);
        }
    }

    /// The value being read is `null`, which no pointer finds.
    pub(super) fn null(&mut self) {
        let (pointers, depth) = (&self.pointers, self.levels.len());
        let next = self
            .levels
            .last_mut()
            .map_or(&mut self.root, |level| &mut level.next);
        next.retain(|&i| pointers[i].len() != depth);
    }

    /// The value being read is complete.
    pub(super) fn value(&mut self, value: &V) {
        let text = self.text.take();
        let ends: Vec<usize> = self.ends().collect();
        for i in ends {
            self.found[i] = Some((value.clone(), text.clone()));
        }
    }

    fn next(&self) -> &[usize] {
        self.levels.last().map_or(&self.root, |level| &level.next)
    }

    /// The pointers that end at the value being read.
    fn ends(&self) -> impl Iterator<Item = usize> {
        self.next()
            .iter()
            .copied()
            .filter(|&i| self.pointers[i].len() == self.levels.len())
    }
}

impl Trail<[u8; 32]> {
    fn found(self) -> Vec<(Pointer, Option<Value>)> {
        let values = self
            .found
            .into_iter()
            .map(|found| found.map(|(digest, text)| Value { digest, text }));
        self.pointers.into_iter().zip(values).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &[u8], pointers: &[&str], chunk: usize) -> Found {
        let mut finder = Finder::new(
            pointers
                .iter()
                .map(|pointer| pointer.parse().unwrap())
                .collect(),
        );
        text.chunks(chunk).for_each(|chunk| finder.update(chunk));
        finder.finish()
    }

    fn texts<'a>(found: &'a Found, pointers: &[&str]) -> Vec<Option<Option<&'a str>>> {
        pointers
            .iter()
            .map(|pointer| found.get(&pointer.parse().unwrap()).map(Value::text))
            .collect()
    }

    #[test]
    fn values_are_found_wherever_they_are_and_however_the_text_is_cut() {
        let text =
            br#" {"a": {"b": "one", "c": [1, "two", {"d": "three"}]}, "e~/f": "\u0066our", "n": null, "x": {"a": {"b": "no"}}} "#;
        let pointers = [
            "/a/b", "/a", "/a/c/1", "/a/c/2/d", "/a/c/0", "/e~0~1f", "/n", "/a/b/c", "/missing",
            "/a/c/01",
        ];
        for chunk in [1, 2, 7, 1_000] {
            let found = find(text, &pointers, chunk);
            assert_eq!(found.odd(), None);
            let expected = [
                Some(Some("one")),
                Some(None),
                Some(Some("two")),
                Some(Some("three")),
                Some(Some("1")),
                Some(Some("four")),
                None,
                None,
                None,
                None,
            ];
            assert_eq!(texts(&found, &pointers), expected, "in chunks of {chunk}");
        }
    }

    #[test]
    fn whole_numbers_have_a_text_and_other_spellings_have_none() {
        for (number, text) in [
            ("7", Some("7")),
            ("0", Some("0")),
            ("-12", Some("-12")),
            ("9007199254740993", Some("9007199254740993")),
            (
                "123456789012345678901234567890",
                Some("123456789012345678901234567890"),
            ),
            ("7.0", None),
            ("7e0", None),
            ("7E+2", None),
            ("-0", None),
            ("0.5", None),
        ] {
            for chunk in [1, 100] {
                let found = find(format!("{{\"k\":{number}}}").as_bytes(), &["/k"], chunk);
                assert_eq!(texts(&found, &["/k"]), [Some(text)], "{number}");
            }
        }
    }

    #[test]
    fn values_that_are_spelled_alike_have_one_digest_and_others_do_not() {
        let digest = |text: &str| {
            find(text.as_bytes(), &["/v"], 100)
                .get(&"/v".parse().unwrap())
                .unwrap()
                .digest()
        };
        assert_eq!(digest(r#"{"v":"A"}"#), digest(r#"{"x":1, "v" : "\u0041"}"#));
        assert_eq!(
            digest(r#"{"v":{"a":1,"b":2}}"#),
            digest(r#"{"v":{"b":2, "a":1}}"#)
        );
        let all = [
            r#"{"v":1}"#,
            r#"{"v":1.0}"#,
            r#"{"v":"1"}"#,
            r#"{"v":[1]}"#,
            r#"{"v":true}"#,
            r#"{"v":{}}"#,
            r#"{"v":""}"#,
        ];
        for (i, a) in all.iter().enumerate() {
            for b in &all[..i] {
                assert_ne!(digest(a), digest(b), "{a} {b}");
            }
        }
    }

    #[test]
    fn what_another_reader_might_read_otherwise_is_odd() {
        let odd = |text: &str| find(text.as_bytes(), &["/k"], 3).odd().cloned();
        assert_eq!(
            odd(r#"{"k":"a","k":"b"}"#),
            Some(Odd::DuplicateName(String::new()))
        );
        assert_eq!(
            odd(r#"{"k":"a","x":{"y":1,"y":1}}"#),
            Some(Odd::DuplicateName(String::new()))
        );
        assert!(matches!(
            odd(r#"{"k":"a","K":"b"}"#),
            Some(Odd::LetterCase(..))
        ));
        assert!(
            matches!(odd(r#"{"\u212A":"b"}"#), Some(Odd::LetterCase(..))),
            "a service that ignores case finds a key here"
        );
        assert!(matches!(
            odd(r#"{"k":"a","x":{"y":1,"Y":1}}"#),
            Some(Odd::LetterCase(..))
        ));
        assert_eq!(odd(r#"{"k":"a","x":{"K":1}}"#), None);
        assert_eq!(odd("\u{feff}{\"k\":\"a\"}"), Some(Odd::ByteOrderMark));
        for text in [
            "",
            "k=a",
            "{\"k\":\"a\"",
            "{\"k\":\"a\"} {}",
            "{'k':'a'}",
            r#"{"k":"\ud800"}"#,
            "{\"k\":\"a\",}",
            "{\"k\":\"a\nb\"}",
        ] {
            assert!(
                matches!(odd(text), Some(Odd::NotJson(_))),
                "{text}: {:?}",
                odd(text)
            );
        }
        assert!(find(b"", &["/k"], 1).is_empty());
        // A value that precedes the odd place is found.
        assert_eq!(
            texts(&find(br#"{"k":"a","#, &["/k"], 100), &["/k"]),
            [Some(Some("a"))]
        );
    }

    #[test]
    fn a_string_that_is_far_too_long_for_a_key_is_found_without_its_text() {
        let text = format!("{{\"k\":\"{}\"}}", "x".repeat(2_000));
        assert_eq!(
            texts(&find(text.as_bytes(), &["/k"], 64), &["/k"]),
            [Some(None)]
        );
    }
}
