//! Points in the database: a node's transaction stops just before it commits.
//!
//! The test installs triggers for this. Each takes a shared lock, which blocks only if the test has
//! closed the sluice by taking the lock first.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};

use super::harness::GUARD;

/// What a transaction is about to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    Claim = 1,
    Renewal = 2,
    Completion = 3,
}

/// Creates the sluices in a database.
pub const MAKE: &str = "
CREATE SCHEMA sluice;
CREATE FUNCTION sluice.pass() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(substring(current_setting('application_name') FROM '^node-([0-9]+)$')::int4, TG_ARGV[0]::int4);
    RETURN NULL;
END $$;
CREATE TRIGGER claim AFTER INSERT ON hapax.heads FOR EACH ROW EXECUTE FUNCTION sluice.pass(1);
CREATE TRIGGER renewal AFTER UPDATE ON hapax.heads FOR EACH ROW
    WHEN (OLD.state = 1 AND NEW.state = 1 AND OLD.fence = NEW.fence) EXECUTE FUNCTION sluice.pass(2);
CREATE TRIGGER completion AFTER UPDATE ON hapax.heads FOR EACH ROW
    WHEN (OLD.state = 1 AND NEW.state = 2) EXECUTE FUNCTION sluice.pass(3);
";

/// The sluices of one node.
pub struct CommitGates {
    client: Client,
    node: i32,
}

impl CommitGates {
    pub async fn of(node: usize, url: &str) -> CommitGates {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        CommitGates {
            client,
            node: i32::try_from(node).unwrap(),
        }
    }

    /// From now on no such transaction of the node commits.
    pub async fn close(&self, commit: Commit) {
        self.client
            .execute(
                "SELECT pg_advisory_lock($1, $2)",
                &[&self.node, &(commit as i32)],
            )
            .await
            .unwrap();
    }

    /// Waits until a transaction is blocked there.
    pub async fn wait_held(&self, commit: Commit) {
        const HELD: &str = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                            AND classid::int8 = $1::int4 AND objid::int8 = $2::int4)";
        let deadline = Instant::now() + GUARD;
        while !self
            .client
            .query_one(HELD, &[&self.node, &(commit as i32)])
            .await
            .unwrap()
            .get::<_, bool>(0)
        {
            assert!(
                Instant::now() < deadline,
                "no {commit:?} of node {} comes",
                self.node
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Releases the blocked transaction.
    pub async fn open(&self, commit: Commit) {
        self.client
            .execute(
                "SELECT pg_advisory_unlock($1, $2)",
                &[&self.node, &(commit as i32)],
            )
            .await
            .unwrap();
    }
}
