//! A service with its own database, fenced by `packaging/sql/fenced.sql`.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;

use tokio_postgres::{Client, Error};

use crate::database::{code, connect};
use crate::harness::{Asked, Gate, Reply, broken_off, whole, with};
use crate::world::{PROBE, Serve};

pub struct Fencing {
    url: String,
    /// The fences of all dispatched requests.
    dispatched: Mutex<Vec<u64>>,
    /// The results of work that continued after its attempt was lost: the status, or the SQL state
    /// of the error.
    late: Mutex<Vec<String>>,
    /// Where such work waits.
    pub slow: Gate,
}

/// The result of a transaction.
enum Came {
    /// An answer, its own or an earlier one.
    Answer(i32, Vec<u8>),
    /// Nothing was done, because of a higher fence.
    Refused,
}

impl Fencing {
    pub fn new(url: &str) -> Arc<Fencing> {
        Arc::new(Fencing {
            url: url.to_owned(),
            dispatched: Mutex::default(),
            late: Mutex::default(),
            slow: Gate::default(),
        })
    }

    pub fn dispatched(&self) -> Vec<u64> {
        self.dispatched.lock().unwrap().clone()
    }

    pub fn late(&self) -> Vec<String> {
        self.late.lock().unwrap().clone()
    }

    /// One attempt in one transaction. It waits at `inside` between its first statement and the
    /// rest.
    async fn attempt(
        &self,
        asked: &Asked,
        status: i32,
        inside: Option<&Gate>,
    ) -> Result<Came, Error> {
        let client = connect(&self.url).await;
        client.batch_execute("BEGIN").await?;
        let (operation, fence) = (asked.operation(), fence(asked));
        let row = match client
            .query_one(
                "SELECT verdict, status, body FROM hapax_fence($1, $2)",
                &[&operation, &fence],
            )
            .await
        {
            Err(error) if code(&error) == "HX003" => return Ok(Came::Refused),
            row => row?,
        };
        if row.get::<_, &str>(0) == "applied" {
            return Ok(Came::Answer(row.get(1), row.get(2)));
        }
        if let Some(gate) = inside {
            gate.pass().await;
        }
        let body = format!("order of {}", asked.key());
        // A refusal is an answer without an effect.
        if status < 400 {
            client
                .execute(
                    "INSERT INTO orders (key, fence) VALUES ($1, $2)",
                    &[&asked.key(), &fence],
                )
                .await?;
        }
        let applied =
            "SELECT hapax_applied($1, $2, $3, '{\"content-type\": \"text/plain\"}', $4::bytea)";
        client
            .execute(applied, &[&operation, &fence, &status, &body.as_bytes()])
            .await?;
        client.batch_execute("COMMIT").await?;
        Ok(Came::Answer(status, body.into_bytes()))
    }

    /// Runs the first statement and then rolls everything back, as after a failure.
    async fn fail(&self, asked: &Asked) -> Result<(), Error> {
        let client = connect(&self.url).await;
        client.batch_execute("BEGIN").await?;
        client
            .query_one(
                "SELECT verdict FROM hapax_fence($1, $2)",
                &[&asked.operation(), &fence(asked)],
            )
            .await?;
        client.batch_execute("ROLLBACK").await
    }

    async fn probe(&self, asked: &Asked) -> Result<Reply, Error> {
        let client = connect(&self.url).await;
        let probe =
            "SELECT verdict, status, headers->>'content-type', body FROM hapax_probe($1, $2)";
        let row = client
            .query_one(probe, &[&asked.operation(), &fence(asked)])
            .await?;
        if row.get::<_, &str>(0) == "barred" {
            return Ok(with(whole(200, ""), "hapax-probe", "barred"));
        }
        let status = row.get::<_, i32>(1).to_string();
        let answer = with(
            with(whole(200, row.get::<_, Vec<u8>>(3)), "hapax-probe", "done"),
            "hapax-status",
            &status,
        );
        Ok(with(answer, "content-type", row.get(2)))
    }

    /// Continues an attempt that was lost.
    async fn go_on(&self, asked: &Asked, inside: Option<&Gate>) {
        let came = match self.attempt(asked, 201, inside).await {
            Ok(Came::Answer(status, _)) => status.to_string(),
            Ok(Came::Refused) => "refused".to_owned(),
            Err(error) => code(&error).to_owned(),
        };
        self.late.lock().unwrap().push(came);
        self.slow.done();
    }
}

fn fence(asked: &Asked) -> i64 {
    asked.fence().try_into().expect("below 2^53")
}

fn answer(came: Came) -> Reply {
    match came {
        Came::Answer(status, body) => with(
            whole(status.try_into().unwrap(), body),
            "content-type",
            "text/plain",
        ),
        Came::Refused => with(
            whole(409, "a higher fence was here"),
            "hapax-refused",
            "fence",
        ),
    }
}

impl Serve for Fencing {
    async fn serve(self: Arc<Self>, asked: Asked) -> io::Result<Reply> {
        if asked.uri.path() == PROBE {
            // If the row is locked, the outcome is not known yet.
            return Ok(self
                .probe(&asked)
                .await
                .unwrap_or_else(|error| whole(503, code(&error).to_owned())));
        }
        self.dispatched.lock().unwrap().push(asked.fence());
        let attempt = async |status| {
            self.attempt(&asked, status, None)
                .await
                .map_err(io::Error::other)
        };
        match asked.field("x-do") {
            "do it" => Ok(answer(attempt(201).await?)),
            "refuse" => Ok(answer(attempt(422).await?)),
            "do it, break off" => {
                attempt(201).await?;
                Err(broken_off())
            }
            "break off, do it later" => {
                tokio::spawn(async move {
                    self.slow.pass().await;
                    self.go_on(&asked, None).await;
                });
                Err(broken_off())
            }
            "break off inside" => {
                let (slow, before) = (self.clone(), self.slow.arrived());
                tokio::spawn(async move { slow.go_on(&asked, Some(&slow.slow)).await });
                self.slow.wait_arrived(before + 1).await;
                Err(broken_off())
            }
            "fail" => {
                self.fail(&asked).await.map_err(io::Error::other)?;
                Ok(whole(500, "it did not work out"))
            }
            told => panic!("{told}?"),
        }
    }
}

/// Calls the functions directly. Returns the SQL state of the error, or an empty text.
pub async fn raised(client: &Client, statement: &str) -> String {
    match client.batch_execute(statement).await {
        Ok(()) => String::new(),
        Err(error) => code(&error).to_owned(),
    }
}
