//! Key rotation: a new key is accepted at once, and a withdrawn one verifies nothing any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hapax_server::config::{Config, Jwt, KeysFrom, Protocol};
use http::Response;
use jsonwebtoken::{Algorithm, Header};

use crate::client::{Tells, post};
use crate::harness::{Answer, Asked, Service, Serving, With, replace};
use crate::issuer::{Issuer, claims, jwks};
use crate::sources::{by_keys, jwt};
use crate::world::{World, says};

/// Only a broken test waits this long.
const GUARD: Duration = Duration::from_secs(20);

async fn send(world: &World, token: &str) -> Answer {
    world.send(false, post("k").bearer(token)).await
}

/// Sends until the answer has this status.
async fn until(world: &World, token: &str, status: u16) -> Answer {
    let begun = Instant::now();
    loop {
        let got = send(world, token).await;
        if got.status == status {
            return got;
        }
        assert!(begun.elapsed() < GUARD, "never {status}: {got:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn by_url(service: &Service, settle: impl FnOnce(&mut Jwt)) -> World {
    let mut settings = jwt(
        Algorithm::ES256,
        KeysFrom::Url(service.url("/jwks.json").into()),
    );
    settle(&mut settings);
    let settle = |config: &mut Config| {
        config.principal = "jwt:sub".parse().unwrap();
        config.jwt = Some(settings);
    };
    World::start(|config, _| settle(config)).await
}

/// The old key made the operation. A token by the new key, of the same issuer and for the same
/// caller, gets its answer; the old key then verifies nothing more.
async fn passes_over(world: &World, old: &Issuer, new: &Issuer, rotate: impl FnOnce()) {
    let first = send(world, &old.token("ada")).await;
    assert_eq!(first.status, 201, "{first:?}");
    assert!(send(world, &old.token("ada")).await.is_replay());
    assert_eq!(send(world, &new.token("ada")).await.status, 401, "not yet");
    rotate();
    let replayed = until(world, &new.token("ada"), 201).await;
    assert!(
        replayed.is_replay() && replayed.tells(&first),
        "{replayed:?}"
    );
    for is_http2 in [false, true] {
        let request = post("k").bearer(&old.token("ada"));
        let refused = world.send(is_http2, request).await;
        assert!(
            refused.status == 401 && !refused.is_replay() && !refused.tells(&first),
            "{refused:?}"
        );
    }
    assert_eq!(world.upstream.effects(), 1);
}

#[tokio::test]
async fn a_key_withdrawn_from_a_file_verifies_nothing() {
    let (old, new) = (
        Issuer::new("old", Algorithm::ES256),
        Issuer::new("new", Algorithm::ES256),
    );
    let settle = |config: &mut Config, directory: &std::path::Path| {
        by_keys(config, directory, Algorithm::ES256, &jwks(&[&old]));
    };
    let world = World::start(settle).await;
    let path = world.directory.path().join("jwks.json");
    passes_over(&world, &old, &new, || replace(&path, &jwks(&[&new]))).await;

    // The withdrawal is noticed without any token by a new key.
    replace(&path, &jwks(&[&old]));
    until(&world, &new.token("ada"), 401).await;
    // An invalid file changes nothing.
    replace(&path, "{");
    until_counted(&world, "hapax_jwt_keys_read_total{result=\"failed\"}").await;
    assert!(send(&world, &old.token("ada")).await.is_replay());
    world.end().await;
}

/// Waits for two more, because a read that is under way may have begun before the change.
async fn until_counted_more(world: &World, metric: &str) {
    let (begun, before) = (Instant::now(), world.counted(metric).await);
    while world.counted(metric).await < before + 2 {
        assert!(begun.elapsed() < GUARD, "{metric} was not counted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_counted(world: &World, metric: &str) {
    let begun = Instant::now();
    while world.counted(metric).await == 0 {
        assert!(begun.elapsed() < GUARD, "{metric} was never counted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_key_withdrawn_from_a_url_verifies_nothing() {
    let (old, new) = (
        Issuer::new("old", Algorithm::ES256),
        Issuer::new("new", Algorithm::ES256),
    );
    let document = jwks(&[&old]);
    let service = Service::start(Serving::default(), move |_| says(document.clone()));
    let world = by_url(&service, |settings| {
        settings.refresh = Duration::from_millis(100);
    })
    .await;
    let (document, only_old) = (jwks(&[&new]), jwks(&[&old]));
    passes_over(&world, &old, &new, || {
        service.answer(move |_| says(document.clone()));
    })
    .await;
    service.answer(move |_| says(only_old.clone()));
    until(&world, &new.token("ada"), 401).await;
    world.end().await;
}

/// Valid key sets without a key that can verify: publishing one withdraws the earlier key.
fn withdrawn(issuer: &Issuer) -> [String; 2] {
    [
        "{\"keys\": []}".to_owned(),
        jwks(&[issuer]).replace("\"use\":\"sig\"", "\"use\":\"enc\""),
    ]
}

/// The only key made the operation. After it was withdrawn there is no replay, and once it is back
/// there is.
async fn ends_and_begins(world: &World, issuer: &Issuer, publish: impl Fn(String)) {
    let first = send(world, &issuer.token("ada")).await;
    assert_eq!(first.status, 201, "{first:?}");
    for empty in withdrawn(issuer) {
        assert!(!empty.contains("\"sig\""), "{empty}");
        publish(empty.clone());
        let refused = until(world, &issuer.token("ada"), 401).await;
        assert_eq!(refused.code(), "credentials-invalid", "{empty}");
        assert!(
            !refused.is_replay() && !refused.tells(&first),
            "{empty}: {refused:?}"
        );
        publish(jwks(&[issuer]));
        assert!(
            until(world, &issuer.token("ada"), 201).await.tells(&first),
            "{empty}"
        );
    }
    assert_eq!(world.upstream.effects(), 1);
    assert_eq!(
        world
            .counted("hapax_jwt_keys_read_total{result=\"failed\"}")
            .await,
        0,
        "nothing failed"
    );
}

#[tokio::test]
async fn the_only_key_withdrawn_from_a_file_verifies_nothing() {
    let issuer = Issuer::new("only", Algorithm::ES256);
    let settle = |config: &mut Config, directory: &std::path::Path| {
        by_keys(config, directory, Algorithm::ES256, &jwks(&[&issuer]));
    };
    let world = World::start(settle).await;
    let path = world.directory.path().join("jwks.json");
    ends_and_begins(&world, &issuer, |document| replace(&path, &document)).await;

    // One key in PEM, which is then replaced by one of another kind.
    replace(&path, &issuer.public_pem());
    until_counted_more(&world, "hapax_jwt_keys_read_total{result=\"ok\"}").await;
    assert!(send(&world, &issuer.token("ada")).await.is_replay());
    replace(&path, &Issuer::new("other", Algorithm::EdDSA).public_pem());
    until(&world, &issuer.token("ada"), 401).await;
    world.end().await;
}

#[tokio::test]
async fn the_only_key_withdrawn_from_a_url_verifies_nothing() {
    let issuer = Issuer::new("only", Algorithm::ES256);
    let document = jwks(&[&issuer]);
    let service = Service::start(Serving::default(), move |_| says(document.clone()));
    let world = by_url(&service, |settings| {
        settings.refresh = Duration::from_millis(100);
    })
    .await;
    ends_and_begins(&world, &issuer, |document| {
        service.answer(move |_| says(document.clone()));
    })
    .await;
    world.end().await;
}

#[tokio::test]
async fn an_unknown_key_is_asked_for_at_once_but_not_again_and_again() {
    let (old, new) = (
        Issuer::new("old", Algorithm::ES256),
        Issuer::new("new", Algorithm::ES256),
    );
    let document = jwks(&[&old, &new]);
    let first = jwks(&[&old]);
    let service = Service::start(Serving::default(), move |_| says(first.clone()));
    let world = by_url(&service, |_| ()).await;
    service.answer(move |_| says(document.clone()));
    // Twenty concurrent requests: those that come while the keys are being read wait for them.
    let tokens: Vec<String> = (0..20)
        .map(|caller| new.token(&format!("caller {caller}")))
        .collect();
    let sent = tokens
        .iter()
        .map(|token| async { send(&world, token).await.status });
    let statuses = join_all(sent).await;
    assert!(statuses.iter().all(|status| *status == 201), "{statuses:?}");
    assert_eq!(
        service.asked().len(),
        2,
        "once at the start, and once for the new key"
    );
    for name in 0..50 {
        let header = Header {
            kid: Some(format!("made up {name}")),
            ..new.header()
        };
        assert_eq!(
            send(&world, &new.sign(&header, &claims("ada")))
                .await
                .status,
            401
        );
    }
    assert_eq!(
        service.asked().len(),
        2,
        "nobody makes the gateway ask by making up names"
    );
    world.end().await;
}

async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    let mut ended: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, ended) in futures
            .iter_mut()
            .zip(&mut ended)
            .filter(|(_, ended)| ended.is_none())
        {
            if let std::task::Poll::Ready(output) = future.as_mut().poll(cx) {
                *ended = Some(output);
            }
        }
        if ended.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    ended.into_iter().flatten().collect()
}

#[tokio::test]
async fn keys_that_cannot_be_had_anew_go_stale() {
    let issuer = Issuer::new("one", Algorithm::ES256);
    let (document, is_down) = (jwks(&[&issuer]), Arc::new(AtomicBool::new(false)));
    let down = is_down.clone();
    let answers = move |_: &Asked| match down.load(Ordering::SeqCst) {
        true => Response::builder().status(500).body(String::new()).unwrap(),
        false => says(document.clone()),
    };
    let service = Service::start(Serving::default(), answers);
    let settle = |settings: &mut Jwt| {
        settings.refresh = Duration::from_millis(100);
        settings.stale_max = Duration::from_secs(2);
    };
    let world = by_url(&service, settle).await;
    let first = send(&world, &issuer.token("ada")).await;
    is_down.store(true, Ordering::SeqCst);
    until_counted(&world, "hapax_jwt_keys_read_total{result=\"failed\"}").await;
    assert!(
        send(&world, &issuer.token("ada")).await.is_replay(),
        "keys from before are good for a while"
    );
    let refused = until(&world, &issuer.token("ada"), 503).await;
    assert_eq!(
        (refused.code(), refused.field("retry-after")),
        ("principal-unavailable".to_owned(), Some("1"))
    );
    assert!(!refused.tells(&first) && !refused.is_replay());
    is_down.store(false, Ordering::SeqCst);
    let again = until(&world, &issuer.token("ada"), 201).await;
    assert!(again.is_replay() && again.tells(&first));
    assert_eq!(world.upstream.effects(), 1);
    world.end().await;
}

#[tokio::test]
async fn without_keys_from_the_start_guarded_requests_wait_for_them_in_vain() {
    let issuer = Issuer::new("one", Algorithm::ES256);
    let (good, elsewhere) = (jwks(&[&issuer]), jwks(&[&issuer]));
    let stranger = Service::start(Serving::default(), move |_| says(elsewhere.clone()));
    let redirect = stranger.url("/jwks.json").to_string();
    let huge = good.replacen('{', &format!("{{\"x\": \"{}\", ", "x".repeat(257 << 10)), 1);
    let service = Service::start(Serving::default(), |_| says("{\"keys\": []}"));
    let world = by_url(&service, |settings| {
        settings.refresh = Duration::from_millis(100);
    })
    .await;
    let refused = send(&world, &issuer.token("ada")).await;
    assert_eq!(refused.refusal(), (503, "principal-unavailable".to_owned()));
    for answer in [
        says(huge),
        says("garbage"),
        Response::builder()
            .status(302)
            .header("location", redirect)
            .body(String::new())
            .unwrap(),
        Response::builder().status(404).body(good.clone()).unwrap(),
    ] {
        let before = service.asked().len();
        service.answer(move |_| answer.clone());
        // A read that began before this answer was set may end after it.
        service.wait_asked(before + 2).await;
        assert_eq!(send(&world, &issuer.token("ada")).await.status, 503);
    }
    assert!(stranger.asked().is_empty(), "no redirect is followed");
    service.answer(move |_| says(good.clone()));
    assert_eq!(until(&world, &issuer.token("ada"), 201).await.status, 201);
    assert_eq!(world.upstream.effects(), 1);
    world.end().await;
}

#[tokio::test]
async fn a_file_of_keys_that_is_no_good_stops_the_start_with_its_name() {
    let issuer = Issuer::new("one", Algorithm::ES256);
    for (text, says) in [
        ("{}".to_owned(), "this is no JWK set"),
        (
            "{\"keys\": []}".to_owned(),
            "no key for signatures by RS256",
        ),
        (jwks(&[&issuer]), "no key for signatures by RS256"),
        (issuer.public_pem(), "this key does not sign by RS256"),
    ] {
        let settle = |config: &mut Config, directory: &std::path::Path| {
            by_keys(config, directory, Algorithm::RS256, &text);
        };
        let error = World::try_start(Protocol::Http1, settle)
            .await
            .err()
            .expect("it does not start")
            .to_string();
        assert!(
            error.contains("jwt.keys_file") && error.contains("jwks.json") && error.contains(says),
            "{error}"
        );
    }
}
