//! Every source, over both protocols: each caller has its own operation under the same key, and
//! none gets another's answer.

use hapax_server::config::{
    Audience, Config, ForwardAuth, Issuer as Wanted, Jwt, KeysFrom, PrincipalSource,
    PrincipalSources,
};
use jsonwebtoken::Algorithm;

use crate::client::{Tells, post};
use crate::harness::{Answer, Client, Service, Serving, With, whole, with};
use crate::issuer::{AUDIENCE, ISSUER, Issuer, jwks};
use crate::world::{World, says};

pub fn jwt(algorithm: Algorithm, keys: KeysFrom) -> Jwt {
    Jwt::new(
        vec![algorithm],
        keys,
        Wanted::Just(ISSUER.into()),
        Audience::OneOf(vec![AUDIENCE.to_owned()]),
    )
}

/// Identifies callers by tokens that these published keys verify.
pub fn by_keys(config: &mut Config, directory: &std::path::Path, algorithm: Algorithm, keys: &str) {
    let path = directory.join("jwks.json");
    std::fs::write(&path, keys).unwrap();
    config.principal = "jwt:sub".parse().unwrap();
    config.jwt = Some(jwt(algorithm, KeysFrom::File(path)));
}

/// The credentials of two callers, and the refusal of a request without one.
struct Callers {
    ada: (&'static str, String),
    eve: (&'static str, String),
    nobody: (u16, &'static str),
}

fn bearers(ada: &str, eve: &str) -> Callers {
    let bearer = |token: &str| ("authorization", format!("Bearer {token}"));
    Callers {
        ada: bearer(ada),
        eve: bearer(eve),
        nobody: (400, "principal-missing"),
    }
}

/// Checks the answers and effects of two callers that send identical requests under the same key.
async fn each_has_their_own(world: World, callers: Callers, what: &str) {
    for is_http2 in [false, true] {
        let (key, before) = (format!("same-{is_http2}"), world.upstream.effects());
        let client = world.client(is_http2);
        let (ada, eve) = (
            send_as(&client, &key, &callers.ada).await,
            send_as(&client, &key, &callers.eve).await,
        );
        for first in [&ada, &eve] {
            assert!(
                first.status == 201 && !first.is_replay(),
                "{what} {is_http2}: {first:?}"
            );
        }
        assert!(!ada.tells(&eve) && !eve.tells(&ada), "{what}");
        for (who, own, others) in [(&callers.ada, &ada, &eve), (&callers.eve, &eve, &ada)] {
            let again = send_as(&client, &key, who).await;
            assert!(
                again.is_replay() && again.tells(own) && !again.tells(others),
                "{what} {is_http2}: {again:?}"
            );
        }
        let nobody = world.send(is_http2, post(&key)).await;
        assert_eq!(
            (nobody.status, &*nobody.code()),
            callers.nobody,
            "{what} {is_http2}"
        );
        assert!(
            !nobody.is_replay() && !nobody.tells(&ada) && !nobody.tells(&eve),
            "{what}"
        );
        assert_eq!(
            world.upstream.effects() - before,
            2,
            "{what} {is_http2}: one effect for each caller"
        );
    }
    world.end().await;
}

async fn send_as(client: &Client, key: &str, who: &(&'static str, String)) -> Answer {
    client.send(post(key).with(who.0, &who.1)).await
}

#[tokio::test]
async fn callers_known_by_a_header_of_a_proxy_have_their_own_operations() {
    let settle = |config: &mut Config| {
        config.principal = "header:x-user".parse().unwrap();
        config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
    };
    let callers = Callers {
        ada: ("x-user", "ada".to_owned()),
        eve: ("x-user", "eve".to_owned()),
        nobody: (400, "principal-missing"),
    };
    each_has_their_own(
        World::start(|config, _| settle(config)).await,
        callers,
        "header",
    )
    .await;
}

#[tokio::test]
async fn callers_known_by_a_token_have_their_own_operations() {
    for algorithm in [
        Algorithm::RS256,
        Algorithm::ES256,
        Algorithm::EdDSA,
        Algorithm::PS256,
    ] {
        let issuer = Issuer::new("one", algorithm);
        let settle = |config: &mut Config, directory: &std::path::Path| {
            by_keys(config, directory, algorithm, &jwks(&[&issuer]));
        };
        let world = World::start(settle).await;
        each_has_their_own(
            world,
            bearers(&issuer.token("ada"), &issuer.token("eve")),
            &format!("{algorithm:?}"),
        )
        .await;
    }
}

#[tokio::test]
async fn one_key_in_pem_is_enough_and_so_is_a_field_of_its_own() {
    let issuer = Issuer::new("any name", Algorithm::RS256);
    let settle = |config: &mut Config, directory: &std::path::Path| {
        let path = directory.join("key.pem");
        std::fs::write(&path, issuer.public_pem()).unwrap();
        config.principal = "jwt:sub".parse().unwrap();
        config.jwt = Some(Jwt {
            field: "x-jwt".parse().unwrap(),
            ..jwt(Algorithm::RS256, KeysFrom::File(path))
        });
    };
    let callers = Callers {
        ada: ("x-jwt", issuer.token("ada")),
        eve: ("x-jwt", issuer.token("eve")),
        nobody: (400, "principal-missing"),
    };
    each_has_their_own(World::start(settle).await, callers, "pem").await;
}

#[tokio::test]
async fn callers_known_by_a_shared_secret_have_their_own_operations() {
    let secret = "a secret that issuer and gateway share";
    let sign = |subject: &str| {
        let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
        jsonwebtoken::encode(
            &jsonwebtoken::Header::new(Algorithm::HS256),
            &crate::issuer::claims(subject),
            &key,
        )
        .unwrap()
    };
    let settle = |config: &mut Config, directory: &std::path::Path| {
        let path = directory.join("secret");
        std::fs::write(&path, format!("{secret}\n")).unwrap();
        config.principal = "jwt:sub".parse().unwrap();
        config.jwt = Some(jwt(Algorithm::HS256, KeysFrom::Secret(path)));
    };
    each_has_their_own(
        World::start(settle).await,
        bearers(&sign("ada"), &sign("eve")),
        "HS256",
    )
    .await;
}

#[tokio::test]
async fn callers_known_by_their_credential_have_their_own_operations() {
    let callers = Callers {
        nobody: (201, ""),
        ..bearers("ada", "eve")
    };
    let world = World::start(|config, _| config.principal = PrincipalSources::default()).await;
    for is_http2 in [false, true] {
        let client = world.client(is_http2);
        let (ada, eve) = (
            send_as(&client, "k", &callers.ada).await,
            send_as(&client, "k", &callers.eve).await,
        );
        let anonymous = world.send(is_http2, post("k")).await;
        assert!(!ada.tells(&eve) && !anonymous.tells(&ada) && !anonymous.tells(&eve));
    }
    assert_eq!(
        world.upstream.effects(),
        3,
        "ada, eve and whoever says nothing of himself"
    );
    world.end().await;
}

#[tokio::test]
async fn callers_known_to_another_service_have_their_own_operations() {
    let auth = Service::start(Serving::default(), |asked| {
        match asked.field("authorization").strip_prefix("Bearer ") {
            Some(token) => with(whole(200, ""), "x-auth-user", token),
            None => whole(401, "who are you?"),
        }
    });
    let settle = |config: &mut Config| {
        config.principal = PrincipalSource::ForwardAuth(auth.url("/verify").into()).into();
        config.forward_auth = Some(ForwardAuth::new("x-auth-user".parse().unwrap()));
    };
    let world = World::start(|config, _| settle(config)).await;
    let callers = Callers {
        nobody: (401, ""),
        ..bearers("ada", "eve")
    };
    each_has_their_own(world, callers, "forward-auth").await;
    assert_eq!(
        auth.asked().len(),
        2 * 5,
        "every request was asked about: firsts, repeats and the refused"
    );
}

#[tokio::test]
async fn keys_from_a_url_over_tls_need_its_certificate_to_be_believed() {
    let issuer = Issuer::new("one", Algorithm::RS256);
    let document = jwks(&[&issuer]);
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let tls = rustls::ServerConfig::builder_with_provider(std::sync::Arc::new(
        rustls::crypto::aws_lc_rs::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(vec![certified.cert.der().clone()], key)
    .unwrap();
    let serving = Serving {
        tls: Some(std::sync::Arc::new(tls)),
        ..Serving::default()
    };
    let service = Service::start(serving, move |_| says(document.clone()));
    let url: http::Uri = format!("https://localhost:{}/jwks.json", service.address.port())
        .parse()
        .unwrap();
    for is_believed in [false, true] {
        let settle = |config: &mut Config, directory: &std::path::Path| {
            let ca_file = directory.join("ca.pem");
            std::fs::write(&ca_file, certified.cert.pem()).unwrap();
            config.principal = "jwt:sub".parse().unwrap();
            config.jwt = Some(Jwt {
                ca_file: is_believed.then_some(ca_file),
                ..jwt(Algorithm::RS256, KeysFrom::Url(url.clone().into()))
            });
        };
        let world = World::start(settle).await;
        let got = world
            .send(false, post("k").bearer(&issuer.token("ada")))
            .await;
        assert_eq!(got.status, if is_believed { 201 } else { 503 }, "{got:?}");
        world.end().await;
    }
}
