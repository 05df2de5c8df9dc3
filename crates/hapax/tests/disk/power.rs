//! Power is lost at any moment of a recorded run, and the disk keeps only what was made durable.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax::Sqlite;
use hapax_core::store::ListQuery;
use hapax_testkit::crash::{self, Ledger};
use hapax_testkit::disk::{Disk, Image, Losses, RECORD, Recording, Strace};

use super::process::{Places, Process};
use super::service::{self, Answer, Order, Shop, digest};

const TEST: &str = "power::what_was_acknowledged_survives_the_loss_of_power";
const STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of power losses, unless `HAPAX_POWER_LOSSES` sets it.
const POWER_LOSSES: u64 = 2_000;
/// The number of losses on a disk that lies about syncs, to show that the checks would notice.
const LIES: u64 = 60;
/// Another seed tests other moments.
const SEED: u64 = 1;
const THREADS: u64 = 2;
/// The number of concurrent requests.
const CONCURRENCY: usize = 16;
/// The number of requests between two checks that the recording is complete.
const BATCH: usize = 60;
/// Answers of several sizes; the large ones fill the log, so that there are checkpoints.
const ANSWER_BYTES: [usize; 4] = [300, 6_000, 1_000, 60_000];
/// Only a store that never checkpoints needs this many batches.
const BATCHES_MAX: usize = 20;
/// The number of keys without an effect that are tried on each image.
const TRIED_MAX: usize = 3;
/// The store's files, which may lose data. Shared memory and the owner's file do not survive the
/// machine.
const FILES: [&str; 3] = ["hapax.db", "hapax.db-wal", "hapax.db-journal"];

#[test]
fn what_was_acknowledged_survives_the_loss_of_power() {
    if crash::role().is_some() {
        return service::serve();
    }
    // A saved recording can be judged again: with it, a seed reproduces its loss.
    let log = match std::env::var("HAPAX_POWER_RECORDING") {
        Ok(kept) => std::fs::read_to_string(kept).unwrap(),
        Err(_) => match record() {
            Ok(log) => log,
            Err(why) => return hapax_testkit::skipped(why),
        },
    };
    let recording = parse(&log);
    let facts = Facts::of(&recording);
    let losses =
        std::env::var("HAPAX_POWER_LOSSES").map_or(POWER_LOSSES, |losses| losses.parse().unwrap());
    let verdict = judge_all(&recording, &facts, Disk::Honest, losses);
    hapax_testkit::report!("seeds {SEED} to {}: {verdict}", SEED + losses - 1);
    assert!(
        verdict.convicted.is_empty(),
        "by seed, under HAPAX_POWER_RECORDING={}: {:#?}",
        keep(&log).display(),
        verdict.convicted
    );
    assert!(
        verdict.landed * 2 > losses as usize,
        "most cuts should put something at stake"
    );

    let lies = judge_all(&recording, &facts, Disk::Lying, LIES);
    hapax_testkit::report!(
        "on a lying disk: {} of {LIES} images convicted",
        lies.convicted.len()
    );
    assert!(
        lies.convicted.len() * 2 > LIES as usize,
        "a judge that does not notice a lying disk shows nothing"
    );
}

/// Records a run: many concurrent requests, checkpoints, restarts of the log, and a close and
/// reopening of the store in the middle.
///
/// Returns the log, preceded by a line with the store's directory.
fn record() -> Result<String, String> {
    let directory = tempfile::tempdir().unwrap();
    let places = Places::in_directory(directory.path());
    let store = places.store.with_file_name("store");
    std::fs::create_dir(&store).unwrap();
    let places = Places {
        store: store.join("hapax.db"),
        ..places
    };
    let mut process = Process::stand_by(TEST, &places, STORE_TIMEOUT);
    let strace = Strace::attach(process.child.pid(), &RECORD, &places.log)?;
    let with_directory = |log: &str| format!("{}\n{log}", store.display());
    let marks = |strace: &Strace| Marks::of(&parse(&with_directory(&strace.log())));
    process.open();
    send_batch(&mut process, 0);
    process.open();
    let opened = marks(&strace);
    let mut batches = 1;
    while batches < BATCHES_MAX && !marks(&strace).is_past(&opened) {
        send_batch(&mut process, batches);
        batches += 1;
    }
    send_batch(&mut process, batches);
    let log = with_directory(&strace.detach());
    let marks = Marks::of(&parse(&log));
    hapax_testkit::report!(
        "recorded {} requests in {} MiB: {marks}",
        (batches + 1) * BATCH,
        log.len() >> 20
    );
    assert!(
        marks.is_past(&opened),
        "no checkpoint, or no log begun anew: such a recording shows little"
    );
    Ok(log)
}

fn parse(log: &str) -> Recording {
    let (directory, log) = log.split_once('\n').unwrap();
    Recording::parse(log, Path::new(directory), &FILES)
}

/// Saves a recording, so that a failure can be investigated.
fn keep(log: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("hapax-power-{}", std::process::id()));
    std::fs::write(&path, log).unwrap();
    path
}

/// The events that a recording must contain to prove anything.
struct Marks {
    main_file_syncs: usize,
    log_syncs: usize,
    logs_begun: usize,
}

impl Marks {
    fn of(recording: &Recording) -> Marks {
        Marks {
            main_file_syncs: recording.syncs("hapax.db"),
            log_syncs: recording.syncs("hapax.db-wal"),
            logs_begun: recording.writes_at_start("hapax.db-wal"),
        }
    }

    /// Whether there has been a checkpoint and a restart of the log since `earlier`.
    fn is_past(&self, earlier: &Marks) -> bool {
        self.main_file_syncs > earlier.main_file_syncs && self.logs_begun > earlier.logs_begun
    }
}

fn send_batch(process: &mut Process, batch: usize) {
    let mut orders = (0..BATCH).map(|index| {
        let answer_bytes = ANSWER_BYTES[index % ANSWER_BYTES.len()];
        Order {
            key: format!("{batch}-{index}"),
            answer_bytes,
            wait_s: 0,
        }
    });
    for order in orders.by_ref().take(CONCURRENCY) {
        process.order(&order);
    }
    for _ in 0..BATCH {
        let (key, answer) = process.answer().expect("nobody kills this one");
        assert_eq!((answer.status, answer.is_replay), (201, false), "{key}");
        if let Some(order) = orders.next() {
            process.order(&order);
        }
    }
}

impl std::fmt::Display for Marks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Marks {
            main_file_syncs,
            log_syncs,
            logs_begun,
        } = self;
        write!(
            f,
            "main file synced {main_file_syncs} times, log {log_syncs} times and begun {logs_begun} times"
        )
    }
}

/// What the recording shows that clients could have observed, and since when.
struct Facts {
    /// Answers that left the process.
    answers: Vec<(usize, String, Answer)>,
    /// Effects that were made.
    effects: Vec<(usize, String)>,
}

impl Facts {
    fn of(recording: &Recording) -> Facts {
        let mut facts = Facts {
            answers: Vec::new(),
            effects: Vec::new(),
        };
        for said in recording.said() {
            if said.to.ends_with("/ledger") {
                facts
                    .effects
                    .push((said.begun, said.text.trim_end().to_owned()));
            } else if let Some((_, line)) = said.text.split_once("hapax-crash: ")
                && let Some((key, answer)) = Answer::parse(line.trim_end())
            {
                facts.answers.push((said.begun, key, answer));
            }
        }
        assert_eq!(
            facts.answers.len(),
            facts.effects.len(),
            "every request had its effect and its answer"
        );
        facts
    }

    fn answers_before(&self, cut: usize) -> BTreeMap<&str, &Answer> {
        self.answers
            .iter()
            .filter(|(begun, ..)| *begun < cut)
            .map(|(_, key, answer)| (key.as_str(), answer))
            .collect()
    }

    fn effects_before(&self, cut: usize) -> BTreeSet<&str> {
        self.effects
            .iter()
            .filter(|(begun, _)| *begun < cut)
            .map(|(_, key)| key.as_str())
            .collect()
    }
}

/// Totals over all images.
#[derive(Default)]
struct Verdict {
    images: usize,
    /// The number of images in which data could be lost.
    landed: usize,
    losses: Losses,
    checked: Checked,
    /// What is wrong, by seed.
    convicted: BTreeMap<u64, String>,
}

/// What was checked in an image.
#[derive(Clone, Copy, Default)]
struct Checked {
    answers: usize,
    /// Effects whose answer had not been sent yet, by what a repeat of their keys gets.
    replayed: usize,
    unknown: usize,
    /// Keys without an effect, by what a repeat gets.
    run: usize,
    held: usize,
}

impl Verdict {
    fn add(&mut self, other: Verdict) {
        self.images += other.images;
        self.landed += other.landed;
        self.losses.kept += other.losses.kept;
        self.losses.dropped += other.losses.dropped;
        self.losses.torn += other.losses.torn;
        self.losses.names += other.losses.names;
        self.checked.answers += other.checked.answers;
        self.checked.replayed += other.checked.replayed;
        self.checked.unknown += other.checked.unknown;
        self.checked.run += other.checked.run;
        self.checked.held += other.checked.held;
        self.convicted.extend(other.convicted);
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Verdict {
            images,
            landed,
            losses,
            checked,
            convicted,
        } = self;
        let Losses {
            kept,
            dropped,
            torn,
            names,
        } = losses;
        let Checked {
            answers,
            replayed,
            unknown,
            run,
            held,
        } = checked;
        write!(
            f,
            "{images} images, {landed} with unsynced writes ({kept} kept, {dropped} dropped, {torn} torn, {names} names lost); \
             {answers} acknowledged answers checked; effects without an answer: {replayed} replayed, {unknown} held; \
             keys without an effect: {run} run, {held} held; {} convicted",
            convicted.len()
        )
    }
}

fn judge_all(recording: &Recording, facts: &Facts, disk: Disk, count: u64) -> Verdict {
    let next = AtomicU64::new(SEED);
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut verdict = Verdict::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEED + count {
                return verdict;
            }
            let image = Image::of(recording, disk, seed);
            verdict.add(runtime.block_on(judge(&image, facts, seed)));
        }
    };
    let mut sum = Verdict::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .for_each(|thread| sum.add(thread.join().unwrap()));
    });
    sum
}

async fn judge(image: &Image, facts: &Facts, seed: u64) -> Verdict {
    let directory = fast_directory();
    image.write_to(directory.path()).unwrap();
    if seed % 2 == 1 {
        // The file for shared memory may also exist, with any content: it was never made durable.
        std::fs::write(directory.path().join("hapax.db-shm"), [0xa5; 32 << 10]).unwrap();
    }
    let landed = usize::from(image.losses.at_stake() > 0);
    let mut verdict = Verdict {
        images: 1,
        landed,
        losses: image.losses,
        ..Verdict::default()
    };
    match look(directory.path(), facts, image.cut).await {
        Ok(checked) => verdict.checked = checked,
        Err(why) => drop(
            verdict
                .convicted
                .insert(seed, format!("cut at {}: {why}", image.cut)),
        ),
    }
    verdict
}

/// In memory if possible: there are many images, and this directory needs no durability.
fn fast_directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// Opens the image and compares it with what clients may have observed. `Err` says what is wrong.
async fn look(directory: &Path, facts: &Facts, cut: usize) -> Result<Checked, String> {
    let path = directory.join("hapax.db");
    let store = Sqlite::open(&path)
        .await
        .map_err(|error| format!("it does not open: {error:?}"))?;
    let ledger = Arc::new(Ledger::open(directory.join("ledger")));
    let shop = Shop::on(store, ledger.clone(), STORE_TIMEOUT);
    check_integrity(&path)?;
    let (answers, effects) = (facts.answers_before(cut), facts.effects_before(cut));
    let mut checked = Checked::default();
    check_answers(&shop, &answers, &mut checked).await?;
    for key in effects.iter().filter(|key| !answers.contains_key(*key)) {
        match send(&shop, key).await {
            answer if answer.is_unknown() => checked.unknown += 1,
            answer if answer.is_replay && answer.status == 201 => checked.replayed += 1,
            answer => return Err(format!("{key} had its effect and got {answer:?}")),
        }
    }
    let without: Vec<_> = facts
        .effects
        .iter()
        .map(|(_, key)| key.as_str())
        .filter(|key| !effects.contains(key))
        .collect();
    for key in without.iter().take(TRIED_MAX).chain(&["new"]) {
        match send(&shop, key).await {
            answer if answer.is_unknown() && *key != "new" => checked.held += 1,
            answer if answer.status == 201 && !answer.is_replay => checked.run += 1,
            answer => return Err(format!("{key} had no effect and got {answer:?}")),
        }
    }
    match ledger
        .counts()
        .iter()
        .find(|(key, count)| **count > 1 || effects.contains(key.as_str()))
    {
        Some((key, _)) => Err(format!("{key} had a second effect")),
        None => Ok(checked),
    }
}

async fn send(shop: &Shop, key: &str) -> Answer {
    shop.send(&Order {
        key: key.to_owned(),
        answer_bytes: 100,
        wait_s: 0,
    })
    .await
}

fn check_integrity(path: &Path) -> Result<(), String> {
    let check = || {
        rusqlite::Connection::open(path)?
            .query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0))
    };
    match check() {
        Ok(word) if word == "ok" => Ok(()),
        word => Err(format!("the file is not whole: {word:?}")),
    }
}

/// Every acknowledged answer is unchanged, and no key has two records.
async fn check_answers(
    shop: &Shop,
    answers: &BTreeMap<&str, &Answer>,
    checked: &mut Checked,
) -> Result<(), String> {
    let heads = shop
        .hapax()
        .list(ListQuery {
            state: None,
            after: None,
            limit: 100_000,
        })
        .await
        .map_err(|error| format!("{error:?}"))?;
    let mut ids = BTreeMap::new();
    for head in &heads {
        if ids.insert(head.key.as_str(), head.id).is_some() {
            return Err(format!("{} is there twice", head.key.as_str()));
        }
    }
    for (key, answer) in answers {
        let id = *ids
            .get(key)
            .ok_or_else(|| format!("{key} was acknowledged and is gone"))?;
        let (record, _) = shop
            .hapax()
            .look(id)
            .await
            .map_err(|error| format!("{key} was acknowledged: {error:?}"))?;
        let kept = record.answer.map(|kept| (kept.status, digest(&kept.body)));
        if kept.as_ref() != Some(&(answer.status, answer.content.clone())) {
            return Err(format!(
                "{key} was acknowledged with {answer:?}, and now it is {kept:?}"
            ));
        }
        checked.answers += 1;
    }
    Ok(())
}
