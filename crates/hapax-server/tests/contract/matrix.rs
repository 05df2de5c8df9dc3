//! Every row over every protocol, printed as a table. An empty cell fails, and so do cells of one
//! row that differ.

use std::rc::Rc;
use std::time::Duration;

use hapax_server::config::Config;
use tokio::task::LocalSet;

use crate::client::{WAYS, Way};
use crate::disk::{self, Disk, Place};
use crate::harness::Answer;
use crate::rows::{self, Row, Says};
use crate::snapshot::{self, Snapshots};
use crate::world::{self, World};

/// The timeout for events. Nothing takes this long even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a row over one protocol.
enum Cell {
    /// As the row expects; contains the answer as text.
    Answered(String),
    /// The row cannot run on this machine.
    Skipped(String),
    Failed(String),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_of_the_contract_in_every_way() {
    match disk::place("matrix::every_row_of_the_contract_in_every_way").await {
        Place::Here => {}
        Place::Elsewhere => return,
        Place::Nowhere(why) => {
            hapax_testkit::report!("SKIPPED the rows that need a small disk: {why}");
        }
    }
    LocalSet::new()
        .run_until(ask_all(|row| !row.needs_database))
        .await;
}

/// Separate from the others, because a Postgres server cannot be started everywhere where a disk
/// can be mounted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_that_needs_a_database_in_every_way() {
    LocalSet::new()
        .run_until(ask_all(|row| row.needs_database))
        .await;
}

async fn ask_all(is_meant: impl Fn(&Row) -> bool) {
    let (snapshots, mut complaints) = (Snapshots::open(), Vec::new());
    let all = rows::all();
    let names: Vec<&str> = all.iter().map(|row| row.name).collect();
    let rows: Vec<_> = all.into_iter().filter(is_meant).map(Rc::new).collect();
    let ways = WAYS.map(|way| way.to_string());
    hapax_testkit::report!(
        "{:52} {:26} {:9} {:13} {:7} {}",
        "",
        "",
        ways[0],
        ways[1],
        ways[2],
        ways[3]
    );
    for row in &rows {
        let cells = ask_every_way(row).await;
        let words = [
            word(&cells[0]),
            word(&cells[1]),
            word(&cells[2]),
            word(&cells[3]),
        ];
        hapax_testkit::report!(
            "{:52} {:26} {:9} {:13} {:7} {}",
            row.name,
            answer(row),
            words[0],
            words[1],
            words[2],
            words[3]
        );
        complaints.extend(
            judge(row, &cells, &snapshots)
                .into_iter()
                .map(|complaint| format!("{}: {complaint}", row.name)),
        );
    }
    complaints.extend(
        snapshots
            .strays(names.into_iter())
            .iter()
            .map(|stray| format!("{stray} is of no row")),
    );
    hapax_testkit::report!(
        "{} rows in {} ways, {} complaints",
        rows.len(),
        WAYS.len(),
        complaints.len()
    );
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n\n"));
}

async fn ask_every_way(row: &Rc<Row>) -> Vec<Cell> {
    let asking: Vec<_> = WAYS
        .iter()
        .map(|way| tokio::task::spawn_local(tokio::time::timeout(PATIENCE, ask(row.clone(), *way))))
        .collect();
    let mut cells = Vec::new();
    for cell in asking {
        cells.push(match cell.await {
            Ok(Ok(cell)) => cell,
            Ok(Err(_)) => Cell::Failed(format!("nothing came within {PATIENCE:?}")),
            Err(panic) => Cell::Failed(panic.to_string()),
        });
    }
    cells
}

async fn ask(row: Rc<Row>, way: Way) -> Cell {
    let mut database = None;
    if row.needs_database {
        // Not on this thread, because the other protocols' cells run on it.
        database = tokio::task::spawn_blocking(world::database).await.unwrap();
        if database.is_none() {
            return Cell::Skipped("needs PostgreSQL".to_owned());
        }
    }
    let settle = |config: &mut Config| {
        row.settle(config);
        if let Some(database) = database {
            config.store = database;
        }
    };
    let world = if row.needs_small_disk {
        match Disk::mount() {
            Ok(disk) => World::start_on(disk, way, settle).await,
            Err(why) => return Cell::Skipped(why),
        }
    } else {
        World::start(way, settle).await
    };
    let (world, got) = row.provoke(world).await;
    let effects = world.upstream.effects();
    world.end().await;
    match check(&row, &got, effects) {
        Ok(()) => Cell::Answered(snapshot::text(&got)),
        Err(complaint) => Cell::Failed(format!("{complaint}\n{}", snapshot::text(&got))),
    }
}

/// Whether an answer is what its row expects.
fn check(row: &Row, got: &Answer, effects: usize) -> Result<(), String> {
    if (got.status, effects) != (row.status, row.effects) {
        return Err(format!(
            "{} after {effects} effects, not {} after {}",
            got.status, row.status, row.effects
        ));
    }
    if let Some(code) = got.problem()
        && hapax::middleware::problem_page(&code).is_none()
    {
        return Err(format!("there is no page about {code}"));
    }
    let (is_replay, expires) = (got.is_replay(), got.field("idempotency-expires").is_some());
    let is_so = match row.says {
        Says::Rejection { code, again } => {
            got.problem().as_deref() == Some(code)
                && advises(got, again)
                && got.field("cache-control") == Some("no-store")
        }
        Says::Held { again } => {
            got.problem().is_none() && !is_replay && !expires && advises(got, again)
        }
        Says::Problem(code) => got.problem().as_deref() == Some(code),
        Says::First => !is_replay && expires,
        Says::Passed => !is_replay && !expires,
        Says::Replay => is_replay && expires,
    };
    if is_so {
        Ok(())
    } else {
        Err(format!("not {:?}", row.says))
    }
}

/// Whether the retry advice is in every field, with the same meaning.
fn advises(got: &Answer, again: bool) -> bool {
    let word = if again { "true" } else { "false" };
    let words = ["x-should-retry", "stripe-should-retry"].map(|name| got.field(name));
    let times = ["retry-after", "retry-after-ms"].map(|name| got.field(name).is_some());
    words == [Some(word); 2] && times == [again; 2]
}

fn judge(row: &Row, cells: &[Cell], snapshots: &Snapshots) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut agreed: Option<(&str, Way)> = None;
    for (cell, way) in cells.iter().zip(WAYS) {
        match (cell, agreed) {
            (Cell::Failed(complaint), _) => complaints.push(format!("over {way}: {complaint}")),
            (Cell::Skipped(why), _) => {
                hapax_testkit::report!("SKIPPED {:?} over {way}: {why}", row.name);
            }
            (Cell::Answered(text), None) => agreed = Some((text, way)),
            (Cell::Answered(text), Some((other, other_way))) if text != other => {
                complaints.push(format!("over {way}\n{text}\nbut over {other_way}\n{other}"));
            }
            (Cell::Answered(_), Some(_)) => {}
        }
    }
    if let Some((text, _)) = agreed.filter(|_| complaints.is_empty()) {
        complaints.extend(snapshots.check(row.name, text).err());
    }
    complaints
}

fn word(cell: &Cell) -> &'static str {
    match cell {
        Cell::Answered(_) => "ok",
        Cell::Skipped(_) => "SKIPPED",
        Cell::Failed(_) => "FAILED",
    }
}

fn answer(row: &Row) -> String {
    let what = match row.says {
        Says::Rejection { code, .. } | Says::Problem(code) => code,
        Says::First => "first",
        Says::Passed => "passed",
        Says::Held { .. } => "held",
        Says::Replay => "replay",
    };
    format!("{} {what}", row.status)
}

/// A documented rejection without a row would be untested.
#[test]
fn every_rejection_of_the_documents_is_a_row() {
    let table = include_str!("../../../../docs/http.md")
        .split("## Rejections")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let rows = rows::all();
    let mut documented = 0;
    // Those of the library alone are in the library's tests.
    let is_row = |line: &&str| line.starts_with('|') && !line.contains("library only");
    for line in table.lines().filter(is_row) {
        let columns: Vec<_> = line.split('|').map(str::trim).collect();
        let Ok(status) = columns[2].parse::<u16>() else {
            continue;
        };
        let code = columns[3].split('`').nth(1).unwrap();
        let is_row = |row: &Row| {
            let is_said = matches!(row.says, Says::Rejection { code: said, .. } | Says::Problem(said) if said == code);
            row.status == status && is_said
        };
        assert!(rows.iter().any(is_row), "no row for {line}");
        documented += 1;
    }
    assert!(
        documented >= 20,
        "the table has moved: only {documented} rows were found"
    );
}
