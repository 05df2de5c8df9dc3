//! A service with its effects in the store's database. It completes a record in the transaction of
//! its effect, or does not, as each request says.

use std::io;
use std::sync::{Arc, Mutex};

use tokio_postgres::{Client, Error};

use crate::database::{code, connect};
use crate::harness::{Asked, Gate, Reply, broken_off, whole, with};
use crate::world::Serve;

pub struct Joining {
    url: String,
    /// All dispatched requests.
    dispatched: Mutex<Vec<Asked>>,
    /// The results of work that continued after its answer: `committed`, or the SQL state of the
    /// error.
    late: Mutex<Vec<String>>,
    /// Where such work waits.
    pub slow: Gate,
}

impl Joining {
    pub fn new(url: &str) -> Arc<Joining> {
        Arc::new(Joining {
            url: url.to_owned(),
            dispatched: Mutex::default(),
            late: Mutex::default(),
            slow: Gate::default(),
        })
    }

    pub fn dispatched(&self) -> usize {
        self.dispatched.lock().unwrap().len()
    }

    /// The last dispatched request.
    pub fn last(&self) -> Asked {
        self.dispatched
            .lock()
            .unwrap()
            .last()
            .expect("something was sent")
            .clone()
    }

    pub fn late(&self) -> Vec<String> {
        self.late.lock().unwrap().clone()
    }

    /// Begins a transaction with the effect in it.
    async fn begin(&self, asked: &Asked) -> Result<Client, Error> {
        let client = connect(&self.url).await;
        client.batch_execute("BEGIN").await?;
        client
            .execute(
                "INSERT INTO orders (key, fence) VALUES ($1, $2)",
                &[&asked.key(), &fence(asked)],
            )
            .await?;
        Ok(client)
    }

    /// Commits the effect and its record together.
    async fn join(&self, asked: &Asked) -> Result<(), Error> {
        let client = self.begin(asked).await?;
        complete(&client, asked).await?;
        client.batch_execute("COMMIT").await
    }

    /// Continues after the answer, once the gate opens.
    async fn go_on(&self, asked: &Asked, client: Client) {
        self.slow.pass().await;
        let ended = async {
            complete(&client, asked).await?;
            client.batch_execute("COMMIT").await
        };
        let late = match ended.await {
            Ok(()) => "committed".to_owned(),
            Err(error) => code(&error).to_owned(),
        };
        // Ends the transaction before the test looks at the result.
        let _ = client.batch_execute("ROLLBACK").await;
        self.late.lock().unwrap().push(late);
        self.slow.done();
    }
}

pub async fn complete(client: &Client, asked: &Asked) -> Result<(), Error> {
    let complete = "SELECT hapax.complete($1, $2, 201, '{\"content-type\": \"text/plain\"}'::jsonb, $3::bytea)";
    client
        .execute(
            complete,
            &[
                &asked.operation(),
                &fence(asked),
                &stored(asked.key()).as_bytes(),
            ],
        )
        .await?;
    Ok(())
}

/// The answer that is stored with the effect.
pub fn stored(key: &str) -> String {
    format!("order of {key}, as stored")
}

fn fence(asked: &Asked) -> i64 {
    asked.fence().try_into().expect("below 2^53")
}

impl Serve for Joining {
    async fn serve(self: Arc<Self>, asked: Asked) -> io::Result<Reply> {
        self.dispatched.lock().unwrap().push(asked.clone());
        let told = asked.field("x-do").to_owned();
        if let Some(then) = told.strip_prefix("join, then ") {
            self.join(&asked).await.map_err(io::Error::other)?;
            return match then {
                "say the same" => Ok(with(
                    whole(201, stored(asked.key())),
                    "content-type",
                    "text/plain",
                )),
                "say otherwise" => Ok(with(whole(200, "as said"), "set-cookie", "session=1")),
                "say 422" => Ok(whole(422, "as said")),
                "say 500" => Ok(whole(500, "as said")),
                "break off" => Err(broken_off()),
                "say nothing" => std::future::pending().await,
                then => panic!("{then}?"),
            };
        }
        match &*told {
            // Commits without completing the record.
            "do it without joining" => {
                let client = self.begin(&asked).await.map_err(io::Error::other)?;
                client
                    .batch_execute("COMMIT")
                    .await
                    .map_err(io::Error::other)?;
                Ok(whole(201, "as said"))
            }
            "answer, join later" | "break off, join later" => {
                let client = self.begin(&asked).await.map_err(io::Error::other)?;
                let is_answered = told.starts_with("answer");
                tokio::spawn(async move { self.go_on(&asked, client).await });
                if is_answered {
                    Ok(whole(201, "as said"))
                } else {
                    Err(broken_off())
                }
            }
            "break off" => {
                let client = self.begin(&asked).await.map_err(io::Error::other)?;
                client
                    .batch_execute("ROLLBACK")
                    .await
                    .map_err(io::Error::other)?;
                Err(broken_off())
            }
            status => Ok(whole(
                status.parse().unwrap_or_else(|_| panic!("{status}?")),
                "as said",
            )),
        }
    }
}
