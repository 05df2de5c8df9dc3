//! Standbys of a cluster, and failover to them.

use std::process::Command;

use super::Postgres;
use super::postgres::without_pg_variables;
use super::process::{run, wait_until};

/// The setting that names the standbys a primary waits for before it reports a commit.
const WAITED_FOR: &str = "synchronous_standby_names";

impl Postgres {
    /// Starts a standby. From then on, commits on this server wait for it. Returns when it has
    /// caught up.
    ///
    /// If the standby ends, commits wait until it is back or [`alone`](Postgres::alone) is called,
    /// as in production.
    pub fn synchronous_standby(&self) -> Postgres {
        let mut standby = Postgres::empty(self.programs.clone(), self.place);
        standby.copy_from(self);
        standby.launch();
        standby.join(self);
        standby
    }

    /// Makes a standby the primary. Returns when it accepts writes.
    ///
    /// The old primary is not told. Commits that wait there for this standby are never confirmed,
    /// so nothing is confirmed twice.
    ///
    /// # Panics
    ///
    /// If it is not a standby.
    pub fn promote(&mut self) {
        assert_eq!(
            self.psql("postgres", "SELECT pg_promote(wait_seconds => 60)"),
            "t",
            "not promoted: {}",
            self.log()
        );
    }

    /// Whether it is a standby.
    pub fn is_standby(&self) -> bool {
        self.psql("postgres", "SELECT pg_is_in_recovery()") == "t"
    }

    /// Turns an old primary that was killed or stopped into a synchronous standby of the new one,
    /// in the same place. Its own unreplicated changes are lost.
    ///
    /// # Panics
    ///
    /// If it runs.
    pub fn follow(&mut self, primary: &Postgres) {
        self.assert_stopped();
        std::fs::remove_dir_all(self.data()).expect("a stopped server can be removed");
        self.copy_from(primary);
        self.start_again();
        self.join(primary);
    }

    /// Stops waiting for standbys.
    pub fn alone(&self) {
        self.set(WAITED_FOR, "");
    }

    fn copy_from(&self, primary: &Postgres) {
        let source = format!(
            "host=127.0.0.1 port={} user=postgres application_name={}",
            primary.port(),
            self.name()
        );
        let mut backup: Command = self.user.command(&self.programs.join("pg_basebackup"));
        without_pg_variables(&mut backup);
        backup.args([
            "--write-recovery-conf",
            "--wal-method=stream",
            "--checkpoint=fast",
            "--no-sync",
            "--dbname",
            &source,
            "--pgdata",
        ]);
        run(backup.arg(self.data()).current_dir("/"))
            .unwrap_or_else(|error| panic!("no base backup: {error}"));
        self.wait_for_nobody();
    }

    /// Once promoted, it must not wait for the standby that its primary waited for, which may be
    /// itself.
    fn wait_for_nobody(&self) {
        let path = self.data().join("postgresql.auto.conf");
        let settings = std::fs::read_to_string(&path).expect("a base backup has it");
        let kept: String = settings
            .lines()
            .filter(|line| !line.starts_with(WAITED_FOR))
            .flat_map(|line| [line, "\n"])
            .collect();
        std::fs::write(&path, kept).expect("its owner's or root's file");
    }

    fn join(&self, primary: &Postgres) {
        let name = self.name();
        let state = |column: &str| {
            let sql = format!(
                "SELECT {column} FROM pg_stat_replication WHERE application_name = '{name}' AND state = 'streaming'"
            );
            primary.psql("postgres", &sql)
        };
        // Only once it streams: otherwise the statement that changes the setting would itself wait
        // for the standby.
        wait_until("the standby streams", || !state("state").is_empty());
        primary.set(WAITED_FOR, &format!("FIRST 1 ({name})"));
        wait_until("the standby is waited for", || {
            state("sync_state") == "sync"
        });
    }

    fn name(&self) -> String {
        format!("standby_{}", self.port())
    }
}
