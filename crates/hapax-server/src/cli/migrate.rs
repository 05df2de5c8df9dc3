//! `hapax migrate`: upgrades the schema of a Postgres to the version that this program needs.

use std::path::PathBuf;

use hapax::core::audit::Signed;
use hapax::store::postgres::ConnectOptions;
use hapax::store::postgres::schema::{self, MigrateError, Migration};
use serde_json::json;

use super::secret_flags::StoreFlag;
use super::{Exit, text};
use crate::config::{PostgresUrl, StoreUrl};

/// Prepare a Postgres database for Hapax: make the schema `hapax`, or bring it up to what this
/// version needs.
///
/// Each migration is a transaction of its own, waits for nobody longer than a moment, and may run
/// while gateways of the version before are at work. There is no way back but a backup. Run it as
/// the role that is to own the schema; the gateways' own role needs no more than --role grants.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The database: postgres://USER@HOST/DATABASE; what it leaves out, the PG* variables say
    /// [default: what the configuration or HAPAX__STORE says]
    #[arg(long, value_name = "URL", value_parser = StoreFlag::parse)]
    store: Option<StoreFlag>,
    /// The configuration that names the database
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    config: Option<PathBuf>,
    /// Print the SQL that is due, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Let this role, which must exist, use the store: it may call the functions of the schema, and
    /// nothing else
    #[arg(long, value_name = "NAME")]
    role: Option<String>,
    /// Let this role, which must exist, complete operations in transactions of its own: it may call
    /// hapax.complete, and nothing else
    #[arg(long, value_name = "NAME")]
    completer: Option<String>,
    /// Let this role, which must exist, claim and complete keys in transactions of its own, without
    /// a gateway: it may call hapax.start, hapax.complete and their helpers, and nothing else
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Let this role, which must exist, emit messages in transactions of its own: it may call
    /// hapax.emit and hapax.emit_all, and nothing else
    #[arg(long, value_name = "NAME")]
    emitter: Option<String>,
    /// Let this role, which must exist, receive messages in transactions of its own: it may call
    /// hapax.receive, hapax.receive_all, hapax.park and their helpers, and nothing else
    #[arg(long, value_name = "NAME")]
    receiver: Option<String>,
    /// Give this namespace to hapax.start. Gateways and the library can no longer use it
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Say that the database was restored from a backup: every fence from now on is above all that
    /// were given, and no gateway serves what it has in memory from before. It is written into the
    /// audit log
    #[arg(long, conflicts_with = "dry_run")]
    restored: bool,
    /// Who says so, for the audit log [default: $USER]
    #[arg(long, value_name = "NAME", requires = "restored")]
    by: Option<String>,
    /// Why, for the audit log [default: "restored from a backup"]
    #[arg(long, value_name = "TEXT", requires = "restored")]
    reason: Option<String>,
    /// Say what was done as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let url = args.database()?;
    let connection = ConnectOptions::parse(url.expose()).map_err(Exit::usage)?;
    super::block_on(async {
        match args.dry_run {
            true => show(args, &url, &connection).await,
            false => migrate(args, &url, &connection).await,
        }
    })?
}

impl Args {
    /// Who says that the database was restored, and why.
    fn signed(&self) -> Result<Signed, Exit> {
        let user = || {
            std::env::var("USER")
                .ok()
                .filter(|user| !user.trim().is_empty())
        };
        let by = self
            .by
            .clone()
            .or_else(user)
            .unwrap_or_else(|| "hapax migrate".to_owned());
        Signed::new(
            &by,
            self.reason.as_deref().unwrap_or("restored from a backup"),
        )
        .map_err(Exit::usage)
    }

    /// The roles that get a grant.
    fn roles(&self) -> impl Iterator<Item = &String> {
        let others = [&self.completer, &self.user, &self.emitter, &self.receiver];
        self.role.iter().chain(others.into_iter().flatten())
    }

    fn database(&self) -> Result<PostgresUrl, Exit> {
        match StoreFlag::chosen(self.store.as_ref(), self.config.as_deref())? {
            StoreUrl::Postgres(url) => Ok(url),
            StoreUrl::Sqlite(path) => Err(Exit::usage(format!(
                "sqlite:{} needs no migration: a file is brought forward when it is opened. For a Postgres, give --store postgres://USER@HOST/DATABASE",
                path.display()
            ))),
            StoreUrl::Redis(url) => Err(Exit::usage(format!(
                "{url} needs no migration: a Redis has no schema, and is used as it is. For a Postgres, give --store postgres://USER@HOST/DATABASE"
            ))),
            StoreUrl::Memory => Err(Exit::usage(
                "memory: has nothing to migrate: give --store postgres://USER@HOST/DATABASE",
            )),
        }
    }
}

async fn migrate(args: &Args, url: &PostgresUrl, connection: &ConnectOptions) -> Result<(), Exit> {
    for role in args.roles() {
        schema::look_for_role(connection, role)
            .await
            .map_err(exit)?;
    }
    let mut applied = Vec::new();
    let migrations = schema::migrations();
    let status = schema::migrate(connection, &migrations, |migration| {
        if !args.json {
            text::emit(&format!(
                "applied {} {}\n",
                migration.version, migration.name
            ));
        }
        applied.push(json!({ "version": migration.version, "name": migration.name }));
    });
    let status = status.await.map_err(exit)?;
    if let Some(role) = &args.role {
        schema::grant(connection, role).await.map_err(exit)?;
    }
    if let Some(role) = &args.completer {
        schema::grant_completion(connection, role)
            .await
            .map_err(exit)?;
    }
    if let Some(role) = &args.user {
        schema::grant_use(connection, role).await.map_err(exit)?;
    }
    if let Some(role) = &args.emitter {
        schema::grant_emission(connection, role)
            .await
            .map_err(exit)?;
    }
    if let Some(role) = &args.receiver {
        schema::grant_reception(connection, role)
            .await
            .map_err(exit)?;
    }
    if let Some(namespace) = &args.namespace {
        schema::give_namespace(connection, namespace)
            .await
            .map_err(exit)?;
    }
    let restored = match args.restored {
        true => Some(
            schema::restored(connection, &args.signed()?)
                .await
                .map_err(exit)?,
        ),
        false => None,
    };
    text::emit(&match args.json {
        true => document(&json!({
            "store": url.to_string(),
            "version": status.version(),
            "applied": applied,
            "role": args.role,
            "completer": args.completer,
            "user": args.user,
            "emitter": args.emitter,
            "receiver": args.receiver,
            "namespace": args.namespace,
            "restored": restored.map(|restored| json!({ "fences_above": restored.floor, "epoch": restored.epoch })),
        })),
        false => {
            let told = restored
                .map(|restored| after_restore(restored.floor))
                .unwrap_or_default();
            summary(args, url, status.version(), applied.len()) + &told
        }
    });
    Ok(())
}

/// What an operator has to know after a restore.
fn after_restore(floor: u64) -> String {
    format!(
        "the restore is written into the audit log. Every fence from now on is above {floor}, and no gateway serves what it had in memory.\n\
         Keys that were used after the backup was made are unknown to this database: sent again, they run again. Nothing can bring them back. For as\n\
         long as callers may still repeat what they sent before the restore (by their own retry horizon, at most a route's retention, a day by default),\n\
         compare with the service's own records: also in mode fenced, where a key that was lost comes to the service as another operation.\n"
    )
}

fn summary(args: &Args, url: &PostgresUrl, version: u32, applied: usize) -> String {
    let done = match applied {
        0 => "nothing was due".to_owned(),
        1 => "1 migration was applied".to_owned(),
        several => format!("{several} migrations were applied"),
    };
    let may = |role: &Option<String>, what: &str| match role {
        Some(role) => format!("; the role {} may {what}", text::line(role)),
        None => String::new(),
    };
    let roles = [
        may(&args.role, "use it"),
        may(&args.completer, "complete operations"),
        may(&args.user, "call hapax.start and hapax.complete"),
        may(&args.emitter, "emit messages"),
        may(&args.receiver, "receive messages"),
    ]
    .concat();
    let namespace = match &args.namespace {
        Some(namespace) => format!(
            "; the namespace {} belongs to hapax.start",
            text::line(namespace)
        ),
        None => String::new(),
    };
    format!("{url} has schema version {version}: {done}{roles}{namespace}\n")
}

/// Prints the migrations that are due as SQL, without running them.
async fn show(args: &Args, url: &PostgresUrl, connection: &ConnectOptions) -> Result<(), Exit> {
    let mut due = schema::migrations();
    match schema::status(connection).await {
        Ok(status) => due.retain(|migration| status.due.contains(&migration.version)),
        Err(MigrateError::Connect(error)) => {
            eprintln!("hapax: {url} could not be asked what is due, so here is all of it: {error}");
        }
        Err(error) => return Err(exit(error)),
    }
    let grants = [
        args.role.as_deref().map(schema::grants),
        args.completer.as_deref().map(schema::completer_grants),
        args.user.as_deref().map(schema::user_grants),
        args.emitter.as_deref().map(schema::emitter_grants),
        args.receiver.as_deref().map(schema::receiver_grants),
        args.namespace.as_deref().map(schema::namespace_script),
    ];
    let grants = grants.into_iter().flatten().reduce(|all, more| all + &more);
    if args.json {
        let due: Vec<_> = due
            .iter()
            .map(|due| json!({ "version": due.version, "name": due.name, "sql": due.script() }))
            .collect();
        text::emit(&document(
            &json!({ "store": url.to_string(), "due": due, "grants": grants }),
        ));
        return Ok(());
    }
    if due.is_empty() && grants.is_none() {
        eprintln!("{url}: nothing is due");
    }
    text::emit(
        &due.iter()
            .map(Migration::script)
            .chain(grants)
            .collect::<String>(),
    );
    Ok(())
}

fn document(document: &serde_json::Value) -> String {
    format!("{}\n", text::json(&document.to_string()))
}

fn exit(error: MigrateError) -> Exit {
    match error {
        MigrateError::Connect(_) => Exit::unreachable(error),
        _ => Exit::failed(error),
    }
}
