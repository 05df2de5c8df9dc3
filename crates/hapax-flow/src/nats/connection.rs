//! One connection to a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::connection::State;
use async_nats::{
    Client, ConnectOptions, Event, HeaderMap, ReconnectToServer, Request, ServerAddr, Subscriber,
};
use bytes::Bytes;
use serde::Deserialize;
use tokio::time::timeout;

use super::servers::{NatsCredentials, NatsServers, Server};

/// Nobody can listen on port 0.
const NOWHERE: &str = "nats://127.0.0.1:0";

/// A client with one connection, which it never gets again once it is lost.
///
/// By itself the client keeps what is queued while it has no connection, and sends it when the
/// server is back: perhaps hours later, when another relay is far ahead and the server no longer
/// knows the messages as repeats. So it is only let reconnect to a place where nobody listens. Then
/// it gives up and drops its queue, and every call that waits ends at once.
pub(crate) struct Connection {
    client: Client,
    server: Server,
    complaint: Arc<std::sync::Mutex<Option<String>>>,
    is_given_up: AtomicBool,
}

/// What came back for a message.
pub(crate) enum Answer {
    /// The stream has it.
    Stored { duplicate: bool },
    /// The stream does not take it.
    Error(ApiError),
    /// No stream takes its subject.
    NoStream,
    /// It is not sent, as the server would cut the connection.
    TooLarge(String),
    /// Something other than JetStream listens on the subject and answered first.
    Foreign,
    /// Nothing within the time limit.
    Missing,
    /// The connection was lost.
    Lost,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// Nobody listens on its subject.
    NoResponder,
    /// It was not sent: the server would cut the connection.
    TooLarge(String),
    /// The connection was lost.
    Lost,
    /// Nothing within the time limit.
    Missing,
}

/// What the API of JetStream says of a request that failed.
#[derive(Debug, Deserialize)]
pub(crate) struct ApiError {
    pub(crate) code: u64,
    #[serde(default)]
    pub(crate) err_code: u64,
    #[serde(default)]
    pub(crate) description: String,
}

#[derive(Deserialize)]
struct Ack {
    error: Option<ApiError>,
    #[serde(rename = "seq")]
    sequence: Option<u64>,
    #[serde(default)]
    duplicate: bool,
}

impl Connection {
    /// Connects to the first server that answers.
    ///
    /// # Errors
    ///
    /// What each of them said.
    pub(crate) async fn open(
        servers: &[Server],
        options: &NatsServers,
        name: &str,
    ) -> Result<Connection, String> {
        let mut reasons = Vec::new();
        // A server that is silent must leave time for the next one.
        let limit = options.timeout / u32::try_from(servers.len()).unwrap_or(u32::MAX);
        for server in servers {
            match Connection::to(server, options, name, limit).await {
                Ok(connection) => return Ok(connection),
                Err(reason) => reasons.push(format!("{server}: {reason}")),
            }
        }
        Err(reasons.join("; "))
    }

    async fn to(
        server: &Server,
        options: &NatsServers,
        name: &str,
        limit: Duration,
    ) -> Result<Connection, String> {
        let complaint = Arc::default();
        let settings = settings(server, options)
            .await?
            .name(name)
            .connection_timeout(limit)
            .event_callback(keep_complaint(&complaint));
        let nowhere: ServerAddr = NOWHERE.parse().expect("a valid address");
        let client = once(settings, &server.address, &nowhere)
            .connect(vec![server.address.clone(), nowhere])
            .await
            .map_err(|error| error.to_string())?;
        Ok(Connection {
            client,
            server: server.clone(),
            complaint,
            is_given_up: AtomicBool::new(false),
        })
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// The most bytes that a message may have, with its headers.
    pub(crate) fn payload_bytes_max(&self) -> usize {
        self.client.max_payload()
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.is_given_up.load(Ordering::Relaxed)
            && self.client.connection_state() == State::Connected
    }

    /// Calls that begin from now on use another connection.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// The last error that the server told of no message in particular, such as a lack of
    /// permissions.
    pub(crate) fn complaint(&self) -> Option<String> {
        lock(&self.complaint).clone()
    }

    /// Publishes a message and waits for its answer.
    pub(crate) async fn publish(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
        limit: Duration,
    ) -> Answer {
        let request = Request::new().headers(headers).payload(payload);
        match self.request(subject, request, limit).await {
            Ok(payload) => read(&payload),
            Err(Unanswered::NoResponder) => Answer::NoStream,
            Err(Unanswered::TooLarge(reason)) => Answer::TooLarge(reason),
            Err(Unanswered::Lost) => Answer::Lost,
            Err(Unanswered::Missing) => Answer::Missing,
        }
    }

    /// Sends a request and waits for the payload of its answer.
    async fn request(
        &self,
        subject: String,
        request: Request,
        limit: Duration,
    ) -> Result<Bytes, Unanswered> {
        match timeout(limit, self.client.send_request(subject, request)).await {
            Ok(Ok(message)) => Ok(message.payload),
            Ok(Err(error)) => Err(match error.kind() {
                RequestErrorKind::NoResponders => Unanswered::NoResponder,
                RequestErrorKind::MaxPayloadExceeded => Unanswered::TooLarge(error.to_string()),
                _ => Unanswered::Lost,
            }),
            Err(_) => Err(Unanswered::Missing),
        }
    }

    /// Asks JetStream a question of its API.
    ///
    /// # Errors
    ///
    /// Why there is no answer.
    pub(crate) async fn ask(
        &self,
        question: &str,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<Bytes, String> {
        let request = Request::new().payload(payload.into());
        let asked = self.request(format!("$JS.API.{question}"), request, limit);
        asked.await.map_err(|unanswered| match unanswered {
            Unanswered::NoResponder => {
                "JetStream is switched off: write `jetstream {}` into its configuration".into()
            }
            Unanswered::TooLarge(reason) => reason,
            Unanswered::Lost => "the connection was lost".to_owned(),
            Unanswered::Missing => format!("no answer within {limit:?}"),
        })
    }

    /// Says something to somebody who answers when it has been heard.
    pub(crate) async fn say_and_hear(
        &self,
        subject: &str,
        word: &'static str,
        limit: Duration,
    ) -> Result<(), Unanswered> {
        let request = Request::new().payload(word.into());
        let heard = self.request(subject.to_owned(), request, limit).await;
        heard.map(drop)
    }

    /// Sends a message for which no answer is waited here.
    pub(crate) async fn send(
        &self,
        subject: &str,
        reply: Option<String>,
        payload: Bytes,
    ) -> Result<(), Unanswered> {
        let subject = subject.to_owned();
        let sent = match reply {
            Some(reply) => {
                let sending = self.client.publish_with_reply(subject, reply, payload);
                sending.await
            }
            None => self.client.publish(subject, payload).await,
        };
        sent.map_err(|_| Unanswered::Lost)
    }

    /// Returns when the system has everything that was sent.
    pub(crate) async fn flush(&self, limit: Duration) -> Result<(), Unanswered> {
        match timeout(limit, self.client.flush()).await {
            Ok(flushed) => flushed.map_err(|_| Unanswered::Lost),
            Err(_) => Err(Unanswered::Missing),
        }
    }

    /// A prefix of subjects that nobody else has, and what is sent to them.
    pub(crate) async fn inbox(&self) -> Result<(String, Subscriber), String> {
        let prefix = self.client.new_inbox();
        let subscribed = self.client.subscribe(format!("{prefix}.*")).await;
        let subscriber = subscribed.map_err(|error| error.to_string())?;
        Ok((prefix, subscriber))
    }
}

fn read(payload: &[u8]) -> Answer {
    let Ok(ack) = serde_json::from_slice::<Ack>(payload) else {
        return Answer::Foreign;
    };
    match (ack.error, ack.sequence) {
        (Some(error), _) => Answer::Error(error),
        (None, Some(_)) => Answer::Stored {
            duplicate: ack.duplicate,
        },
        (None, None) => Answer::Foreign,
    }
}

async fn settings(server: &Server, options: &NatsServers) -> Result<ConnectOptions, String> {
    let mut settings = ConnectOptions::new()
        .request_timeout(None)
        // A server that has been silent for three of these is cut off.
        .ping_interval(options.timeout / 2);
    for file in &options.root_certificates {
        settings = settings.add_root_certificates(file.clone());
    }
    if let Some((certificate, key)) = options.client_certificate.clone() {
        settings = settings.add_client_certificate(certificate, key);
    }
    let credentials = match &server.credentials {
        NatsCredentials::None => &options.credentials,
        credentials => credentials,
    };
    Ok(match credentials.clone() {
        NatsCredentials::None => settings,
        NatsCredentials::User { name, password } => settings.user_and_password(name, password),
        NatsCredentials::Token(token) => settings.token(token),
        NatsCredentials::NkeySeed(seed) => settings.nkey(seed),
        NatsCredentials::File(path) => settings
            .credentials_file(path)
            .await
            .map_err(|error| error.to_string())?,
    })
}

/// Has the client connect to its server once and from then on to nowhere: one attempt fails there,
/// and the second is one too many.
fn once(settings: ConnectOptions, server: &ServerAddr, nowhere: &ServerAddr) -> ConnectOptions {
    let (server, nowhere) = (server.clone(), nowhere.clone());
    let is_used = AtomicBool::new(false);
    settings
        .max_reconnects(1)
        .ignore_discovered_servers()
        .reconnect_to_server_callback(move |_, _| {
            let addr = match is_used.swap(true, Ordering::Relaxed) {
                false => server.clone(),
                true => nowhere.clone(),
            };
            let delay = Some(Duration::ZERO);
            async move { Some(ReconnectToServer { addr, delay }) }
        })
}

fn keep_complaint(
    place: &Arc<std::sync::Mutex<Option<String>>>,
) -> impl Fn(Event) -> std::future::Ready<()> + Send + Sync + 'static {
    let place = place.clone();
    move |event| {
        if let Event::ServerError(error) = event {
            *lock(&place) = Some(error.to_string());
        }
        std::future::ready(())
    }
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
