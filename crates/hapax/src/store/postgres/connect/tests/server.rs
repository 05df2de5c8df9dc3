//! A server with TLS and users for each kind of authentication, shared by the tests.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::OnceLock;

use hapax_testkit::servers::Postgres;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// A server and its files.
pub(super) struct Server {
    pub(super) postgres: Postgres,
    /// `ca.pem` of the server's authority, `other-ca.pem` of another one, and a user's certificate
    /// `carded.pem` with `carded.key`.
    pub(super) files: TempDir,
}

const ADMISSIONS: &str = "\
local all all trust
host all postgres 127.0.0.1/32 trust
hostssl all guarded 127.0.0.1/32 trust
hostnossl all open 127.0.0.1/32 trust
host all known 127.0.0.1/32 scram-sha-256
host all known_of_old 127.0.0.1/32 md5
hostssl all carded 127.0.0.1/32 cert
host all stopped 127.0.0.1/32 trust
";

const ROLES: &str = "\
CREATE ROLE guarded LOGIN; CREATE ROLE open LOGIN; CREATE ROLE carded LOGIN; CREATE ROLE stopped LOGIN; CREATE ROLE unlisted LOGIN;
SET password_encryption = 'scram-sha-256'; CREATE ROLE known LOGIN PASSWORD 'hush-hush';
SET password_encryption = 'md5'; CREATE ROLE known_of_old LOGIN PASSWORD 'hush-hush';
ALTER ROLE stopped SET default_transaction_read_only = on;
CREATE DATABASE closed; REVOKE CONNECT ON DATABASE closed FROM public;
";

impl Server {
    /// The shared server. Its certificate is valid for `localhost`, and for no address.
    pub(super) fn shared() -> Option<&'static Server> {
        static SHARED: OnceLock<Option<Server>> = OnceLock::new();
        SHARED.get_or_init(Server::start).as_ref()
    }

    fn start() -> Option<Server> {
        let postgres = Postgres::start()?;
        let files = tempfile::tempdir().unwrap();
        let authority = authority();
        fs::write(files.path().join("ca.pem"), authority.pem()).unwrap();
        fs::write(files.path().join("other-ca.pem"), self::authority().pem()).unwrap();
        let (certificate, key) = issue(&authority, "server", &["localhost"]);
        give(&postgres, "server.crt", &certificate);
        give(&postgres, "server.key", &key);
        give(&postgres, "ca.crt", &authority.pem());
        let (certificate, key) = issue(&authority, "carded", &[]);
        fs::write(files.path().join("carded.pem"), certificate).unwrap();
        private(&files.path().join("carded.key"), &key);
        postgres.psql("postgres", ROLES);
        give(&postgres, "pg_hba.conf", ADMISSIONS);
        postgres.set("ssl_ca_file", "ca.crt");
        switch_tls_on(&postgres);
        Some(Server { postgres, files })
    }

    /// A connection text with the host name of the certificate.
    pub(super) fn named(&self, user: &str, more: &str) -> String {
        format!(
            "host=localhost hostaddr=127.0.0.1 port={} dbname=postgres user={user} {more}",
            self.postgres.port()
        )
    }

    /// A connection text with the address.
    pub(super) fn at(&self, user: &str, more: &str) -> String {
        format!(
            "host=127.0.0.1 port={} dbname=postgres user={user} {more}",
            self.postgres.port()
        )
    }

    pub(super) fn file(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }
}

/// Writes a file into the server's directory that only the server's user may read.
pub(super) fn give(postgres: &Postgres, name: &str, text: &str) {
    let (path, owner) = (
        postgres.data().join(name),
        fs::metadata(postgres.data()).unwrap(),
    );
    private(&path, text);
    chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
}

/// Returns when new connections find TLS switched on, and every earlier change with it: the server
/// reloads its files with a delay.
pub(super) fn switch_tls_on(postgres: &Postgres) {
    postgres.set("ssl", "on");
    while postgres.psql("postgres", "SHOW ssl") != "on" {}
}

pub(super) fn private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut wanted = CertificateParams::new(Vec::new()).unwrap();
    wanted.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    wanted
        .distinguished_name
        .push(DnType::CommonName, "an authority of a test");
    CertifiedIssuer::self_signed(wanted, KeyPair::generate().unwrap()).unwrap()
}

fn issue(
    authority: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    hosts: &[&str],
) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut wanted = CertificateParams::new(
        hosts
            .iter()
            .map(|host| (*host).to_owned())
            .collect::<Vec<_>>(),
    )
    .unwrap();
    wanted.distinguished_name.remove(DnType::CommonName);
    wanted.distinguished_name.push(DnType::CommonName, name);
    (
        wanted.signed_by(&key, authority).unwrap().pem(),
        key.serialize_pem(),
    )
}

/// A self-signed certificate that is its own authority, as `openssl req -x509` makes it.
pub(super) fn signed_by_itself() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut wanted = CertificateParams::new(["localhost".to_owned()]).unwrap();
    wanted.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (wanted.self_signed(&key).unwrap().pem(), key.serialize_pem())
}
