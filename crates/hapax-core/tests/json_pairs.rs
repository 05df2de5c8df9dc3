//! Tests JSON fingerprints with a hundred thousand pairs of texts. Each pair is judged twice: by
//! its fingerprints in JSON mode, and by a strict reader written here, which shares no code with
//! the fingerprint and keeps the whole tree instead of digests. The two must agree.
//!
//! The generator makes pairs of a kind but does not say whether a pair is equal. `HAPAX_SEED`
//! repeats or varies a run. Texts stay far below the limits on width and token length, which the
//! unit tests of the fingerprint cover.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use hapax_core::fingerprint::{RequestHead, Selection, canonical};
use hapax_core::{FingerprintPolicy, Fingerprinter, Principal, Scope};

const PAIRS: u64 = 100_000;
const DEPTH_MAX: usize = 128;

/// With fewer pairs than this of any kind or verdict, the run proves nothing about it.
const KIND_MIN: u64 = 1_000;
const VERDICT_MIN: u64 = 10_000;

#[test]
fn two_texts_share_a_fingerprint_iff_a_reader_that_keeps_everything_finds_them_equal() {
    let seed = std::env::var("HAPAX_SEED").map_or(0x6861_7061_7821, |text| {
        text.parse().expect("HAPAX_SEED is a number")
    });
    println!("HAPAX_SEED={seed}");

    let mut seeds = Random(seed);
    let judge = Judge::new();
    let mut kinds = BTreeMap::new();
    let (mut equal, mut different, mut odd, mut odd_and_equal) = (0, 0, 0, 0);
    for index in 0..PAIRS {
        let mut random = Random(seeds.next());
        let kind = if random.one_in(5) {
            Kind::Respelled
        } else {
            random.pick(Kind::ALL)
        };
        let (a, b) = kind.pair(&mut random);

        let (tree_a, tree_b) = (read(&a), read(&b));
        let is_odd = tree_a.is_err() || tree_b.is_err();
        let is_equal = if is_odd { a == b } else { tree_a == tree_b };
        let is_merged = judge.digest(&a, &mut random) == judge.digest(&b, &mut random);
        assert_eq!(
            is_merged,
            is_equal,
            "pair {index} of seed {seed}, {kind:?}: one fingerprint (left), equal (right)\n{}\n{}\nread as {tree_a:?}\nand as  {tree_b:?}",
            a.escape_ascii(),
            b.escape_ascii(),
        );

        assert_eq!(
            judge.canonical(&a) == judge.canonical(&b),
            is_equal,
            "pair {index} of seed {seed}, {kind:?}: canonical forms"
        );

        let counts: &mut [u64; 3] = kinds.entry(kind).or_default();
        counts[if is_equal { 0 } else { 1 }] += 1;
        counts[2] += u64::from(is_odd);
        equal += u64::from(is_equal);
        different += u64::from(!is_equal);
        odd += u64::from(is_odd);
        odd_and_equal += u64::from(is_odd && is_equal);
    }

    println!(
        "{PAIRS} pairs: {equal} equal, {different} different; with an odd text {odd}, of which {odd_and_equal} byte for byte equal"
    );
    for (kind, [equal, different, odd]) in &kinds {
        println!(
            "{:>20}: {equal:>5} equal {different:>5} different {odd:>5} odd",
            format!("{kind:?}")
        );
    }
    for kind in Kind::ALL {
        let [equal, different, _] = kinds[kind];
        assert!(
            equal + different >= KIND_MIN,
            "only {} pairs of {kind:?}",
            equal + different
        );
        assert!(
            equal > 0 && (different > 0 || *kind == Kind::Respelled),
            "{kind:?} has only one verdict: {equal} equal"
        );
    }
    for (word, count, min) in [
        ("equal", equal, VERDICT_MIN),
        ("different", different, VERDICT_MIN),
        ("odd", odd, VERDICT_MIN),
        ("odd and equal", odd_and_equal, KIND_MIN),
    ] {
        assert!(count >= min, "only {count} pairs were {word}");
    }
}

/// The verdict of the fingerprint.
struct Judge {
    policy: Arc<FingerprintPolicy>,
    scope: Scope,
}

impl Judge {
    fn new() -> Self {
        let scope = Scope {
            namespace: "n".into(),
            principal: Principal::Anonymous,
            method: "POST".into(),
            path: "/".into(),
        };
        Judge {
            policy: Arc::new(FingerprintPolicy::json()),
            scope,
        }
    }

    /// The text is fed in chunks of random sizes, empty ones included, since a token may be cut
    /// anywhere.
    fn digest(&self, mut text: &[u8], random: &mut Random) -> [u8; 32] {
        let head = RequestHead {
            scope: &self.scope,
            target: "/",
            headers: vec![("content-type", b"application/json")],
        };
        let mut fingerprinter = Fingerprinter::new(&self.policy, &head);
        let chunk_max = random.pick(&[1, 2, 3, 7, 40, usize::MAX - 1]);
        while !text.is_empty() {
            let (chunk, rest) = text.split_at(random.below(chunk_max + 1).min(text.len()));
            fingerprinter.update(chunk);
            text = rest;
        }
        fingerprinter.finish().digest
    }

    /// The canonical form as people see it.
    fn canonical(&self, text: &[u8]) -> Vec<u8> {
        match canonical::json(text, &Selection::All) {
            Ok(json) => json.to_string().into_bytes(),
            Err(_) => [b"odd: ", text].concat(),
        }
    }
}

// === The reader ===

/// The content of a text. Members have no order; a number is its spelling.
#[derive(Debug, PartialEq)]
enum Tree {
    Null,
    Truth(bool),
    Number(String),
    Text(String),
    Array(Vec<Tree>),
    Object(BTreeMap<String, Tree>),
}

/// Not one well-formed JSON text, or one that two readers may understand differently.
#[derive(Debug, PartialEq)]
struct Odd;

fn read(text: &[u8]) -> Result<Tree, Odd> {
    // A byte order mark needs no special rule: it is neither a value nor spacing.
    let mut reader = Reader {
        rest: std::str::from_utf8(text).map_err(|_| Odd)?,
    };
    let tree = reader.value(0)?;
    if reader.rest.is_empty() {
        Ok(tree)
    } else {
        Err(Odd)
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// A value with the spacing around it, inside `depth` containers.
    fn value(&mut self, depth: usize) -> Result<Tree, Odd> {
        self.spacing();
        let tree = match self.rest.as_bytes().first().ok_or(Odd)? {
            b'n' => self.word("null", Tree::Null),
            b't' => self.word("true", Tree::Truth(true)),
            b'f' => self.word("false", Tree::Truth(false)),
            b'"' => self.text().map(Tree::Text),
            b'[' | b'{' if depth == DEPTH_MAX => Err(Odd),
            b'[' => self.array(depth + 1),
            b'{' => self.object(depth + 1),
            _ => self.number().map(Tree::Number),
        }?;
        self.spacing();
        Ok(tree)
    }

    fn array(&mut self, depth: usize) -> Result<Tree, Odd> {
        let mut elements = Vec::new();
        self.take("[").ok_or(Odd)?;
        self.spacing();
        if self.take("]").is_some() {
            return Ok(Tree::Array(elements));
        }
        loop {
            elements.push(self.value(depth)?);
            if self.take(",").is_none() {
                self.take("]").ok_or(Odd)?;
                return Ok(Tree::Array(elements));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Tree, Odd> {
        let (mut members, mut folded) = (BTreeMap::new(), BTreeSet::new());
        self.take("{").ok_or(Odd)?;
        self.spacing();
        if self.take("}").is_some() {
            return Ok(Tree::Object(members));
        }
        loop {
            self.spacing();
            let name = self.text()?;
            self.spacing();
            self.take(":").ok_or(Odd)?;
            let value = self.value(depth)?;
            // Readers that ignore letter case take these for one name.
            if !folded.insert(name.to_lowercase().to_uppercase().to_lowercase())
                || members.insert(name, value).is_some()
            {
                return Err(Odd);
            }
            if self.take(",").is_none() {
                self.take("}").ok_or(Odd)?;
                return Ok(Tree::Object(members));
            }
        }
    }

    fn text(&mut self) -> Result<String, Odd> {
        self.take("\"").ok_or(Odd)?;
        let mut text = String::new();
        loop {
            match self.char()? {
                '"' => return Ok(text),
                '\\' => text.push(self.escape()?),
                control if control < ' ' => return Err(Odd),
                plain => text.push(plain),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Odd> {
        Ok(match self.char()? {
            same @ ('"' | '\\' | '/') => same,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => return self.code_point(),
            _ => return Err(Odd),
        })
    }

    /// One `\uXXXX`, or two that are a surrogate pair; a surrogate by itself is odd.
    fn code_point(&mut self) -> Result<char, Odd> {
        let first = self.hex()?;
        let number = if matches!(first, 0xD800..=0xDBFF) {
            self.take("\\u").ok_or(Odd)?;
            let second = self
                .hex()?
                .checked_sub(0xDC00)
                .filter(|low| *low < 0x400)
                .ok_or(Odd)?;
            0x1_0000 + (first - 0xD800) * 0x400 + second
        } else {
            first
        };
        char::from_u32(number).ok_or(Odd)
    }

    fn hex(&mut self) -> Result<u32, Odd> {
        (0..4).try_fold(0, |number, _| {
            Ok(number * 16 + self.char()?.to_digit(16).ok_or(Odd)?)
        })
    }

    fn number(&mut self) -> Result<String, Odd> {
        let start = self.rest;
        self.take("-");
        if self.take("0").is_none() {
            self.digits()?;
        }
        if self.take(".").is_some() {
            self.digits()?;
        }
        if self.take("e").or_else(|| self.take("E")).is_some() {
            let _sign = self.take("+").or_else(|| self.take("-"));
            self.digits()?;
        }
        Ok(start[..start.len() - self.rest.len()].to_owned())
    }

    fn digits(&mut self) -> Result<(), Odd> {
        let rest = self.rest.trim_start_matches(|c: char| c.is_ascii_digit());
        if rest.len() == self.rest.len() {
            return Err(Odd);
        }
        self.rest = rest;
        Ok(())
    }

    fn word(&mut self, word: &str, tree: Tree) -> Result<Tree, Odd> {
        self.take(word).map(|()| tree).ok_or(Odd)
    }

    fn spacing(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn take(&mut self, expected: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(expected)?;
        Some(())
    }

    fn char(&mut self) -> Result<char, Odd> {
        let mut chars = self.rest.chars();
        let next = chars.next().ok_or(Odd)?;
        self.rest = chars.as_str();
        Ok(next)
    }
}

// === The pairs ===

/// How the two texts of a pair are meant to differ, besides spacing, member order and escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Respelled,
    BigInteger,
    NumberSpelling,
    MinusZero,
    DuplicateName,
    LoneSurrogate,
    Normalisation,
    SwappedElements,
    NullOrAbsent,
    DeepNesting,
    ByteOrderMark,
    TrailingContent,
    LetterCase,
    RawControl,
    InvalidUtf8,
    Truncated,
    LeadingZero,
    TrailingComma,
    OtherType,
    Regrouped,
    BadEscape,
    OddSpacing,
    OtherByte,
}

impl Kind {
    const ALL: &'static [Kind] = &[
        Kind::Respelled,
        Kind::BigInteger,
        Kind::NumberSpelling,
        Kind::MinusZero,
        Kind::DuplicateName,
        Kind::LoneSurrogate,
        Kind::Normalisation,
        Kind::SwappedElements,
        Kind::NullOrAbsent,
        Kind::DeepNesting,
        Kind::ByteOrderMark,
        Kind::TrailingContent,
        Kind::LetterCase,
        Kind::RawControl,
        Kind::InvalidUtf8,
        Kind::Truncated,
        Kind::LeadingZero,
        Kind::TrailingComma,
        Kind::OtherType,
        Kind::Regrouped,
        Kind::BadEscape,
        Kind::OddSpacing,
        Kind::OtherByte,
    ];

    /// Makes two texts from one tree. They differ in what fills its hole, and in changes to the
    /// bytes.
    fn pair(self, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
        let mut tree = Sketch::random(random, 4);
        *tree.place(random) = Sketch::Hole;
        let (left, right) = self.fillings(random);
        if self == Kind::DeepNesting {
            (tree.depth()..DEPTH_MAX - 2).for_each(|_| tree.wrap(random));
        }
        let mut a = tree.render(&left, random);
        let mut b = tree.render(&right, random);
        self.deface(&mut a, &mut b, random);
        if random.one_in(6) {
            // Odd texts are equal only if they are byte for byte the same.
            b.clone_from(&a);
        }
        if random.one_in(2) { (b, a) } else { (a, b) }
    }

    /// What fills the hole of the tree in each text. Often the same on both sides, so that every
    /// kind has both verdicts.
    fn fillings(self, random: &mut Random) -> (Sketch, Sketch) {
        match self {
            Kind::BigInteger => {
                let big = random.pick(&[9_007_199_254_740_992, u128::from(u64::MAX), 1 << 100])
                    + random.below(3) as u128;
                let sign = random.pick(&["", "-"]);
                let other = big + random.below(2) as u128;
                (
                    Sketch::Number(format!("{sign}{big}")),
                    Sketch::Number(format!("{sign}{other}")),
                )
            }
            Kind::NumberSpelling => two_of(
                "1 1.0 1.00 1e0 1E0 1e+0 1e-0 1e00 10e-1 0.1e1 0.1E+1",
                random,
            ),
            Kind::MinusZero => two_of("0 -0 0.0 -0.0 0e0 -0e0 0e-0", random),
            Kind::DuplicateName => {
                let name = random_text(random);
                let (value, other) = (Sketch::scalar(random), Sketch::scalar(random));
                let once = vec![(name.clone(), value.clone())];
                let same_twice = vec![(name.clone(), value.clone()), (name.clone(), value.clone())];
                let two_values = vec![(name.clone(), value), (name, other)];
                let mut pick =
                    || Sketch::Object(random.pick(&[&once, &same_twice, &two_values]).to_vec());
                (pick(), pick())
            }
            Kind::LoneSurrogate => {
                let mut text = random_text(random);
                let at = random.below(text.len() + 1);
                text.insert(at, 0xD800 + random.below(0x800) as u32);
                if random.one_in(2) {
                    // Two surrogate halves side by side may form a valid pair.
                    text.insert(at + random.below(2), 0xD800 + random.below(0x800) as u32);
                }
                let mut other = text.clone();
                if random.one_in(4) {
                    other[at] = 0xFFFD;
                }
                let wrap = Sketch::text_or_name(random);
                (wrap(text), wrap(other))
            }
            Kind::Normalisation => {
                let spellings = &random.pick(&[
                    ["\u{e9}", "e\u{301}"],
                    ["\u{212b}", "\u{c5}"],
                    ["\u{1e69}", "s\u{323}\u{307}"],
                    ["\u{fb01}", "fi"],
                    ["\u{ac00}", "\u{1100}\u{1161}"],
                ]);
                let wrap = Sketch::text_or_name(random);
                let mut pick = || wrap(random.pick(spellings).chars().map(u32::from).collect());
                (pick(), pick())
            }
            Kind::SwappedElements => {
                let elements: Vec<_> = (0..2 + random.below(4))
                    .map(|_| Sketch::random(random, 1))
                    .collect();
                let mut swapped = elements.clone();
                swapped.swap(random.below(elements.len()), random.below(elements.len()));
                (Sketch::Array(elements), Sketch::Array(swapped))
            }
            Kind::NullOrAbsent => {
                let members = random_members(random, 0);
                let mut pick = || {
                    let mut members = members.clone();
                    if random.one_in(2) {
                        members.push((
                            "absent?".chars().map(u32::from).collect(),
                            Sketch::Literal("null"),
                        ));
                    }
                    Sketch::Object(members)
                };
                (pick(), pick())
            }
            // The tree around the hole is wrapped to just below the depth limit; the filling ends
            // below, on or over it.
            Kind::DeepNesting => {
                let deep = |depth| {
                    Sketch::Raw([b"[".repeat(depth), b"0".to_vec(), b"]".repeat(depth)].concat())
                };
                let depth = random.below(5);
                (
                    deep(depth),
                    deep(if random.one_in(4) {
                        random.below(5)
                    } else {
                        depth
                    }),
                )
            }
            Kind::LetterCase => {
                let spellings = random.pick(&[
                    "true True TRUE",
                    "null Null NULL",
                    r#""key" "Key" "KEY""#,
                    r#"{"key":1} {"Key":1} {"KEY":1}"#,
                    r#"{"key":1,"Key":2} {"Key":2,"key":1} {"key":1}"#,
                    r#"{"key":1,"\u212Aey":2} {"\u212aey":2,"key":1} {"\u212Aey":2}"#,
                    r#"{"is":1,"iſ":2} {"iſ":2,"is":1} {"is":1}"#,
                    r#""\n" "\N" "n""#,
                    r#""\u00e9" "\u00E9" "\U00e9""#,
                ]);
                two_of(spellings, random)
            }
            Kind::RawControl => {
                // Up to the first character that needs no escape.
                let control = random.below(0x21) as u8;
                let escaped = format!("\"a\\u{control:04x}b\"").into_bytes();
                let mut pick = || {
                    Sketch::Raw(if random.one_in(2) {
                        vec![b'"', b'a', control, b'b', b'"']
                    } else {
                        escaped.clone()
                    })
                };
                (pick(), pick())
            }
            Kind::InvalidUtf8 => {
                // A stray byte, a truncated sequence, an overlong slash, an encoded surrogate, a
                // number past the last code point.
                let bad: &[u8] = random.pick(&[
                    &b"\xff"[..],
                    b"\x80",
                    b"\xc3",
                    b"\xc0\xaf",
                    b"\xed\xa0\x80",
                    b"\xf4\x90\x80\x80",
                ]);
                let quoted = |inner: &[u8]| [b"\"", inner, b"\""].concat();
                let mut pick = || {
                    Sketch::Raw(
                        random
                            .pick(&[&quoted(bad), &quoted("\u{fffd}".as_bytes()), &bad.to_vec()])
                            .clone(),
                    )
                };
                (pick(), pick())
            }
            Kind::LeadingZero => two_of("7 07 -07 +7 .7 7. 7.e1 7e 0x7 -", random),
            Kind::TrailingComma => two_of(
                r#"[1] [1,] [,1] [1;2] {"a":1} {"a":1,} {,} {"a"} {"a":} {a:1}"#,
                random,
            ),
            Kind::OtherType => two_of(
                r#"1 "1" true "true" false null "null" [] {} "" [null] {"":null} [0] [false]"#,
                random,
            ),
            Kind::Regrouped => {
                let arrays =
                    r#"[[1],2] [1,[2]] [[1,2]] [1,2] ["ab","c"] ["a","bc"] ["a","b","b","a"]"#;
                let objects = r#"{"a":{"b":1}} {"a":1,"b":1} {"a":"b","b":"a"} {"b":"b","a":"a"} {"a":["b","b"]}"#;
                two_of(random.pick(&[arrays, objects]), random)
            }
            Kind::BadEscape => two_of(
                r#""\u0041" "A" "\x41" "\u041" "\u+041" "\'" "\0" "\u{41}" 'A' "\u0041\""#,
                random,
            ),
            _ => {
                let same = Sketch::scalar(random);
                (same.clone(), same)
            }
        }
    }

    /// Changes the bytes of the two texts.
    fn deface(self, a: &mut Vec<u8>, b: &mut Vec<u8>, random: &mut Random) {
        let both = random.one_in(2);
        let at_end = |bytes: &[u8], a: &mut Vec<u8>, b: &mut Vec<u8>| {
            b.extend(bytes);
            if both {
                a.extend(bytes);
            }
        };
        match self {
            Kind::ByteOrderMark => {
                b.splice(..0, *b"\xEF\xBB\xBF");
                if both {
                    a.splice(..0, *b"\xEF\xBB\xBF");
                }
            }
            Kind::TrailingContent => {
                let contents: &[&[u8]] = &[
                    b" x",
                    b" 1",
                    b"null",
                    b"{}",
                    b",",
                    b"]",
                    b"}",
                    b"\0",
                    b"//",
                    b"\"",
                    b"\xEF\xBB\xBF",
                    b"\n",
                ];
                at_end(random.pick(contents), a, b);
            }
            Kind::OddSpacing => {
                // Some readers take these for spacing, JSON does not. The last one is JSON spacing,
                // so that this kind has equal pairs too.
                let spaces: &[&[u8]] = &[
                    b"\x0b",
                    b"\x0c",
                    b"\xc2\xa0",
                    b"\xc2\x85",
                    b"\xe2\x80\xa8",
                    b"\xe3\x80\x80",
                    b"\x00",
                    b"\r",
                ];
                at_end(random.pick(spaces), a, b);
            }
            Kind::Truncated => {
                b.truncate(random.below(b.len()));
                if both {
                    a.truncate(random.below(a.len()));
                }
            }
            Kind::OtherByte => {
                b.clone_from(a);
                let at = random.below(b.len());
                match random.below(4) {
                    0 => b[at] = random.below(256) as u8,
                    1 => b[at] ^= 1 << random.below(8),
                    2 => b.insert(at, random.below(128) as u8),
                    _ => drop(b.remove(at)),
                }
            }
            _ => {}
        }
    }
}

/// A tree before it has a spelling. Strings are code points, so that they can hold lone surrogates.
#[derive(Clone)]
enum Sketch {
    Literal(&'static str),
    Number(String),
    Text(Vec<u32>),
    Array(Vec<Sketch>),
    Object(Vec<(Vec<u32>, Sketch)>),
    /// Bytes that stand in the text as they are, JSON or not.
    Raw(Vec<u8>),
    /// Where the two texts of a pair may differ.
    Hole,
}

impl Sketch {
    fn random(random: &mut Random, height: usize) -> Sketch {
        match random.below(5) {
            0 | 1 if height > 0 => Sketch::Object(random_members(random, height - 1)),
            2 if height > 0 => Sketch::Array(
                (0..random.below(5))
                    .map(|_| Sketch::random(random, height - 1))
                    .collect(),
            ),
            _ => Sketch::scalar(random),
        }
    }

    fn scalar(random: &mut Random) -> Sketch {
        match random.below(6) {
            0 => Sketch::Literal(random.pick(&["null", "true", "false"])),
            1 | 2 => Sketch::Number(random_number(random)),
            _ => Sketch::Text(random_text(random)),
        }
    }

    /// Makes a sketch with this string as a value or as a member name.
    fn text_or_name(random: &mut Random) -> fn(Vec<u32>) -> Sketch {
        random.pick(&[Sketch::Text, |name| {
            Sketch::Object(vec![(name, Sketch::Literal("true"))])
        }])
    }

    /// A random value in the tree, often the root.
    fn place(&mut self, random: &mut Random) -> &mut Sketch {
        let width = match self {
            Sketch::Array(elements) => elements.len(),
            Sketch::Object(members) => members.len(),
            _ => 0,
        };
        if width == 0 || random.one_in(4) {
            return self;
        }
        let at = random.below(width);
        match self {
            Sketch::Array(elements) => elements[at].place(random),
            Sketch::Object(members) => members[at].1.place(random),
            _ => self,
        }
    }

    /// How many containers the hole is in.
    fn depth(&self) -> usize {
        fn find(sketch: &Sketch) -> Option<usize> {
            match sketch {
                Sketch::Hole => Some(0),
                Sketch::Array(elements) => elements.iter().find_map(find).map(|depth| depth + 1),
                Sketch::Object(members) => members
                    .iter()
                    .find_map(|(_, value)| find(value))
                    .map(|depth| depth + 1),
                _ => None,
            }
        }
        find(self).expect("a tree has its hole")
    }

    fn wrap(&mut self, random: &mut Random) {
        let inner = std::mem::replace(self, Sketch::Hole);
        *self = if random.one_in(2) {
            Sketch::Array(vec![inner])
        } else {
            Sketch::Object(vec![(vec![], inner)])
        };
    }

    /// One spelling of the tree, with spacing, member order and escapes at random.
    fn render(&self, filling: &Sketch, random: &mut Random) -> Vec<u8> {
        let spaced_in = random.pick(&[2, 10, usize::MAX]);
        let escaped_in = random.pick(&[2, 10, usize::MAX]);
        let mut renderer = Renderer {
            text: Vec::new(),
            filling,
            spaced_in,
            escaped_in,
            random,
        };
        renderer.value(self);
        renderer.text
    }
}

struct Renderer<'a> {
    text: Vec<u8>,
    filling: &'a Sketch,
    /// One place in `spaced_in` has spacing; one character in `escaped_in` is escaped without need.
    spaced_in: usize,
    escaped_in: usize,
    random: &'a mut Random,
}

impl Renderer<'_> {
    fn value(&mut self, value: &Sketch) {
        self.spacing();
        match value {
            Sketch::Literal(word) => self.text.extend(word.bytes()),
            Sketch::Number(spelling) => self.text.extend(spelling.bytes()),
            Sketch::Text(points) => self.string(points),
            Sketch::Raw(bytes) => self.text.extend(bytes),
            Sketch::Hole => self.value(self.filling),
            Sketch::Array(elements) => {
                self.text.push(b'[');
                for (i, element) in elements.iter().enumerate() {
                    self.comma(i);
                    self.value(element);
                }
                self.spacing();
                self.text.push(b']');
            }
            Sketch::Object(members) => {
                self.text.push(b'{');
                for (i, at) in self.random.order(members.len()).into_iter().enumerate() {
                    let (name, value) = &members[at];
                    self.comma(i);
                    self.spacing();
                    self.string(name);
                    self.spacing();
                    self.text.push(b':');
                    self.value(value);
                }
                self.spacing();
                self.text.push(b'}');
            }
        }
        self.spacing();
    }

    fn comma(&mut self, before: usize) {
        if before > 0 {
            self.text.push(b',');
        }
    }

    fn spacing(&mut self) {
        while self.random.one_in(self.spaced_in) {
            self.text.push(self.random.pick(b" \t\n\r"));
        }
    }

    fn string(&mut self, points: &[u32]) {
        self.text.push(b'"');
        for &point in points {
            let must = point < 0x20 || point == 0x22 || point == 0x5C;
            match char::from_u32(point) {
                Some(plain) if !must && !self.random.one_in(self.escaped_in) => {
                    self.text.extend(plain.encode_utf8(&mut [0; 4]).bytes());
                }
                _ => self.escaped(point),
            }
        }
        self.text.push(b'"');
    }

    fn escaped(&mut self, point: u32) {
        let short = match point {
            0x22 => b'"',
            0x5C => b'\\',
            0x2F => b'/',
            0x08 => b'b',
            0x0C => b'f',
            0x0A => b'n',
            0x0D => b'r',
            0x09 => b't',
            _ => 0,
        };
        if short != 0 && self.random.one_in(2) {
            return self.text.extend([b'\\', short]);
        }
        let mut units = [0; 2];
        // A lone surrogate is not a character, so it is written as it is.
        let units = char::from_u32(point)
            .map_or(&[point as u16][..], |c| &*c.encode_utf16(&mut units))
            .to_vec();
        for unit in units {
            let mut escape = String::new();
            for digit in format!("{unit:04x}").chars() {
                escape.push(if self.random.one_in(2) {
                    digit.to_ascii_uppercase()
                } else {
                    digit
                });
            }
            self.text.extend(b"\\u");
            self.text.extend(escape.bytes());
        }
    }
}

/// Two of these texts, often the same one.
fn two_of(texts: &str, random: &mut Random) -> (Sketch, Sketch) {
    let texts: Vec<_> = texts.split_whitespace().collect();
    let mut pick = || Sketch::Raw(random.pick(&texts).as_bytes().to_vec());
    (pick(), pick())
}

fn random_members(random: &mut Random, height: usize) -> Vec<(Vec<u32>, Sketch)> {
    let mut members: Vec<(Vec<u32>, Sketch)> = Vec::new();
    for _ in 0..random.below(5) {
        let name = random_text(random);
        if members.iter().all(|(taken, _)| *taken != name) {
            members.push((name, Sketch::random(random, height)));
        }
    }
    members
}

/// A short text, so that texts of one pair share prefixes and names, from every class of characters
/// that is spelled differently.
fn random_text(random: &mut Random) -> Vec<u32> {
    let one = |random: &mut Random| match random.below(12) {
        0 => random.below(0x20) as u32,
        1 => u32::from(random.pick(b"\"\\/\x7f")),
        2 => u32::from(random.pick(&[
            '\u{80}', '\u{e9}', '\u{7ff}', '\u{2028}', '\u{fffd}', '\u{feff}', '\u{ffff}',
            '\u{d7ff}',
        ])),
        3 => u32::from(random.pick(&['\u{10000}', '\u{1f600}', '\u{10ffff}'])),
        _ => u32::from(b'a') + random.below(6) as u32,
    };
    (0..random.below(6)).map(|_| one(random)).collect()
}

fn random_number(random: &mut Random) -> String {
    let mut digits = |count: usize| -> String {
        (0..count)
            .map(|_| char::from(b'0' + random.below(10) as u8))
            .collect()
    };
    let (whole, fraction, exponent) = (digits(20), digits(4), digits(2));
    let whole = whole[..1 + random.below(20)].trim_start_matches('0');
    let mut number = format!(
        "{}{}",
        random.pick(&["", "-"]),
        if whole.is_empty() { "0" } else { whole }
    );
    if random.one_in(3) {
        write!(number, ".{}", &fraction[..1 + random.below(4)]).unwrap();
    }
    if random.one_in(4) {
        write!(
            number,
            "{}{}{}",
            random.pick(&["e", "E"]),
            random.pick(&["", "+", "-"]),
            &exponent[..1 + random.below(2)]
        )
        .unwrap();
    }
    number
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// The numbers below `count` in random order.
    fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        (1..count).for_each(|i| order.swap(i, self.below(i + 1)));
        order
    }
}
