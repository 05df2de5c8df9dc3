//! SIGKILL at every step between claim and answer, with every driver: afterwards there is one
//! effect with its record and its message, or none of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hapax::{Key, Principal, RecordId, Scope};
use hapax_testkit::crash::Child;

use crate::drivers::{
    DieselAsync, Rusqlite, RusqliteAtOnce, SeaOrm, SqlxPostgres, SqlxPostgresAtOnce, SqlxSqlite,
    TokioPostgres, TokioPostgresEffect,
};
use crate::place::{Place, Row, agree, messages_agree, server};
use crate::script::{Driver, body};
use crate::service::{STEPS, served, start};

/// Kills for each driver and step: 1,296 in all. `HAPAX_KILLS` sets the total instead.
const KILLS: usize = 18;
const DRIVERS: usize = 9;
/// Only a broken test waits this long.
const GUARD: Duration = Duration::from_secs(60);

const TEST: &str = "kills::no_record_and_effect_disagree_whenever_a_process_is_killed";

#[test]
fn no_record_and_effect_disagree_whenever_a_process_is_killed() {
    if served() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(6)
        .enable_all()
        .build()
        .expect("a runtime");
    let tables = runtime.block_on(async {
        server()?;
        let hunts = [
            tokio::spawn(hunt::<DieselAsync>()),
            tokio::spawn(hunt::<Rusqlite>()),
            tokio::spawn(hunt::<RusqliteAtOnce>()),
            tokio::spawn(hunt::<SeaOrm>()),
            tokio::spawn(hunt::<SqlxPostgres>()),
            tokio::spawn(hunt::<SqlxPostgresAtOnce>()),
            tokio::spawn(hunt::<SqlxSqlite>()),
            tokio::spawn(hunt::<TokioPostgres>()),
            tokio::spawn(hunt::<TokioPostgresEffect>()),
        ];
        let mut tables = Vec::new();
        for hunt in hunts {
            tables.push(hunt.await.expect("no hunt fails"));
        }
        Some(tables)
    });
    let Some(tables) = tables else { return };

    hapax_testkit::report!(
        "{:>15} {}   keys  acknowledged",
        "kills at",
        STEPS.map(|step| format!("{step:>12}")).join("")
    );
    for table in &tables {
        hapax_testkit::report!("{table}");
        assert!(
            table.landed.iter().all(|kills| *kills > 0),
            "void: no kill landed at some step"
        );
    }
    hapax_testkit::report!(
        "{} kills",
        tables.iter().flat_map(|table| table.landed).sum::<usize>()
    );
}

/// Totals for one driver.
struct Table {
    driver: &'static str,
    landed: [usize; STEPS.len()],
    /// How many of these kills left the effect and its record, rather than neither.
    committed: [usize; STEPS.len()],
    keys: usize,
    acknowledged: usize,
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cells = self
            .landed
            .iter()
            .zip(self.committed)
            .map(|(landed, committed)| format!("{:>12}", format!("{landed} ({committed})")));
        write!(
            f,
            "{:>15} {} {:>6} {:>13}",
            self.driver,
            cells.collect::<String>(),
            self.keys,
            self.acknowledged
        )
    }
}

/// One driver and its keys. Two processes are running at any time.
struct Hunt<D> {
    place: Place,
    /// The process that is killed next, and the one that takes over then.
    victim: Child,
    heir: Child,
    /// Keys that no process has reported as done.
    open: BTreeSet<String>,
    /// Keys with their answers.
    acknowledged: BTreeMap<String, String>,
    driver: std::marker::PhantomData<D>,
}

async fn hunt<D: Driver>() -> Table {
    let kills = std::env::var("HAPAX_KILLS").map_or(KILLS, |kills| {
        kills
            .parse::<usize>()
            .expect("a number")
            .div_ceil(DRIVERS * STEPS.len())
    });
    let place = Place::new::<D>().await.expect("a server");
    if D::AT_ONCE {
        place.give_namespace("shop").await;
    }
    let (victim, heir) = (start::<D>(TEST, place.at()), start::<D>(TEST, place.at()));
    let mut hunt = Hunt::<D> {
        place,
        victim,
        heir,
        open: BTreeSet::new(),
        acknowledged: BTreeMap::new(),
        driver: std::marker::PhantomData,
    };
    let mut table = Table {
        driver: D::NAME,
        landed: [0; STEPS.len()],
        committed: [0; STEPS.len()],
        keys: 0,
        acknowledged: 0,
    };
    for _ in 0..kills {
        for (number, step) in STEPS.iter().enumerate() {
            table.keys += 1;
            let key = format!("key-{}", table.keys);
            let rows = hunt.kill_at(step, &key).await;
            table.landed[number] += 1;
            table.committed[number] += usize::from(is_there(&rows, &key));
        }
    }
    table.acknowledged = hunt.acknowledged.len();
    hunt.drive_all();
    let rows = hunt.place.rows().await;
    agree(&rows);
    messages_agree(&rows);
    assert_eq!(rows.len(), table.keys, "one record for each key");
    let mut by: Vec<_> = rows
        .iter()
        .map(|row| {
            body(
                row.effects
                    .expect("each was driven to its end")
                    .1
                    .unsigned_abs(),
            )
        })
        .collect();
    let mut answers: Vec<_> = hunt.acknowledged.values().cloned().collect();
    by.sort();
    answers.sort();
    assert_eq!(
        answers,
        by,
        "{}: the answers are those of the effects",
        D::NAME
    );
    table
}

impl<D: Driver> Hunt<D> {
    /// Has the victim run a key up to a step, kills it there, and looks at what is left.
    async fn kill_at(&mut self, step: &str, key: &str) -> Vec<Row> {
        let hold = format!("hold {key} {step}");
        self.victim.say(&hold);
        tokio::task::block_in_place(|| {
            let at = format!("at {key} {step}");
            while self.listen() != at {}
            self.victim.kill();
            // Reads the lines that it wrote before the kill.
            while let Some(line) = self.victim.line(GUARD) {
                self.note(&line);
            }
        });
        // Read in one snapshot, while the server may still be ending the transaction of the killed
        // process.
        let rows = self.place.rows().await;
        agree(&rows);
        messages_agree(&rows);

        self.open.insert(key.to_owned());
        let heir = start::<D>(TEST, self.place.at());
        self.victim = std::mem::replace(&mut self.heir, heir);
        self.victim.say(&format!("drive {key}"));
        for key in &self.open {
            self.heir.say(&format!("drive {key}"));
        }
        rows
    }

    /// The next line from the victim.
    fn listen(&mut self) -> String {
        let line = self
            .victim
            .line(GUARD)
            .unwrap_or_else(|| panic!("{}: the victim is silent", D::NAME));
        self.note(&line);
        line
    }

    fn note(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("done"), Some(key), Some(answer)) => {
                let before = self.acknowledged.insert(key.to_owned(), answer.to_owned());
                assert!(
                    before.is_none_or(|before| before == answer),
                    "{}: {key} has two answers",
                    D::NAME
                );
                self.open.remove(key);
            }
            // The attempt reached a point, or failed because of a concurrent attempt.
            (Some("at" | "failed"), ..) => {}
            _ => panic!("{}: the victim says {line:?}", D::NAME),
        }
    }

    /// Starts a process that is not killed, and has it finish all open keys.
    fn drive_all(&mut self) {
        tokio::task::block_in_place(|| {
            self.victim = start::<D>(TEST, self.place.at());
            for key in &self.open.clone() {
                self.victim.say(&format!("drive {key}"));
            }
            while !self.open.is_empty() {
                self.listen();
            }
        });
    }
}

/// Whether the effect of this key is there.
fn is_there(rows: &[Row], key: &str) -> bool {
    let scope = Scope {
        namespace: "shop".into(),
        principal: Principal::Anonymous,
        method: "RUN".into(),
        path: "order".into(),
    };
    let id = RecordId::of(&scope, &Key::new(key).expect("a key"));
    rows.iter()
        .any(|row| row.record == id.as_bytes() && row.effects.is_some())
}
