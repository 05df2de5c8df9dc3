//! The server, in its own process so that its processor time can be measured separately.

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use hapax::{Hapax, KeyRule, Policy, Sqlite};

use crate::Error;
use crate::child;
use crate::flags::{Command, Flag, Flags};
use crate::load::ANSWER_BYTES;

/// The command of the child that serves until it is killed.
pub(crate) const SERVE: Command = Command {
    name: "serve",
    help: "",
    flags: &[
        Flag::new("--kind", "", ""),
        Flag::new("--store", "", ""),
        Flag::new("--threads", "2", ""),
    ],
    run,
};

fn run(flags: &Flags) -> Result<(), Error> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime
        .worker_threads(flags.count("--threads")?)
        .enable_all()
        .build()?
        .block_on(serve(flags))
}

async fn serve(flags: &Flags) -> Result<(), Error> {
    child::end_with_parent();
    let hapax = match flags.text("--kind") {
        "bare" => None,
        "memory" => Some(Hapax::new(hapax::store::memory())),
        "sqlite" => Some(Hapax::new(Sqlite::open(flags.text("--store")).await?)),
        other => return Err(format!("no server is of kind {other:?}").into()),
    };
    let mut routes = Router::new().route("/v1/charges", post(charge));
    if let Some(hapax) = hapax {
        let policy = Policy {
            key: KeyRule::Required,
            ..Policy::default()
        };
        routes = routes.route_layer(hapax.guard().policy(policy).anonymous().build()?);
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    // An answer must not wait for the acknowledgement of the previous one.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    Ok(axum::serve(listener, routes).await?)
}

/// Reads the whole request, as a handler does, and answers with `ANSWER_BYTES` bytes.
async fn charge(body: Bytes) -> Response {
    static ANSWER: [u8; ANSWER_BYTES] = [b'7'; ANSWER_BYTES];
    let status = if body.is_empty() {
        StatusCode::BAD_REQUEST
    } else {
        StatusCode::CREATED
    };
    (
        status,
        [(CONTENT_TYPE, HeaderValue::from_static("application/json"))],
        Bytes::from_static(&ANSWER),
    )
        .into_response()
}
