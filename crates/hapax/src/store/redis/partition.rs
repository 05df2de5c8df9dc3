//! Partitions: where the keys of a record are.
//!
//! A Redis cluster executes a script only if all its keys are in one slot. So the records are in 64
//! partitions, each with a hash tag of its own, and everything that a change of a record touches is
//! in the record's partition. Ids are digests: the partitions fill evenly, and their order is the
//! order of ids. What belongs to the store as a whole is in a partition of its own.

use std::sync::LazyLock;

use hapax_core::scope::{PrincipalId, RecordId};

/// Partitions of records.
pub(super) const RECORD_PARTITIONS: u8 = 64;

/// The slots of a Redis cluster.
const SLOTS: u16 = 16_384;

/// A partition: one of those with records, or that of the store as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Partition(u8);

impl Partition {
    /// The partition of what belongs to the store as a whole.
    pub(super) const STORE: Partition = Partition(RECORD_PARTITIONS);

    /// The partition of a record.
    pub(super) fn of(id: &RecordId) -> Partition {
        Partition::of_byte(id.as_bytes()[0])
    }

    fn of_byte(byte: u8) -> Partition {
        Partition(byte / (u8::MAX / RECORD_PARTITIONS + 1))
    }

    /// All partitions of records, in the order of their ids.
    pub(super) fn records() -> impl Iterator<Item = Partition> {
        (0..RECORD_PARTITIONS).map(Partition)
    }

    /// All partitions.
    pub(super) fn all() -> impl Iterator<Item = Partition> {
        (0..=RECORD_PARTITIONS).map(Partition)
    }

    /// Its number.
    pub(super) fn number(self) -> u8 {
        self.0
    }

    /// Its position among [all](Partition::all).
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The slot of all its keys.
    pub(super) fn slot(self) -> u16 {
        crc16(self.tag().as_bytes()) % SLOTS
    }

    fn tag(self) -> &'static str {
        static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
            let numbers = (0..RECORD_PARTITIONS).map(|number| format!("{number:02}"));
            numbers.chain(["store".to_owned()]).collect()
        });
        &TAGS[self.index()]
    }

    /// A key of this partition: `hapax:{NN}:NAME`.
    pub(super) fn key(self, name: &str) -> Vec<u8> {
        self.key_of(name, &[])
    }

    fn key_of(self, name: &str, id: &[u8]) -> Vec<u8> {
        let parts = [
            b"hapax:{",
            self.tag().as_bytes(),
            b"}:",
            name.as_bytes(),
            id,
        ];
        parts.concat()
    }

    /// The key that a partition's clock, floor and gate are in.
    pub(super) fn clock(self) -> Vec<u8> {
        self.key("clock")
    }

    /// The index of the partition's records.
    pub(super) fn index_of_records(self) -> Vec<u8> {
        self.key("index")
    }

    /// The audit log entries that this partition has not handed on.
    pub(super) fn log(self) -> Vec<u8> {
        self.key("log")
    }
}

/// The key of a record: its head, and after it its answer. It is also the channel that tells when the record has changed.
pub(super) fn head(id: &RecordId) -> Vec<u8> {
    Partition::of(id).key_of("h:", id.as_bytes())
}

/// The id in the key of a head.
pub(super) fn id_of_head(key: &[u8]) -> Option<RecordId> {
    key.last_chunk().copied().map(RecordId::from_bytes)
}

/// The key of a record's copy, where Redis is a cache.
#[cfg(feature = "postgres")]
pub(super) fn cached(id: &RecordId) -> Vec<u8> {
    Partition::of(id).key_of("c:", id.as_bytes())
}

/// The keys of a script that changes a record, in the order of `prelude.lua`.
pub(super) fn record_keys(id: &RecordId) -> Vec<Vec<u8>> {
    let partition = Partition::of(id);
    vec![
        head(id),
        partition.clock(),
        partition.index_of_records(),
        partition.key("refused"),
    ]
}

/// The keys of a script that looks at a partition as a whole: the same without a record, and the
/// log.
pub(super) fn partition_keys(partition: Partition) -> Vec<Vec<u8>> {
    vec![
        partition.key("-"),
        partition.clock(),
        partition.index_of_records(),
        partition.key("refused"),
        partition.log(),
    ]
}

/// The values of the store as a whole: secret, epoch, standing, counts.
pub(super) fn store() -> Vec<u8> {
    Partition::STORE.key("store")
}

/// The audit log of the store.
pub(super) fn store_log() -> Vec<u8> {
    Partition::STORE.key("audit")
}

/// The keys of a script about the store as a whole: the store, the clock, the log.
pub(super) fn store_keys() -> Vec<Vec<u8>> {
    vec![store(), Partition::STORE.clock(), store_log()]
}

/// The audit log of one record.
pub(super) fn record_log(id: &RecordId) -> Vec<u8> {
    Partition::STORE.key_of("audit:", id.as_bytes())
}

/// The partition and the key of a principal.
pub(super) fn principal(id: &PrincipalId) -> (Partition, Vec<u8>) {
    let partition = Partition::of_byte(id.as_bytes()[0]);
    (partition, partition.key_of("p:", id.as_bytes()))
}

/// The checksum by which a cluster maps hash tags to slots: CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let carries = crc & 0x8000 != 0;
            (crc << 1) ^ if carries { 0x1021 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }

    #[test]
    fn partitions_are_in_the_order_of_ids() {
        let id = |first: u8| RecordId::from_bytes([first; 32]);
        let partitions: Vec<_> = (0..=255).map(|byte| Partition::of(&id(byte))).collect();
        assert!(partitions.is_sorted());
        assert_eq!(partitions[255].number(), RECORD_PARTITIONS - 1);
        assert_eq!(Partition::records().count(), 64);
    }

    #[test]
    fn the_keys_of_a_record_have_one_hash_tag() {
        let id = RecordId::from_bytes([0xff; 32]);
        for key in record_keys(&id) {
            assert!(key.starts_with(b"hapax:{63}:"), "{key:?}");
        }
        assert_eq!(id_of_head(&head(&id)), Some(id));
    }
}
