//! One connection to a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::connection::State;
use async_nats::{
    Client, ConnectOptions, Event, HeaderMap, ReconnectToServer, Request, ServerAddr,
};
use bytes::Bytes;
use serde::Deserialize;
use tokio::time::timeout;

use super::options::{NatsCredentials, NatsOptions, Server};

/// Nobody can listen on port 0.
const NOWHERE: &str = "nats://127.0.0.1:0";

/// A client with one connection, which it never gets again once it is lost.
///
/// By itself the client keeps what is queued while it has no connection, and sends it when the
/// server is back: perhaps hours later, when another relay is far ahead and the server no longer
/// knows the messages as repeats. So it is only let reconnect to a place where nobody listens. Then
/// it gives up and drops its queue, and every call that waits ends at once.
pub(super) struct Connection {
    client: Client,
    server: Server,
    complaint: Arc<std::sync::Mutex<Option<String>>>,
    is_given_up: AtomicBool,
}

/// What came back for a message.
pub(super) enum Answer {
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

/// What the API of JetStream says of a request that failed.
#[derive(Debug, Deserialize)]
pub(super) struct ApiError {
    pub(super) code: u64,
    #[serde(default)]
    pub(super) err_code: u64,
    #[serde(default)]
    pub(super) description: String,
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
    pub(super) async fn open(
        servers: &[Server],
        options: &NatsOptions,
    ) -> Result<Connection, String> {
        let mut reasons = Vec::new();
        // A server that is silent must leave time for the next one.
        let limit = options.timeout / u32::try_from(servers.len()).unwrap_or(u32::MAX);
        for server in servers {
            match Connection::to(server, options, limit).await {
                Ok(connection) => return Ok(connection),
                Err(reason) => reasons.push(format!("{server}: {reason}")),
            }
        }
        Err(reasons.join("; "))
    }

    async fn to(
        server: &Server,
        options: &NatsOptions,
        limit: Duration,
    ) -> Result<Connection, String> {
        let complaint = Arc::default();
        let settings = settings(server, options)
            .await?
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

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// The most bytes that a message may have, with its headers.
    pub(super) fn payload_bytes_max(&self) -> usize {
        self.client.max_payload()
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.is_given_up.load(Ordering::Relaxed)
            && self.client.connection_state() == State::Connected
    }

    /// Calls that begin from now on use another connection.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// The last error that the server told of no message in particular, such as a lack of
    /// permissions.
    pub(super) fn complaint(&self) -> Option<String> {
        lock(&self.complaint).clone()
    }

    /// Publishes a message and waits for its answer.
    pub(super) async fn publish(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
        limit: Duration,
    ) -> Answer {
        let request = Request::new().headers(headers).payload(payload);
        match timeout(limit, self.client.send_request(subject, request)).await {
            Ok(Ok(message)) => read(&message.payload),
            Ok(Err(error)) => match error.kind() {
                RequestErrorKind::NoResponders => Answer::NoStream,
                RequestErrorKind::MaxPayloadExceeded => Answer::TooLarge(error.to_string()),
                _ => Answer::Lost,
            },
            Err(_) => Answer::Missing,
        }
    }

    /// Asks JetStream a question of its API.
    ///
    /// # Errors
    ///
    /// Why there is no answer.
    pub(super) async fn ask(&self, question: &str, limit: Duration) -> Result<Bytes, String> {
        let request = self
            .client
            .request(format!("$JS.API.{question}"), Bytes::new());
        match timeout(limit, request).await {
            Ok(Ok(message)) => Ok(message.payload),
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => {
                Err("JetStream is switched off: write `jetstream {}` into its configuration".into())
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {limit:?}")),
        }
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

async fn settings(server: &Server, options: &NatsOptions) -> Result<ConnectOptions, String> {
    let mut settings = ConnectOptions::new()
        .name("hapax relay")
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
