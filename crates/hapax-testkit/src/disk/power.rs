//! Power loss: what may be left on the disk if the power fails at some moment of a recording.
//!
//! Everything written before a successful fsync began is on the disk. Of all other writes, each
//! sector of 512 bytes may be on the disk or not, in any order; a file may have grown or not; the
//! latest changes of names may be missing, in order, until the directory was made durable. POSIX
//! permits all of that. It would permit more for names, but those keep their order on every
//! journalling file system.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::recording::{Change, Recording, Step};
use crate::random::Random;

/// The unit that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Whether a disk really makes data durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Durable data stays.
    Honest,
    /// Reports data as durable and does nothing, to check that a test would detect it.
    Lying,
}

/// The content of the disk after a power loss.
#[derive(Debug)]
pub struct Image {
    /// The moment of the power loss: everything that began before it may have happened.
    pub cut: usize,
    /// The files, by name.
    pub files: BTreeMap<String, Vec<u8>>,
    /// What happened to the changes that were not durable.
    pub losses: Losses,
}

/// What happened to the changes that were not durable at the cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Writes that reached the disk nevertheless.
    pub kept: usize,
    /// Writes that are lost.
    pub dropped: usize,
    /// Writes of which only some sectors reached the disk.
    pub torn: usize,
    /// Changes of names that are lost.
    pub names: usize,
}

impl Losses {
    /// The number of writes that were not durable.
    pub fn at_stake(&self) -> usize {
        self.kept + self.dropped + self.torn
    }
}

impl Image {
    /// A possible content of the disk; the same for the same recording and seed.
    pub fn of(recording: &Recording, disk: Disk, seed: u64) -> Image {
        let mut random = Random::new(seed);
        let cut = choose_cut(recording, &mut random);
        let issued: Vec<&Step> = recording
            .steps
            .iter()
            .take_while(|step| step.begun < cut)
            .collect();
        let mut losses = Losses::default();
        let temper = Temper::choose(&mut random);
        let mut files = BTreeMap::new();
        for file in surviving_names(&issued, disk, cut, &mut random, &mut losses) {
            let content = Content::of(file, &issued, disk, cut);
            files.insert(
                recording.files[file].clone(),
                content.survive(temper, &mut random, &mut losses),
            );
        }
        Image { cut, files, losses }
    }

    /// Writes the files into a directory.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    pub fn write_to(&self, directory: &Path) -> std::io::Result<()> {
        self.files
            .iter()
            .try_for_each(|(name, content)| std::fs::write(directory.join(name), content))
    }
}

/// The number of events after a change of names within which the power is cut more often, since
/// such changes are rare.
const AFTER_NAMES: usize = 30;

/// Chooses the moment of the power loss: a random one; or right after the process reported
/// something, because the report must then hold; or soon after a change of names.
fn choose_cut(recording: &Recording, random: &mut Random) -> usize {
    let said = recording.said();
    let named: Vec<_> = recording
        .steps
        .iter()
        .filter(|step| step.change.is_of_names())
        .map(|step| step.begun)
        .collect();
    match random.below(100) {
        0..45 if !said.is_empty() => said[random.below(said.len())].begun + 1,
        45..55 if !named.is_empty() => {
            named[random.below(named.len())] + 1 + random.below(AFTER_NAMES)
        }
        _ => random.below(recording.end + 1),
    }
}

/// A change that ended before this is durable: the beginning of the last sync that has completed.
fn horizon(issued: &[&Step], disk: Disk, cut: usize, is_sync: impl Fn(&Change) -> bool) -> usize {
    if disk == Disk::Lying {
        return 0;
    }
    let syncs = issued
        .iter()
        .filter(|step| is_sync(&step.change) && step.ended < cut);
    syncs.map(|step| step.begun).max().unwrap_or(0)
}

/// The files that have a name. Of the changes of names that are not durable, a random number of the
/// first ones happened.
fn surviving_names(
    issued: &[&Step],
    disk: Disk,
    cut: usize,
    random: &mut Random,
    losses: &mut Losses,
) -> Vec<usize> {
    let horizon = horizon(issued, disk, cut, |change| {
        matches!(change, Change::SyncDirectory)
    });
    let changes = issued.iter().filter(|step| step.change.is_of_names());
    let (durable, pending): (Vec<&Step>, Vec<&Step>) =
        changes.copied().partition(|step| step.ended < horizon);
    let happened = random.below(pending.len() + 1);
    losses.names += pending.len() - happened;
    let mut named = Vec::new();
    for step in durable.iter().chain(&pending[..happened]) {
        match step.change {
            Change::Create { file } => named.push(file),
            Change::Unlink { file } => named.retain(|other| *other != file),
            _ => unreachable!("only changes of names"),
        }
    }
    named
}

/// The share of writes that is lost. With a fixed chance for each write, a transaction of many
/// writes would almost never be missing only one.
#[derive(Clone, Copy)]
enum Temper {
    /// Each write is lost or kept independently.
    Mixed,
    /// All but a few writes are lost.
    MostlyLost,
    /// All but a few writes are kept.
    MostlyKept,
}

impl Temper {
    fn choose(random: &mut Random) -> Temper {
        random.pick(&[Temper::Mixed, Temper::MostlyLost, Temper::MostlyKept])
    }

    fn fate(self, random: &mut Random) -> Fate {
        let weights = match self {
            Temper::Mixed => [1, 1, 1],
            Temper::MostlyLost => [1, 20, 2],
            Temper::MostlyKept => [20, 1, 2],
        };
        let [kept, dropped, torn] = weights;
        random.weighted(&[
            (kept, Fate::Kept),
            (dropped, Fate::Dropped),
            (torn, Fate::Torn),
        ])
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Dropped,
    Torn,
}

/// One file: its durable content, and the changes that may have happened.
struct Content<'a> {
    durable: Vec<u8>,
    pending: Vec<&'a Change>,
}

impl<'a> Content<'a> {
    fn of(file: usize, issued: &[&'a Step], disk: Disk, cut: usize) -> Content<'a> {
        let horizon = horizon(
            issued,
            disk,
            cut,
            |change| matches!(change, Change::Sync { file: synced } if *synced == file),
        );
        let mut content = Content {
            durable: Vec::new(),
            pending: Vec::new(),
        };
        for step in issued {
            match &step.change {
                Change::Write { file: written, .. } | Change::Truncate { file: written, .. }
                    if *written == file =>
                {
                    if step.ended < horizon {
                        apply_whole(&mut content.durable, &step.change);
                    } else {
                        content.pending.push(&step.change);
                    }
                }
                _ => {}
            }
        }
        content
    }

    fn survive(self, temper: Temper, random: &mut Random, losses: &mut Losses) -> Vec<u8> {
        let mut content = self.durable;
        let mut longest = content.len();
        // A sector is written as it is at that moment: it contains everything that was written to
        // it before.
        let mut latest = BTreeMap::<usize, usize>::new();
        let mut happened = Vec::with_capacity(self.pending.len());
        for (index, change) in self.pending.iter().enumerate() {
            let fate = temper.fate(random);
            match change {
                Change::Write { offset, data, .. } => {
                    losses.count(fate);
                    longest = longest.max(offset + data.len());
                    let survivors = sectors(*offset, data.len()).filter(|_| {
                        fate == Fate::Kept || (fate == Fate::Torn && random.percent(50))
                    });
                    latest.extend(survivors.map(|sector| (sector, index)));
                    happened.push(true);
                }
                _ => happened.push(fate == Fate::Kept),
            }
        }
        for (index, change) in self
            .pending
            .iter()
            .enumerate()
            .filter(|(index, _)| happened[*index])
        {
            apply(&mut content, change, |sector| {
                latest.get(&sector).is_some_and(|latest| *latest >= index)
            });
        }
        // The file may have grown although its new data never reached the disk.
        if random.percent(30) && content.len() < longest {
            content.resize(longest, 0);
        }
        content
    }
}

impl Losses {
    fn count(&mut self, fate: Fate) {
        match fate {
            Fate::Kept => self.kept += 1,
            Fate::Dropped => self.dropped += 1,
            Fate::Torn => self.torn += 1,
        }
    }
}

/// The sectors that `length` bytes at `offset` touch.
fn sectors(offset: usize, length: usize) -> Range<usize> {
    offset / SECTOR..(offset + length).div_ceil(SECTOR)
}

fn apply_whole(content: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Truncate { length, .. } => content.resize(*length, 0),
        Change::Write { offset, data, .. } => write(content, *offset, data),
        _ => unreachable!("no change of content"),
    }
}

/// Applies the sectors of a change that reached the disk.
fn apply(content: &mut Vec<u8>, change: &Change, is_there: impl Fn(usize) -> bool) {
    let Change::Write { offset, data, .. } = change else {
        return apply_whole(content, change);
    };
    for sector in sectors(*offset, data.len()).filter(|sector| is_there(*sector)) {
        let from = (sector * SECTOR).max(*offset);
        let to = ((sector + 1) * SECTOR).min(offset + data.len());
        write(content, from, &data[from - offset..to - offset]);
    }
}

fn write(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
        1 openat(AT_FDCWD</d>, \"/d/a\", O_RDWR|O_CREAT, 0600) = 3</d/a>\n\
        1 pwrite64(3</d/a>, \"one\", 3, 0) = 3\n\
        1 fsync(4</d>) = 0\n\
        1 pwrite64(3</d/a>, \"two\", 3, 600 <unfinished ...>\n\
        2 fsync(3</d/a>) = 0\n\
        1 <... pwrite64 resumed>) = 3\n\
        1 write(1<pipe:[1]>, \"said\", 4) = 4\n";

    fn images(disk: Disk) -> impl Iterator<Item = Image> {
        let recording = Recording::parse(LOG, Path::new("/d"), &["a"]);
        (0..500).map(move |seed| Image::of(&recording, disk, seed))
    }

    #[test]
    fn what_was_synced_is_there_and_what_was_not_may_be() {
        let after_sync: Vec<_> = images(Disk::Honest).filter(|image| image.cut > 5).collect();
        assert!(
            after_sync
                .iter()
                .all(|image| image.files["a"].starts_with(b"one"))
        );
        let lengths = |length| {
            after_sync
                .iter()
                .filter(|image| image.files["a"].len() == length)
                .count()
        };
        assert!(
            lengths(3) > 0 && lengths(603) > 0,
            "the write that the sync did not wait for is lost in some and there in others"
        );
        assert!(
            after_sync
                .iter()
                .any(|image| image.files["a"].len() == 603 && !image.files["a"].ends_with(b"two")),
            "grown only"
        );
    }

    #[test]
    fn a_lying_disk_keeps_nothing_for_certain() {
        assert!(images(Disk::Lying).any(|image| image.cut > 5 && image.files.is_empty()));
        assert!(
            images(Disk::Lying).any(|image| image.cut > 5
                && image.files.get("a").is_some_and(|a| !a.starts_with(b"one")))
        );
    }

    #[test]
    fn a_sector_comes_with_all_that_was_written_to_it_before() {
        let log = "1 openat(A</d>, \"/d/a\", O_CREAT, 0600) = 3</d/a>\n1 pwrite64(3</d/a>, \"one\", 3, 0) = 3\n1 pwrite64(3</d/a>, \"two\", 3, 3) = 3\n";
        let recording = Recording::parse(log, Path::new("/d"), &["a"]);
        for seed in 0..500 {
            let image = Image::of(&recording, Disk::Honest, seed);
            let Some(a) = image.files.get("a") else {
                continue;
            };
            assert!(!a.ends_with(b"two") || a == b"onetwo", "{a:?}");
        }
    }
}
