//! The default principal: a request without a credential is anonymous only if nothing in it may
//! identify its sender.

use hapax_server::config::AnonymousField;

use crate::client::{Tells, post};
use crate::harness::{self, Answer, Client, ClientRequest, With};
use crate::world::World;

/// Fields by which proxies and services identify callers. None of them may be treated as harmless.
const IDENTITY_FIELDS: &str = "\
    client-cert client-cert-chain x-forwarded-tls-client-cert x-forwarded-tls-client-cert-info x-forwarded-client-cert \
    x-amzn-mtls-clientcert x-amzn-mtls-clientcert-subject x-amzn-mtls-clientcert-leaf x-amzn-mtls-clientcert-serial-number \
    x-amzn-oidc-data x-amzn-oidc-identity x-amzn-oidc-accesstoken x-ssl-client-s-dn x-ssl-client-dn x-ssl-client-cert ssl-client-cert \
    ssl-client-s-dn ssl-client-subject-dn x-client-dn x-client-verify x-client-cert x-arr-clientcert cf-client-cert-der-base64 \
    cloudfront-viewer-cert-subject x-client-cert-chain-base64 tailscale-user-login tailscale-user-name tailscale-user-profile-pic \
    x-goog-iap-jwt-assertion x-goog-authenticated-user-email x-goog-authenticated-user-id x-serverless-authorization \
    x-pomerium-jwt-assertion x-pomerium-claim-email x-user x-user-id x-username x-userid x-user-email x-user-token user user-id \
    username userid x-webauth-user x-webauth-email x-webauth-name x-remote-user remote-user remote-email remote-groups x-auth-user \
    x-auth-request-user x-auth-request-email x-auth-request-access-token x-authenticated-user x-authenticated-userid x-auth-token \
    x-auth-key x-forwarded-user x-forwarded-email x-forwarded-groups x-forwarded-preferred-username x-forwarded-access-token \
    x-forwarded-for-user x-forwarded-login x-authentik-username x-authentik-uid x-authentik-email x-authelia-username \
    x-vouch-user x-vouch-idp-accesstoken x-ms-client-principal x-ms-client-principal-id x-ms-client-principal-name \
    x-ms-token-aad-access-token cf-access-jwt-assertion cf-access-authenticated-user-email cf-access-client-id \
    cf-access-client-secret cf-worker x-consumer-id x-consumer-username x-consumer-custom-id x-credential-identifier \
    x-anonymous-consumer x-tyk-authorization x-apigee-app-id x-kong-consumer x-endpoint-api-userinfo x-jwt-payload x-jwt-assertion \
    x-jwt x-id-token x-access-token x-api-key api-key apikey x-apikey x-functions-key ocp-apim-subscription-key x-goog-api-key \
    x-rapidapi-key x-rapidapi-user x-rapidapi-proxy-secret x-vercel-oidc-token x-client-id x-client-secret client-id x-app-id \
    x-application-id x-device-id x-installation-id x-session-id x-session x-session-token session sessionid x-csrf-token \
    x-xsrf-token csrf-token x-account x-account-id x-accountid account stripe-account x-tenant x-tenant-id tenant-id x-org-id \
    x-organization-id openai-organization x-customer-id x-merchant-id x-shop-id x-company-id x-on-behalf-of x-actor-id \
    x-impersonate-user impersonate-user x-as-user x-sudo x-member-id x-player-id x-email email from x-login x-principal x-subject \
    x-identity x-whoami x-roles x-groups x-scopes x-permissions cookie cookie2 dpop signature signature-input x-signature \
    x-hub-signature-256 x-twilio-signature x-amz-security-token x-amz-content-sha256 x-parse-session-token x-shopify-access-token \
    x-figma-token private-token job-token x-gitlab-token x-vault-token x-consul-token x-nomad-token x-auth-email \
    authorization-token authentication x-authorization x-token token secret x-secret password sec-websocket-protocol \
    sec-websocket-key sec-private-state-token sec-token-binding sec-user x-msisdn x-up-calling-line-id x-nokia-msisdn x-imsi \
    x-wap-profile x-newrelic-id x-envoy-downstream-service-cluster x-envoy-peer-metadata x-istio-attributes l5d-client-id \
    x-envoy-downstream-service-node x-spiffe-id x-caller x-caller-id x-service-name x-source x-custom acceptuser accepted-user \
    secfetch-user x-forwarded-forx x-hapax-user";

/// Spellings that some servers read as the name of a harmless or of an identifying field.
const IMITATIONS: [&str; 8] = [
    "x_user",
    "accept_user",
    "sec-fetch-_user",
    "accept-user_id",
    "sec-ch-ua.user",
    "accept-user!",
    "user_agent",
    "x_real_name",
];

const QUERIES: [&str; 30] = [
    "api_key=1",
    "apikey=1",
    "API_KEY=1",
    "api-key=1",
    "api%5Fkey=1",
    "%61pi_key=1",
    "a=1&api_key=1",
    "a=1;api_key=1",
    "access_token=1",
    "token=1",
    "token[]=1",
    "token%5B0%5D=1",
    "auth[token]=1",
    "key=1",
    "sig=1",
    "Signature=1",
    "X-Amz-Signature=1",
    "x-amz-credential=1",
    "X-Goog-Signature=1",
    "auth=1",
    "session_id=1",
    "code=1",
    "subscription-key=1",
    "jwt=1",
    "sid=1",
    "password=1",
    "hmac=1",
    "api.key=1",
    "+token=1",
    "client_secret",
];

const HARMLESS_QUERIES: [&str; 8] = [
    "",
    "a=1",
    "tokens=1",
    "keyword=shoes",
    "page_token_count=2",
    "signal=1",
    "x=api_key",
    "author=ada&sort=key_date",
];

/// The sections of a file of recorded heads: a name, and its lines.
fn recorded(text: &str) -> Vec<(String, String)> {
    let sections = text.split("#### ").skip(1);
    sections
        .map(|section| {
            let (name, lines) = section.split_once('\n').unwrap();
            (
                name.to_owned(),
                lines
                    .trim()
                    .lines()
                    .map(|line| format!("{line}\r\n"))
                    .collect(),
            )
        })
        .collect()
}

/// A guarded request with this query.
fn with_query(key: &str, query: &str) -> ClientRequest {
    let target = if query.is_empty() {
        "/charges".to_owned()
    } else {
        format!("/charges?{query}")
    };
    harness::post(&target, "{}").key(key)
}

/// Checks that a request was refused because of this field, with advice on the setting and without
/// the field's value.
#[track_caller]
fn is_refused_for(got: &Answer, field: &str) {
    assert_eq!(
        got.refusal(),
        (400, "principal-missing".to_owned()),
        "{field}: {got:?}"
    );
    let document: serde_json::Value = serde_json::from_slice(&got.body).unwrap();
    let detail = document["detail"].as_str().unwrap();
    let is_never_anonymous = field.parse::<AnonymousField>().is_err();
    assert_ne!(
        detail.contains(&format!("anonymous_fields = [\"{field}\"]")),
        is_never_anonymous,
        "{field}: {detail}"
    );
    assert!(detail.contains("its operator sets "), "{field}: {detail}");
    assert!(
        detail.contains("by the header authorization, which this request lacks: send it"),
        "{field}: {detail}"
    );
    assert!(!got.text().contains("zebedee"), "{field}: {got:?}");
}

#[tokio::test]
async fn recorded_requests_of_clients_pass_as_anonymous_plain_and_forwarded() {
    let clients = recorded(include_str!("recorded/clients.txt"));
    let proxies = recorded(include_str!("recorded/proxies.txt"));
    let (mut sent, mut kinds) = (0, Vec::new());
    // Once from a trusted proxy, whose fields are kept, and once from an untrusted client.
    for trusted in ["127.0.0.0/8", "10.0.0.0/8"] {
        let world =
            World::start(|config, _| config.trusted_proxies = vec![trusted.parse().unwrap()]).await;
        let client = Client::new(world.address());
        for (index, (name, head)) in clients.iter().enumerate() {
            for (proxy, added) in [("nobody", "")]
                .into_iter()
                .chain(proxies.iter().map(|(name, lines)| (&**name, &**lines)))
            {
                let head = head.replace(
                    "KEY",
                    &format!(
                        "k-{index}-{}",
                        proxy.replace([' ', ','], "-").replace(['(', ')'], "")
                    ),
                );
                // A proxy removes the client's connection-specific fields.
                let head: String = head
                    .split_inclusive("\r\n")
                    .filter(|line| {
                        proxy == "nobody"
                            || !["connection", "upgrade", "http2-settings"]
                                .contains(&&*field_of(line))
                    })
                    .collect();
                let request = format!("POST /v1/charges HTTP/1.1\r\n{head}{added}\r\n{{}}");
                let answer = client.raw(request.as_bytes()).await;
                assert!(
                    answer.starts_with("HTTP/1.1 201"),
                    "{name} by {proxy}: {answer}\n{request}"
                );
                sent += 1;
            }
        }
        kinds.push(world.upstream.effects());
        world.end().await;
    }
    hapax_testkit::report!(
        "{} clients, each plain and by {} proxies, trusted and not: {sent} requests, all anonymous",
        clients.len(),
        proxies.len()
    );
    assert_eq!(kinds, [sent / 2, sent / 2]);
    assert!(clients.len() >= 17 && proxies.len() >= 8);
}

fn field_of(line: &str) -> String {
    line.split(':')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase()
}

#[tokio::test]
async fn a_field_that_may_identify_somebody_is_refused_by_name() {
    let world = World::start(|_, _| ()).await;
    let fields: Vec<&str> = IDENTITY_FIELDS
        .split_whitespace()
        .chain(IMITATIONS)
        .collect();
    for (index, field) in fields.iter().enumerate() {
        let got = world
            .send(
                index % 2 == 1,
                post(&format!("k-{index}")).with(field, "zebedee"),
            )
            .await;
        is_refused_for(&got, field);
    }
    assert_eq!(world.upstream.effects(), 0);
    let counted = world
        .counted("hapax_credentials_refused_total{reason=\"unread_field\"}")
        .await;
    assert_eq!(counted, fields.len() as u64);
    hapax_testkit::report!(
        "{} fields that may identify somebody, each refused by name",
        fields.len()
    );
    let long = world
        .send(
            false,
            post("long").with(&format!("x-{}", "a".repeat(5_000)), "ada"),
        )
        .await;
    assert!(
        long.code() == "principal-missing" && long.body.len() < 1_500,
        "a long name is cut: {}",
        long.body.len()
    );
    world.end().await;
}

#[tokio::test]
async fn a_credential_in_the_query_is_refused_by_name_under_the_default_alone() {
    let world = World::start(|_, _| ()).await;
    for (index, query) in QUERIES.iter().enumerate() {
        let got = world
            .send(index % 2 == 1, with_query(&format!("k-{index}"), query))
            .await;
        assert_eq!(
            got.refusal(),
            (400, "principal-missing".to_owned()),
            "{query}: {got:?}"
        );
        assert!(
            got.text().contains("anonymous_fields = [\\\"query:"),
            "{query}: {}",
            got.text()
        );
    }
    assert_eq!(world.upstream.effects(), 0);
    for (index, query) in HARMLESS_QUERIES.iter().enumerate() {
        let got = world
            .send(index % 2 == 1, with_query(&format!("h-{index}"), query))
            .await;
        assert_eq!(got.status, 201, "{query}: {got:?}");
    }
    world.end().await;
    // If the configuration names another source of principals, the query does not identify callers.
    let world =
        World::start(|config, _| config.principal = "digest:x-api-key".parse().unwrap()).await;
    assert_eq!(
        world.send(false, with_query("k", "api_key=1")).await.status,
        201
    );
    world.end().await;
    let world = World::start(|config, _| {
        config.anonymous_fields = vec![
            "query:Page-Token".parse().unwrap(),
            "query:sig".parse().unwrap(),
        ];
    })
    .await;
    assert_eq!(
        world.send(false, with_query("k", "sig=1")).await.status,
        201
    );
    is_refused_for(
        &world.send(false, with_query("k2", "sig=1&sign=1")).await,
        "query:sign",
    );
    world.end().await;
}

#[tokio::test]
async fn fields_that_the_configuration_calls_anonymous_are() {
    let named: Vec<AnonymousField> = ["x-tenant-hint", "X-Custom"]
        .iter()
        .map(|name| name.parse().unwrap())
        .collect();
    let settle = |config: &mut hapax_server::config::Config| {
        config.anonymous_fields = named;
        config.defaults.key_field = "x-order-key".into();
    };
    let world = World::start(|config, _| settle(config)).await;
    let request = || with_query("unused", "").with("x-order-key", "k");
    let first = world
        .send(
            false,
            request().with("x-tenant-hint", "1").with("x-custom", "2"),
        )
        .await;
    let again = world.send(true, request().with("x-tenant-hint", "2")).await;
    assert!(
        first.status == 201 && again.is_replay() && again.tells(&first),
        "{again:?}"
    );
    is_refused_for(
        &world
            .send(false, request().with("x-tenant-hint2", "zebedee"))
            .await,
        "x-tenant-hint2",
    );
    world.end().await;
}

/// Two callers share one credential and differ in a field that no setting covers.
#[tokio::test]
async fn identity_beside_the_credential_is_counted() {
    let world = World::start(|_, _| ()).await;
    let shared = |key: &str| post(key).with("authorization", "Basic c2hhcmVkOnNlY3JldA==");
    let ignored = async |field: &str| {
        world
            .counted(&format!(
                "hapax_identity_fields_ignored_total{{field=\"{field}\"}}"
            ))
            .await
    };
    assert_eq!(world.send(false, shared("a")).await.status, 201);
    assert_eq!(
        (ignored("cookie").await, ignored("other").await),
        (0, 0),
        "the credential alone is nothing to tell of"
    );
    for _ in 0..3 {
        world
            .send(
                false,
                shared("b")
                    .with("cookie", "session=ada")
                    .with("x-one", "1")
                    .with("x-two", "2"),
            )
            .await;
    }
    assert_eq!(
        (ignored("cookie").await, ignored("other").await),
        (3, 3),
        "each request counts once under each word"
    );
    let mut with_token = shared("c");
    *with_token.uri_mut() = "/charges?api_key=ada".parse().unwrap();
    assert_eq!(world.send(false, with_token).await.status, 201);
    assert_eq!(
        (ignored("query").await, ignored("authorization").await),
        (1, 0)
    );
    world.end().await;
    let world =
        World::start(|config, _| config.principal = "digest:x-api-key".parse().unwrap()).await;
    world
        .send(false, post("k").with("x-api-key", "1").bearer("ada"))
        .await;
    assert_eq!(
        world
            .counted("hapax_identity_fields_ignored_total{field=\"authorization\"}")
            .await,
        1
    );
    world.end().await;
}
