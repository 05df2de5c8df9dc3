//! `principal` of a route: users with tokens, browsers with cookies and a provider's webhooks
//! through one gateway.

use hapax_server::config::{Config, KeysFrom, Protocol, Route};
use jsonwebtoken::Algorithm;
use serde_json::Value;

use crate::client::Tells;
use crate::harness::{self, Answer, Client, ClientRequest, Service, Serving, With, get};
use crate::issuer::{Issuer, jwks};
use crate::sources::{by_keys, jwt};
use crate::world::{World, says};

fn route(path: &str, principal: &str) -> Route {
    Route {
        principal: Some(principal.parse().unwrap()),
        ..path.parse().unwrap()
    }
}

/// Tokens on all routes except three.
fn mixed(config: &mut Config, directory: &std::path::Path, issuer: &Issuer) {
    by_keys(config, directory, Algorithm::EdDSA, &jwks(&[issuer]));
    config.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
    config.routes = vec![
        route("/hooks/provider", "digest:x-provider-token"),
        route("/web/**", "cookie:session"),
        route("/inside/**", "header:x-user"),
    ];
}

fn to(path: &str, key: &str) -> ClientRequest {
    harness::post(path, "{\"amount\":5}").key(key)
}

#[track_caller]
fn is_refused(got: &Answer, looked_at: &str) {
    assert_eq!(
        got.refusal(),
        (400, "principal-missing".to_owned()),
        "{got:?}"
    );
    assert!(
        looked_at.is_empty() || got.text().contains(&format!("by the {looked_at}, which")),
        "{looked_at}: {}",
        got.text()
    );
}

#[tokio::test]
async fn each_route_knows_callers_by_its_own_source_and_by_no_other() {
    let issuer = Issuer::new("one", Algorithm::EdDSA);
    let world = World::start(|config, directory| mixed(config, directory, &issuer)).await;
    let bearer = |name: &str| format!("Bearer {}", issuer.token(name));
    // A path, its field, the credential of one caller there, and of another.
    let places = [
        ("/charges", "authorization", bearer("ada"), bearer("eve")),
        (
            "/hooks/provider",
            "x-provider-token",
            "ada".to_owned(),
            "eve".to_owned(),
        ),
        (
            "/web/charges",
            "cookie",
            "session=ada".to_owned(),
            "session=eve".to_owned(),
        ),
        (
            "/inside/charges",
            "x-user",
            "ada".to_owned(),
            "eve".to_owned(),
        ),
    ];
    let mut effects = 0;
    for is_http2 in [false, true] {
        for (path, field, ada, eve) in &places {
            let key = format!("k-{is_http2}");
            let send =
                async |who: &str| world.send(is_http2, to(path, &key).with(field, who)).await;
            let (first, other) = (send(ada).await, send(eve).await);
            assert!(
                first.status == 201
                    && other.status == 201
                    && !first.is_replay()
                    && !other.is_replay(),
                "{path}: {first:?} {other:?}"
            );
            let again = send(ada).await;
            assert!(
                again.is_replay() && again.tells(&first) && !again.tells(&other),
                "{path}: {again:?}"
            );
            effects += 2;
            // A credential of another route identifies no one here.
            for (_, foreign, credential, _) in
                places.iter().filter(|(_, foreign, ..)| foreign != field)
            {
                let got = world
                    .send(is_http2, to(path, &key).with(foreign, credential))
                    .await;
                is_refused(&got, "");
                assert!(!got.tells(&first) && !got.tells(&other));
            }
        }
        assert_eq!(world.upstream.effects(), effects);
    }
    is_refused(
        &world
            .send(false, to("/hooks/provider", "x").with("cookie", "sid=ada"))
            .await,
        "header x-provider-token",
    );
    is_refused(
        &world
            .send(false, to("/web/a", "x").with("cookie", "sid=ada"))
            .await,
        "cookie session",
    );
    is_refused(
        &world
            .send(false, to("/charges", "x").with("cookie", "sid=ada"))
            .await,
        "header authorization",
    );
    // Only a trusted proxy may name callers, on every route.
    let stranger = Client::new(world.address()).from("127.0.0.2");
    is_refused(
        &stranger
            .send(to("/inside/charges", "k-false").with("x-user", "ada"))
            .await,
        "",
    );
    assert_eq!(
        stranger
            .send(
                to("/web/a", "y")
                    .with("cookie", "session=ada")
                    .with("x-user", "ada")
            )
            .await
            .status,
        201
    );
    assert!(
        !world.upstream.last().headers.contains_key("x-user"),
        "it is taken off on every route"
    );
    world.end().await;
}

/// The same name by two sources is two principals: neither is limited by the other's quota, nor
/// sees the other's records.
#[tokio::test]
async fn one_name_by_two_sources_is_two_principals() {
    let issuer = Issuer::new("one", Algorithm::EdDSA);
    let settle = |config: &mut Config, directory: &std::path::Path| {
        mixed(config, directory, &issuer);
        config.limits.records_per_principal_max = Some(1);
    };
    let world = World::start(settle).await;
    let token = format!("Bearer {}", issuer.token("ada"));
    let ways = [
        ("/charges", "authorization", &*token),
        ("/inside/a", "x-user", "ada"),
        ("/web/a", "cookie", "session=ada"),
        ("/hooks/provider", "x-provider-token", "ada"),
    ];
    for (path, field, credential) in ways {
        let first = world
            .send(false, to(path, "k").with(field, credential))
            .await;
        assert_eq!(first.status, 201, "{path}: {first:?}");
        let second = world
            .send(false, to(path, "k2").with(field, credential))
            .await;
        assert_eq!(second.code(), "quota-reached", "{path}: {second:?}");
    }
    assert_eq!(world.upstream.effects(), ways.len());
    let listed: Value = serde_json::from_str(&world.ask("/v1/keys").await).unwrap();
    let mut names: Vec<&str> = listed["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key["principal"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    let kinds: Vec<&str> = names
        .iter()
        .map(|name| name.split([' ', ':']).next().unwrap())
        .collect();
    assert_eq!(kinds, ["cookie", "digest", "header", "jwt"], "{names:?}");
    world.end().await;
}

/// A spelling that a service may read as the path of another route, which has another source of
/// principals.
#[tokio::test]
async fn a_path_that_may_be_of_two_sources_is_refused() {
    let settle = |config: &mut Config, _: &std::path::Path| {
        config.principal = "digest:authorization".parse().unwrap();
        config.routes = vec![
            route("/open", "none"),
            Route {
                ..route("/strict", "none")
            },
        ];
        config.routes[1].policy.key = hapax::KeyRule::Required;
    };
    let world = World::start(settle).await;
    for path in [
        "/open/",
        "/a/../open",
        "/%6fpen",
        "/strict/",
        "/x/../strict",
    ] {
        let got = world.send(false, to(path, "k").bearer("ada")).await;
        assert_eq!(
            got.refusal(),
            (400, "path-ambiguous".to_owned()),
            "{path}: {got:?}"
        );
    }
    assert_eq!(world.upstream.effects(), 0);
    assert_eq!(world.send(false, to("/open", "k")).await.status, 201);
    world.end().await;
}

#[tokio::test]
async fn routes_share_the_keys_of_tokens_and_publish_their_sources() {
    let issuer = Issuer::new("one", Algorithm::EdDSA);
    let document = jwks(&[&issuer]);
    let keys = Service::start(Serving::default(), move |_| says(document.clone()));
    let settle = |config: &mut Config, _: &std::path::Path| {
        config.jwt = Some(jwt(
            Algorithm::EdDSA,
            KeysFrom::Url(keys.url("/jwks.json").into()),
        ));
        config.routes = vec![
            route("/a", "jwt:sub"),
            route("/b", "jwt:sub, digest:x-tenant"),
            route("/c", "digest:authorization"),
        ];
    };
    let world = World::try_start(Protocol::Http1, settle).await.unwrap();
    assert_eq!(keys.asked().len(), 1, "one keeper for all routes");
    let bearer = format!("Bearer {}", issuer.token("ada"));
    for path in ["/a", "/b"] {
        assert_eq!(
            world
                .send(false, to(path, "k").with("authorization", &bearer))
                .await
                .status,
            201
        );
        let other = world.send(false, to(path, "k").bearer("forged")).await;
        assert_eq!(other.code(), "credentials-invalid", "{other:?}");
    }
    let published = world.send(false, get("/.well-known/idempotency")).await;
    let published: Value = serde_json::from_slice(&published.body).unwrap();
    assert_eq!(published["principal"], "digest:authorization");
    let own: Vec<&Value> = published["routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|route| &route["principal"])
        .collect();
    assert_eq!(
        own,
        [
            &Value::from("jwt:sub"),
            &Value::from("jwt:sub, digest:x-tenant"),
            &Value::Null,
            &Value::Null
        ]
    );
    world.end().await;
}
