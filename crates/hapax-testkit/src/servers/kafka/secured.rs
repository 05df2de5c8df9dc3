//! A server with TLS, at which one has to say who one is.

use std::path::PathBuf;

use super::super::directory::Directory;
use super::Kafka;
use crate::harness::Authority;

/// The package of Kafka's own modules for SASL.
const SECURITY: &str = "org.apache.kafka.common.security";

/// A [`Kafka`] whose only way in is SASL over TLS.
pub struct SecuredKafka {
    // In this order: the server ends before its certificates are removed.
    server: Kafka,
    directory: Directory,
    user: (String, String),
}

impl SecuredKafka {
    /// Starts one that knows this user by SASL `PLAIN`. Prints `SKIPPED` and returns `None` if Kafka
    /// is not installed.
    ///
    /// # Panics
    ///
    /// If it does not start; the message has its log.
    pub fn start(name: &str, password: &str) -> Option<SecuredKafka> {
        let directory = Directory::new();
        let (authority, pair) = (
            directory.path().join("ca.pem"),
            directory.path().join("pair.pem"),
        );
        let issuer = Authority::default();
        issuer.write(&authority);
        let (certificate, key) = issuer.issue().write(directory.path(), "server");
        let text = |path| std::fs::read_to_string(path).expect("a file of our own");
        std::fs::write(&pair, text(&key) + &text(&certificate)).expect("a directory of our own");
        let (authority, pair) = (authority.display(), pair.display());
        // A server talks to itself too, for transactions: without the name of the listener it would
        // do so without TLS.
        let server = Kafka::start(&format!(
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_SSL\n\
             sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
             inter.broker.listener.name=PLAINTEXT\n\
             sasl.mechanism.inter.broker.protocol=PLAIN\n\
             listener.name.plaintext.plain.sasl.jaas.config={SECURITY}.plain.PlainLoginModule required \
             username=\"server\" password=\"own\" user_server=\"own\" user_{name}=\"{password}\";\n\
             listener.name.plaintext.scram-sha-256.sasl.jaas.config={SECURITY}.scram.ScramLoginModule required;\n\
             listener.name.plaintext.scram-sha-512.sasl.jaas.config={SECURITY}.scram.ScramLoginModule required;\n\
             ssl.keystore.type=PEM\nssl.keystore.location={pair}\n\
             ssl.truststore.type=PEM\nssl.truststore.location={authority}"
        ))?;
        Some(SecuredKafka {
            server,
            directory,
            user: (name.to_owned(), password.to_owned()),
        })
    }

    /// The server itself.
    pub fn server(&self) -> &Kafka {
        &self.server
    }

    /// The file of the certificate authority to trust, in PEM.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Gives the user another password, with SCRAM.
    ///
    /// # Panics
    ///
    /// If that fails; the message has the output of Kafka's own program.
    pub fn add_scram(&self, password: &str) {
        let (name, plain) = &self.user;
        let authority = self.authority();
        let client = format!(
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n\
             sasl.jaas.config={SECURITY}.plain.PlainLoginModule required \
             username=\"{name}\" password=\"{plain}\";\n\
             ssl.truststore.type=PEM\nssl.truststore.location={}",
            authority.display(),
        );
        self.server.add_user(name, password, &client);
    }
}
