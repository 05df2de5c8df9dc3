//! Canaries: every answer contains a unique string, and none may appear where it does not belong.
//!
//! A campaign against the program itself, with each source of principals. Callers send identical
//! requests under identical keys, so that only the principal distinguishes them: as themselves, as
//! each other, anonymously, with invalid credentials, and with other callers' fields beside their
//! own. Every canary belongs to the first caller and operation that got it.
//!
//! The ordinary run is a sample. The whole campaign: `HAPAX_CANARY_PROBES=100000 cargo test -p
//! hapax-server --test principals canary -- --nocapture`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;

use hapax_server::config::Protocol;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use jsonwebtoken::Algorithm;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::{
    self, Answer, Client, ClientRequest, Program, Service, Serving, With, get, whole, with,
};
use crate::issuer::{AUDIENCE, ISSUER, Issuer, claims_but, jwks, now};
use crate::world::{Upstream, ask, serve};

const CALLERS: usize = 12;
const OPERATIONS: usize = 12;
/// The number of probes in an ordinary run, over all sources.
const PROBES: usize = 6_000;
const SOURCES: usize = 7;
/// The number of concurrent probes.
const AT_ONCE: usize = 16;

const TRUSTED: &str = "127.0.0.1";
const STRANGER: &str = "127.0.0.2";
const URL_SECRET: &str = "secret-in-the-url-of-forward-auth";

/// Fields that identify no caller. Each may be present or not without any effect.
const HARMLESS: [(&str, &str); 12] = [
    ("user-agent", "curl/8"),
    ("accept", "*/*"),
    ("accept-language", "en"),
    ("sec-fetch-mode", "cors"),
    ("sec-ch-ua", "\"a\""),
    ("x-forwarded-for", "203.0.113.9"),
    ("cf-ray", "1"),
    ("x-amzn-trace-id", "Root=1"),
    ("x-envoy-external-address", "203.0.113.9"),
    (
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ),
    ("x-correlation-id", "17"),
    ("origin", "https://shop.example"),
];

/// Fields that identify callers under other settings. Beside a caller's own credential they change
/// nothing; alone they identify no one.
const DECOYS: [&str; 16] = [
    "x-user",
    "x-webauth-user",
    "x-forwarded-user",
    "x-forwarded-tls-client-cert",
    "client-cert",
    "x-amzn-mtls-clientcert",
    "x-ssl-client-s-dn",
    "tailscale-user-login",
    "x-goog-iap-jwt-assertion",
    "x-pomerium-jwt-assertion",
    "x-api-key",
    "cookie",
    "x-user-id",
    "sec-websocket-protocol",
    "x-tenant",
    "x_user",
];

/// The sources of principals.
enum Source {
    Digest,
    Cookie,
    Header,
    Jwt(Box<Issuer>),
    ForwardAuth(Box<Service>),
    List,
    /// The default source, without credentials: all such requests are one anonymous caller.
    Anonymous,
}

impl Source {
    fn word(&self) -> &'static str {
        match self {
            Source::Digest => "digest",
            Source::Cookie => "cookie",
            Source::Header => "header",
            Source::Jwt(_) => "jwt",
            Source::ForwardAuth(_) => "forward-auth",
            Source::List => "list",
            Source::Anonymous => "anonymous",
        }
    }

    fn settings(&self, directory: &Path) -> String {
        match self {
            Source::Digest => "principal = \"digest:authorization\"\n".to_owned(),
            Source::Cookie => "principal = \"cookie:session\"\n".to_owned(),
            Source::Header => {
                format!("principal = \"header:x-caller\"\ntrusted_proxies = [\"{TRUSTED}\"]\n")
            }
            Source::Jwt(issuer) => {
                std::fs::write(directory.join("jwks.json"), jwks(&[issuer])).unwrap();
                format!(
                    "principal = \"jwt:sub\"\n[jwt]\nalgorithms = [\"EdDSA\"]\nkeys_file = \"jwks.json\"\nissuer = \"{ISSUER}\"\naudience = \"{AUDIENCE}\"\n"
                )
            }
            Source::ForwardAuth(service) => format!(
                "principal = \"forward-auth:{}\"\n[forward_auth]\nprincipal_field = \"x-auth-user\"\npass = [\"x-auth-user\"]\n",
                service.url(&format!("/verify?token={URL_SECRET}"))
            ),
            Source::List => {
                "principal = [\"digest:authorization\", \"header:stripe-account\"]\n".to_owned()
            }
            Source::Anonymous => String::new(),
        }
    }

    /// The fields of a caller.
    fn good(&self, caller: usize) -> Vec<(&'static str, String)> {
        let name = format!("caller-{caller}");
        match self {
            Source::Digest => vec![(
                "authorization",
                format!("Bearer secret-credential-of-{name}-alone"),
            )],
            Source::Cookie => vec![(
                "cookie",
                format!("_ga={name}; session=secret-session-of-{name}-alone"),
            )],
            Source::Header => vec![("x-caller", name)],
            Source::Jwt(issuer) => {
                vec![("authorization", format!("Bearer {}", issuer.token(&name)))]
            }
            Source::ForwardAuth(_) => {
                vec![("authorization", format!("Bearer secret-session-of-{name}"))]
            }
            // Three credentials, each used with several accounts and without one.
            Source::List => {
                let credential = (
                    "authorization",
                    format!("Bearer secret-credential-{}", caller % 3),
                );
                let account =
                    (caller >= 3).then(|| ("stripe-account", format!("acct_{}", caller / 3)));
                [credential].into_iter().chain(account).collect()
            }
            Source::Anonymous => Vec::new(),
        }
    }

    /// Fields with which an attacker might impersonate a caller, and which identify no one.
    fn bad(&self, caller: usize, turn: usize) -> Vec<(&'static str, String)> {
        let good = self.good(caller);
        let changed = |value: String| {
            [("authorization", value)]
                .into_iter()
                .chain(good.iter().skip(1).cloned())
                .collect()
        };
        let twice = || good.iter().cloned().chain(good.first().cloned()).collect();
        let bearer = || good[0].1.clone();
        let name = format!("caller-{caller}");
        match self {
            Source::Digest | Source::List => match turn % 3 {
                0 => changed(bearer().replace("Bearer", "Signature")),
                1 => changed(format!("{}, Bearer more", bearer())),
                _ => twice(),
            },
            Source::Cookie => match turn % 3 {
                0 => vec![("cookie", format!("Session=secret-session-of-{name}-alone"))],
                1 => vec![(
                    "authorization",
                    format!("Bearer secret-session-of-{name}-alone"),
                )],
                _ => twice(),
            },
            Source::Header => match turn % 2 {
                0 => vec![("x_caller", name)],
                _ => twice(),
            },
            Source::Jwt(issuer) => match turn % 4 {
                0 => changed(format!(
                    "Bearer {}",
                    issuer.sign(
                        &issuer.header(),
                        &claims_but(&name, "exp", json!(now() - 3600))
                    )
                )),
                1 => changed(format!(
                    "Bearer {}",
                    issuer.sign(&issuer.header(), &claims_but(&name, "aud", json!("other")))
                )),
                2 => changed(format!(
                    "Bearer {}",
                    Issuer::new("one", Algorithm::EdDSA).token(&name)
                )),
                _ => changed(bearer().rsplit_once('.').unwrap().0.to_owned()),
            },
            Source::ForwardAuth(_) => changed(format!("Bearer forged-session-of-{name}")),
            Source::Anonymous => vec![(DECOYS[turn % (DECOYS.len() - 1)], name)],
        }
    }

    /// Whether a request without credentials is accepted as anonymous.
    fn takes_anybody(&self) -> bool {
        matches!(
            self,
            Source::Digest | Source::Cookie | Source::List | Source::Anonymous
        )
    }
}

/// The service that forward-auth asks. It accepts sessions, and returns short names of callers.
fn auth_service() -> Service {
    Service::start(Serving::default(), |asked| {
        match asked
            .field("authorization")
            .strip_prefix("Bearer secret-session-of-")
        {
            Some(name) => with(whole(200, ""), "x-auth-user", name),
            None => whole(401, "who are you?"),
        }
    })
}

/// A pseudo-random sequence that is the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

/// One request, and whose answers it may get.
struct Probe {
    request: ClientRequest,
    from: &'static str,
    is_http2: bool,
    /// The caller, as the test knows it. With `None`, the request must get no answer at all.
    who: Option<String>,
    operation: String,
    kind: &'static str,
}

fn probe(source: &Source, numbers: &mut Numbers) -> Probe {
    let (caller, number) = (numbers.below(CALLERS), numbers.below(OPERATIONS));
    let method = if numbers.below(8) == 0 {
        Method::PATCH
    } else {
        Method::POST
    };
    let path = format!(
        "/operations/{number}{}",
        if numbers.below(8) == 0 { "/more" } else { "" }
    );
    let body = if numbers.below(8) == 0 {
        "{\"amount\":6}"
    } else {
        "{\"amount\":5}"
    };
    let mut request = Request::builder()
        .method(&method)
        .uri(&path)
        .body(Full::from(body).boxed())
        .unwrap();
    request = request.with("idempotency-key", &format!("key-{number}"));
    let (fields, mut who, mut kind) = match numbers.below(6) {
        0 if source.takes_anybody() => (Vec::new(), Some("anybody".to_owned()), "nobody"),
        0 => (Vec::new(), None, "nobody"),
        1 => (source.bad(caller, numbers.below(60)), None, "bad"),
        _ => (source.good(caller), Some(format!("caller-{caller}")), "own"),
    };
    // All requests without credentials are one caller, however they are made.
    if fields.is_empty() && who.is_some() {
        who = Some("anybody".to_owned());
    }
    for (name, value) in &fields {
        request = request.with(name, value);
    }
    for _ in 0..numbers.below(4) {
        let (name, value) = HARMLESS[numbers.below(HARMLESS.len())];
        if !request.headers().contains_key(name) {
            request = request.with(name, value);
        }
    }
    if numbers.below(3) == 0 {
        let name = DECOYS[numbers.below(DECOYS.len())];
        request = request.with(name, &format!("caller-{}", numbers.below(CALLERS)));
        if kind == "own" {
            kind = "own, with another's field";
        }
        // Without a credential such a field identifies no one; an account is not a credential.
        if who.as_deref() == Some("anybody") {
            (who, kind) = (None, "another's field alone");
        }
    }
    let from = match source {
        Source::Header if numbers.below(4) == 0 => {
            (who, kind) = (None, "stranger");
            STRANGER
        }
        _ => TRUSTED,
    };
    Probe {
        request,
        from,
        is_http2: numbers.below(2) == 0,
        who,
        operation: format!("{method} {path}"),
        kind,
    }
}

/// Every canary in a text.
fn canaries(text: &str) -> Vec<&str> {
    text.match_indices("canary-")
        .filter_map(|(at, _)| text.get(at..at + "canary-".len() + 32))
        .collect()
}

/// The owner of each canary, and the results of the probes.
#[derive(Default)]
struct Canaries {
    owners: HashMap<String, (String, String)>,
    counts: BTreeMap<&'static str, usize>,
    probes: usize,
    firsts: usize,
    replays: usize,
    refused: usize,
    strayed: Vec<String>,
}

impl Canaries {
    /// Checks the answers to some probes: first answers before their replays.
    fn judge(&mut self, mut answered: Vec<(Probe, Answer)>) {
        answered.sort_by_key(|(_, got)| got.is_replay());
        for (probe, got) in answered {
            self.probes += 1;
            *self.counts.entry(probe.kind).or_default() += 1;
            let text = format!("{:?} {}", got.headers, got.text());
            let found: HashSet<&str> = canaries(&text).into_iter().collect();
            match ((200..300).contains(&got.status), got.is_replay()) {
                (true, true) => self.replays += 1,
                (true, false) => self.firsts += 1,
                (false, _) => self.refused += 1,
            }
            let mine = probe.who.clone().map(|who| (who, probe.operation.clone()));
            let is_first = (200..300).contains(&got.status) && !got.is_replay();
            let is_told = !found.is_empty() || (200..300).contains(&got.status);
            let is_right = match &mine {
                None => !is_told,
                Some(mine) if is_first => {
                    let is_second_effect = self.owners.values().any(|owner| owner == mine);
                    let is_new = found.len() == 1
                        && found
                            .iter()
                            .all(|canary| !self.owners.contains_key(*canary));
                    self.owners.extend(
                        found
                            .iter()
                            .map(|canary| ((*canary).to_owned(), mine.clone())),
                    );
                    is_new && !is_second_effect
                }
                Some(mine) => found
                    .iter()
                    .all(|canary| self.owners.get(*canary) == Some(mine)),
            };
            if !is_right {
                self.strayed
                    .push(format!("{} as {mine:?}: {got:?}", probe.kind));
            }
        }
    }

    /// The number of the callers' canaries in a text.
    fn leaked(&self, text: &str) -> usize {
        canaries(text)
            .into_iter()
            .filter(|canary| self.owners.contains_key(*canary))
            .count()
    }
}

async fn send(clients: SocketAddr, probes: Vec<Probe>) -> Vec<(Probe, Answer)> {
    let mut tasks = JoinSet::new();
    for mut probe in probes {
        tasks.spawn(async move {
            let request = std::mem::replace(&mut probe.request, get("/"));
            let got = Client::new(clients)
                .http2(probe.is_http2)
                .from(probe.from)
                .send(request)
                .await;
            (probe, got)
        });
    }
    tasks.join_all().await
}

fn probes_of_each_source() -> usize {
    let all = std::env::var("HAPAX_CANARY_PROBES")
        .ok()
        .map_or(PROBES, |count| count.parse().expect("a number of probes"));
    all.div_ceil(SOURCES)
}

async fn no_canary_strays(source: Source) {
    let (directory, upstream) = (
        tempfile::tempdir().unwrap(),
        Upstream::start(Protocol::Http1),
    );
    let program = serve(
        directory.path(),
        &upstream,
        &source.settings(directory.path()),
    );
    let (mut known, mut numbers) = (Canaries::default(), Numbers(17));
    while known.probes < probes_of_each_source() {
        let probes = (0..AT_ONCE).map(|_| probe(&source, &mut numbers)).collect();
        known.judge(send(program.clients, probes).await);
    }
    let strayed = known.strayed.len();
    hapax_testkit::report!(
        "canary, {}: {} probes {:?}: {} first answers, {} replays, {} refused; {strayed} strayed",
        source.word(),
        known.probes,
        known.counts,
        known.firsts,
        known.replays,
        known.refused
    );
    assert_eq!(strayed, 0, "{:#?}", &known.strayed[..strayed.min(5)]);
    assert_eq!(
        upstream.effects(),
        known.owners.len(),
        "one effect for each caller and operation"
    );
    let at_least = if matches!(source, Source::Anonymous) {
        OPERATIONS
    } else {
        5 * OPERATIONS
    };
    assert!(
        known.owners.len() >= at_least && known.replays > 50 && known.refused > 50,
        "there was something to find"
    );

    // Lost attempts, so that the log has something to report.
    for caller in 0..CALLERS {
        let lost = harness::post("/break-off", "{}").key(&format!("lost-{caller}"));
        let lost = source
            .good(caller)
            .iter()
            .fold(lost, |request, (name, value)| request.with(name, value));
        assert_eq!(
            Client::new(program.clients).send(lost).await.code(),
            "outcome-unknown"
        );
    }
    nothing_is_told(program, &source, &known).await;
}

/// Operators' pages, metrics and the log contain neither an answer nor a credential.
async fn nothing_is_told(program: Program, source: &Source, known: &Canaries) {
    let (listed, shown) = operators(&program, known).await;
    let well_known = get("/.well-known/idempotency");
    let public = ask(program.admin, "/metrics").await
        + program.log()
        + Client::new(program.clients).send(well_known).await.text();
    let log = program.end();
    let names_callers = matches!(
        source,
        Source::Header | Source::Jwt(_) | Source::ForwardAuth(_)
    );
    let credentials: Vec<String> = (0..CALLERS)
        .flat_map(|caller| source.good(caller))
        .filter(|(name, _)| ["authorization", "cookie"].contains(name))
        .map(|(_, value)| {
            value
                .rsplit_once([' ', '='])
                .map_or("", |(_, credential)| credential)
                .to_owned()
        })
        .chain([URL_SECRET.to_owned()])
        .collect();
    let told = |text: &str| {
        credentials
            .iter()
            .filter(|credential| text.contains(credential.as_str()))
            .count()
    };
    hapax_testkit::report!(
        "canary, {}: {} bytes of metrics: {}; {} bytes of lists: {}; {shown} answers shown to operators; {} lines of log: {}",
        source.word(),
        public.len(),
        known.leaked(&public),
        listed.len(),
        known.leaked(&listed),
        log.lines().count(),
        known.leaked(&log),
    );
    assert_eq!(
        (
            known.leaked(&public),
            known.leaked(&listed),
            known.leaked(&log)
        ),
        (0, 0, 0)
    );
    assert_eq!(
        (told(&public), told(&listed), told(&log)),
        (0, 0, 0),
        "nor is any credential told"
    );
    assert!(
        !names_callers || listed.contains("caller-1"),
        "operators see names"
    );
    assert!(
        log.lines().count() >= CALLERS && listed.len() > 1_000 && shown > 0,
        "there was something to look through"
    );
}

/// What operators see: lists, which contain no answers, and single answers, each only its own.
async fn operators(program: &Program, known: &Canaries) -> (String, usize) {
    let (mut listed, mut shown, mut after) = (String::new(), 0, String::new());
    loop {
        let page = ask(program.admin, &format!("/v1/keys?limit=1000{after}")).await;
        let document: Value = serde_json::from_str(&page).unwrap();
        listed += &page;
        for entry in document["keys"].as_array().unwrap().iter().step_by(20) {
            let id = entry["id"].as_str().unwrap();
            listed += &ask(program.admin, &format!("/v1/keys/{id}")).await;
            let answer = ask(program.admin, &format!("/v1/keys/{id}?answer=true")).await;
            let found: HashSet<&str> = canaries(&answer).into_iter().collect();
            assert!(found.len() <= 1, "{answer}");
            let operation = format!(
                "{} {}",
                entry["method"].as_str().unwrap(),
                entry["path"].as_str().unwrap()
            );
            for canary in &found {
                let (who, of) = &known.owners[*canary];
                assert_eq!(*of, operation, "{answer}");
                if let Some((_, caller)) = entry["principal"]
                    .as_str()
                    .and_then(|name| name.rsplit_once(" caller-"))
                {
                    assert_eq!(*who, format!("caller-{caller}"), "{answer}");
                }
            }
            shown += found.len();
        }
        match document["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return (listed, shown),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_of_a_caller_with_a_credential_strays() {
    no_canary_strays(Source::Digest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_of_a_caller_with_a_cookie_strays() {
    no_canary_strays(Source::Cookie).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_of_a_caller_with_a_token_strays() {
    no_canary_strays(Source::Jwt(Box::new(Issuer::new("one", Algorithm::EdDSA)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_of_a_caller_that_a_proxy_names_strays() {
    no_canary_strays(Source::Header).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_of_a_caller_whom_another_service_knows_strays() {
    no_canary_strays(Source::ForwardAuth(Box::new(auth_service()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_of_a_caller_known_by_a_list_strays() {
    no_canary_strays(Source::List).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_of_an_anonymous_caller_strays() {
    no_canary_strays(Source::Anonymous).await;
}
