//! How a [`Hapax`] is made.

use std::path::PathBuf;
use std::sync::Arc;

use hapax_core::store::Store;

use crate::budget::BodyBudget;
use crate::observe::Observer;
use crate::once::{Engine, Limits, Sweep};
use crate::{Hapax, store};

/// Makes a [`Hapax`], and holds the settings that concern all its routes.
///
/// `S` is where the store comes from. A builder with a store of yours ends with
/// [`build`](Builder::build). Those of `Hapax::sqlite` and `Hapax::postgres` are awaited: that
/// opens the store.
pub struct Builder<S = Arc<dyn Store>> {
    store: S,
    settings: Settings,
}

struct Settings {
    observer: Arc<dyn Observer>,
    limits: Limits,
    sweep: Option<Sweep>,
    spill_directory: Option<PathBuf>,
}

impl<S> Builder<S> {
    fn new(store: S) -> Self {
        Builder {
            store,
            settings: Settings {
                observer: Arc::new(()),
                limits: Limits::default(),
                sweep: Some(Sweep::default()),
                spill_directory: None,
            },
        }
    }

    /// Sets the observer, which is told what happens.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.settings.observer = Arc::new(observer);
        self
    }

    /// Sets the limits of this node.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.settings.limits = limits;
        self
    }

    /// Sets when to sweep; `None` leaves it to you to call [`Hapax::sweep_once`].
    #[must_use]
    pub fn sweep(mut self, sweep: Option<Sweep>) -> Self {
        self.settings.sweep = sweep;
        self
    }

    /// Sets where large request bodies are written while they are buffered; by default the system's
    /// directory for temporary files. Keep it on another file system than the store: a store that
    /// finds its disk full takes no new keys.
    #[must_use]
    pub fn spill_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.settings.spill_directory = Some(directory.into());
        self
    }
}

impl Builder {
    /// Makes the [`Hapax`].
    pub fn build(self) -> Hapax {
        let Settings {
            observer,
            limits,
            sweep,
            spill_directory,
        } = self.settings;
        Hapax {
            bodies: BodyBudget::new(limits, spill_directory),
            engine: Engine::new(self.store, observer, limits, sweep),
            namespace: "default".into(),
        }
    }
}

impl Hapax {
    /// Everything at its default, on this store.
    pub fn new(store: impl Store) -> Hapax {
        Hapax::builder(store).build()
    }

    /// Begins with the defaults, on this store.
    pub fn builder(store: impl Store) -> Builder {
        Hapax::builder_shared(Arc::new(store))
    }

    /// Begins with the defaults, on a store that others use too.
    pub fn builder_shared(store: Arc<dyn Store>) -> Builder {
        Builder::new(store)
    }

    /// Keeps records in memory: for tests and development, and for services that may forget them
    /// when they restart.
    ///
    /// ```
    /// let hapax = hapax::Hapax::memory().namespace("shop");
    /// ```
    pub fn memory() -> Hapax {
        Hapax::new(store::memory())
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::path::PathBuf;
    use std::pin::Pin;
    use std::sync::Arc;

    use super::{Builder, Store};
    use crate::Hapax;
    use crate::store::sqlite::{OpenError, Sqlite};

    /// The file of a [`Builder`] made by [`Hapax::sqlite`].
    pub struct SqliteFile(PathBuf);

    impl Hapax {
        /// Keeps records in a SQLite file, which is made if it is not there. One process owns the
        /// file.
        ///
        /// ```
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// # let folder = tempfile::tempdir()?;
        /// # let path = folder.path().join("hapax.db");
        /// use hapax::Hapax;
        ///
        /// let hapax = Hapax::sqlite(path).await?.namespace("shop");
        /// # Ok(()) }
        /// ```
        ///
        /// For other options of the store: `Hapax::new(Sqlite::open_with(path, options).await?)`.
        #[must_use = "await it: that opens the file"]
        pub fn sqlite(path: impl Into<PathBuf>) -> Builder<SqliteFile> {
            Builder::new(SqliteFile(path.into()))
        }
    }

    impl IntoFuture for Builder<SqliteFile> {
        type Output = Result<Hapax, OpenError>;
        type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

        fn into_future(self) -> Self::IntoFuture {
            Box::pin(async move {
                let Builder { store, settings } = self;
                let store: Arc<dyn Store> = Arc::new(Sqlite::open(store.0).await?);
                Ok(Builder { store, settings }.build())
            })
        }
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use std::pin::Pin;
    use std::sync::Arc;

    use super::{Builder, Store};
    use crate::Hapax;
    use crate::store::postgres::{OpenError, Postgres};

    /// The database of a [`Builder`] made by [`Hapax::postgres`].
    pub struct PostgresDatabase {
        connection: String,
        is_migrating: bool,
    }

    impl Hapax {
        /// Keeps records in a Postgres database, which many nodes may share. `connection` is a URL
        /// or a `key=value` text.
        ///
        /// ```no_run
        /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
        /// use hapax::Hapax;
        ///
        /// let hapax = Hapax::postgres("postgres://shop@db/shop").migrate().await?.namespace("shop");
        /// # Ok(()) }
        /// ```
        ///
        /// For other options of the store: `Hapax::new(Postgres::open_with(options).await?)`.
        #[must_use = "await it: that connects to the database"]
        pub fn postgres(connection: impl Into<String>) -> Builder<PostgresDatabase> {
            Builder::new(PostgresDatabase {
                connection: connection.into(),
                is_migrating: false,
            })
        }
    }

    impl Builder<PostgresDatabase> {
        /// Applies the migrations that are due before the store is opened. The role must be allowed
        /// to create a schema. Nodes that start at the same time wait for each other.
        ///
        /// Without this, somebody runs `hapax migrate` beforehand.
        #[must_use = "await it: that connects to the database"]
        pub fn migrate(mut self) -> Self {
            self.store.is_migrating = true;
            self
        }
    }

    impl IntoFuture for Builder<PostgresDatabase> {
        type Output = Result<Hapax, OpenError>;
        type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

        fn into_future(self) -> Self::IntoFuture {
            Box::pin(async move {
                let Builder { store, settings } = self;
                let PostgresDatabase {
                    connection,
                    is_migrating,
                } = store;
                if is_migrating {
                    Postgres::migrate(&connection).await?;
                }
                let store: Arc<dyn Store> = Arc::new(Postgres::open(&connection).await?);
                Ok(Builder { store, settings }.build())
            })
        }
    }
}

#[cfg(feature = "redis")]
mod redis {
    use std::pin::Pin;
    use std::sync::Arc;

    use super::{Builder, Store};
    use crate::Hapax;
    use crate::store::redis::{OpenError, Options, Redis};

    /// The Redis of a [`Builder`] made by [`Hapax::redis_best_effort`].
    pub struct RedisAddress(String);

    impl Hapax {
        /// Keeps records in a Redis or Valkey, which many nodes may share. What Redis loses in a
        /// crash or a failover is lost, and a request whose record is lost may have its effect
        /// again: for effects that must not, use [`Hapax::postgres`](Hapax::postgres).
        ///
        /// ```no_run
        /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
        /// use hapax::Hapax;
        ///
        /// let hapax = Hapax::redis_best_effort("redis://cache.internal").await?.namespace("shop");
        /// # Ok(()) }
        /// ```
        ///
        /// For other options of the store: `Hapax::new(Redis::open(options).await?)`.
        #[must_use = "await it: that connects to Redis"]
        pub fn redis_best_effort(address: impl Into<String>) -> Builder<RedisAddress> {
            Builder::new(RedisAddress(address.into()))
        }
    }

    impl IntoFuture for Builder<RedisAddress> {
        type Output = Result<Hapax, OpenError>;
        type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

        fn into_future(self) -> Self::IntoFuture {
            Box::pin(async move {
                let Builder { store, settings } = self;
                let options = Options::best_effort(&store.0)?;
                let store: Arc<dyn Store> = Arc::new(Redis::open(options).await?);
                Ok(Builder { store, settings }.build())
            })
        }
    }
}

#[cfg(feature = "postgres")]
pub use postgres::PostgresDatabase;
#[cfg(feature = "redis")]
pub use redis::RedisAddress;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteFile;
