//! The schema that a store needs in its database, and its migrations.
//!
//! Its versions are numbered, and only move forward. Each migration is one transaction;
//! [`Migration::script`] prints exactly what runs. A running store never changes the schema: `hapax
//! migrate` does, under a role that may create it.
//!
//! A program of version `p` works on a schema of version `s` if `s` is at least `p`, and the oldest
//! version that `s` supports is at most `p`. So the schema is migrated first, and then programs of
//! two versions work side by side.

#[cfg(any(test, feature = "planted"))]
mod planted;

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::LazyLock;
use std::time::Duration;

use hapax_core::audit::Signed;
use hapax_core::time::Timestamp;
use sha2::{Digest, Sha256};
use tokio_postgres::error::DbError;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::ConnectOptions;
use super::connect::{ConnectError, connect};

/// The schema version that this program was written for.
pub const VERSION: u32 = 8;

/// How often a migration is tried while its tables are in use, and the pause in between. Each try
/// is short, so that live traffic does not queue behind it.
const TRIES_MAX: u32 = 20;
const REST: Duration = Duration::from_millis(500);

/// The advisory lock that keeps two migrations apart. The number is arbitrary: the first eight
/// bytes of the digest of "hapax migrate".
const LOCK: i64 = 0x72b4_6383_675b_25fa;

/// One step of the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The schema version after it.
    pub version: u32,
    /// A short name.
    pub name: &'static str,
    /// Its SQL.
    pub sql: String,
    /// The oldest program version that still works after it.
    pub oldest: u32,
}

impl Migration {
    /// The complete SQL, for running it by hand: one transaction that fails as a whole.
    pub fn script(&self) -> String {
        let Migration {
            version,
            name,
            sql,
            oldest,
        } = self;
        let (checksum, beginning) = (hex(&self.checksum()), &*BEGINNING);
        let mut script = String::new();
        writeln!(
            script,
            "-- hapax: schema version {version}, {name}\n\
             BEGIN;\n\
             -- Never to queue in front of live traffic for long.\n\
             SET LOCAL lock_timeout = '1s';\n\
             -- What is kept is numbers, ids and bytes: neither of these may depend on who runs this.\n\
             SET LOCAL search_path = pg_catalog, pg_temp;\n\
             SELECT pg_advisory_xact_lock({LOCK});\n\
             {beginning}\
             -- Fails if it was applied already.\n\
             INSERT INTO hapax.migrations (version, name, checksum) VALUES ({version}, '{name}', '\\x{checksum}');\n"
        )
        .expect("a string takes any text");
        script.push_str(sql.trim_end());
        write!(
            script,
            "\n\nUPDATE hapax.meta SET schema = {version}, oldest = {oldest};\nCOMMIT;\n"
        )
        .expect("a string takes any text");
        script
    }

    /// Identifies the SQL, to compare an applied migration with this program's.
    fn checksum(&self) -> [u8; 32] {
        Sha256::digest(self.sql.as_bytes()).into()
    }
}

/// Finds the objects of the schema that belong to another role, and that role. The owner of a
/// function that runs with its owner's rights, or of a table that such a function reads, can make
/// it do anything. A member of the owning role is not the owner.
const FOREIGN_OBJECTS: &str = "\
SELECT o.what || ' belongs to the role ' || pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(o.owner)::text) FROM (
        SELECT 1 AS rank, 'schema hapax' AS what, n.nspowner AS owner FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'hapax'
        UNION ALL
        SELECT 2, 'hapax.' || c.relname, c.relowner FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'hapax'
        UNION ALL
        SELECT 3, 'hapax.' || p.proname || '()', p.proowner FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = 'hapax'
    ) AS o WHERE o.owner <> (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user) ORDER BY o.rank, o.what LIMIT 1";

/// The start of every script: checks that the schema belongs to this role alone, and creates it if
/// it is missing.
static BEGINNING: LazyLock<String> = LazyLock::new(|| {
    format!(
        "DO $hapax$
DECLARE
    strange text := ({FOREIGN_OBJECTS});
BEGIN
    IF strange IS NOT NULL THEN
        RAISE EXCEPTION '%, and this is %', strange, current_user USING ERRCODE = '42501', HINT = 'run it as the role that made the schema';
    END IF;
    IF to_regnamespace('hapax') IS NULL THEN
        CREATE SCHEMA hapax;
    END IF;
    IF to_regclass('hapax.migrations') IS NULL THEN
        CREATE TABLE hapax.migrations (
            version int4 PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now(), checksum bytea NOT NULL
        );
    END IF;
END $hapax$;
"
    )
});

const STORE: &str = concat!(
    include_str!("0001_store.sql"),
    "\n",
    include_str!("transfer.sql"),
    "\n",
    include_str!("join.sql")
);
const LIVES: &str = include_str!("0002_lives.sql");

const COUNTS: &str = include_str!("0003_counts.sql");
const REQUEST_ID: &str = include_str!("0004_request_id.sql");
const TWO_CALLS: &str = include_str!("0005_two_calls.sql");
const START_RECORD: &str = include_str!("0006_start_record.sql");
const OUTBOX: &str = include_str!("0007_outbox.sql");
const INBOX: &str = include_str!("0008_inbox.sql");

/// All migrations up to [`VERSION`].
pub fn migrations() -> Vec<Migration> {
    vec![
        Migration {
            version: 1,
            name: "store",
            sql: text(STORE),
            oldest: 1,
        },
        // Programs of version 1 know only the first rule for operation ids. `hapax.pulse` lets them
        // continue for an hour.
        Migration {
            version: 2,
            name: "lives",
            sql: text(LIVES),
            oldest: 2,
        },
        Migration {
            version: 3,
            name: "counts",
            sql: text(COUNTS),
            oldest: 2,
        },
        Migration {
            version: 4,
            name: "request_id",
            sql: text(REQUEST_ID),
            oldest: 2,
        },
        Migration {
            version: 5,
            name: "two_calls",
            sql: text(TWO_CALLS),
            oldest: 2,
        },
        Migration {
            version: 6,
            name: "start_record",
            sql: text(START_RECORD),
            oldest: 2,
        },
        Migration {
            version: 7,
            name: "outbox",
            sql: text(OUTBOX),
            oldest: 2,
        },
        Migration {
            version: 8,
            name: "inbox",
            sql: text(INBOX),
            oldest: 2,
        },
    ]
}

#[cfg(not(feature = "planted"))]
fn text(sql: &str) -> String {
    sql.to_owned()
}

/// The SQL with the planted bugs that are active in this process.
#[cfg(feature = "planted")]
fn text(sql: &str) -> String {
    planted::plant(sql, hapax_core::planted::is)
}

/// The migrations of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The versions that were applied, in order.
    pub applied: Vec<u32>,
    /// The given migrations that were not applied.
    pub due: Vec<u32>,
}

impl Status {
    /// The version of the schema; zero if there is none.
    pub fn version(&self) -> u32 {
        self.applied.last().copied().unwrap_or(0)
    }
}

/// Why a database was not migrated completely. Migrations that were applied before stay.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The database could not be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A different migration was applied under the same number.
    #[error(
        "{database}: migration {version} that was applied is not the one of this program: it was changed by hand, or another program made \
         the schema. Use a database of its own, or the program that made it"
    )]
    Different {
        /// The database, as it was named.
        database: String,
        /// The version of the migration.
        version: u32,
    },
    /// The schema is newer than this program knows.
    #[error(
        "{database} has schema version {found}, and this program knows {known}: nothing is ever taken back. Run a newer version of Hapax"
    )]
    Ahead {
        /// The database, as it was named.
        database: String,
        /// The version it has.
        found: u32,
        /// The newest version of the given migrations.
        known: u32,
    },
    /// A table stayed locked by other transactions.
    #[error(
        "{database}: migration {version} found what it changes locked for too long: see pg_stat_activity for transactions that do not end, and run it again"
    )]
    Busy {
        /// The database, as it was named.
        database: String,
        /// The version of the migration.
        version: u32,
    },
    /// The server refused a statement.
    #[error("{database}: {doing} failed: {said}")]
    Refused {
        /// The database, as it was named.
        database: String,
        /// The action that failed.
        doing: String,
        /// The server's message, and what to do where that is known.
        said: String,
    },
    /// The schema, or something in it, belongs to another role.
    #[error(
        "{database}: {whose}, and this is {user}. Run it as the role that made the schema; if nobody of yours made it, do not trust it: drop the \
         schema, or use another database"
    )]
    NotOurs {
        /// The database, as it was named.
        database: String,
        /// What belongs to which role.
        whose: String,
        /// The current role.
        user: String,
    },
    /// The role that is to use the store does not exist.
    #[error(
        "{database}: there is no role {role}, and nothing was changed. CREATE ROLE {role} LOGIN first, or correct the name"
    )]
    NoSuchRole {
        /// The database, as it was named.
        database: String,
        /// Its name as an SQL identifier.
        role: String,
    },
}

/// Prints the message, for a `main` that returns the error.
impl fmt::Debug for MigrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The migrations that were applied to a database, and those of this program that are due. Changes
/// nothing.
pub async fn status(connection: &ConnectOptions) -> Result<Status, MigrateError> {
    let database = Database::open(connection).await?;
    database.status(&migrations()).await
}

/// Applies the due migrations in order, each in its own transaction, and reports each after it was
/// applied. Two migrations at the same time are safe: one waits for the other.
pub async fn migrate(
    connection: &ConnectOptions,
    migrations: &[Migration],
    mut progress: impl FnMut(&Migration),
) -> Result<Status, MigrateError> {
    let database = Database::open(connection).await?;
    let mut status = database.status(migrations).await?;
    for migration in migrations {
        if status.due.first() == Some(&migration.version) {
            if database.apply(migration).await? {
                progress(migration);
            }
            status = database.status(migrations).await?;
        }
    }
    Ok(status)
}

/// Fails if the role does not exist. Call it before changing anything for the role.
pub async fn look_for_role(connection: &ConnectOptions, role: &str) -> Result<(), MigrateError> {
    let database = Database::open(connection).await?;
    let sql = "SELECT true FROM pg_catalog.pg_roles WHERE rolname::text = $1";
    let found = database
        .client()
        .query_typed(sql, &[(&role, Type::TEXT)])
        .await;
    if found
        .map_err(|error| database.refused("looking for the role".to_owned(), &error))?
        .is_empty()
    {
        return Err(MigrateError::NoSuchRole {
            database: database.name,
            role: quoted(role),
        });
    }
    Ok(())
}

/// The values from which a restored store continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The store's time.
    pub now: Timestamp,
    /// Every new fence is above this one.
    pub floor: u64,
    /// The forget-epoch from now on. Answers that gateways have in memory belong to an earlier one,
    /// and are no longer served.
    pub epoch: u64,
}

/// Records that the database was restored from a backup, in the audit log too. Keys used after the
/// backup was made are unknown to it, and cannot be recovered.
pub async fn restored(
    connection: &ConnectOptions,
    signed: &Signed,
) -> Result<Restored, MigrateError> {
    let database = Database::open(connection).await?;
    let (by, reason) = (signed.by().as_bytes(), signed.reason().as_bytes());
    let sql = "SELECT now, floor, epoch FROM hapax.restored($1, $2)";
    let rows = database
        .client()
        .query_typed(sql, &[(&by, Type::BYTEA), (&reason, Type::BYTEA)])
        .await;
    let rows =
        rows.map_err(|error| database.refused("taking note of the restore".to_owned(), &error))?;
    let number = |column| {
        rows.first()
            .and_then(|row| row.try_get::<_, i64>(column).ok())
            .unwrap_or_default()
            .unsigned_abs()
    };
    Ok(Restored {
        now: Timestamp::from_micros(number(0)),
        floor: number(1),
        epoch: number(2),
    })
}

/// Lets an existing role use the store and nothing else: runs [`grants`].
pub async fn grant(connection: &ConnectOptions, role: &str) -> Result<(), MigrateError> {
    let database = Database::open(connection).await?;
    let granted = database.client().batch_execute(&grants(role)).await;
    granted
        .map_err(|error| database.refused(format!("letting the role {role} use the store"), &error))
}

/// The SQL that lets a role use the store and nothing else: it may call the functions, but access
/// no table.
pub fn grants(role: &str) -> String {
    let role = quoted(role);
    let functions: Vec<_> = FUNCTIONS
        .iter()
        .map(|function| format!("hapax.{function}"))
        .collect();
    format!(
        "GRANT USAGE ON SCHEMA hapax TO {role};\nGRANT EXECUTE ON FUNCTION {} TO {role};\n",
        functions.join(", ")
    )
}

/// Lets an existing role complete the operations that it was handed and nothing else: runs
/// [`completer_grants`].
pub async fn grant_completion(connection: &ConnectOptions, role: &str) -> Result<(), MigrateError> {
    let database = Database::open(connection).await?;
    let granted = database
        .client()
        .batch_execute(&completer_grants(role))
        .await;
    granted.map_err(|error| {
        database.refused(
            format!("letting the role {role} complete operations"),
            &error,
        )
    })
}

/// The SQL that lets a role complete the operations that it was handed and nothing else: for
/// services behind a gateway, in their own transactions.
pub fn completer_grants(role: &str) -> String {
    let (role, completions) = (
        quoted(role),
        COMPLETIONS
            .map(|arguments| format!("hapax.complete({arguments})"))
            .join(", "),
    );
    format!(
        "GRANT USAGE ON SCHEMA hapax TO {role};\nGRANT EXECUTE ON FUNCTION {completions} TO {role};\n"
    )
}

/// Lets an existing role claim and complete keys in its own transactions and nothing else: runs
/// [`user_grants`].
pub async fn grant_use(connection: &ConnectOptions, role: &str) -> Result<(), MigrateError> {
    let database = Database::open(connection).await?;
    let granted = database.client().batch_execute(&user_grants(role)).await;
    granted.map_err(|error| {
        database.refused(format!("letting the role {role} call hapax.start"), &error)
    })
}

/// The SQL that lets a role claim and complete keys in its own transactions and nothing else: for
/// services that call `hapax.start` and `hapax.complete` without a gateway.
pub fn user_grants(role: &str) -> String {
    format!(
        "{}GRANT EXECUTE ON FUNCTION {} TO {};\n",
        completer_grants(role),
        STARTS
            .map(|function| format!("hapax.{function}"))
            .join(", "),
        quoted(role)
    )
}

/// Lets an existing role emit messages and nothing else: runs [`emitter_grants`].
pub async fn grant_emission(connection: &ConnectOptions, role: &str) -> Result<(), MigrateError> {
    let database = Database::open(connection).await?;
    let granted = database.client().batch_execute(&emitter_grants(role)).await;
    granted
        .map_err(|error| database.refused(format!("letting the role {role} emit messages"), &error))
}

/// The SQL that lets a role emit messages and nothing else.
pub fn emitter_grants(role: &str) -> String {
    format!(
        "GRANT USAGE ON SCHEMA hapax TO {role};\nGRANT EXECUTE ON FUNCTION {} TO {role};\n",
        EMISSIONS
            .map(|function| format!("hapax.{function}"))
            .join(", "),
        role = quoted(role),
    )
}

/// Lets an existing role receive and park messages and nothing else: runs [`receiver_grants`].
pub async fn grant_reception(connection: &ConnectOptions, role: &str) -> Result<(), MigrateError> {
    let database = Database::open(connection).await?;
    let granted = database
        .client()
        .batch_execute(&receiver_grants(role))
        .await;
    granted.map_err(|error| {
        database.refused(format!("letting the role {role} receive messages"), &error)
    })
}

/// The SQL that lets a role receive and park messages and nothing else: for consumers.
pub fn receiver_grants(role: &str) -> String {
    format!(
        "GRANT USAGE ON SCHEMA hapax TO {role};\nGRANT EXECUTE ON FUNCTION {} TO {role};\n",
        RECEPTIONS
            .map(|function| format!("hapax.{function}"))
            .join(", "),
        role = quoted(role),
    )
}

/// Gives a namespace to `hapax.start`, with the default retention. One that `hapax.start` has
/// already keeps its settings.
pub async fn give_namespace(
    connection: &ConnectOptions,
    namespace: &str,
) -> Result<(), MigrateError> {
    let database = Database::open(connection).await?;
    let given = database
        .client()
        .batch_execute(&namespace_script(namespace))
        .await;
    given.map_err(|error| {
        database.refused(
            format!("giving the namespace {namespace} to hapax.start"),
            &error,
        )
    })
}

/// The SQL that gives a namespace to `hapax.start`, unless it has it.
pub fn namespace_script(namespace: &str) -> String {
    let name = format!("'{}'", namespace.replace('\'', "''"));
    format!(
        "SELECT hapax.set_namespace({name}) WHERE NOT EXISTS (\n    \
         SELECT FROM hapax.namespaces AS n WHERE n.name = pg_catalog.convert_to({name}, 'UTF8'));\n"
    )
}

/// The parameter types of `hapax.complete`.
const COMPLETIONS: [&str; 3] = [
    "text, int8, int8, jsonb",
    "text, int8, int8, jsonb, bytea",
    "text, int8, int8, jsonb, text",
];

/// What a role without a gateway calls besides `hapax.complete`.
const STARTS: [&str; 6] = [
    "start",
    "fingerprint(bytea, text[])",
    "fingerprint(text, text[])",
    "fingerprint(jsonb, text[])",
    "derive",
    "stats",
];

/// What a role that emits messages calls.
const EMISSIONS: [&str; 5] = [
    "emit(text, text, text, jsonb, text, text, boolean, int8)",
    "emit(text, text, jsonb, jsonb, text, text, boolean, int8)",
    "emit(text, text, bytea, jsonb, text, text, boolean, int8)",
    "emit_all",
    "emit_message",
];

/// What a role that receives messages calls.
const RECEPTIONS: [&str; 13] = [
    "receive",
    "receive_all",
    "receive_message",
    "receive_batch",
    "set_window",
    "receipts_sweep",
    "message_failed",
    "message_recovered",
    "park",
    "park_message",
    "park_again",
    "parked_take",
    "parked_done",
];

/// The functions that a running store calls, and `start_record` and `join`, which a program calls
/// in its own transactions.
const FUNCTIONS: [&str; 59] = [
    "claim",
    "finish",
    "lose",
    "settle",
    "forget",
    "get",
    "list",
    "renew",
    "sweep",
    "turn",
    "pulse",
    "adopt",
    "log",
    "note",
    "policy",
    "policies",
    "term",
    "join",
    "lives_since",
    "keep_time",
    "count_records",
    "read_counts",
    "remember",
    "knows",
    "stats",
    "is_for_start",
    "start_record",
    "emit_message",
    "outbox_page",
    "reader_take",
    "reader_mark",
    "reader_release",
    "reader_stop",
    "deliveries_keys",
    "deliveries_take",
    "delivery_end",
    "outbox_sweep",
    "readers_now",
    "deliveries_list",
    "message_find",
    "delivery_retry",
    "delivery_skip",
    "reader_start",
    "reader_remove",
    "receive_message",
    "receive_batch",
    "set_window",
    "receipts_sweep",
    "message_failed",
    "message_recovered",
    "park_message",
    "park_again",
    "parked_take",
    "parked_done",
    "consumers_now",
    "parked_list",
    "parked_find",
    "parked_retry",
    "parked_skip",
];

struct Database {
    name: String,
    /// What to do if the role may not create the schema.
    grant: String,
    user: String,
    connected: super::connect::Connected,
}

impl Database {
    async fn open(connection: &ConnectOptions) -> Result<Database, MigrateError> {
        let (name, connected) = (connection.to_string(), connect(connection).await?);
        let mut database = Database {
            name,
            grant: String::new(),
            user: String::new(),
            connected,
        };
        let names = "SELECT quote_ident(current_database()), quote_ident(current_user)";
        if let [name, user] = database
            .ask("asking who we are", names)
            .await?
            .concat()
            .as_slice()
        {
            let (name, user) = (
                name.as_deref().unwrap_or_default(),
                user.clone().unwrap_or_default(),
            );
            database.grant = format!("GRANT CREATE ON DATABASE {name} TO {user}");
            database.user = user;
        }
        Ok(database)
    }

    fn client(&self) -> &Client {
        &self.connected.client
    }

    async fn status(&self, migrations: &[Migration]) -> Result<Status, MigrateError> {
        if let Some(whose) = self
            .ask("looking whose the schema is", FOREIGN_OBJECTS)
            .await?
            .concat()
            .into_iter()
            .flatten()
            .next()
        {
            return Err(MigrateError::NotOurs {
                database: self.name.clone(),
                whose,
                user: self.user.clone(),
            });
        }
        let applied = self.applied().await?;
        for migration in migrations {
            if applied
                .get(&migration.version)
                .is_some_and(|checksum| *checksum != hex(&migration.checksum()))
            {
                return Err(MigrateError::Different {
                    database: self.name.clone(),
                    version: migration.version,
                });
            }
        }
        let known = migrations
            .iter()
            .map(|migration| migration.version)
            .max()
            .unwrap_or(0);
        if let Some(found) = applied.keys().copied().find(|version| *version > known) {
            return Err(MigrateError::Ahead {
                database: self.name.clone(),
                found,
                known,
            });
        }
        let due = migrations
            .iter()
            .map(|migration| migration.version)
            .filter(|version| !applied.contains_key(version))
            .collect();
        Ok(Status {
            applied: applied.into_keys().collect(),
            due,
        })
    }

    /// The applied migrations, with their checksums.
    async fn applied(&self) -> Result<BTreeMap<u32, String>, MigrateError> {
        let doing = "looking what was applied";
        let there = self
            .ask(doing, "SELECT to_regclass('hapax.migrations') IS NOT NULL")
            .await?;
        if there.first().and_then(|row| row.first()?.as_deref()) != Some("t") {
            return Ok(BTreeMap::new());
        }
        let rows = self
            .ask(
                doing,
                "SELECT version, encode(checksum, 'hex') FROM hapax.migrations",
            )
            .await?;
        let row = |row: &Vec<Option<String>>| {
            Some((row.first()?.as_ref()?.parse().ok()?, row.get(1)?.clone()?))
        };
        Ok(rows.iter().filter_map(row).collect())
    }

    /// Applies a migration. Returns false if another process applied it meanwhile.
    async fn apply(&self, migration: &Migration) -> Result<bool, MigrateError> {
        let doing = || format!("migration {} ({})", migration.version, migration.name);
        for _ in 0..TRIES_MAX {
            let Err(error) = self.client().batch_execute(&migration.script()).await else {
                return Ok(true);
            };
            // Leave the failed transaction, whatever the error was.
            self.client()
                .batch_execute("ROLLBACK")
                .await
                .map_err(|error| self.refused(doing(), &error))?;
            match error.code().map(tokio_postgres::error::SqlState::code) {
                Some("55P03" | "40P01") => tokio::time::sleep(REST).await,
                Some("23505") if self.applied().await?.contains_key(&migration.version) => {
                    return Ok(false);
                }
                _ => return Err(self.refused(doing(), &error)),
            }
        }
        Err(MigrateError::Busy {
            database: self.name.clone(),
            version: migration.version,
        })
    }

    /// Runs a statement without parameters, and returns its rows as texts.
    async fn ask(&self, doing: &str, sql: &str) -> Result<Vec<Vec<Option<String>>>, MigrateError> {
        let messages = self
            .client()
            .simple_query(sql)
            .await
            .map_err(|error| self.refused(doing.to_owned(), &error))?;
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(
                (0..row.len())
                    .map(|column| row.get(column).map(str::to_owned))
                    .collect(),
            ),
            _ => None,
        });
        Ok(rows.collect())
    }

    fn refused(&self, doing: String, error: &tokio_postgres::Error) -> MigrateError {
        let said = error.as_db_error().map_or_else(
            || format!("the connection was lost ({error})"),
            |said| self.explain(said),
        );
        MigrateError::Refused {
            database: self.name.clone(),
            doing,
            said,
        }
    }

    fn explain(&self, said: &DbError) -> String {
        let (code, words) = (said.code().code(), said.message());
        let advice = match (code, said.hint()) {
            (_, Some(hint)) => hint,
            ("42501", None) => &format!(
                "{}, or run it as the role that owns the database, or the schema if there is one",
                self.grant
            ),
            (_, None) => return format!("{words} ({code})"),
        };
        format!("{words} ({code}; {advice})")
    }
}

/// A quoted SQL identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_up_from_one_and_never_serve_what_is_newer() {
        let migrations = migrations();
        assert!(
            migrations
                .iter()
                .map(|migration| migration.version)
                .eq(1..=VERSION)
        );
        assert!(
            migrations
                .iter()
                .all(|migration| migration.oldest <= migration.version)
        );
    }

    #[test]
    fn a_script_is_one_transaction() {
        for migration in migrations() {
            let script = migration.script();
            assert_eq!(
                (
                    script.matches("\nBEGIN;\n").count(),
                    script.matches("\nCOMMIT;\n").count()
                ),
                (1, 1),
                "{}",
                migration.name
            );
            assert!(script.ends_with("COMMIT;\n"));
        }
    }

    #[test]
    fn a_namespace_is_quoted() {
        assert!(namespace_script("o'hara").contains("set_namespace('o''hara')"));
    }

    #[test]
    fn a_roles_name_is_quoted() {
        for grants in [
            grants("a\"b"),
            completer_grants("a\"b"),
            user_grants("a\"b"),
            receiver_grants("a\"b"),
        ] {
            assert!(
                grants.starts_with("GRANT USAGE ON SCHEMA hapax TO \"a\"\"b\";\n")
                    && grants.ends_with(" TO \"a\"\"b\";\n")
            );
        }
    }
}
