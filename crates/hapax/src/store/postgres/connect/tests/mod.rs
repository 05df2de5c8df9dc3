mod between;
mod reach;
mod server;
mod tls;

use std::net::{SocketAddr, TcpListener};

use super::*;
use crate::store::postgres::OptionsError;

/// Options from the text alone, without the environment of the machine.
fn options(text: &str) -> ConnectOptions {
    options_in(text, &[])
}

fn options_in(text: &str, variables: &[(&str, &str)]) -> ConnectOptions {
    let environment = |name: &str| {
        variables
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| (*value).to_owned())
    };
    let options: Result<_, OptionsError> = ConnectOptions::parse_with(text, &environment);
    options.expect("options that can be read")
}

async fn connected(text: &str) -> Connected {
    connect(&options(text))
        .await
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The error of a connection that must fail. Its text must name the target and show no password.
async fn failure(text: &str) -> ConnectError {
    failure_of(&options(text)).await
}

async fn failure_of(options: &ConnectOptions) -> ConnectError {
    let Err(error) = connect(options).await else {
        panic!("{options} let us in")
    };
    let shown = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
    assert!(!shown.contains("hush"), "{shown}");
    for word in options
        .addresses()
        .iter()
        .map(String::as_str)
        .chain([options.database(), options.user()])
    {
        assert!(
            error.to_string().contains(word),
            "{error} does not name {word}"
        );
    }
    error
}

async fn ask(connected: &Connected, sql: &str) -> String {
    let answer = connected.client.simple_query(sql).await.unwrap();
    let row = answer.iter().find_map(|message| {
        if let SimpleQueryMessage::Row(row) = message {
            row.get(0)
        } else {
            None
        }
    });
    row.unwrap_or_default().to_owned()
}

/// An address at which nothing listens.
fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}
