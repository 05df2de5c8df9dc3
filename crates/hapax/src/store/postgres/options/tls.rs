//! What is said of TLS.

use std::path::{Path, PathBuf};

use tokio_postgres::config::ChannelBinding;

use super::OptionsError;
use super::parameters::Parameters;

/// What TLS is worth to the user, as libpq has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in super::super) enum Mode {
    /// Never.
    Disable,
    /// Only where the server admits nobody without.
    Allow,
    /// Where the server can.
    Prefer,
    /// Always.
    Require,
    /// And the certificate is one of an authority that is trusted.
    VerifyCa,
    /// And it is for this host.
    VerifyFull,
}

/// Whom to trust.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super) enum Roots {
    /// Anybody: the connection is hidden from those who listen, not from those who stand between.
    Anybody,
    /// Whom the system trusts.
    System,
    /// The certificates in a file.
    File(PathBuf),
}

/// Who we are: the files of a certificate and its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super) struct Identity {
    pub(in super::super) certificate: PathBuf,
    pub(in super::super) key: PathBuf,
}

/// What is said of TLS.
#[derive(Clone, Debug)]
pub(in super::super) struct TlsOptions {
    pub(in super::super) mode: Mode,
    /// Begins with TLS instead of asking for it.
    pub(in super::super) direct: bool,
    pub(in super::super) roots: Roots,
    pub(in super::super) identity: Option<Identity>,
    /// Whether the server is told in the clear whom we look for.
    pub(in super::super) sni: bool,
    pub(in super::super) tls12: bool,
    pub(in super::super) tls13: bool,
    pub(in super::super) channel_binding: ChannelBinding,
}

const MODES: &[(&str, Mode)] = &[
    ("disable", Mode::Disable),
    ("allow", Mode::Allow),
    ("prefer", Mode::Prefer),
    ("require", Mode::Require),
    ("verify-ca", Mode::VerifyCa),
    ("verify-full", Mode::VerifyFull),
];

const BINDINGS: &[(&str, ChannelBinding)] = &[
    ("disable", ChannelBinding::Disable),
    ("prefer", ChannelBinding::Prefer),
    ("require", ChannelBinding::Require),
];

/// Those of TLS that are spoken at all, and older ones that a user may well allow.
const VERSIONS: &[(&str, u8)] = &[("TLSv1", 0), ("TLSv1.1", 1), ("TLSv1.2", 2), ("TLSv1.3", 3)];

impl TlsOptions {
    pub(super) fn from(said: &Parameters, home: Option<&Path>) -> Result<TlsOptions, OptionsError> {
        let own = home.map(|home| home.join(".postgresql"));
        let roots = roots(said, own.as_deref());
        let weakest = if roots == Roots::System {
            Mode::VerifyFull
        } else {
            Mode::Prefer
        };
        let mode = said.choice("sslmode", MODES)?.unwrap_or(weakest);
        if roots == Roots::System && mode < Mode::VerifyFull {
            return Err(said.bad(
                "sslmode",
                "with sslrootcert=system it takes verify-full: anybody can get a certificate of those authorities",
            ));
        }
        if roots == Roots::Anybody && mode >= Mode::VerifyCa {
            return Err(OptionsError::NoRoots);
        }
        let direct = said
            .choice("sslnegotiation", &[("postgres", false), ("direct", true)])?
            .unwrap_or(false);
        if direct && mode < Mode::Require {
            return Err(said.bad("sslnegotiation", "direct takes sslmode=require or stronger"));
        }
        let oldest = said
            .choice("ssl_min_protocol_version", VERSIONS)?
            .unwrap_or(0);
        let newest = said
            .choice("ssl_max_protocol_version", VERSIONS)?
            .unwrap_or(3);
        if newest < 2 || newest < oldest {
            return Err(said.bad(
                "ssl_max_protocol_version",
                "TLSv1.2 and TLSv1.3 are spoken here: allow one of them",
            ));
        }
        said.choice("sslcompression", &[("0", ()), ("1", ())])?;
        said.choice("gssencmode", &[("disable", ()), ("prefer", ())])?;
        Ok(TlsOptions {
            mode,
            direct,
            roots,
            identity: identity(said, own.as_deref())?,
            sni: said
                .choice("sslsni", &[("0", false), ("1", true)])?
                .unwrap_or(true),
            tls12: oldest <= 2,
            tls13: newest >= 3,
            channel_binding: said
                .choice("channel_binding", BINDINGS)?
                .unwrap_or(ChannelBinding::Prefer),
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
    // To require that a server asks for the certificate is beyond what this end of rustls can see.
    if !said
        .choice("sslcertmode", &[("allow", true), ("disable", false)])?
        .unwrap_or(true)
    {
        return Ok(None);
    }
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
            Err(said.bad("sslcert", "it takes sslkey too: the file of its key"))
        }
        (None, Some(_)) if said.get("sslkey").is_some() => Err(said.bad(
            "sslkey",
            "it takes sslcert too: the file of its certificate",
        )),
        _ => Ok(None),
    }
}
