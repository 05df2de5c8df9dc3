//! Several sources: the first identifies the caller, the others divide that caller's records.

use hapax_server::config::{Config, Protocol};

use crate::client::{Tells, post};
use crate::harness::{Answer, Client, ClientRequest, Service, Serving, With, whole, with};
use crate::world::{Upstream, World, serve};

const STRANGER: &str = "127.0.0.2";

fn stripe(config: &mut Config) {
    config.principal = "digest:authorization, header:stripe-account"
        .parse()
        .unwrap();
}

/// Sends each request twice under the same key: all first requests have their own effects, and each
/// repeat gets its own first answer.
async fn are_all_apart(world: &World, requests: &[&dyn Fn() -> ClientRequest]) {
    let before = world.upstream.effects();
    let mut firsts: Vec<Answer> = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        let first = world.send(index % 2 == 1, request()).await;
        assert!(
            first.status == 201 && !first.is_replay(),
            "{index}: {first:?}"
        );
        firsts.push(first);
    }
    for (index, request) in requests.iter().enumerate() {
        let again = world.send(index % 2 == 0, request()).await;
        assert!(
            again.is_replay() && again.tells(&firsts[index]),
            "{index}: {again:?}"
        );
    }
    assert_eq!(world.upstream.effects() - before, requests.len());
}

#[tokio::test]
async fn one_credential_for_two_accounts_is_two_callers() {
    let world = World::start(|config, _| stripe(config)).await;
    let as_platform = |credential: &str| post("k").bearer(credential);
    are_all_apart(
        &world,
        &[
            &|| as_platform("one").with("stripe-account", "acct_1"),
            &|| as_platform("one").with("stripe-account", "acct_2"),
            &|| as_platform("one"),
            &|| as_platform("two").with("stripe-account", "acct_1"),
            &|| as_platform("two"),
            &|| post("k").with("stripe-account", "acct_1"),
            &|| post("k"),
        ],
    )
    .await;
    let accounts = world
        .upstream
        .all()
        .iter()
        .filter(|seen| seen.headers.contains_key("stripe-account"))
        .count();
    assert_eq!(accounts, 4, "the field is the caller's own, and passes");
    let effects = world.upstream.effects();
    for bad in [
        as_platform("one")
            .with("stripe-account", "acct_1")
            .with("stripe-account", "acct_2"),
        as_platform("one").with("stripe-account", ""),
        post("k")
            .with("stripe-account", "acct_1")
            .with("x-user", "ada"),
        post("k")
            .with("stripe-account", "acct_1")
            .with("authorization", "Signature keyId=1"),
    ] {
        let got = world.send(false, bad).await;
        assert_eq!(
            got.refusal(),
            (400, "principal-missing".to_owned()),
            "{got:?}"
        );
    }
    assert_eq!(world.upstream.effects(), effects);
    world.end().await;
}

#[tokio::test]
async fn what_proxies_say_in_a_list_only_they_may_say() {
    let settle = |principal: &'static str| {
        move |config: &mut Config, _: &std::path::Path| {
            config.principal = principal.parse().unwrap();
            config.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
        }
    };
    let world = World::start(settle("header:x-user, header:x-tenant")).await;
    are_all_apart(
        &world,
        &[
            &|| post("k").with("x-user", "ada").with("x-tenant", "1"),
            &|| post("k").with("x-user", "ada").with("x-tenant", "2"),
            &|| post("k").with("x-user", "ada"),
            &|| post("k").with("x-user", "eve").with("x-tenant", "1"),
            &|| {
                post("k")
                    .with("x-user", "ada & header:x-tenant 1")
                    .with("x-tenant", "1")
            },
        ],
    )
    .await;
    let effects = world.upstream.effects();
    let tenant_alone = world.send(false, post("k").with("x-tenant", "1")).await;
    assert_eq!(
        tenant_alone.code(),
        "principal-missing",
        "the first source must say who is asking"
    );
    let stranger = Client::new(world.address()).from(STRANGER);
    let got = stranger
        .send(post("k").with("x-user", "ada").with("x-tenant", "1"))
        .await;
    assert_eq!(got.code(), "principal-missing");
    assert_eq!(world.upstream.effects(), effects);
    world.end().await;

    // If there are trusted proxies, additional fields also count only from them.
    let world = World::start(settle("digest:authorization, header:x-user")).await;
    let shared = || post("k").with("authorization", "Basic c2hhcmVk");
    let ada = world.send(false, shared().with("x-user", "ada")).await;
    let stranger = Client::new(world.address()).from(STRANGER);
    for request in [shared().with("x-user", "ada"), shared()] {
        let got = stranger.send(request).await;
        assert!(
            got.code() == "principal-missing" && !got.tells(&ada),
            "{got:?}"
        );
    }
    assert_eq!(world.upstream.effects(), 1);
    world.end().await;
}

/// An auth service that identifies callers by the number in their credential.
fn provider() -> Service {
    Service::start(Serving::default(), |asked| {
        let number = asked.field("authorization").replace("Bearer ", "");
        with(whole(200, ""), "x-auth-user", &number)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_name_from_another_provider_is_another_caller() {
    let (first, second, directory) = (provider(), provider(), tempfile::tempdir().unwrap());
    let upstream = Upstream::start(Protocol::Http1);
    // The same store under one configuration after another.
    let ask = async |url: String| {
        let settings = format!(
            "principal = \"forward-auth:{url}\"\n[forward_auth]\nprincipal_field = \"x-auth-user\"\n"
        );
        let program = serve(directory.path(), &upstream, &settings);
        let got = Client::new(program.clients)
            .send(post("k").bearer("1"))
            .await;
        program.end();
        assert_eq!(got.status, 201, "{url}: {got:?}");
        got.is_replay()
    };
    let (one, two) = (
        format!("http://{}", first.address),
        format!("http://{}", second.address),
    );
    for (url, is_replay) in [
        (format!("{one}/verify"), false),
        (format!("{one}/verify"), true),
        // A renewed secret does not change the principal.
        (format!("{one}/verify?token=s3"), true),
        (format!("{one}/verify?token=s4"), true),
        (format!("{two}/verify"), false),
        (format!("{one}/other"), false),
        (format!("{one}/verify?tenant=a"), false),
        (format!("{one}/verify?tenant=b"), false),
        (format!("{one}/verify?tenant=a"), true),
    ] {
        assert_eq!(ask(url.clone()).await, is_replay, "{url}");
    }
}
