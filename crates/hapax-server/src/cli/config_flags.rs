//! The origin of a configuration on the command line: a file, and flags that override it.

use std::net::SocketAddr;
use std::path::PathBuf;

use http::Uri;

use super::Exit;
use super::secret_flags::{PrincipalFlag, StoreFlag};
use crate::config::file::{self, Loaded, Overrides};
use crate::config::{Environment, admin_address, listen_address, upstream_url};

/// The flags that every command has which needs a configuration.
#[derive(clap::Args)]
pub(super) struct ConfigFlags {
    /// The service behind, as in http://127.0.0.1:3000. Required, unless the configuration has it.
    #[arg(long, value_name = "URL", value_parser = upstream_url)]
    upstream: Option<Uri>,
    /// Where clients connect [default: 127.0.0.1:4000].
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Where operators ask, or `off`; beyond loopback only with `admin_token` [default:
    /// 127.0.0.1:4001].
    #[arg(long, value_name = "ADDRESS|off", value_parser = admin)]
    admin: Option<Admin>,
    /// Where records are kept: sqlite:FILE, postgres://USER@HOST/DATABASE, redis://HOST:PORT with
    /// `durability` in the configuration, or memory: to keep nothing [default: sqlite:hapax.db].
    #[arg(long, value_name = "URL", value_parser = StoreFlag::parse)]
    store: Option<StoreFlag>,
    /// Who is asking: digest:FIELD for whoever presents that credential, cookie:NAME for that
    /// cookie, header:FIELD, jwt:CLAIM or forward-auth:URL as the configuration says, or `none` for
    /// everybody. A route of the configuration may say otherwise. ConfigFlags several times, the first
    /// says who is asking and the others divide that caller's records [default:
    /// digest:authorization].
    #[arg(long, value_name = "SOURCE", value_parser = PrincipalFlag::parse)]
    principal: Vec<PrincipalFlag>,
    /// A configuration in TOML. Variables (HAPAX__SECTION__SETTING) go before it, and flags before
    /// those.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

/// An address or `off`, as one value: clap would treat an `Option` as an optional argument.
#[derive(Clone, Copy)]
struct Admin(Option<SocketAddr>);

fn admin(text: &str) -> Result<Admin, String> {
    admin_address(text).map(Admin)
}

impl ConfigFlags {
    /// The flags and variables that override the file.
    pub(super) fn overrides(&self) -> Result<Overrides, Exit> {
        Ok(Overrides {
            upstream: self.upstream.clone(),
            listen: self.listen,
            admin: self.admin.map(|Admin(address)| address),
            store: self.store.as_ref().map(StoreFlag::store).transpose()?,
            principal: PrincipalFlag::list(&self.principal)?,
            environment: Environment::of_process(),
        })
    }

    /// The configuration. Warnings are printed to standard error.
    pub(super) fn load(&self) -> Result<Loaded, Exit> {
        let loaded = self.load_with(&self.overrides()?)?;
        for warning in &loaded.warnings {
            eprintln!("hapax: warning: {warning}");
        }
        Ok(loaded)
    }

    /// Like [`Self::load`], with given overrides. The caller prints the warnings.
    pub(super) fn load_with(&self, overrides: &Overrides) -> Result<Loaded, Exit> {
        file::load(self.config.as_deref(), overrides).map_err(Exit::usage)
    }
}
