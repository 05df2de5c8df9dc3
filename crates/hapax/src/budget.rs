//! The budget of buffered bodies: bytes in memory and on disk, in total and per peer. It counts
//! request bodies, and replays that the client has not read yet.
//!
//! A body with a declared length reserves its room before it is read; any other reserves it piece
//! by piece. The room is given back when the last copy of the body is dropped: after the attempt
//! that sends it, not after the request that brought it.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::Peer;
use crate::once::Limits;

/// Bytes of request bodies that are buffered now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyUsage {
    /// In memory.
    pub memory_bytes: u64,
    /// In files of the spill directory.
    pub disk_bytes: u64,
}

/// A replay up to this size is not counted.
const UNCOUNTED_BYTES_MAX: usize = 64 << 10;

/// Where a part of a body is buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Memory,
    Disk,
}

/// A limit is reached; names its setting.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is reached")]
pub(crate) struct Full(&'static str);

/// The limits that all buffered request bodies of a [`Hapax`](crate::Hapax) share.
pub struct BodyBudget {
    limits: Limits,
    /// `None` for the system's directory for temporary files.
    directory: Option<PathBuf>,
    buffered: Mutex<Buffered>,
}

#[derive(Default)]
struct Buffered {
    total: BodyUsage,
    /// Peers that have a buffered body.
    peers: HashMap<Peer, BodyUsage>,
}

impl BodyBudget {
    pub(crate) fn new(limits: Limits, directory: Option<PathBuf>) -> Arc<BodyBudget> {
        Arc::new(BodyBudget {
            limits,
            directory,
            buffered: Mutex::default(),
        })
    }

    /// The bytes in use.
    pub fn usage(&self) -> BodyUsage {
        self.buffered.lock().total
    }

    /// Checks that a file can be created in the [spill directory](crate::Builder::spill_directory).
    /// Blocks on the file system.
    pub fn check_directory(&self) -> io::Result<()> {
        self.create_file().map(drop)
    }

    /// The most that the bodies of one peer may take at one place. For requests without a peer only
    /// the total applies.
    pub(crate) fn share(&self, peer: Option<Peer>, place: Place) -> u64 {
        let total = self.total_max(place);
        if peer.is_some() {
            total.min(self.peer_max(place))
        } else {
            total
        }
    }

    /// An empty reservation, to be grown.
    pub(crate) fn reservation(self: &Arc<Self>, peer: Option<Peer>) -> Arc<Reservation> {
        let (memory, disk) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Reservation {
            budget: self.clone(),
            peer,
            memory,
            disk,
        })
    }

    /// The body of a replay, which keeps its room until the client has read it. Without this, a
    /// client that reads nothing could hold any number of replays in memory. Small ones are not
    /// counted: the limits on connections and streams bound them.
    pub(crate) fn room_for(
        self: &Arc<Self>,
        peer: Option<Peer>,
        body: &Bytes,
    ) -> Result<Bytes, Full> {
        if body.len() <= UNCOUNTED_BYTES_MAX {
            return Ok(body.clone());
        }
        let reservation = self.reservation(peer);
        // A replay larger than the peer's share reserves the whole share: it can be sent when it is
        // the peer's only body.
        reservation.grow_to(
            Place::Memory,
            self.share(peer, Place::Memory).min(body.len() as u64),
        )?;
        Ok(Bytes::from_owner(Reserved {
            bytes: body.clone(),
            _reservation: reservation,
        }))
    }

    /// Creates an unnamed file that disappears when it is closed. Blocks.
    pub(crate) fn create_file(&self) -> io::Result<File> {
        match &self.directory {
            Some(directory) => tempfile::tempfile_in(directory),
            None => tempfile::tempfile(),
        }
    }

    fn add(&self, peer: Option<Peer>, place: Place, bytes: u64) -> Result<(), Full> {
        let mut buffered = self.buffered.lock();
        let total = amount(&mut buffered.total, place).saturating_add(bytes);
        if total > self.total_max(place) {
            return Err(Full(match place {
                Place::Memory => "buffered_memory_bytes_max",
                Place::Disk => "buffered_disk_bytes_max",
            }));
        }
        if let Some(peer) = peer {
            let used = buffered.peers.get(&peer).copied().unwrap_or_default();
            let used = match place {
                Place::Memory => used.memory_bytes,
                Place::Disk => used.disk_bytes,
            };
            if used.saturating_add(bytes) > self.peer_max(place) {
                return Err(Full(match place {
                    Place::Memory => "buffered_memory_bytes_per_peer_max",
                    Place::Disk => "buffered_disk_bytes_per_peer_max",
                }));
            }
            *amount(buffered.peers.entry(peer).or_default(), place) += bytes;
        }
        *amount(&mut buffered.total, place) = total;
        Ok(())
    }

    fn remove(&self, peer: Option<Peer>, removed: BodyUsage) {
        let mut buffered = self.buffered.lock();
        subtract(&mut buffered.total, removed);
        if let Some(peer) = peer
            && let Some(usage) = buffered.peers.get_mut(&peer)
        {
            subtract(usage, removed);
            if *usage == BodyUsage::default() {
                buffered.peers.remove(&peer);
            }
        }
    }

    fn total_max(&self, place: Place) -> u64 {
        match place {
            Place::Memory => self.limits.buffered_memory_bytes_max,
            Place::Disk => self.limits.buffered_disk_bytes_max,
        }
    }

    fn peer_max(&self, place: Place) -> u64 {
        match place {
            Place::Memory => self.limits.buffered_memory_bytes_per_peer_max,
            Place::Disk => self.limits.buffered_disk_bytes_per_peer_max,
        }
    }
}

impl fmt::Debug for BodyBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyBudget")
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}

fn amount(usage: &mut BodyUsage, place: Place) -> &mut u64 {
    match place {
        Place::Memory => &mut usage.memory_bytes,
        Place::Disk => &mut usage.disk_bytes,
    }
}

fn subtract(usage: &mut BodyUsage, removed: BodyUsage) {
    debug_assert!(
        usage.memory_bytes >= removed.memory_bytes && usage.disk_bytes >= removed.disk_bytes
    );
    usage.memory_bytes = usage.memory_bytes.saturating_sub(removed.memory_bytes);
    usage.disk_bytes = usage.disk_bytes.saturating_sub(removed.disk_bytes);
}

/// Bytes together with the reservation of their room.
pub(crate) struct Reserved {
    pub(crate) bytes: Bytes,
    pub(crate) _reservation: Arc<Reservation>,
}

impl AsRef<[u8]> for Reserved {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Room for one body. Everything that holds bytes of the body, in memory or in a file, holds a
/// handle; the room is given back when the last handle is dropped.
pub(crate) struct Reservation {
    budget: Arc<BodyBudget>,
    peer: Option<Peer>,
    memory: AtomicU64,
    disk: AtomicU64,
}

impl Reservation {
    /// Reserves at least `bytes` at `place`.
    pub(crate) fn grow_to(&self, place: Place, bytes: u64) -> Result<(), Full> {
        let more = bytes.saturating_sub(self.reserved(place));
        if more > 0 {
            self.budget.add(self.peer, place, more)?;
            self.at(place).fetch_add(more, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Gives back the memory reserved beyond `bytes`.
    pub(crate) fn shrink_memory_to(&self, bytes: u64) {
        let less = self.reserved(Place::Memory).saturating_sub(bytes);
        if less > 0 {
            self.memory.fetch_sub(less, Ordering::Relaxed);
            self.budget.remove(
                self.peer,
                BodyUsage {
                    memory_bytes: less,
                    disk_bytes: 0,
                },
            );
        }
    }

    pub(crate) fn reserved(&self, place: Place) -> u64 {
        self.at(place).load(Ordering::Relaxed)
    }

    pub(crate) fn budget(&self) -> &Arc<BodyBudget> {
        &self.budget
    }

    fn at(&self, place: Place) -> &AtomicU64 {
        match place {
            Place::Memory => &self.memory,
            Place::Disk => &self.disk,
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let held = BodyUsage {
            memory_bytes: *self.memory.get_mut(),
            disk_bytes: *self.disk.get_mut(),
        };
        if held != BodyUsage::default() {
            self.budget.remove(self.peer, held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Option<Peer> {
        Some(Peer::new([10, 0, 0, last].into()))
    }

    fn budget() -> Arc<BodyBudget> {
        let limits = Limits {
            buffered_memory_bytes_max: 100,
            buffered_memory_bytes_per_peer_max: 40,
            buffered_disk_bytes_max: 1_000,
            buffered_disk_bytes_per_peer_max: 400,
            ..Limits::default()
        };
        BodyBudget::new(limits, None)
    }

    #[test]
    fn one_peer_has_its_share_and_all_together_the_total() {
        let budget = budget();
        let held: Vec<_> = (1..=3).map(|last| budget.reservation(peer(last))).collect();
        for reservation in &held[..2] {
            reservation.grow_to(Place::Memory, 40).unwrap();
            let full = reservation.grow_to(Place::Memory, 41).unwrap_err();
            assert_eq!(
                full.to_string(),
                "`buffered_memory_bytes_per_peer_max` is reached"
            );
        }
        held[2].grow_to(Place::Memory, 20).unwrap();
        let full = held[2].grow_to(Place::Memory, 21).unwrap_err();
        assert_eq!(full.to_string(), "`buffered_memory_bytes_max` is reached");
        assert_eq!(
            budget.usage(),
            BodyUsage {
                memory_bytes: 100,
                disk_bytes: 0
            }
        );
        held[2].grow_to(Place::Disk, 400).unwrap();
        assert!(
            held[2].grow_to(Place::Disk, 401).is_err(),
            "disk has limits of its own"
        );
    }

    #[test]
    fn what_was_refused_takes_nothing_and_what_is_dropped_comes_back() {
        let budget = budget();
        let first = budget.reservation(peer(1));
        let second = budget.reservation(peer(1));
        first.grow_to(Place::Memory, 30).unwrap();
        assert!(
            second.grow_to(Place::Memory, 11).is_err(),
            "the share is the peer's, not the body's"
        );
        first.shrink_memory_to(10);
        second.grow_to(Place::Memory, 30).unwrap();
        second.grow_to(Place::Disk, 7).unwrap();
        let copy = second.clone();
        drop((first, second));
        assert_eq!(
            budget.usage(),
            BodyUsage {
                memory_bytes: 30,
                disk_bytes: 7
            },
            "somebody holds a copy"
        );
        drop(copy);
        assert_eq!(budget.usage(), BodyUsage::default());
        assert!(
            budget.buffered.lock().peers.is_empty(),
            "a peer that has nothing is not remembered"
        );
    }

    #[test]
    fn requests_without_a_peer_have_the_total() {
        let budget = budget();
        let nobody = budget.reservation(None);
        nobody.grow_to(Place::Memory, 100).unwrap();
        assert_eq!(
            (
                budget.share(None, Place::Memory),
                budget.share(peer(1), Place::Memory)
            ),
            (100, 40)
        );
    }
}
