//! Invalid tokens: none of them gets a replay or an effect.

use hapax_server::config::{Config, Protocol};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use crate::client::{Tells, post};
use crate::harness::{Client, Service, Serving, With};
use crate::issuer::{AUDIENCE, ISSUER, Issuer, base64, claims, claims_but, jwks, now};
use crate::sources::by_keys;
use crate::world::{Upstream, World, says, serve};

/// A name, the lines of `Authorization`, the status, and the counted reason.
type Bad = (String, Vec<String>, u16, &'static str);

fn bad(name: &str, token: impl Into<String>, reason: &'static str) -> Bad {
    (
        name.to_owned(),
        vec![format!("Bearer {}", token.into())],
        401,
        reason,
    )
}

/// Correctly signed tokens with a wrong time, audience or content.
fn wrong_claims(issuer: &Issuer) -> Vec<Bad> {
    let signed =
        |name: &str, value: Value| issuer.sign(&issuer.header(), &claims_but("ada", name, value));
    vec![
        bad("expired", signed("exp", json!(now() - 3600)), "expired"),
        bad(
            "expired beyond the tolerance",
            signed("exp", json!(now() - 31)),
            "expired",
        ),
        bad("no end", signed("exp", Value::Null), "malformed"),
        bad(
            "an end that is text",
            signed("exp", json!("9999999999")),
            "malformed",
        ),
        bad(
            "not yet valid",
            signed("nbf", json!(now() + 3600)),
            "not_yet_valid",
        ),
        bad(
            "wrong audience",
            signed("aud", json!("another service")),
            "audience",
        ),
        bad(
            "wrong audiences",
            signed("aud", json!(["a", "b"])),
            "audience",
        ),
        bad("no audience", signed("aud", Value::Null), "audience"),
        bad(
            "wrong issuer",
            signed("iss", json!("https://evil.example")),
            "issuer",
        ),
        bad(
            "the issuer among others",
            signed("iss", json!(["https://id.example"])),
            "issuer",
        ),
        bad("no issuer", signed("iss", Value::Null), "issuer"),
        bad("no subject", signed("sub", Value::Null), "claim"),
        bad("an empty subject", signed("sub", json!("")), "claim"),
        bad("a list of subjects", signed("sub", json!(["ada"])), "claim"),
    ]
}

/// Tokens that ask for another verification method than the gateway's.
fn confused(issuer: &Issuer, other: &Issuer) -> Vec<Bad> {
    let good = issuer.token("ada");
    let (message, signature) = good.rsplit_once('.').unwrap();
    let payload = message.split_once('.').unwrap().1;
    let mut tokens = Vec::new();
    for alg in [
        json!("none"),
        json!("None"),
        json!("NONE"),
        json!("nOnE"),
        json!(""),
        json!("rs256"),
        json!(["RS256"]),
        Value::Null,
    ] {
        let header = base64(
            json!({"alg": alg, "typ": "JWT", "kid": issuer.kid})
                .to_string()
                .as_bytes(),
        );
        tokens.push(bad(
            &format!("alg {alg}, no signature"),
            format!("{header}.{payload}."),
            "malformed",
        ));
        tokens.push(bad(
            &format!("alg {alg}, a good signature"),
            format!("{header}.{payload}.{signature}"),
            "malformed",
        ));
    }
    let header = base64(json!({"typ": "JWT"}).to_string().as_bytes());
    tokens.push(bad(
        "no alg",
        format!("{header}.{payload}.{signature}"),
        "malformed",
    ));
    for (name, secret) in [
        ("public key in PEM", issuer.public_pem()),
        (
            "public key in PEM, trimmed",
            issuer.public_pem().trim().to_owned(),
        ),
    ] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let header = Header {
                kid: Some(issuer.kid.clone()),
                ..Header::new(algorithm)
            };
            let key = EncodingKey::from_secret(secret.as_bytes());
            let token = jsonwebtoken::encode(&header, &claims("ada"), &key).unwrap();
            tokens.push(bad(
                &format!("{algorithm:?} with the {name} as its secret"),
                token,
                "algorithm",
            ));
        }
    }
    let kid_of = |kid: Option<&str>| Header {
        kid: kid.map(str::to_owned),
        ..other.header()
    };
    let other_rsa = Issuer::new("other", Algorithm::RS256);
    tokens.push(bad(
        "an algorithm that is not pinned",
        Issuer::new("one", Algorithm::RS512).token("ada"),
        "algorithm",
    ));
    tokens.push(bad(
        "another kind of key under a known name",
        other.sign(&kid_of(Some(&issuer.kid)), &claims("ada")),
        "algorithm",
    ));
    tokens.push(bad(
        "another key under a known name",
        other_rsa.sign(&issuer.header(), &claims("ada")),
        "signature",
    ));
    tokens.push(bad("an unknown key", other_rsa.token("ada"), "key"));
    tokens.push(bad(
        "no name of a key",
        issuer.sign(
            &Header {
                kid: None,
                ..issuer.header()
            },
            &claims("ada"),
        ),
        "key",
    ));
    let own_jwk: jsonwebtoken::jwk::Jwk = serde_json::from_value(other_rsa.jwk()).unwrap();
    let embedded = Header {
        jwk: Some(own_jwk),
        ..other_rsa.header()
    };
    tokens.push(bad(
        "a key of its own in jwk",
        other_rsa.sign(&embedded, &claims("ada")),
        "key",
    ));
    let embedded = Header {
        kid: Some(issuer.kid.clone()),
        ..embedded
    };
    tokens.push(bad(
        "a key of its own in jwk under a known name",
        other_rsa.sign(&embedded, &claims("ada")),
        "signature",
    ));
    let pointing = Header {
        jku: Some("https://evil.example/jwks".into()),
        x5u: Some("https://evil.example/x".into()),
        ..issuer.header()
    };
    tokens.push(bad(
        "keys of its own at jku and x5u",
        other_rsa.sign(&pointing, &claims("ada")),
        "signature",
    ));
    tokens
}

/// Tokens that were changed, and texts that are not tokens.
fn mangled(issuer: &Issuer) -> Vec<Bad> {
    let good = issuer.token("ada");
    let parts: Vec<&str> = good.split('.').collect();
    let [header, payload, signature] = parts[..] else {
        panic!("a token has three parts")
    };
    let eves = base64(claims("eve").to_string().as_bytes());
    let swapped = format!(
        "{}{}",
        if signature.starts_with('A') { 'B' } else { 'A' },
        &signature[1..]
    );
    let raw = |header: Value| issuer.sign_raw(&header, &claims("ada"));
    let head = |name: &str, value: Value| {
        let mut head = json!({"alg": "RS256", "kid": issuer.kid, "typ": "JWT"});
        head[name] = value;
        raw(head)
    };
    vec![
        bad(
            "another payload",
            format!("{header}.{eves}.{signature}"),
            "signature",
        ),
        bad(
            "another signature",
            format!("{header}.{payload}.{swapped}"),
            "signature",
        ),
        bad("no signature", format!("{header}.{payload}."), "signature"),
        bad(
            "without its last part",
            format!("{header}.{payload}"),
            "malformed",
        ),
        bad("cut short", &good[..good.len() - 10], "signature"),
        bad("one part more", format!("{good}.{signature}"), "malformed"),
        bad("padded", format!("{good}=="), "malformed"),
        bad("huge", format!("{good}{}", "A".repeat(9 << 10)), "too_long"),
        bad("garbage", "garbage", "malformed"),
        bad("dots", "..", "malformed"),
        bad(
            "five parts, as encrypted ones have",
            "a.b.c.d.e",
            "malformed",
        ),
        bad(
            "claims that are a list",
            issuer.sign_raw(&json!({"alg": "RS256", "kid": issuer.kid}), &json!([1])),
            "malformed",
        ),
        bad(
            "something critical",
            head("crit", json!(["exp"])),
            "critical",
        ),
        bad(
            "something critical of its own",
            head("crit", json!(["b64"])),
            "critical",
        ),
        bad(
            "a token that ends a session",
            head("typ", json!("logout+jwt")),
            "kind",
        ),
        (
            "two lines".to_owned(),
            vec![format!("Bearer {good}"), format!("Bearer {good}")],
            401,
            "repeated",
        ),
        (
            "two lines of two callers".to_owned(),
            vec![
                format!("Bearer {good}"),
                format!("Bearer {}", issuer.token("eve")),
            ],
            401,
            "repeated",
        ),
        (
            "two tokens in one line".to_owned(),
            vec![format!("Bearer {good}, Bearer {good}")],
            401,
            "malformed",
        ),
        (
            "another scheme".to_owned(),
            vec![format!("Basic {good}")],
            400,
            "scheme",
        ),
        ("no scheme".to_owned(), vec![good.clone()], 400, "scheme"),
        (
            "nothing behind the scheme".to_owned(),
            vec!["Bearer".to_owned()],
            400,
            "scheme",
        ),
        ("nothing at all".to_owned(), Vec::new(), 400, "missing"),
    ]
}

#[tokio::test]
async fn no_bad_token_gets_a_replay_or_an_effect() {
    let (issuer, other) = (
        Issuer::new("one", Algorithm::RS256),
        Issuer::new("two", Algorithm::ES256),
    );
    let settle = |config: &mut Config, directory: &std::path::Path| {
        by_keys(
            config,
            directory,
            Algorithm::RS256,
            &jwks(&[&issuer, &other]),
        );
    };
    let world = World::start(settle).await;
    let good = format!("Bearer {}", issuer.token("ada"));
    let first = world
        .send(false, post("k").with("authorization", &good))
        .await;
    assert_eq!(first.status, 201, "{first:?}");

    let mut tried = 0;
    for is_http2 in [false, true] {
        for (name, lines, status, reason) in [
            wrong_claims(&issuer),
            confused(&issuer, &other),
            mangled(&issuer),
        ]
        .concat()
        {
            let metric = format!("hapax_credentials_refused_total{{reason=\"{reason}\"}}");
            let before = world.counted(&metric).await;
            let request = lines.iter().fold(post("k"), |request, line| {
                request.with("authorization", line)
            });
            let got = world.send(is_http2, request).await;
            assert!(!got.is_replay() && !got.tells(&first), "{name}: {got:?}");
            assert_eq!(got.status, status, "{name}: {got:?}");
            if status == 401 {
                let challenge = got.field("www-authenticate").unwrap_or_default();
                assert!(
                    challenge.starts_with("Bearer error=\"invalid_token\""),
                    "{name}: {challenge}"
                );
                assert_eq!(got.code(), "credentials-invalid", "{name}");
                let is_of_time = matches!(reason, "expired" | "not_yet_valid");
                assert_eq!(
                    challenge.contains("description"),
                    is_of_time,
                    "{name}: only what any clock tells is told"
                );
                assert_eq!(got.field("x-should-retry"), Some("false"), "{name}");
            } else {
                assert_eq!(got.code(), "principal-missing", "{name}");
            }
            assert_eq!(
                world.counted(&metric).await,
                before + 1,
                "{name} counts as {reason}"
            );
            tried += 1;
        }
        let again = world
            .send(is_http2, post("k").with("authorization", &good))
            .await;
        assert!(
            again.is_replay() && again.tells(&first),
            "whoever has a good one still gets the answer: {again:?}"
        );
    }
    assert_eq!(world.upstream.effects(), 1, "none of them had an effect");
    hapax_testkit::report!("{tried} bad tokens: 0 replays, 0 effects");
    world.end().await;
}

#[tokio::test]
async fn a_token_may_be_renewed_between_two_tries_and_its_own_word_of_keys_is_ignored() {
    let issuer = Issuer::new("one", Algorithm::ES256);
    let settle = |config: &mut Config, directory: &std::path::Path| {
        by_keys(config, directory, Algorithm::ES256, &jwks(&[&issuer]));
    };
    let world = World::start(settle).await;
    let first = world
        .send(false, post("k").bearer(&issuer.token("ada")))
        .await;
    let within_tolerance = issuer.sign(
        &issuer.header(),
        &claims_but("ada", "exp", json!(now() - 5)),
    );
    let renewed = issuer.sign(
        &issuer.header(),
        &claims_but("ada", "exp", json!(now() + 9)),
    );
    let access = issuer.sign_raw(
        &json!({"alg": "ES256", "kid": "one", "typ": "application/AT+JWT"}),
        &claims("ada"),
    );
    let pointing = Header {
        jku: Some("http://127.0.0.1:1/jwks".into()),
        x5u: Some("http://127.0.0.1:1/x".into()),
        ..issuer.header()
    };
    let pointing = issuer.sign(&pointing, &claims("ada"));
    for token in [within_tolerance, renewed, access, pointing] {
        for scheme in ["Bearer", "bearer", "BEARER "] {
            let again = world
                .send(
                    true,
                    post("k").with("authorization", &format!("{scheme} {token}")),
                )
                .await;
            assert!(again.is_replay() && again.tells(&first), "{again:?}");
        }
    }
    assert_eq!(world.upstream.effects(), 1);
    world.end().await;
}

#[tokio::test]
async fn a_number_may_name_a_caller_and_requests_without_a_key_are_nobodys_business() {
    let issuer = Issuer::new("one", Algorithm::EdDSA);
    let settle = |config: &mut Config, directory: &std::path::Path| {
        by_keys(config, directory, Algorithm::EdDSA, &jwks(&[&issuer]));
    };
    let world = World::start(settle).await;
    let numbered = issuer.sign(&issuer.header(), &claims_but("", "sub", json!(42)));
    assert_eq!(
        world.send(false, post("k").bearer(&numbered)).await.status,
        201,
        "a number names too"
    );
    for is_http2 in [false, true] {
        let got = world
            .send(is_http2, crate::client::unguarded().bearer("garbage"))
            .await;
        assert_eq!(
            got.status, 201,
            "the gateway is no gatekeeper for what it does not guard"
        );
    }
    assert_eq!(world.upstream.effects(), 3);
    world.end().await;
}

/// The settings of the page, with this test's issuer, are all that tokens need; and a refreshed
/// token is the same caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_quickstart_of_the_page_works() {
    let page = include_str!("../../../../docs/principals.md");
    let block = page
        .split_once("<!-- quickstart -->")
        .unwrap()
        .1
        .split("```")
        .nth(1)
        .unwrap()
        .trim_start_matches("toml\n");
    let issuer = Issuer::new("one", Algorithm::RS256);
    let document = jwks(&[&issuer]);
    let keys = Service::start(Serving::default(), move |_| says(document.clone()));
    let settings = block
        .replace(
            "https://id.example.com/.well-known/jwks.json",
            &keys.url("/.well-known/jwks.json").to_string(),
        )
        .replace("https://id.example.com", ISSUER)
        .replace("https://api.example.com", AUDIENCE);
    let (directory, upstream) = (
        tempfile::tempdir().unwrap(),
        Upstream::start(Protocol::Http1),
    );
    let program = serve(directory.path(), &upstream, &settings);
    let client = Client::new(program.clients);
    let refreshed = |number: u64| {
        issuer.sign(
            &issuer.header(),
            &claims_but("ada", "exp", json!(now() + 600 + number)),
        )
    };
    let first = client.send(post("k").bearer(&refreshed(0))).await;
    let again = client.send(post("k").bearer(&refreshed(60))).await;
    assert!(
        first.status == 201 && again.is_replay() && again.tells(&first),
        "{first:?} {again:?}"
    );
    assert_eq!(upstream.effects(), 1);
}
