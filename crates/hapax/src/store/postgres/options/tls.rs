//! The TLS options.

use std::path::{Path, PathBuf};

use super::{OptionsError, Parameters};

/// The `sslmode` of libpq.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in super::super) enum Mode {
    /// Never use TLS.
    Disable,
    /// Use TLS only if the server refuses connections without it.
    Allow,
    /// Use TLS if the server supports it.
    Prefer,
    /// Always use TLS.
    Require,
    /// Always use TLS, and check that a trusted authority issued the certificate.
    VerifyCa,
    /// Also check that the certificate is for this host.
    VerifyFull,
}

/// The certificates to trust.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super) enum Roots {
    /// Any certificate: protects against passive listeners, but not against an attacker in between.
    Anybody,
    /// The authorities that the system trusts.
    System,
    /// The certificates in a file.
    File(PathBuf),
}

/// The client's identity: the files of a certificate and its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super) struct Identity {
    pub(in super::super) certificate: PathBuf,
    pub(in super::super) key: PathBuf,
}

/// The TLS options of a connection.
#[derive(Clone, Debug)]
pub(in super::super) struct TlsOptions {
    pub(in super::super) mode: Mode,
    /// Starts with TLS directly, without asking the server for it first.
    pub(in super::super) direct: bool,
    pub(in super::super) roots: Roots,
    pub(in super::super) identity: Option<Identity>,
}

const MODES: &[(&str, Mode)] = &[
    ("disable", Mode::Disable),
    ("allow", Mode::Allow),
    ("prefer", Mode::Prefer),
    ("require", Mode::Require),
    ("verify-ca", Mode::VerifyCa),
    ("verify-full", Mode::VerifyFull),
];

impl TlsOptions {
    pub(super) fn new(
        said: &Parameters,
        direct: bool,
        home: Option<&Path>,
    ) -> Result<TlsOptions, OptionsError> {
        let own = home.map(|home| home.join(".postgresql"));
        let roots = roots(said, own.as_deref());
        let weakest = if roots == Roots::System {
            Mode::VerifyFull
        } else {
            Mode::Prefer
        };
        let mode = match said.get("sslmode") {
            None => weakest,
            Some(word) => MODES
                .iter()
                .find(|(known, _)| *known == word)
                .map(|(_, mode)| *mode)
                .ok_or_else(|| {
                    let modes = "disable, allow, prefer, require, verify-ca or verify-full";
                    said.bad("sslmode", modes)
                })?,
        };
        if roots == Roots::System && mode < Mode::VerifyFull {
            return Err(said.bad(
                "sslmode",
                "verify-full with sslrootcert=system: anybody can get a certificate of those authorities",
            ));
        }
        if roots == Roots::Anybody && mode >= Mode::VerifyCa {
            return Err(OptionsError::NoRoots);
        }
        if direct && mode < Mode::Require {
            return Err(said.bad(
                "sslnegotiation",
                "direct only with sslmode=require or stronger",
            ));
        }
        Ok(TlsOptions {
            mode,
            direct,
            roots,
            identity: identity(said, own.as_deref())?,
        })
    }
}

fn roots(said: &Parameters, own: Option<&Path>) -> Roots {
    match said.get("sslrootcert") {
        Some("system") => Roots::System,
        Some(path) => Roots::File(path.into()),
        None => own
            .map(|own| own.join("root.crt"))
            .filter(|path| path.exists())
            .map_or(Roots::Anybody, Roots::File),
    }
}

fn identity(said: &Parameters, own: Option<&Path>) -> Result<Option<Identity>, OptionsError> {
    let usual = |name: &str| own.map(|own| own.join(name)).filter(|path| path.exists());
    let certificate = said
        .get("sslcert")
        .map(PathBuf::from)
        .or_else(|| usual("postgresql.crt"));
    let key = said
        .get("sslkey")
        .map(PathBuf::from)
        .or_else(|| usual("postgresql.key"));
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(Identity { certificate, key })),
        (Some(_), None) if said.get("sslcert").is_some() => {
            Err(said.bad("sslcert", "a file, with sslkey for that of its key"))
        }
        (None, Some(_)) if said.get("sslkey").is_some() => {
            Err(said.bad("sslkey", "a file, with sslcert for that of its certificate"))
        }
        _ => Ok(None),
    }
}
