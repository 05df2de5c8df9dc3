//! JSON in a form that ignores spacing, member order and the spelling of escapes, and nothing else.
//!
//! The text is hashed as a tree, from the leaves up: a scalar by its kind and exact content (a number by its spelling, so that no
//! two decimal values ever meet), an array by its elements with their places, an object by its members sorted by the digest of
//! their names. Only digests are kept of what has been read, so memory depends on the widest open object, not on the body.
//!
//! Whatever another reader might understand differently is never merged: such a text counts byte for byte.

use json_event_parser::{JsonEvent, LowLevelJsonParser, LowLevelJsonParserResult};
use sha2::{Digest, Sha256};

use super::pointer::{Pointer, Step};
use super::{BodyDigest, Selection};

/// Deeper texts count byte for byte.
const DEPTH_MAX: usize = 128;
/// Members that may be open at once; wider texts count byte for byte. Keeps memory at about a megabyte.
const MEMBERS_MAX: usize = 16_384;
/// A longer single string or number makes the text count byte for byte, since the parser needs each token whole.
const TOKEN_BYTES_MAX: usize = 1 << 20;
/// No token of a permitted length is spelled longer than this: an escape has six bytes and stands for at least one. What is over it
/// is over the limit however the text was cut into chunks.
const PENDING_BYTES_MAX: usize = 6 * TOKEN_BYTES_MAX + 2;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Reads a JSON text in chunks.
pub(super) struct Reader {
    raw: Sha256,
    /// `None` once the text turned out to count byte for byte.
    canonical: Option<Canonical>,
}

impl Reader {
    pub(super) fn new(selection: Selection) -> Self {
        Reader { raw: Sha256::new(), canonical: Some(Canonical::new(selection)) }
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
        match self.canonical.and_then(Canonical::finish) {
            Some(digest) => BodyDigest { tag: "json", digest },
            None => BodyDigest::raw(self.raw),
        }
    }
}

/// The text cannot be merged with any other spelling.
struct Odd;

struct Canonical {
    parser: LowLevelJsonParser,
    /// Bytes the parser has not consumed: the beginning of a token.
    pending: Vec<u8>,
    /// Do not parse again before `pending` is this long: a long token arriving in small chunks would else be scanned for each.
    parse_at: usize,
    at_start: bool,
    tree: Tree,
}

impl Canonical {
    fn new(selection: Selection) -> Self {
        Canonical {
            parser: LowLevelJsonParser::new(),
            pending: Vec::new(),
            parse_at: 0,
            at_start: true,
            tree: Tree::new(selection),
        }
    }

    fn update(&mut self, chunk: &[u8]) -> Result<(), Odd> {
        self.pending.extend_from_slice(chunk);
        if self.pending.len() < self.parse_at {
            return Ok(());
        }
        self.parse(false)?;
        if self.pending.len() > PENDING_BYTES_MAX {
            return Err(Odd);
        }
        self.parse_at = self.pending.len() * 2;
        Ok(())
    }

    fn finish(mut self) -> Option<[u8; 32]> {
        self.parse(true).ok()?;
        self.tree.root
    }

    fn parse(&mut self, is_ending: bool) -> Result<(), Odd> {
        if self.at_start && (self.pending.len() >= BYTE_ORDER_MARK.len() || is_ending) {
            self.at_start = false;
            // The parser would skip it, and a text with a mark is another text than one without.
            if self.pending.starts_with(BYTE_ORDER_MARK) {
                return Err(Odd);
            }
        }
        let mut read = 0;
        loop {
            let LowLevelJsonParserResult { consumed_bytes, event } = self.parser.parse_next(&self.pending[read..], is_ending);
            match event {
                Some(Ok(JsonEvent::Eof)) => return Ok(()),
                Some(Ok(event)) => self.tree.event(&event)?,
                Some(Err(_)) => return Err(Odd),
                None => {
                    self.pending.drain(..read + consumed_bytes);
                    return Ok(());
                }
            }
            read += consumed_bytes;
        }
    }
}

/// The path from the root to the value being read, each container with the digests of what it holds so far.
struct Tree {
    selection: Selection,
    open: Vec<Container>,
    members: usize,
    root: Option<[u8; 32]>,
}

struct Container {
    cursor: Cursor,
    kind: Kind,
}

enum Kind {
    Array { elements: Sha256, next: u64 },
    Object { members: Vec<Member>, name: [u8; 32], child: Cursor },
}

struct Member {
    name: [u8; 32],
    /// `None` for a member that is left out; its name still counts for finding duplicates.
    value: Option<[u8; 32]>,
}

/// Where a value stands with regard to the selection.
#[derive(Clone)]
enum Cursor {
    /// It counts, and so does everything in it.
    Keep,
    /// It does not count, nor does anything in it.
    Skip,
    /// These pointers match so far.
    Walk(Vec<usize>),
}

impl Tree {
    fn new(selection: Selection) -> Self {
        Tree { selection, open: Vec::new(), members: 0, root: None }
    }

    fn event(&mut self, event: &JsonEvent<'_>) -> Result<(), Odd> {
        match event {
            JsonEvent::String(text) | JsonEvent::Number(text) | JsonEvent::ObjectKey(text) if text.len() > TOKEN_BYTES_MAX => {
                Err(Odd)
            }
            JsonEvent::String(text) => self.value(scalar(b's', text.as_bytes())),
            JsonEvent::Number(text) => self.value(scalar(b'n', text.as_bytes())),
            JsonEvent::Boolean(truth) => self.value(scalar(b'b', &[u8::from(*truth)])),
            JsonEvent::Null => self.value(scalar(b'z', b"")),
            JsonEvent::StartArray => self.push(|_| Kind::Array { elements: Sha256::new_with_prefix(b"["), next: 0 }),
            JsonEvent::StartObject => {
                self.push(|cursor| Kind::Object { members: Vec::new(), name: [0; 32], child: cursor.clone() })
            }
            JsonEvent::ObjectKey(name) => self.name(name),
            JsonEvent::EndArray | JsonEvent::EndObject => self.pop(),
            JsonEvent::Eof => Ok(()),
        }
    }

    fn push(&mut self, kind: impl FnOnce(&Cursor) -> Kind) -> Result<(), Odd> {
        if self.open.len() == DEPTH_MAX {
            return Err(Odd);
        }
        let cursor = self.cursor();
        let kind = kind(&cursor);
        self.open.push(Container { cursor, kind });
        Ok(())
    }

    fn name(&mut self, text: &str) -> Result<(), Odd> {
        let depth = self.open.len() - 1;
        let Some(Container { cursor, kind: Kind::Object { name, child, .. } }) = self.open.last_mut() else { return Err(Odd) };
        *name = scalar(b's', text.as_bytes());
        *child = step(&self.selection, cursor, depth, &Step::Member(text));
        self.members += 1;
        if self.members > MEMBERS_MAX { Err(Odd) } else { Ok(()) }
    }

    fn pop(&mut self) -> Result<(), Odd> {
        let digest = match self.open.pop().ok_or(Odd)?.kind {
            Kind::Array { elements, .. } => elements.finalize().into(),
            Kind::Object { members, .. } => {
                self.members -= members.len();
                object(members)?
            }
        };
        self.value(digest)
    }

    /// A value is complete: hand it to what holds it.
    fn value(&mut self, digest: [u8; 32]) -> Result<(), Odd> {
        let cursor = self.cursor();
        let kept = (!matches!(cursor, Cursor::Skip)).then_some(digest);
        match self.open.last_mut().map(|container| &mut container.kind) {
            None => self.root = Some(digest),
            Some(Kind::Array { elements, next }) => {
                if let Some(digest) = kept {
                    elements.update(next.to_be_bytes());
                    elements.update(digest);
                }
                *next += 1;
            }
            Some(Kind::Object { members, name, .. }) => members.push(Member { name: *name, value: kept }),
        }
        Ok(())
    }

    /// The cursor of the value that comes next.
    fn cursor(&self) -> Cursor {
        let Some(container) = self.open.last() else {
            return match &self.selection {
                Selection::All => Cursor::Keep,
                Selection::Omit(pointers) | Selection::Only(pointers) => Cursor::Walk((0..pointers.len()).collect()),
            };
        };
        match &container.kind {
            Kind::Object { child, .. } => child.clone(),
            Kind::Array { next, .. } => step(&self.selection, &container.cursor, self.open.len() - 1, &Step::Index(*next)),
        }
    }
}

/// Follows the pointers one step down, from a container at `depth` to a value in it.
fn step(selection: &Selection, cursor: &Cursor, depth: usize, to: &Step<'_>) -> Cursor {
    let Cursor::Walk(matching) = cursor else { return cursor.clone() };
    let (pointers, at_end, off_path): (&[Pointer], _, _) = match selection {
        Selection::All => return Cursor::Keep,
        Selection::Omit(pointers) => (pointers, Cursor::Skip, Cursor::Keep),
        Selection::Only(pointers) => (pointers, Cursor::Keep, Cursor::Skip),
    };
    let matching: Vec<usize> = matching.iter().copied().filter(|&i| pointers[i].matches(depth, to)).collect();
    if matching.iter().any(|&i| pointers[i].len() == depth + 1) {
        at_end
    } else if matching.is_empty() {
        off_path
    } else {
        Cursor::Walk(matching)
    }
}

fn scalar(kind: u8, content: &[u8]) -> [u8; 32] {
    Sha256::new_with_prefix([kind]).chain_update(content).finalize().into()
}

fn object(mut members: Vec<Member>) -> Result<[u8; 32], Odd> {
    members.sort_unstable_by_key(|member| member.name);
    if members.array_windows().any(|[a, b]| a.name == b.name) {
        return Err(Odd);
    }
    let mut sha = Sha256::new_with_prefix(b"{");
    for Member { name, value } in &members {
        if let Some(value) = value {
            sha.update(name);
            sha.update(value);
        }
    }
    Ok(sha.finalize().into())
}
