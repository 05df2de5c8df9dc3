//! `hapax store backup` while a gateway uses the store: the copy is a valid store with all
//! acknowledged records.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hapax_testkit::origin::Origin;

use super::harness::{Program, Signal, hapax, send, serve_on, words};
use super::tools::{ended, ran};

fn gateway(directory: &Path, store: &str, upstream: &Origin) -> Program {
    let store = format!("sqlite:{}", directory.join(store).display());
    serve_on(&store, upstream.address())
}

fn backup(directory: &Path, to: &str) -> Command {
    let mut command = hapax();
    command
        .args([
            "store",
            "backup",
            "--store",
            &format!("sqlite:{}", directory.join("hapax.db").display()),
        ])
        .arg(directory.join(to));
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_store_in_use_replays_what_was_acknowledged_and_says_that_it_is_one() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Origin::start().await;
    let mut program = gateway(directory.path(), "hapax.db", &upstream);
    for n in 0..20 {
        assert!(
            program
                .charge(&format!("before-{n}"), b"amount=1")
                .starts_with("HTTP/1.1 200"),
            "{n}"
        );
    }
    // Writes continue while the copy is made.
    let is_over = Arc::new(AtomicBool::new(false));
    let writing = std::thread::spawn({
        let (clients, is_over) = (program.clients, is_over.clone());
        move || {
            let mut written = 0;
            while !is_over.load(Ordering::SeqCst) {
                assert!(
                    send(
                        clients,
                        "POST /charges",
                        &format!("meanwhile-{written}"),
                        b"amount=1"
                    )
                    .starts_with("HTTP/1.1 200")
                );
                written += 1;
            }
            written
        }
    });
    let said = ran(&mut backup(directory.path(), "copy.db"));
    assert!(
        program
            .ask("/metrics")
            .contains("\nhapax_sqlite_restored 0\n")
    );
    is_over.store(true, Ordering::SeqCst);
    assert!(writing.join().unwrap() > 0, "nothing was written meanwhile");
    assert!(
        said.contains(" bytes in ") && said.contains("copy.db: the store as of "),
        "{said}"
    );
    program.signal(Signal::TERM);
    assert!(program.ended().success());

    let served = upstream.ledger().all().len();
    let mut restored = gateway(directory.path(), "copy.db", &upstream);
    for n in 0..20 {
        let answer = restored.charge(&format!("before-{n}"), b"amount=1");
        assert!(
            answer.contains("idempotent-replayed: true"),
            "{n}: {answer}"
        );
    }
    assert_eq!(
        upstream.ledger().all().len(),
        served,
        "no effect was repeated"
    );
    assert!(
        restored
            .ask("/metrics")
            .contains("\nhapax_sqlite_restored 1\n"),
        "it knows that it was set back"
    );
    restored.signal(Signal::TERM);
    assert!(restored.ended().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_overwritten_and_mistakes_say_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Origin::start().await;
    let mut program = gateway(directory.path(), "hapax.db", &upstream);
    program.charge("k", b"amount=1");
    program.signal(Signal::TERM);
    assert!(program.ended().success());
    // No process has the store open any more.
    let said = ran(backup(directory.path(), "copy.db").arg("--json"));
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        told["bytes"].as_u64(),
        Some(
            std::fs::metadata(directory.path().join("copy.db"))
                .unwrap()
                .len()
        )
    );
    let (is_well, said) = ended(&mut backup(directory.path(), "copy.db"));
    assert!(
        !is_well && said.contains("choose a new path for the backup"),
        "{said}"
    );
    let (is_well, said) = ended(&mut backup(directory.path(), "no/such/directory.db"));
    assert!(
        !is_well && said.contains("see whether there is room"),
        "{said}"
    );
    let (is_well, said) =
        ended(hapax().args(words("store backup --store sqlite:/nowhere/hapax.db copy")));
    assert!(
        !is_well && said.contains("could not open the store"),
        "{said}"
    );
    let (is_well, said) = ended(hapax().args(words("store backup --store memory: copy")));
    assert!(
        !is_well && said.contains("give --store sqlite:FILE"),
        "{said}"
    );
}
