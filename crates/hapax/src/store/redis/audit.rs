//! The audit log.
//!
//! A change by hand writes its entry into its record's partition, in the same step. From there it is
//! handed on to the log of the store, where it gets its number. If a node dies in between, the next
//! sweep or the next reader of the log hands it on.

use hapax_core::audit::{Action, KEPT_FOR, LogEntry, LogQuery, Note, Signed, Start, Touched};
use hapax_core::record::Head;
use hapax_core::scope::RecordId;
use hapax_core::store::StoreError;
use hapax_core::time::Timestamp;
use redis::Value;

use super::head::{self, Policies, Reader};
use super::partition::{Partition, record_log, store, store_keys, store_log};
use super::topology::Command;
use super::{Redis, reply, scripts, together};
use crate::store::codec::{self, damaged_entry};

/// The kinds of entries, as the scripts write them.
const SETTLE: u8 = 0;
const FORGET: u8 = 1;
const NOTE: u8 = 2;

/// Who and why, as the scripts pass it on.
pub(super) fn signature(signed: &Signed) -> Vec<u8> {
    let mut bytes = Vec::new();
    head::push(&mut bytes, signed.by().as_bytes());
    head::push(&mut bytes, signed.reason().as_bytes());
    bytes
}

impl Redis {
    /// Hands the entries of a partition on to the log, and removes them there.
    pub(super) async fn hand_on_log(&self, partition: Partition) -> Result<(), StoreError> {
        let command = Command::plain("HGETALL", partition.log());
        let fields = reply::array(self.topology.call(partition, command).await?)?;
        let mut pending: Vec<(u64, Vec<u8>)> = Vec::new();
        for pair in fields.chunks(2) {
            let [number, entry] = pair else {
                return Err(reply::unexpected());
            };
            // The counter is among the fields.
            if let Ok(number) = reply::count(number) {
                pending.push((number, reply::bytes(entry.clone())?.unwrap_or_default()));
            }
        }
        if pending.is_empty() {
            return Ok(());
        }
        pending.sort_unstable();
        let first = pending[0].0;
        let mut keys = vec![store(), store_log()];
        let mut arguments = Vec::new();
        for (number, entry) in pending {
            let (kind, id) = record_of(&entry)?;
            keys.push(record_log(&id));
            arguments.extend([
                number.to_string().into_bytes(),
                u8::from(kind == FORGET).to_string().into_bytes(),
                entry,
            ]);
        }
        let mut command = Command::script(&scripts::LOG_APPEND, keys)
            .number(partition.number().into())
            .number(self.log_kept_until().await?);
        for argument in arguments {
            command = command.arg(argument);
        }
        let moved = self.topology.call(Partition::STORE, command).await?;
        let trim = Command::script(&scripts::LOG_TRIM, vec![partition.log()])
            .number(first)
            .number(reply::count(&moved)?);
        self.topology.call(partition, trim).await?;
        Ok(())
    }

    /// Until when the log of a record is kept, in milliseconds.
    pub(super) async fn log_kept_until(&self) -> Result<u64, StoreError> {
        let now = self.read_info().await?.now;
        Ok(now.after(KEPT_FOR).as_micros() / 1000)
    }

    pub(super) async fn read_log(&self, query: LogQuery) -> Result<Vec<LogEntry>, StoreError> {
        if query.limit == 0 {
            return Ok(Vec::new());
        }
        together(Partition::records().map(|partition| self.hand_on_log(partition))).await?;
        let key = match &query.record {
            Some(id) => record_log(id),
            None => store_log(),
        };
        let (name, from, to) = match query.from {
            Start::After(sequence) => ("ZRANGEBYSCORE", format!("({sequence}"), "+inf"),
            Start::Before(sequence) => ("ZREVRANGEBYSCORE", format!("({sequence}"), "-inf"),
            Start::End => ("ZREVRANGEBYSCORE", "+inf".to_owned(), "-inf"),
        };
        let command = Command::plain(name, key)
            .arg(from)
            .arg(to)
            .arg("LIMIT")
            .number(0)
            .number(query.rows() as u64);
        let entries = reply::array(self.topology.call(Partition::STORE, command).await?)?;
        entries
            .into_iter()
            .map(|entry| self.decode_entry(entry))
            .collect()
    }

    fn decode_entry(&self, stored: Value) -> Result<LogEntry, StoreError> {
        let stored = reply::bytes(stored)?.unwrap_or_default();
        let sequence = Reader(&stored).u64()?;
        decode(&stored, &self.shared.policies)
            .map_err(|error| damaged_entry(sequence).because(error))
    }

    pub(super) async fn write_note(&self, note: Note) -> Result<LogEntry, StoreError> {
        let entry = LogEntry::noted(note, Timestamp::ZERO);
        let command = Command::script(&scripts::NOTE, store_keys()).arg(note_text(&entry));
        let written = reply::array(self.topology.call(Partition::STORE, command).await?)?;
        match &written[..] {
            [sequence, at] => Ok(LogEntry {
                sequence: reply::count(sequence)?,
                at: reply::time(at)?,
                ..entry
            }),
            _ => Err(reply::unexpected()),
        }
    }
}

/// The action and the signature of an entry without a record.
fn note_text(entry: &LogEntry) -> Vec<u8> {
    let mut bytes = Vec::new();
    head::push(&mut bytes, entry.action.word().as_bytes());
    bytes.extend_from_slice(&signature(&entry.signed));
    bytes
}

/// The kind and the record of an entry that is not handed on yet.
fn record_of(entry: &[u8]) -> Result<(u8, RecordId), StoreError> {
    let mut rest = Reader(entry);
    rest.time()?;
    let kind = rest.byte()?;
    rest.byte()?;
    let signed = rest.u16()?;
    rest.take(signed.into())?;
    Ok((kind, RecordId::from_bytes(rest.array()?)))
}

/// An entry of the log: number, time, kind, state before, signature, and the record's head.
fn decode(stored: &[u8], policies: &Policies) -> Result<LogEntry, StoreError> {
    let mut rest = Reader(stored);
    let sequence = rest.u64()?;
    let at = rest.time()?;
    let kind = rest.byte()?;
    let before = rest.byte()?;
    let signed_len = rest.u16()?;
    let mut signed = Reader(rest.take(signed_len.into())?);
    let action = match kind {
        SETTLE => Action::Settle,
        FORGET => Action::Forget,
        _ => Action::of(signed.text()?),
    };
    let signed = Signed::new(signed.text()?, signed.text()?)
        .map_err(|error| StoreError::corrupt("an entry is not signed").because(error))?;
    let touched = match kind {
        NOTE => None,
        _ => {
            let id = RecordId::from_bytes(rest.array()?);
            let (head, _) = head::decode(id, rest.0, policies, None)?;
            Some(touched(head, before)?)
        }
    };
    Ok(LogEntry {
        sequence,
        at,
        action,
        signed,
        touched,
    })
}

fn touched(head: Head, before: u8) -> Result<Touched, StoreError> {
    Ok(Touched {
        id: head.id,
        scope: head.scope,
        key: head.key,
        created_at: head.created_at,
        before: codec::state(before.into())?,
        after: head.state,
        status: head.status,
        fence: head.fence,
        version: head.version,
    })
}

/// An entry as the log has it, for a copy.
pub(super) fn encode(entry: &LogEntry) -> Vec<u8> {
    let (kind, signed) = match (&entry.action, &entry.touched) {
        (Action::Settle, Some(_)) => (SETTLE, signature(&entry.signed)),
        (Action::Forget, Some(_)) => (FORGET, signature(&entry.signed)),
        _ => (NOTE, note_text(entry)),
    };
    let before = entry.touched.as_ref().map(|touched| touched.before);
    let mut bytes = entry.sequence.to_be_bytes().to_vec();
    bytes.extend_from_slice(&entry.at.as_micros().to_be_bytes());
    bytes.push(kind);
    bytes.push(before.map_or(0, |state| codec::state_code(state) as u8));
    bytes.extend_from_slice(&(signed.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&signed);
    if let Some(touched) = entry.touched.as_ref().filter(|_| kind != NOTE) {
        bytes.extend_from_slice(touched.id.as_bytes());
        bytes.extend_from_slice(&head::encode(&head_of(touched)));
    }
    bytes
}

/// A head with what an entry says of its record.
fn head_of(touched: &Touched) -> Head {
    Head {
        id: touched.id,
        scope: touched.scope.clone(),
        key: touched.key.clone(),
        state: touched.after,
        fence: touched.fence,
        token: Default::default(),
        version: touched.version,
        attempts: 0,
        lease_until: Timestamp::ZERO,
        fingerprint: None,
        created_at: touched.created_at,
        claimed_at: Timestamp::ZERO,
        finished_at: Timestamp::ZERO,
        expires_at: Timestamp::ZERO,
        tombstone_until: Timestamp::ZERO,
        status: touched.status,
        kept: false,
        request_id: None,
    }
}
