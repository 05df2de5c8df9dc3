//! Seals: how forgetting an answer erases it wherever SQLite has put it.
//!
//! SQLite moves rows. When pages are split or merged, old bytes stay behind in gaps, even with
//! `secure_delete`: in a trial with three queues, one of six hundred deleted answers was still in
//! the file. So every answer is encrypted under its own random key, which is stored in two halves.
//! One half is stored with the answer; the other, its *seal*, in a page that SQLite never copies.
//! Overwriting the seal erases all copies of the answer at once.
//!
//! The seals of a queue's answers are stored in the table `seals`, [`SEALS`] in a row. Such a row
//! is so long that SQLite stores exactly one page of it outside the tree, an overflow page, which
//! contains the seals. Trees are rebuilt; but an overflow page is written in place, or moved as a
//! whole by a vacuum, which truncates the file where the page was.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use hapax_core::store::StoreError;
use rusqlite::{Connection, MAIN_DB, OptionalExtension, params};

use super::row::queries;
use super::row_number::{RowNumber, bounds};
use crate::store::random_secret;
use crate::store::sqlite_kit::row::get;

/// The first byte of a sealed answer.
const MARK: u8 = b'S';
/// The first byte of an unsealed answer, in a file that was once of format 2.
const OPEN: u8 = 1;
const KEY_BYTES: usize = 32;
/// Seals in a row: as many as fit into a page.
const SEALS: u64 = 127;
/// The bytes of such a row before the first seal, which SQLite keeps in the tree: 489 bytes for a
/// page of 4096, less four of its own (see "payload" in its file format). The rest fills one
/// overflow page.
const LEAD_BYTES: usize = 489 - 4;
const ROW_BYTES: usize = LEAD_BYTES + 4096 - 4;

type Key = [u8; KEY_BYTES];

/// An answer that waits to be written. The caller's task encrypts it, because there is only one
/// writer.
pub(super) struct Sealed {
    key: Key,
    /// The mark, half of the key, and the encrypted content.
    content: Vec<u8>,
}

impl Sealed {
    pub(super) fn new(content: &[u8]) -> Sealed {
        let key = random_secret().to_bytes();
        let mut sealed = Vec::with_capacity(1 + KEY_BYTES + content.len());
        sealed.push(MARK);
        sealed.extend([0; KEY_BYTES]);
        sealed.extend(content);
        hide(&key, &mut sealed[1 + KEY_BYTES..]);
        Sealed {
            key,
            content: sealed,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.content.len()
    }

    /// The answer as it is stored under this seal.
    pub(super) fn under(&mut self, seal: &Key) -> &[u8] {
        self.content[1..=KEY_BYTES].copy_from_slice(&xor(&self.key, seal));
        &self.content
    }
}

/// Whether an answer with this first byte is unsealed.
pub(super) fn is_open(first: &[u8]) -> bool {
    first == [OPEN]
}

/// Decrypts a stored answer and passes it to `read`. An unsealed answer is passed as it is. `None`
/// if the seal was erased.
pub(super) fn unseal<T>(
    connection: &Connection,
    row_number: RowNumber,
    stored: &[u8],
    read: impl FnOnce(&[u8]) -> T,
) -> Result<Option<T>, StoreError> {
    let Some((half, content)) = stored
        .strip_prefix(&[MARK])
        .and_then(|sealed| sealed.split_first_chunk::<KEY_BYTES>())
    else {
        return Ok(Some(read(stored)));
    };
    let sql = "SELECT substr(seals, ?2, ?3) FROM seals WHERE row = ?1";
    let columns = params![
        row_of(row_number),
        offset(row_number) as i64 + 1,
        KEY_BYTES as i64
    ];
    let seal: Option<Key> = queries(connection).first(sql, columns, |row| get(row, 0))?;
    let Some(seal) = seal.filter(is_whole) else {
        return Ok(None);
    };
    let mut content = content.to_vec();
    hide(&xor(half, &seal), &mut content);
    Ok(Some(read(&content)))
}

/// The seals that a transaction has read.
#[derive(Default)]
pub(super) struct Seals(HashMap<i64, Vec<u8>>);

impl Seals {
    /// The seal of a row, which is used only for the answer about to be written there.
    pub(super) fn take(
        &mut self,
        connection: &Connection,
        row_number: RowNumber,
    ) -> rusqlite::Result<Key> {
        let (row, at) = (row_of(row_number), offset(row_number));
        let seals = match self.0.entry(row) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(read_or_create(connection, row)?),
        };
        let seal: Key = seals[at..at + KEY_BYTES]
            .try_into()
            .expect("as long as a key");
        if is_whole(&seal) {
            return Ok(seal);
        }
        // The queue was emptied and started again, and this row's seal was erased with its last
        // answer.
        let seal = random_secret().to_bytes();
        overwrite(connection, row, at, &seal)?;
        seals[at..at + KEY_BYTES].copy_from_slice(&seal);
        Ok(seal)
    }

    /// Erases the answer in this row.
    pub(super) fn erase(
        &mut self,
        connection: &Connection,
        row_number: RowNumber,
    ) -> rusqlite::Result<()> {
        let row = row_of(row_number);
        self.0.remove(&row);
        if exists(connection, row)? {
            overwrite(connection, row, offset(row_number), &[0; KEY_BYTES])
        } else {
            Ok(())
        }
    }

    /// Erases every answer of a queue up to this row, and removes rows of seals that are no longer
    /// needed.
    pub(super) fn erase_through(
        &mut self,
        connection: &Connection,
        last: RowNumber,
    ) -> rusqlite::Result<()> {
        self.0.clear();
        let (first, _) = bounds(last.queue());
        let mut statement =
            connection.prepare_cached("SELECT row FROM seals WHERE row >= ?1 AND row <= ?2")?;
        let rows = statement
            .query_map([first, row_of(last)], |row| row.get(0))?
            .collect::<rusqlite::Result<Vec<i64>>>()?;
        for row in rows {
            let is_partly = row == row_of(last) && last.position() % SEALS != SEALS - 1;
            let end = if is_partly {
                offset(last) + KEY_BYTES
            } else {
                ROW_BYTES
            };
            overwrite(connection, row, LEAD_BYTES, &vec![0; end - LEAD_BYTES])?;
            if !is_partly {
                connection
                    .prepare_cached("DELETE FROM seals WHERE row = ?1")?
                    .execute([row])?;
            }
        }
        Ok(())
    }
}

/// Erases all answers.
pub(super) fn erase_all(connection: &Connection) -> rusqlite::Result<()> {
    let mut statement = connection.prepare("SELECT row FROM seals")?;
    let rows = statement
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    for row in rows {
        overwrite(connection, row, LEAD_BYTES, &[0; ROW_BYTES - LEAD_BYTES])?;
    }
    connection.execute("DELETE FROM seals", []).map(drop)
}

fn read_or_create(connection: &Connection, row: i64) -> rusqlite::Result<Vec<u8>> {
    let mut statement = connection.prepare_cached("SELECT seals FROM seals WHERE row = ?1")?;
    let found: Option<Vec<u8>> = statement.query_row([row], |row| row.get(0)).optional()?;
    match found {
        Some(seals) if seals.len() == ROW_BYTES => Ok(seals),
        // Missing, or damaged: nothing can be decrypted with it, but new answers need seals.
        _ => {
            let seals = fresh();
            connection
                .prepare_cached("INSERT OR REPLACE INTO seals (row, seals) VALUES (?1, ?2)")?
                .execute(params![row, seals])?;
            Ok(seals)
        }
    }
}

/// A row of new random seals.
fn fresh() -> Vec<u8> {
    let mut seals = vec![0; ROW_BYTES];
    // Encrypting zeros yields the key stream.
    hide(&random_secret().to_bytes(), &mut seals[LEAD_BYTES..]);
    seals
}

fn exists(connection: &Connection, row: i64) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM seals WHERE row = ?1")?
        .exists([row])
}

/// Overwrites a part of a row in place, which an `UPDATE` does not guarantee.
fn overwrite(connection: &Connection, row: i64, at: usize, bytes: &[u8]) -> rusqlite::Result<()> {
    connection
        .blob_open(MAIN_DB, c"seals", c"seals", row, false)?
        .write_all_at(bytes, at)
}

fn row_of(row_number: RowNumber) -> i64 {
    RowNumber::new(row_number.queue(), row_number.position() / SEALS).row()
}

fn offset(row_number: RowNumber) -> usize {
    LEAD_BYTES + (row_number.position() % SEALS) as usize * KEY_BYTES
}

fn is_whole(seal: &Key) -> bool {
    *seal != [0; KEY_BYTES]
}

fn xor(a: &Key, b: &Key) -> Key {
    std::array::from_fn(|i| a[i] ^ b[i])
}

/// Encrypts bytes under a key, or decrypts them. Each key is used once, so the nonce may be
/// constant.
fn hide(key: &Key, bytes: &mut [u8]) {
    ChaCha20::new(key.into(), &[0; 12].into()).apply_keystream(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_hidden_is_shown_by_its_key_alone() {
        for bytes in [0, 1, 31, 32, 33, 5_000] {
            let content: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
            let (key, mut hidden) = (random_secret().to_bytes(), content.clone());
            hide(&key, &mut hidden);
            assert!(hidden.len() == bytes && (bytes < 31 || hidden != content));
            hide(&key, &mut hidden);
            assert_eq!(hidden, content);
        }
    }

    #[test]
    fn the_same_answer_is_never_hidden_alike() {
        let (mut first, mut second) = (Sealed::new(&[0; 64]), Sealed::new(&[0; 64]));
        let seal = [3; KEY_BYTES];
        assert_ne!(first.under(&seal), second.under(&seal));
        assert_ne!(
            first.under(&[4; KEY_BYTES]).to_vec(),
            first.under(&seal).to_vec(),
            "another seal, another half"
        );
    }

    #[test]
    fn a_row_of_seals_fills_one_page_beside_the_tree() {
        let last = RowNumber::new(3, SEALS - 1);
        assert!(offset(last) + KEY_BYTES <= ROW_BYTES);
        assert_ne!(row_of(last), row_of(RowNumber::new(3, SEALS)));
        assert!(
            fresh()[LEAD_BYTES..]
                .chunks(KEY_BYTES)
                .all(|seal| seal.iter().any(|byte| *byte != 0))
        );
    }
}
