//! A connection to Postgres that is made anew when it is lost.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use hapax::BoxError;
use hapax::join::{Committed, Database, Session, Transaction, tokio_postgres as join};
use hapax::store::postgres::{ConnectOptions, Connection};
use hapax_core::store::{Dialect, Statement, Value};
use tokio_postgres::{Client, Error};

/// A database for a [`Consumer`](super::Consumer) without a pool: one connection, by
/// `tokio-postgres`. It connects when it is first used, and again when the connection was lost.
pub struct PostgresDatabase {
    options: ConnectOptions,
    home: Home,
}

/// Where the connection is while there is no transaction on it.
type Home = Arc<Mutex<Option<Connection>>>;

impl PostgresDatabase {
    /// The database that these options tell of.
    pub fn new(options: ConnectOptions) -> PostgresDatabase {
        PostgresDatabase {
            options,
            home: Home::default(),
        }
    }
}

impl Database for PostgresDatabase {
    type Transaction = PostgresTransaction;

    async fn begin(&mut self) -> Result<PostgresTransaction, BoxError> {
        let kept = take(&self.home).filter(|connection| !connection.is_closed());
        let connection = match kept {
            Some(connection) => connection,
            None => Connection::open(&self.options).await?,
        };
        connection.client().batch_execute("BEGIN").await?;
        Ok(PostgresTransaction {
            connection,
            home: self.home.clone(),
        })
    }

    async fn roll_back(transaction: PostgresTransaction) -> Result<(), BoxError> {
        transaction.client().batch_execute("ROLLBACK").await?;
        transaction.go_home();
        Ok(())
    }
}

impl fmt::Debug for PostgresDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresDatabase").finish_non_exhaustive()
    }
}

/// A transaction on a [`PostgresDatabase`]. It dereferences to the client of `tokio-postgres`; do
/// not end it by hand. If it is dropped, its connection is closed, so the server rolls it back.
pub struct PostgresTransaction {
    connection: Connection,
    home: Home,
}

impl PostgresTransaction {
    fn client(&self) -> &Client {
        self.connection.client()
    }

    /// Keeps the connection for the next transaction.
    fn go_home(self) {
        let mut home = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        *home = Some(self.connection);
    }
}

fn take(home: &Home) -> Option<Connection> {
    let mut home = home.lock().unwrap_or_else(PoisonError::into_inner);
    home.take()
}

impl Deref for PostgresTransaction {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client()
    }
}

impl Session for PostgresTransaction {
    type Error = Error;

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn run(&mut self, statement: &Statement) -> Result<Option<Vec<Value>>, Error> {
        join::run(self.client(), statement).await
    }

    fn code(error: &Error) -> Option<String> {
        <tokio_postgres::Transaction<'_> as Session>::code(error)
    }
}

impl Transaction for PostgresTransaction {
    async fn commit(self) -> Result<(), Error> {
        self.client().batch_execute("COMMIT").await?;
        self.go_home();
        Ok(())
    }

    /// Both in one round trip.
    async fn run_and_commit(self, statement: &Statement) -> Committed<Error> {
        let committed = join::run_and_commit(self.client(), statement).await;
        if let Committed::Yes(_) = committed {
            self.go_home();
        }
        committed
    }

    fn is_rolled_back(error: &Error) -> bool {
        <tokio_postgres::Transaction<'_> as Transaction>::is_rolled_back(error)
    }
}

impl fmt::Debug for PostgresTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTransaction")
            .finish_non_exhaustive()
    }
}
