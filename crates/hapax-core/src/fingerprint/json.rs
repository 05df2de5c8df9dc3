//! JSON in a form that ignores spacing, member order and the spelling of escapes, and nothing else.
//!
//! The text is hashed as a tree, from the leaves up: a scalar by its kind and exact content (a
//! number by its spelling, so that different decimal values never become equal), an array by its
//! elements with their places, an object by its members sorted by the digest of their names. Only
//! digests of what has been read are kept, so memory depends on the widest open object, not on the
//! body.
//!
//! A text that another reader might understand differently is never merged with other spellings: it
//! counts byte for byte.
//!
//! The text is folded into a [`Form`]: digests for the fingerprint, or values to show a person what
//! counts. The same code decides for both which values count and which texts are odd.

use json_event_parser::{JsonEvent, JsonSyntaxError, LowLevelJsonParser, LowLevelJsonParserResult};
use sha2::{Digest, Sha256};

use super::canonical::Odd;
use super::find::Trail;
use super::fold::folded_hash;
use super::pointer::{Pointer, Step, refuse_letter_case};
use super::{BodyDigest, JsonRules, Selection};

/// Deeper texts count byte for byte.
const DEPTH_MAX: usize = 128;
/// Members that may be open at once; wider texts count byte for byte. Keeps memory at about a
/// megabyte.
const MEMBERS_MAX: usize = 16_384;
/// A longer single string or number makes the text count byte for byte, since the parser needs each
/// token whole.
const TOKEN_BYTES_MAX: usize = 1 << 20;
/// An upper limit on the spelling of a token of permitted length: an escape has six bytes and
/// stands for at least one. A longer token exceeds the limit no matter how the text was cut into
/// chunks.
const PENDING_BYTES_MAX: usize = 6 * TOKEN_BYTES_MAX + 2;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Reads a JSON text in chunks.
pub(super) struct Reader {
    raw: Sha256,
    /// `None` once the text turned out to count byte for byte.
    canonical: Option<Canonical<Digests>>,
}

impl Reader {
    pub(super) fn new(selection: Selection, rules: JsonRules) -> Self {
        Reader {
            raw: Sha256::new(),
            canonical: Some(Canonical::new(selection, rules)),
        }
    }

    pub(super) fn update(&mut self, chunk: &[u8]) {
        self.raw.update(chunk);
        if let Some(canonical) = &mut self.canonical
            && canonical.update(chunk).is_err()
        {
            self.canonical = None;
        }
    }

    pub(super) fn finish(self) -> BodyDigest {
        match self.canonical.and_then(|canonical| canonical.finish().ok()) {
            Some(digest) => BodyDigest {
                tag: "json",
                digest,
            },
            None => BodyDigest::raw(self.raw),
        }
    }
}

/// What a text is folded into, from the leaves up.
pub(super) trait Form {
    type Name: Ord;
    type Value: Clone;
    type Array;

    fn name(text: &str) -> Self::Name;
    /// The spelling of the name, for the message about duplicate or similar names.
    fn spelled(name: &Self::Name) -> &str;
    fn string(text: &str) -> Self::Value;
    fn number(spelling: &str) -> Self::Value;
    fn boolean(truth: bool) -> Self::Value;
    fn null() -> Self::Value;
    fn array() -> Self::Array;
    /// Adds an element. Elements come in order; one that does not count is skipped, and so is its
    /// place.
    fn push(array: &mut Self::Array, place: u64, element: Self::Value);
    fn end(array: Self::Array) -> Self::Value;
    /// The members that count, in the order of their names, each name once.
    fn object(members: impl Iterator<Item = (Self::Name, Self::Value)>) -> Self::Value;
}

/// Keeps only digests of what has been read.
pub(super) struct Digests;

impl Form for Digests {
    type Name = [u8; 32];
    type Value = [u8; 32];
    type Array = Sha256;

    fn name(text: &str) -> [u8; 32] {
        scalar(b's', text.as_bytes())
    }

    fn spelled(_: &[u8; 32]) -> &str {
        // No message is shown: the fingerprint hashes an odd text byte for byte, whatever the
        // reason.
        ""
    }

    fn string(text: &str) -> [u8; 32] {
        scalar(b's', text.as_bytes())
    }

    fn number(spelling: &str) -> [u8; 32] {
        scalar(b'n', spelling.as_bytes())
    }

    fn boolean(truth: bool) -> [u8; 32] {
        scalar(b'b', &[u8::from(truth)])
    }

    fn null() -> [u8; 32] {
        scalar(b'z', b"")
    }

    fn array() -> Sha256 {
        Sha256::new_with_prefix(b"[")
    }

    fn push(array: &mut Sha256, place: u64, element: [u8; 32]) {
        array.update(place.to_be_bytes());
        array.update(element);
    }

    fn end(array: Sha256) -> [u8; 32] {
        array.finalize().into()
    }

    fn object(members: impl Iterator<Item = ([u8; 32], [u8; 32])>) -> [u8; 32] {
        let mut sha = Sha256::new_with_prefix(b"{");
        for (name, value) in members {
            sha.update(name);
            sha.update(value);
        }
        sha.finalize().into()
    }
}

fn scalar(kind: u8, content: &[u8]) -> [u8; 32] {
    Sha256::new_with_prefix([kind])
        .chain_update(content)
        .finalize()
        .into()
}

/// Folds a text that comes in chunks, until the text turns out to be odd.
pub(super) struct Canonical<F: Form> {
    parser: LowLevelJsonParser,
    /// Bytes the parser has not consumed: the beginning of a token.
    pending: Vec<u8>,
    /// Parsing waits until `pending` is this long. Otherwise a long token that arrives in small
    /// chunks would be scanned again for each chunk.
    parse_at: usize,
    at_start: bool,
    tree: Tree<F>,
}

impl<F: Form> Canonical<F> {
    pub(super) fn new(selection: Selection, rules: JsonRules) -> Self {
        Canonical::tracing(selection, rules, Trail::new(Vec::new()))
    }

    /// Folds the text and follows the pointers of `trail` in the same pass.
    pub(super) fn tracing(selection: Selection, rules: JsonRules, trail: Trail<F::Value>) -> Self {
        Canonical {
            parser: LowLevelJsonParser::new(),
            pending: Vec::new(),
            parse_at: 0,
            at_start: true,
            tree: Tree {
                selection,
                rules,
                open: Vec::new(),
                members: 0,
                root: None,
                trail,
            },
        }
    }

    pub(super) fn into_trail(self) -> Trail<F::Value> {
        self.tree.trail
    }

    pub(super) fn update(&mut self, chunk: &[u8]) -> Result<(), Odd> {
        self.pending.extend_from_slice(chunk);
        if self.pending.len() < self.parse_at {
            return Ok(());
        }
        self.parse(false)?;
        if self.pending.len() > PENDING_BYTES_MAX {
            return Err(Odd::Long);
        }
        self.parse_at = self.pending.len() * 2;
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<F::Value, Odd> {
        self.end()
    }

    /// Ends the text.
    pub(super) fn end(&mut self) -> Result<F::Value, Odd> {
        self.parse(true)?;
        self.tree
            .root
            .take()
            .ok_or_else(|| Odd::NotJson("it ends before there is a value".to_owned()))
    }

    fn parse(&mut self, is_ending: bool) -> Result<(), Odd> {
        if self.at_start && (self.pending.len() >= BYTE_ORDER_MARK.len() || is_ending) {
            self.at_start = false;
            // The parser would skip the byte order mark, but a text with one differs from a text
            // without.
            if self.pending.starts_with(BYTE_ORDER_MARK) {
                return Err(Odd::ByteOrderMark);
            }
        }
        let mut read = 0;
        loop {
            let LowLevelJsonParserResult {
                consumed_bytes,
                event,
            } = self.parser.parse_next(&self.pending[read..], is_ending);
            match event {
                Some(Ok(JsonEvent::Eof)) => return Ok(()),
                Some(Ok(event)) => self.tree.event(&event)?,
                Some(Err(error)) => return Err(not_json(&error)),
                None => {
                    self.pending.drain(..read + consumed_bytes);
                    return Ok(());
                }
            }
            read += consumed_bytes;
        }
    }
}

fn not_json(error: &JsonSyntaxError) -> Odd {
    let at = error.location().start;
    Odd::NotJson(format!(
        "line {}, column {}: {}",
        at.line + 1,
        at.column + 1,
        error.message()
    ))
}

/// The path from the root to the value being read. Each container has the values read so far.
struct Tree<F: Form> {
    selection: Selection,
    rules: JsonRules,
    open: Vec<Container<F>>,
    members: usize,
    root: Option<F::Value>,
    trail: Trail<F::Value>,
}

struct Container<F: Form> {
    cursor: Cursor,
    kind: Kind<F>,
}

enum Kind<F: Form> {
    Array {
        elements: F::Array,
        next: u64,
    },
    /// `name` belongs to the member being read; it is `None` before the first member.
    Object {
        members: Vec<Member<F>>,
        name: Option<Name<F>>,
        child: Cursor,
    },
}

struct Name<F: Form> {
    exact: F::Name,
    /// Equal for names that differ only in letter case.
    folded: u64,
}

struct Member<F: Form> {
    name: Name<F>,
    /// `None` for a member that is left out. Its name still counts in the search for duplicates.
    value: Option<F::Value>,
}

/// Whether a value counts under the selection.
#[derive(Clone)]
enum Cursor {
    /// The value and everything in it count.
    Keep,
    /// Neither the value nor anything in it counts.
    Skip,
    /// These pointers match so far.
    Walk(Vec<usize>),
}

impl<F: Form> Tree<F> {
    fn event(&mut self, event: &JsonEvent<'_>) -> Result<(), Odd> {
        match event {
            JsonEvent::String(text) | JsonEvent::Number(text) | JsonEvent::ObjectKey(text)
                if text.len() > TOKEN_BYTES_MAX =>
            {
                Err(Odd::Long)
            }
            JsonEvent::String(text) => {
                self.arrive();
                self.trail.string(text);
                self.value(F::string(text))
            }
            JsonEvent::Number(text) => {
                self.arrive();
                self.trail.number(text);
                self.value(F::number(text))
            }
            JsonEvent::Boolean(truth) => {
                self.arrive();
                self.value(F::boolean(*truth))
            }
            JsonEvent::Null => {
                self.arrive();
                self.trail.null();
                self.value(F::null())
            }
            JsonEvent::StartArray => self.push(|_| Kind::Array {
                elements: F::array(),
                next: 0,
            }),
            JsonEvent::StartObject => self.push(|cursor| Kind::Object {
                members: Vec::new(),
                name: None,
                child: cursor.clone(),
            }),
            JsonEvent::ObjectKey(name) => self.name(name),
            JsonEvent::EndArray | JsonEvent::EndObject => self.pop(),
            JsonEvent::Eof => Ok(()),
        }
    }

    fn push(&mut self, kind: impl FnOnce(&Cursor) -> Kind<F>) -> Result<(), Odd> {
        if self.open.len() == DEPTH_MAX {
            return Err(Odd::Deep);
        }
        self.arrive();
        self.trail.open();
        let cursor = self.cursor();
        let kind = kind(&cursor);
        self.open.push(Container { cursor, kind });
        Ok(())
    }

    fn name(&mut self, text: &str) -> Result<(), Odd> {
        let depth = self.open.len() - 1;
        let Some(Container {
            cursor,
            kind: Kind::Object { name, child, .. },
        }) = self.open.last_mut()
        else {
            return Err(out_of_place());
        };
        *name = Some(Name {
            exact: F::name(text),
            folded: folded_hash(text),
        });
        if let (JsonRules::V2, Selection::Only(pointers), Cursor::Walk(matching)) =
            (self.rules, &self.selection, &*cursor)
        {
            // A service that ignores letter case may take this value for one that counts.
            refuse_letter_case(pointers, matching, depth, text)?;
        }
        self.trail.member(text)?;
        *child = step(&self.selection, cursor, depth, &Step::Member(text));
        self.members += 1;
        if self.members > MEMBERS_MAX {
            Err(Odd::Wide)
        } else {
            Ok(())
        }
    }

    fn pop(&mut self) -> Result<(), Odd> {
        let value = match self.open.pop().ok_or_else(out_of_place)?.kind {
            Kind::Array { elements, .. } => F::end(elements),
            Kind::Object { members, .. } => {
                self.members -= members.len();
                object::<F>(members, self.rules)?
            }
        };
        self.trail.close();
        self.value(value)
    }

    /// A value begins. The trail learned the place of a member from its name; the place of an
    /// element is passed here.
    fn arrive(&mut self) {
        if let Some(Kind::Array { next, .. }) = self.open.last().map(|container| &container.kind) {
            self.trail.element(*next);
        }
    }

    /// Adds a complete value to the container that holds it.
    fn value(&mut self, value: F::Value) -> Result<(), Odd> {
        self.trail.value(&value);
        let counts = !matches!(self.cursor(), Cursor::Skip);
        match self.open.last_mut().map(|container| &mut container.kind) {
            None => self.root = Some(value),
            Some(Kind::Array { elements, next }) => {
                if counts {
                    F::push(elements, *next, value);
                }
                *next += 1;
            }
            Some(Kind::Object { members, name, .. }) => {
                let name = name.take().ok_or_else(out_of_place)?;
                members.push(Member {
                    name,
                    value: counts.then_some(value),
                });
            }
        }
        Ok(())
    }

    /// The cursor of the value that comes next.
    fn cursor(&self) -> Cursor {
        let Some(container) = self.open.last() else {
            return match &self.selection {
                Selection::All => Cursor::Keep,
                Selection::Omit(pointers) | Selection::Only(pointers) => {
                    Cursor::Walk((0..pointers.len()).collect())
                }
            };
        };
        match &container.kind {
            Kind::Object { child, .. } => child.clone(),
            Kind::Array { next, .. } => step(
                &self.selection,
                &container.cursor,
                self.open.len() - 1,
                &Step::Index(*next),
            ),
        }
    }
}

/// Follows the pointers one step down, from a container at `depth` to a value in it.
fn step(selection: &Selection, cursor: &Cursor, depth: usize, to: &Step<'_>) -> Cursor {
    let Cursor::Walk(matching) = cursor else {
        return cursor.clone();
    };
    let (pointers, at_end, off_path): (&[Pointer], _, _) = match selection {
        Selection::All => return Cursor::Keep,
        Selection::Omit(pointers) => (pointers, Cursor::Skip, Cursor::Keep),
        Selection::Only(pointers) => (pointers, Cursor::Keep, Cursor::Skip),
    };
    let matching: Vec<usize> = matching
        .iter()
        .copied()
        .filter(|&i| pointers[i].matches(depth, to))
        .collect();
    if matching.iter().any(|&i| pointers[i].len() == depth + 1) {
        at_end
    } else if matching.is_empty() {
        off_path
    } else {
        Cursor::Walk(matching)
    }
}

fn object<F: Form>(mut members: Vec<Member<F>>, rules: JsonRules) -> Result<F::Value, Odd> {
    members.sort_unstable_by(|a, b| a.name.exact.cmp(&b.name.exact));
    let twice = members
        .windows(2)
        .find(|pair| pair[0].name.exact == pair[1].name.exact);
    if let Some([twice, _]) = twice {
        return Err(Odd::DuplicateName(F::spelled(&twice.name.exact).to_owned()));
    }
    if rules == JsonRules::V2 {
        refuse_similar_names(&members)?;
    }
    Ok(F::object(members.into_iter().filter_map(
        |Member { name, value }| Some((name.exact, value?)),
    )))
}

fn refuse_similar_names<F: Form>(members: &[Member<F>]) -> Result<(), Odd> {
    let mut names: Vec<&Name<F>> = members.iter().map(|member| &member.name).collect();
    // The sort is stable, so the error names two similar names in the order in which they sort.
    names.sort_by_key(|name| name.folded);
    let similar = names
        .windows(2)
        .find(|pair| pair[0].folded == pair[1].folded);
    match similar {
        Some([a, b]) => Err(Odd::LetterCase(
            F::spelled(&a.exact).to_owned(),
            F::spelled(&b.exact).to_owned(),
        )),
        _ => Ok(()),
    }
}

/// The parser does not send such events. If it did, the text would count as odd instead of causing
/// a panic.
fn out_of_place() -> Odd {
    Odd::NotJson("a value is out of place".to_owned())
}
