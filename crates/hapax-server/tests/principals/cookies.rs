//! `cookie:NAME`: one cookie identifies callers, and a request with another credential is told
//! which setting to change.

use hapax_server::config::{Config, Protocol};

use crate::client::{Tells, post};
use crate::harness::{Client, ClientRequest, With};
use crate::world::{Upstream, World, serve};

fn by_session(config: &mut Config) {
    config.principal = "cookie:session".parse().unwrap();
}

fn with_cookies(key: &str, lines: &[&str]) -> ClientRequest {
    lines
        .iter()
        .fold(post(key), |request, line| request.with("cookie", line))
}

#[tokio::test]
async fn callers_known_by_a_cookie_have_their_own_operations() {
    let world = World::start(|config, _| by_session(config)).await;
    for is_http2 in [false, true] {
        let (key, before) = (format!("same-{is_http2}"), world.upstream.effects());
        let ada = world
            .send(is_http2, with_cookies(&key, &["_ga=1; session=ada"]))
            .await;
        let eve = world
            .send(is_http2, with_cookies(&key, &["session=eve; _ga=1"]))
            .await;
        let anonymous = world.send(is_http2, post(&key)).await;
        assert!(
            [&ada, &eve, &anonymous]
                .iter()
                .all(|got| got.status == 201 && !got.is_replay()),
            "{ada:?} {eve:?} {anonymous:?}"
        );
        // However the cookies are split and ordered, and whatever other cookies there are.
        for lines in [
            &["session=ada"][..],
            &["_ga=2", "session=ada", "theme=dark"],
            &["theme=dark; session=ada"],
        ] {
            let again = world.send(is_http2, with_cookies(&key, lines)).await;
            assert!(
                again.is_replay() && again.tells(&ada) && !again.tells(&eve),
                "{lines:?}: {again:?}"
            );
        }
        assert_eq!(
            world.upstream.effects() - before,
            3,
            "ada, eve and whoever says nothing of himself"
        );
    }
    assert_eq!(
        world
            .counted("hapax_identity_fields_ignored_total{field=\"cookie\"}")
            .await,
        0,
        "the field is read"
    );
    world.end().await;
}

#[tokio::test]
async fn a_session_that_cannot_be_told_is_nobodys() {
    let world = World::start(|config, _| by_session(config)).await;
    for is_http2 in [false, true] {
        for lines in [
            &["session=ada; session=eve"][..],
            &["session=ada", "session=ada"],
            &["session="],
            &["session"],
            // Another cookie may be the session.
            &["SESSION=ada"],
            &["_ga=1"],
        ] {
            let got = world.send(is_http2, with_cookies("k", lines)).await;
            assert_eq!(
                got.refusal(),
                (400, "principal-missing".to_owned()),
                "{lines:?}: {got:?}"
            );
        }
        // A credential in another field does not count either.
        let got = world.send(is_http2, post("k").bearer("zebedee")).await;
        assert_eq!(got.code(), "principal-missing", "{got:?}");
    }
    assert_eq!(world.upstream.effects(), 0);
    world.end().await;
}

/// The setting that a refused caller is told to change, and what was examined.
async fn told(principal: &str, request: ClientRequest) -> String {
    let settle = |config: &mut Config, directory: &std::path::Path| {
        config.principal = principal.parse().unwrap();
        config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
        let path = directory.join("secret");
        std::fs::write(&path, "a secret that issuer and gateway share").unwrap();
        config.jwt = Some(crate::sources::jwt(
            jsonwebtoken::Algorithm::HS256,
            hapax_server::config::KeysFrom::Secret(path),
        ));
    };
    let world = World::start(settle).await;
    let got = world.send(false, request).await;
    assert_eq!(
        got.refusal(),
        (400, "principal-missing".to_owned()),
        "{got:?}"
    );
    assert!(!got.text().contains("zebedee"), "{got:?}");
    let document: serde_json::Value = serde_json::from_slice(&got.body).unwrap();
    world.end().await;
    document["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_caller_with_another_credential_is_told_what_was_looked_at_and_what_to_set() {
    let cookies = |line: &str| with_cookies("k", &[line]);
    let key = || post("k").with("x-api-key", "zebedee");
    for (principal, request, looked_at, setting) in [
        (
            "digest:authorization",
            cookies("_ga=1; PHPSESSID=zebedee"),
            "header authorization",
            "cookie:PHPSESSID",
        ),
        (
            "digest:authorization",
            cookies("sessionid=zebedee; auth_token=zebedee"),
            "header authorization",
            "cookie:NAME",
        ),
        (
            "digest:authorization",
            cookies("_ga=zebedee"),
            "header authorization",
            "cookie:NAME",
        ),
        (
            "digest:authorization",
            key(),
            "header authorization",
            "digest:x-api-key",
        ),
        (
            "digest:authorization",
            key().with("x-tenant", "zebedee"),
            "header authorization",
            "digest:x-api-key",
        ),
        (
            "cookie:session",
            post("k").bearer("zebedee"),
            "cookie session",
            "digest:authorization",
        ),
        (
            "cookie:session",
            cookies("sid=zebedee"),
            "cookie session",
            "cookie:sid",
        ),
        (
            "jwt:sub",
            cookies("sid=zebedee"),
            "header authorization",
            "cookie:sid",
        ),
        ("jwt:sub", key(), "header authorization", "digest:x-api-key"),
        (
            "header:x-user",
            cookies("sid=zebedee"),
            "header x-user",
            "cookie:sid",
        ),
    ] {
        let detail = told(principal, request).await;
        assert!(
            detail.contains(&format!("by the {looked_at}, which")),
            "{principal}: {detail}"
        );
        assert!(
            detail.contains(&format!("principal = \"{setting}\"")),
            "{principal}: {detail}"
        );
        assert!(
            !detail.contains("anonymous_fields"),
            "a credential is never anonymous: {detail}"
        );
    }
    let detail = told(
        "digest:authorization",
        post("k").with("x-tenant", "zebedee"),
    )
    .await;
    assert!(
        detail.contains("digest:x-tenant") && detail.contains("anonymous_fields = [\"x-tenant\"]"),
        "{detail}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_says_once_which_setting_to_change() {
    let (directory, upstream) = (
        tempfile::tempdir().unwrap(),
        Upstream::start(Protocol::Http1),
    );
    let program = serve(directory.path(), &upstream, "");
    let client = Client::new(program.clients);
    for number in 0..3 {
        let got = client
            .send(with_cookies(&format!("k-{number}"), &["sessionid=zebedee"]))
            .await;
        assert_eq!(got.code(), "principal-missing");
    }
    client.send(post("k").with("x-api-key", "zebedee")).await;
    // And one warning that a key has no effect with this method.
    for method in ["PUT", "DELETE", "PUT", "GET"] {
        let mut request = post("k");
        *request.method_mut() = method.parse().unwrap();
        assert_eq!(
            client.send(request).await.field("idempotency-status"),
            Some("not-guarded")
        );
    }
    let log = program.end();
    assert_eq!(
        log.lines()
            .filter(|line| line.contains("does not guard its method"))
            .count(),
        1,
        "{log}"
    );
    let warned = |text: &str| {
        log.lines()
            .filter(|line| line.contains("WARN") && line.contains(text))
            .count()
    };
    assert_eq!(
        (warned("cookie:sessionid"), warned("digest:x-api-key")),
        (1, 1),
        "{log}"
    );
    assert!(!log.contains("zebedee"));
}
