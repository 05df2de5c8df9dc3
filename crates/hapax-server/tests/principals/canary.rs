//! Canaries: every answer carries a string of its own, and none is found where it does not belong.
//!
//! The program itself, once with tokens and once with credentials that are not verified: 25 callers with 20 operations each, all of them
//! with the very same requests under the very same keys, so that nothing but who is asking tells them apart.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use hapax_server::config::Protocol;
use http::Request;
use http_body_util::{BodyExt, Full};
use jsonwebtoken::Algorithm;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Asked, Client, Got, With, empty};
use crate::issuer::{AUDIENCE, ISSUER, Issuer, claims_but, jwks, now};
use crate::world::Upstream;

const CALLERS: usize = 25;
const OPERATIONS: usize = 20;

/// `hapax serve`, and where it listens. Killed when dropped.
struct Program {
    process: Child,
    clients: SocketAddr,
    operators: SocketAddr,
}

impl Program {
    fn start(directory: &Path, upstream: &Upstream, principal: &str) -> Program {
        let (config, log) = (directory.join("hapax.toml"), File::create(directory.join("log")).unwrap());
        let settings = format!(
            "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstore = \"sqlite:hapax.db\"\n{principal}\n\
             [upstream]\nurl = \"http://{}\"\n\n[drain]\nnotice = \"0s\"\n",
            upstream.address
        );
        std::fs::write(&config, settings).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_hapax"))
            .args(["serve", "--log", "json", "--config"])
            .arg(&config)
            .env("HAPAX_LOG", "trace")
            .env("RUST_LOG", "trace")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut address = |name: &str| {
            let line = lines.find(|line| line.trim_start().starts_with(name)).expect("it says where it listens");
            let (_, url) = line.split_once("http://").unwrap();
            url.split(['/', ',']).next().unwrap().parse().unwrap()
        };
        let (clients, operators) = (address("clients"), address("operators"));
        // Whatever it says later goes nowhere, and must not stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Program { process, clients, operators }
    }

    async fn ask(&self, target: &str) -> String {
        let got = Client::new(self.operators, false).send(Request::get(target).body(empty()).unwrap()).await;
        assert!(got.status.is_success(), "{target}: {got:?}");
        got.text()
    }

    /// Stops it; everything it has logged.
    fn end(mut self, directory: &Path) -> String {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        self.process.wait().unwrap();
        std::fs::read_to_string(directory.join("log")).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How callers show who they are.
enum Source {
    Jwt(Box<Issuer>),
    Digest,
}

impl Source {
    fn good(&self, caller: &str) -> String {
        match self {
            Source::Jwt(issuer) => format!("Bearer {}", issuer.token(caller)),
            Source::Digest => format!("Bearer secret-credential-of-{caller}-alone"),
        }
    }

    /// Ways in which somebody might try to pass for a caller.
    fn bad(&self, caller: &str) -> Vec<String> {
        let good = self.good(caller);
        match self {
            Source::Jwt(issuer) => vec![
                format!("Bearer {}", issuer.sign(&issuer.header(), &claims_but(caller, "exp", json!(now() - 3600)))),
                format!("Bearer {}", issuer.sign(&issuer.header(), &claims_but(caller, "aud", json!("other")))),
                format!("Bearer {}", Issuer::new("one", Algorithm::EdDSA).token(caller)),
                good.rsplit_once('.').unwrap().0.to_owned(),
            ],
            Source::Digest => vec![good.to_uppercase(), good.replace("Bearer", "Basic"), good[..good.len() - 1].to_owned()],
        }
    }
}

fn operation(number: usize) -> Asked {
    let body = Full::from("{\"amount\":5}").boxed();
    Request::post(format!("/operations/{number}")).body(body).unwrap().with("idempotency-key", &format!("key-{number}"))
}

/// Every canary in a text.
fn canaries(text: &str) -> Vec<&str> {
    text.match_indices("canary-").filter_map(|(at, _)| text.get(at..at + "canary-".len() + 32)).collect()
}

fn canaries_of(got: &Got) -> Vec<String> {
    canaries(&format!("{:?} {}", got.headers, got.text())).into_iter().map(str::to_owned).collect()
}

/// What is known of whose answer is whose.
#[derive(Default)]
struct Canaries(BTreeMap<(usize, usize), String>);

impl Canaries {
    fn all(&self) -> HashSet<&str> {
        self.0.values().map(String::as_str).collect()
    }

    /// How many of the callers' canaries are in a text.
    fn leaked(&self, text: &str) -> usize {
        let all = self.all();
        canaries(text).into_iter().filter(|canary| all.contains(canary)).count()
    }
}

/// Asks for every operation in the name of every caller; what each got.
async fn round(clients: SocketAddr, request: Arc<dyn Fn(usize, usize) -> Asked + Send + Sync>) -> Vec<((usize, usize), Got)> {
    let mut tasks = JoinSet::new();
    for caller in 0..CALLERS {
        let request = request.clone();
        tasks.spawn(async move {
            let mut got = Vec::new();
            for number in 0..OPERATIONS {
                let client = Client::new(clients, (caller + number) % 2 == 1);
                got.push(((caller, number), client.send(request(caller, number)).await));
            }
            got
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

async fn no_canary_strays(source: Source) {
    let (directory, upstream) = (tempfile::tempdir().unwrap(), Upstream::start(Protocol::Http1).await);
    let settings = match &source {
        Source::Jwt(issuer) => {
            std::fs::write(directory.path().join("jwks.json"), jwks(&[issuer])).unwrap();
            format!(
                "principal = \"jwt:sub\"\n[jwt]\nalgorithms = [\"EdDSA\"]\nkeys_file = \"jwks.json\"\nissuer = \"{ISSUER}\"\naudience = \"{AUDIENCE}\"\n"
            )
        }
        Source::Digest => "principal = \"digest:authorization\"\n".to_owned(),
    };
    let program = Program::start(directory.path(), &upstream, &settings);
    let source = Arc::new(source);
    let as_caller = |change: fn(Asked) -> Asked| -> Arc<dyn Fn(usize, usize) -> Asked + Send + Sync> {
        let source = source.clone();
        Arc::new(move |caller, number| change(operation(number).with("authorization", &source.good(&format!("caller-{caller}")))))
    };

    // Everybody's own.
    let mut known = Canaries::default();
    for (whose, got) in round(program.clients, as_caller(|request| request)).await {
        assert!(got.status == 201 && !got.is_replay(), "{got:?}");
        known.0.insert(whose, got.header("x-canary").unwrap().to_owned());
    }
    assert_eq!((known.all().len(), upstream.effects()), (CALLERS * OPERATIONS, CALLERS * OPERATIONS));
    for (whose, got) in round(program.clients, as_caller(|request| request)).await {
        let own = &known.0[&whose];
        assert!(got.is_replay() && canaries_of(&got).iter().all(|canary| canary == own), "{whose:?}: {got:?}");
    }

    // Nobody else's: others, nobody, their own credentials gone bad, and their own keys for something else.
    let (mut asked, mut strayed) = (0, 0);
    let wrong: Vec<Arc<dyn Fn(usize, usize) -> Asked + Send + Sync>> = {
        let (stranger, bad) = (source.clone(), source.clone());
        vec![
            Arc::new(move |caller, number| operation(number).with("authorization", &stranger.good(&format!("stranger-{caller}")))),
            Arc::new(|_, number| operation(number)),
            Arc::new(move |caller, number| {
                let credentials = bad.bad(&format!("caller-{caller}"));
                operation(number).with("authorization", &credentials[number % credentials.len()])
            }),
            as_caller(|request| request.map(|_| Full::from("{\"amount\":6}").boxed())),
            as_caller(|mut request| {
                *request.uri_mut() = format!("{}/more", request.uri()).parse().unwrap();
                request
            }),
            as_caller(|mut request| {
                *request.method_mut() = http::Method::PATCH;
                request
            }),
            as_caller(|request| request.with("authorization", "Bearer another")),
        ]
    };
    for request in wrong {
        for (whose, got) in round(program.clients, request).await {
            assert!(
                !got.is_replay() || got.header("x-canary").is_some_and(|canary| !known.all().contains(canary)),
                "{whose:?}: {got:?}"
            );
            asked += 1;
            strayed += canaries_of(&got).iter().filter(|canary| known.all().contains(canary.as_str())).count();
        }
    }

    // Something for the log to tell of.
    for caller in 0..CALLERS {
        let mut lost = operation(caller).with("authorization", &source.good(&format!("caller-{caller}")));
        *lost.uri_mut() = "/break-off".parse().unwrap();
        let got = Client::new(program.clients, false).send(lost).await;
        assert_eq!(got.problem(), "outcome-unknown");
    }

    let (listed, shown) = operators(&program, &known).await;
    let public = program.ask("/metrics").await
        + &Client::new(program.clients, false).send(Request::get("/.well-known/idempotency").body(empty()).unwrap()).await.text();
    let operators = program.operators;
    let log = program.end(directory.path());
    let credentials: Vec<String> =
        (0..CALLERS).map(|caller| source.good(&format!("caller-{caller}")).replace("Bearer ", "")).collect();
    let told = |text: &str| credentials.iter().filter(|credential| text.contains(credential.as_str())).count();
    println!(
        "{}: {} canaries; {asked} wrong questions: {strayed} strayed; {} bytes of metrics: {}; {} bytes of lists by {operators}: {}; \
         {shown} answers shown to operators, each its own; {} lines of log: {}",
        if matches!(*source, Source::Digest) { "digest" } else { "jwt" },
        known.0.len(),
        public.len(),
        known.leaked(&public),
        listed.len(),
        known.leaked(&listed),
        log.lines().count(),
        known.leaked(&log),
    );
    assert_eq!((strayed, known.leaked(&public), known.leaked(&listed), known.leaked(&log)), (0, 0, 0, 0));
    assert_eq!((told(&public), told(&listed), told(&log)), (0, 0, 0), "nor is any credential told");
    assert!(log.lines().count() >= CALLERS && listed.len() > 100_000, "there was something to look through");
}

/// What operators see: lists, which hold no answers at all, and single answers, each of them its own.
async fn operators(program: &Program, known: &Canaries) -> (String, usize) {
    let (mut listed, mut shown, mut after) = (String::new(), 0, String::new());
    let all = known.all();
    loop {
        let page = program.ask(&format!("/v1/keys?limit=1000{after}")).await;
        let document: Value = serde_json::from_str(&page).unwrap();
        listed += &page;
        for entry in document["keys"].as_array().unwrap().iter().step_by(50) {
            let id = entry["id"].as_str().unwrap();
            listed += &program.ask(&format!("/v1/keys/{id}")).await;
            if let Some(principal) = entry["principal"].as_str() {
                let principal = principal.replace(' ', "%20");
                listed += &program.ask(&format!("/v1/keys?limit=1000&principal={principal}")).await;
            }
            let answer = program.ask(&format!("/v1/keys/{id}?answer=true")).await;
            let found: HashSet<&str> = canaries(&answer).into_iter().filter(|canary| all.contains(canary)).collect();
            assert!(found.len() <= 1, "{answer}");
            if let ([canary], Some(owner)) = (&found.iter().collect::<Vec<_>>()[..], entry["principal"].as_str())
                && let Some((_, caller)) = owner.rsplit_once(" caller-")
            {
                let number = entry["path"].as_str().unwrap().strip_prefix("/operations/").unwrap();
                assert_eq!(known.0[&(caller.parse().unwrap(), number.parse().unwrap())], **canary, "{answer}");
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
async fn no_canary_of_a_caller_with_a_token_strays() {
    no_canary_strays(Source::Jwt(Box::new(Issuer::new("one", Algorithm::EdDSA)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_of_a_caller_with_a_credential_strays() {
    no_canary_strays(Source::Digest).await;
}
