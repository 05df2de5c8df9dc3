//! Mode `fenced`: the service stores a fence, a mark and an answer for each operation.

use std::time::Duration;

use hapax::Mode;

use crate::database::{self, connect, effects, wait_blocked};
use crate::fencing::{Fencing, raised};
use crate::harness::{Upstream, in_time};
use crate::ledger::{count, judge};
use crate::reference::{Kind, ORDERED, Reference};
use crate::world::{World, order, serve};

const ORDER: &str = "order of k";

/// A service on `fenced.sql`, with a gateway in this mode in front of it. `None` without
/// PostgreSQL.
async fn fencing(mode: Mode) -> Option<(std::sync::Arc<Fencing>, Upstream, World, String)> {
    let url = database::fenced()?;
    let fencing = Fencing::new(&url);
    let service = serve(&fencing);
    let world = World::start(mode, service.address, |_, _| {}).await;
    Some((fencing, service, world, url))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_applied_is_answered_again_and_not_done_again() {
    let Some((fencing, _service, world, url)) = fencing(Mode::Fenced).await else {
        return;
    };
    world
        .order("k", "do it, break off")
        .await
        .assert_rejected(502, "outcome-unknown", true);
    let got = world.order("k", "do it").await;
    got.assert_first(201, ORDER);
    world.order("k", "do it").await.assert_replayed(201, ORDER);
    let (fences, effects) = (fencing.dispatched(), effects(&url).await);
    assert!(fences.len() == 2 && fences[1] > fences[0], "{fences:?}");
    assert_eq!(
        (count(&effects), &effects["k"]),
        (1, &vec![fences[0]]),
        "the effect is the first attempt's"
    );
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_original_never_has_a_second_effect() {
    let Some((fencing, _service, world, url)) = fencing(Mode::Fenced).await else {
        return;
    };
    // The original comes after its successor and gets the successor's answer.
    world
        .order("k", "break off, do it later")
        .await
        .assert_rejected(502, "outcome-unknown", true);
    fencing.slow.wait_arrived(1).await;
    world.order("k", "do it").await.assert_first(201, ORDER);
    fencing.slow.let_through().await;
    assert_eq!(
        (count(&effects(&url).await), fencing.late()),
        (1, vec!["201".to_owned()])
    );
    // The successor was refused, which is an answer: the original gets it too.
    world
        .order("refused", "break off, do it later")
        .await
        .assert_rejected(502, "outcome-unknown", true);
    fencing.slow.wait_arrived(2).await;
    world
        .order("refused", "refuse")
        .await
        .assert_first(422, "order of refused");
    fencing.slow.let_through().await;
    assert_eq!(
        (count(&effects(&url).await), fencing.late().pop()),
        (1, Some("422".to_owned()))
    );
    world
        .order("refused", "do it")
        .await
        .assert_replayed(422, "order of refused");
    // The successor failed and was rolled back: the original has the effect, and the next attempt
    // gets its answer.
    world
        .order("failed", "break off, do it later")
        .await
        .assert_rejected(502, "outcome-unknown", true);
    fencing.slow.wait_arrived(3).await;
    assert_eq!(world.order("failed", "fail").await.status, 500);
    fencing.slow.let_through().await;
    world
        .order("failed", "do it")
        .await
        .assert_first(201, "order of failed");
    assert_eq!(count(&effects(&url).await), 2);
    world.end().await;
}

/// The original is inside its transaction when its successor comes. The successor waits for the row
/// lock and then sees the result.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_attempts_at_the_same_time_one_is_first() {
    let Some((fencing, _service, world, url)) = fencing(Mode::Fenced).await else {
        return;
    };
    world
        .order("k", "break off inside")
        .await
        .assert_rejected(502, "outcome-unknown", true);
    let address = world.address();
    let successor = tokio::spawn(async move { order(address, "k", "do it").await });
    wait_blocked(&url).await;
    fencing.slow.let_through().await;
    successor.await.unwrap().assert_first(201, ORDER);
    let (fences, effects) = (fencing.dispatched(), effects(&url).await);
    assert_eq!(
        (fences.len(), count(&effects), &effects["k"]),
        (2, 1, &vec![fences[0]])
    );
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_table_answers_probes() {
    let Some((fencing, _service, world, url)) = fencing(Mode::Probe).await else {
        return;
    };
    // The probe finds the operation done.
    world
        .order("done", "do it, break off")
        .await
        .assert_rejected(502, "outcome-unknown", true);
    let got = world.order("done", "do it").await;
    got.assert_first(201, "order of done");
    assert_eq!(got.headers.get("content-type").unwrap(), "text/plain");
    assert_eq!(fencing.dispatched().len(), 1, "it was not sent again");
    // The probe bars the original. Only then does the original continue, before its successor,
    // which is lost too.
    world
        .order("k", "break off, do it later")
        .await
        .assert_rejected(502, "outcome-unknown", true);
    fencing.slow.wait_arrived(1).await;
    world
        .order("k", "break off, do it later")
        .await
        .assert_rejected(502, "outcome-unknown", true);
    fencing.slow.wait_arrived(2).await;
    fencing.slow.let_through().await;
    assert_eq!(fencing.late(), ["refused"]);
    world.order("k", "do it").await.assert_first(201, ORDER);
    fencing.slow.let_through().await;
    assert_eq!(
        (count(&effects(&url).await), fencing.late()),
        (2, vec!["refused".to_owned(), "201".to_owned()])
    );
    // The original is inside its transaction, so the probe cannot know the outcome yet.
    world
        .order("inside", "break off inside")
        .await
        .assert_rejected(502, "outcome-unknown", true);
    world
        .order("inside", "do it")
        .await
        .assert_rejected(409, "outcome-unknown", false);
    assert_eq!(
        world.counted("hapax_probes_total{found=\"unknown\"}").await,
        1
    );
    world.end().await;
}

/// Errors of the functions when they are called in a wrong way.
#[tokio::test(flavor = "multi_thread")]
async fn the_functions_refuse_what_would_not_be_fenced() {
    let Some(url) = database::fenced() else {
        return;
    };
    let client = connect(&url).await;
    for (statement, expected) in [
        ("SELECT hapax_applied('a', 1, 201)", "HX003"),
        (
            "SELECT * FROM hapax_fence('a', 2); SELECT hapax_applied('a', 1, 201)",
            "HX003",
        ),
        (
            "SELECT * FROM hapax_fence('a', 2); SELECT hapax_applied('a', 2, 201), hapax_applied('a', 2, 201)",
            "HX005",
        ),
        (
            "SELECT * FROM hapax_fence('a', 2); SELECT hapax_applied('a', 2, 99)",
            "22023",
        ),
        (
            "SELECT * FROM hapax_fence('a', 2); SELECT hapax_applied('a', 2, NULL)",
            "22023",
        ),
        ("SELECT * FROM hapax_probe('b', 5)", ""),
        ("SELECT * FROM hapax_fence('b', 4)", "HX003"),
        (
            "SELECT * FROM hapax_fence('b', 5); SELECT hapax_applied('b', 5, 201, '{}', '\\x is no escape')",
            "",
        ),
        ("SELECT * FROM hapax_fence('b', 4)", ""),
        (
            "SELECT * FROM hapax_fence('b', 6); SELECT hapax_applied('b', 6, 201)",
            "HX005",
        ),
    ] {
        assert_eq!(raised(&client, statement).await, expected, "{statement}");
    }
    let kept = client
        .query_one("SELECT body FROM hapax_probe('b', 9)", &[])
        .await
        .unwrap()
        .get::<_, Vec<u8>>(0);
    assert_eq!(kept, b"\\x is no escape", "text stays text");
    assert_eq!(
        client
            .query_one("SELECT count(*) FROM hapax_operations", &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        1
    );
    // The script can be run again on an existing installation.
    client
        .batch_execute(include_str!("../../../../packaging/sql/fenced.sql"))
        .await
        .unwrap();
}

/// A refusal because of the fence is known to have no effect, whatever its status; but only in
/// modes that use fences.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_for_its_fence_is_never_kept() {
    for (mode, is_kept) in [
        (Mode::Fenced, false),
        (Mode::Hold, true),
        (Mode::Rerun, true),
    ] {
        let reference = Reference::new(Kind::Fenced);
        let service = serve(&reference);
        let world = World::start(mode, service.address, |_, _| {}).await;
        let got = world.order("k", "refuse").await;
        got.assert_first(409, "a higher fence was here");
        assert!(!got.headers.contains_key("hapax-refused"), "{got:?}");
        let repeated = world.order("k", "do it").await;
        if is_kept {
            repeated.assert_replayed(409, "a higher fence was here");
        } else {
            repeated.assert_first(201, ORDERED);
        }
        let fences = reference.dispatched();
        assert!(
            fences.len() == if is_kept { 1 } else { 2 }
                && fences.is_sorted_by(|one, other| one < other),
            "{mode:?}: {fences:?}"
        );
        world.end().await;
    }
}

/// After retention and tombstone the same key is another operation: the service must not answer
/// with what it stored for the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_used_again_after_its_tombstone_is_another_operation() {
    let reference = Reference::new(Kind::Fenced);
    let service = serve(&reference);
    let brief = Duration::from_millis(20);
    let world = World::start(Mode::Fenced, service.address, |_, policy| {
        (policy.lease, policy.retention, policy.tombstone) = (brief, brief, brief);
    })
    .await;
    world.order("k", "do it").await.assert_first(201, ORDERED);
    let next_life = async {
        while reference.dispatched().len() < 2 {
            world.order("k", "do it").await;
        }
    };
    in_time("the next life of the key", next_life).await;
    let effects = reference.effects();
    assert_eq!(
        effects["k"],
        reference.dispatched(),
        "what is new was taken for what was done before"
    );
    world.end().await;
}

/// The same scenario for a service of this kind; only `Fenced` follows the rules of the mode.
async fn applied_and_lost(kind: Kind) -> std::sync::Arc<Reference> {
    let reference = Reference::new(kind);
    let service = serve(&reference);
    let world = World::start(Mode::Fenced, service.address, |_, _| {}).await;
    world
        .order("k", "do it, break off")
        .await
        .assert_rejected(502, "outcome-unknown", true);
    world.order("k", "do it").await.assert_first(201, ORDERED);
    world.end().await;
    reference
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_knows_only_the_highest_fence_is_convicted() {
    assert_eq!(count(&applied_and_lost(Kind::Fenced).await.effects()), 1);
    let verdict = judge(&applied_and_lost(Kind::HighestFenceOnly).await.effects());
    assert!(
        verdict
            .as_ref()
            .is_err_and(|verdict| verdict.contains("k had 2 effects")),
        "{verdict:?}"
    );
}
