//! Sends requests to the admin listener of a running gateway: one HTTP/1.1 request per connection.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use hapax::RecordId;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::admin::keys::logged::LoggedPage;
use crate::admin::keys::wire::{Entry, Forget, Page, Query, Settle, Shown};
use crate::admin::log::Which;
use crate::admin::reload::{Reload, Reloaded};
use crate::config::Secret;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit on an answer: more than a page of a thousand keys, or the largest kept answer as base64.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A gateway's admin listener.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Client {
    authority: String,
    token: Option<Secret>,
}

/// Why there is no result.
#[derive(Debug)]
pub(in crate::cli) enum ClientError {
    /// The gateway refused the request; this is the reason.
    Refused(StatusCode, String),
    /// There is no gateway, or its answer makes no sense.
    Unreachable(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ClientError::Refused(_, detail) | ClientError::Unreachable(detail)) = self;
        f.write_str(detail)
    }
}

impl Client {
    pub(in crate::cli) fn new(url: &str, token: Option<Secret>) -> Result<Client, String> {
        let wrong = || {
            format!(
                "`{url}` is not the address of an admin listener: write http://HOST:PORT, as in http://127.0.0.1:4001"
            )
        };
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let authority = uri
            .authority()
            .filter(|authority| !authority.as_str().contains('@'))
            .ok_or_else(wrong)?;
        if uri.scheme_str() != Some("http")
            || !matches!(uri.path(), "" | "/")
            || uri.query().is_some()
        {
            return Err(wrong());
        }
        let port = authority.port_u16().unwrap_or(80);
        Ok(Client {
            authority: format!("{}:{port}", authority.host()),
            token,
        })
    }

    /// The answer to a GET without a token. `patience` limits the whole exchange.
    pub(in crate::cli) async fn get(
        &self,
        path: &str,
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let asked = async {
            let stream = self.connect().await?;
            let exchange = self.exchange(stream, Method::GET, path, None).await;
            exchange.map_err(|why| self.unclear(&why))
        };
        let late = || self.unreachable("no answer in time");
        timeout(patience, asked)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// Checks that the listener accepts connections.
    pub(super) async fn reach(&self) -> Result<(), ClientError> {
        self.connect().await.map(drop)
    }

    pub(super) async fn list(&self, query: &Query) -> Result<Page, ClientError> {
        self.ask(Method::GET, &with_query("/v1/keys", query), None)
            .await
    }

    pub(super) async fn show(&self, id: RecordId, with_answer: bool) -> Result<Shown, ClientError> {
        self.ask(
            Method::GET,
            &format!("/v1/keys/{id}?answer={with_answer}"),
            None,
        )
        .await
    }

    pub(super) async fn log(&self, which: &Which) -> Result<LoggedPage, ClientError> {
        self.ask(Method::GET, &with_query("/v1/log", which), None)
            .await
    }

    pub(super) async fn settle(&self, id: RecordId, settle: &Settle) -> Result<Entry, ClientError> {
        self.ask(
            Method::POST,
            &format!("/v1/keys/{id}/settle"),
            Some(json(settle)),
        )
        .await
    }

    pub(super) async fn forget(&self, id: RecordId, forget: &Forget) -> Result<Entry, ClientError> {
        self.ask(
            Method::POST,
            &format!("/v1/keys/{id}/forget"),
            Some(json(forget)),
        )
        .await
    }

    pub(in crate::cli) async fn reload(&self, reload: &Reload) -> Result<Reloaded, ClientError> {
        self.ask(Method::POST, "/v1/reload", Some(json(reload)))
            .await
    }

    async fn connect(&self) -> Result<TcpStream, ClientError> {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(&self.authority)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(self.unreachable(&error.to_string())),
            Err(_) => Err(self.unreachable(&format!(
                "no connection within {} s",
                CONNECT_TIMEOUT.as_secs()
            ))),
        }
    }

    fn unreachable(&self, why: &str) -> ClientError {
        ClientError::Unreachable(format!(
            "nobody answers at {}: {why}. Is the gateway running, and is this its admin listener?",
            self.authority
        ))
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Option<Bytes>,
    ) -> Result<T, ClientError> {
        let stream = self.connect().await?;
        let exchange = timeout(ANSWER_TIMEOUT, self.exchange(stream, method, target, body)).await;
        let (status, body) = match exchange {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => return Err(self.unclear(&why)),
            Err(_) => {
                return Err(
                    self.unclear(&format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()))
                );
            }
        };
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| {
                self.unclear(&format!("its answer is not what we know: {error}"))
            });
        }
        match serde_json::from_slice::<serde_json::Value>(&body) {
            Ok(problem) if problem["detail"].is_string() => {
                Err(ClientError::Refused(status, problem["detail"].as_str().unwrap_or_default().to_owned()))
            }
            _ => Err(self.unclear(&format!("it answered {status}: this is no admin listener of Hapax, or one of another version"))),
        }
    }

    fn unclear(&self, why: &str) -> ClientError {
        ClientError::Unreachable(format!(
            "the gateway at {} did not answer as it should: {why}",
            self.authority
        ))
    }

    async fn exchange(
        &self,
        stream: TcpStream,
        method: Method,
        target: &str,
        body: Option<Bytes>,
    ) -> Result<(StatusCode, Bytes), String> {
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header(HOST, &self.authority)
            .header(ACCEPT, "application/json");
        let request = match &self.token {
            Some(token) => request.header(AUTHORIZATION, format!("Bearer {}", token.expose())),
            None => request,
        };
        let request = if body.is_some() {
            request.header(CONTENT_TYPE, "application/json")
        } else {
            request
        };
        let request = request
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|error| error.to_string())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let connection = tokio::spawn(connection);
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| error.to_string())?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| error.to_string())?;
        connection.abort();
        Ok((head.status, body.to_bytes()))
    }
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value)
        .expect("it has no maps with odd keys")
        .into()
}

/// The path with a query appended.
fn with_query(path: &str, query: &impl Serialize) -> String {
    let query = serde_urlencoded::to_string(query).expect("it has names and plain values");
    format!("{path}?{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_address_of_a_listener_is_taken() {
        for (url, authority) in [
            ("http://127.0.0.1:4001", "127.0.0.1:4001"),
            ("http://[::1]:4001/", "[::1]:4001"),
            ("http://h", "h:80"),
        ] {
            assert_eq!(
                Client::new(url, None).unwrap().authority,
                authority,
                "{url}"
            );
        }
        for url in [
            "127.0.0.1:4001",
            "https://h:1",
            "http://h/v1",
            "http://u@h",
            "http://h?x",
            "",
            "http://",
        ] {
            assert!(Client::new(url, None).is_err(), "{url}");
        }
    }

    #[test]
    fn whatever_is_asked_for_survives_the_url() {
        let query = Query {
            path: Some("/a b/**".to_owned()),
            principal: Some("é&=+".to_owned()),
            limit: Some(7),
            ..Query::default()
        };
        let target = with_query("/v1/keys", &query);
        let (path, text) = target.split_once('?').unwrap();
        assert!(
            path == "/v1/keys" && text.is_ascii() && !text.contains(' '),
            "{target}"
        );
        let read: Query = serde_urlencoded::from_str(text).unwrap();
        assert_eq!(
            (read.path, read.principal, read.limit),
            (query.path, query.principal, query.limit)
        );
    }
}
