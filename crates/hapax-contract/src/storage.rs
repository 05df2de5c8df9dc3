//! Stored values are read back unchanged.

use std::sync::Arc;

use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::outcome::Loss;
use hapax_core::store::{Change, Claim, Finish};
use hapax_core::{
    Answer, AttemptToken, Condition, Fingerprint, Key, Principal, RequestId, Scope, State,
};

use super::Bench;
use super::subject::{
    KEPT, LONG, Subject, completed, completion, unique_namespace, without_answer,
};

pub(super) async fn answers_survive_byte_for_byte(bench: &Bench) {
    for answer in answers() {
        // `wins` compares the record it reads with the one that was sent.
        bench.subject().ended(keeping(&answer)).await;
    }
}

pub(super) async fn a_loser_sees_the_answer_byte_for_byte(bench: &Bench) {
    for answer in answers() {
        let subject = bench.subject();
        let fence = subject.ended(keeping(&answer)).await.fence;
        for condition in [Condition::Absent, Condition::Lapsed { fence }] {
            let seen = subject
                .loses(condition, Change::Claim(subject.claim(LONG)))
                .await;
            assert!(
                seen.record.and_then(|record| record.answer).as_ref() == Some(&answer),
                "the loser saw another answer"
            );
        }
    }
}

pub(super) async fn fingerprints_survive_with_their_policies(bench: &Bench) {
    let policies = [
        FingerprintPolicy::default(),
        FingerprintPolicy::raw(),
        FingerprintPolicy::default()
            .with_header("X-Tenant")
            .without_header("content-type"),
        FingerprintPolicy::json(),
        FingerprintPolicy::json_without(["/sent at", "/items/*/été", "/a~1b"]).expect("pointers"),
        FingerprintPolicy::json_only(["/amount", "/currency"])
            .expect("pointers")
            .with_header("accept"),
        FingerprintPolicy::multipart(),
    ];
    for (number, policy) in policies.into_iter().enumerate() {
        let subject = bench.subject();
        let digest = std::array::from_fn(|at| (at * 37 + number * 101) as u8);
        let claim = Claim {
            fingerprint: Fingerprint {
                digest,
                policy: Arc::new(policy),
            },
            ..subject.claim(LONG)
        };
        subject
            .wins(Condition::Absent, Change::Claim(claim.clone()))
            .await;
        // Compared with `==`: `Debug` output does not show whether the policies are equal.
        assert!(
            subject.record().await.head.fingerprint == Some(claim.fingerprint.clone()),
            "{}",
            claim.fingerprint.policy
        );
    }
}

/// Callers and their credentials choose paths and principals: quotes, line ends, NUL, empty text.
pub(super) async fn scopes_survive_whatever_they_are_made_of(bench: &Bench) {
    let names = [
        "",
        " ",
        "a'b\"c\\d%_;--",
        "line\r\nbreak\ttab",
        "naïve/日本語/🜁/\u{202e}abc",
        "nul\0inside",
        &"long".repeat(500),
    ];
    let principals = names
        .map(Principal::named)
        .into_iter()
        .chain([Principal::Anonymous, Principal::named("(anonymous)")]);
    for (number, principal) in principals.enumerate() {
        let name = names[number % names.len()];
        let scope = Scope {
            namespace: format!("{}{name}", unique_namespace()).into(),
            principal,
            method: name.into(),
            path: format!("/{name}").into(),
        };
        let subject = Subject::of(bench.store.clone(), scope, bench.subject().key);
        assert_eq!(subject.running(LONG).await.scope, subject.scope);
    }
}

pub(super) async fn keys_survive_whatever_they_are_made_of(bench: &Bench) {
    let every_byte: String = (' '..='~').collect();
    for text in [
        "k",
        " ",
        "'\"\\%_",
        &every_byte,
        &"k".repeat(Key::BYTES_MAX),
    ] {
        let scope = Scope::clone(&bench.subject().scope);
        let subject = Subject::of(bench.store.clone(), scope, Key::new(text).expect("a key"));
        assert_eq!(subject.running(LONG).await.key.as_str(), text);
    }
}

pub(super) async fn attempt_tokens_survive(bench: &Bench) {
    for bytes in [[0; 16], [0xff; 16], std::array::from_fn(|at| at as u8)] {
        let subject = bench.subject();
        let token = AttemptToken::from_bytes(bytes);
        let claim = Claim {
            token,
            ..subject.claim(LONG)
        };
        assert_eq!(
            subject
                .wins(Condition::Absent, Change::Claim(claim))
                .await
                .head
                .token,
            token
        );
    }
}

pub(super) async fn request_ids_survive(bench: &Bench) {
    let longest = "x".repeat(RequestId::BYTES_MAX);
    for id in [
        None,
        Some("7"),
        Some("req_7:/+=.-A"),
        Some(longest.as_str()),
    ] {
        let request_id = id.map(|id| RequestId::new(id).expect("plain text"));
        let subject = bench.subject();
        let claim = Claim {
            request_id: request_id.clone(),
            ..subject.claim(LONG)
        };
        let fence = subject
            .wins(Condition::Absent, Change::Claim(claim))
            .await
            .head
            .fence;
        // `wins` compares the record it reads with the one that was written.
        assert_eq!(
            subject
                .wins(Condition::Held { fence }, completed("paid"))
                .await
                .head
                .request_id,
            request_id
        );
    }
}

/// The code of a loss takes the place of the status and is above every status.
pub(super) async fn a_loss_survives_with_its_cause(bench: &Bench) {
    for loss in [
        Loss::Answered(500),
        Loss::TimedOut,
        Loss::Stopped,
        Loss::NotJoined(Some(999)),
        Loss::Lapsed,
    ] {
        let subject = bench.subject();
        let finish = Finish {
            status: loss.code(),
            ..without_answer(State::Unknown, KEPT)
        };
        assert_eq!(
            subject
                .ended(Change::Finish(finish))
                .await
                .loss(State::Unknown),
            Some(loss)
        );
        let listed = subject.record().await.head;
        assert_eq!(listed.loss(listed.state), Some(loss));
    }
}

/// Shapes that storage may get wrong: empty, large, ordered, repeated, bytes that are not text.
fn answers() -> Vec<Arc<Answer>> {
    let every_byte: Vec<u8> = (0..=255).collect();
    let answers = [
        Answer::default(),
        Answer::new(204, ""),
        Answer::new(u16::MAX, "\0"),
        Answer::new(200, every_byte.repeat(4096)),
        Answer {
            status: 201,
            headers: vec![
                ("set-cookie".into(), "a=1".into()),
                ("x-bytes".into(), every_byte.into()),
                ("set-cookie".into(), "a=1".into()),
                ("Link".into(), "".into()),
                ("set-cookie".into(), "b=2".into()),
            ],
            body: "{\"id\":17}".into(),
            trailers: vec![
                ("grpc-status".into(), "0".into()),
                ("grpc-message".into(), b"\xff\xfe".as_slice().into()),
            ],
        },
    ];
    answers.map(Arc::new).into()
}

fn keeping(answer: &Arc<Answer>) -> Change {
    let mut finish = completion("", KEPT);
    (finish.state, finish.status, finish.answer) =
        (State::Completed, Some(answer.status), Some(answer.clone()));
    Change::Finish(finish)
}
