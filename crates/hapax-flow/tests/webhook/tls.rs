//! Servers over TLS.

use hapax_flow::publish::Webhook;
use hapax_flow::publish::webhook::{Endpoint, EndpointError, Options};
use hapax_testkit::harness::{Authority, Service, Serving, whole};

use super::world::{endpoint, outage, send};

struct World {
    server: Service,
    directory: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let authority = Authority::default();
        let directory = tempfile::tempdir().unwrap();
        authority.write(&directory.path().join("ca.pem"));
        let serving = Serving {
            tls: Some(authority.issue().server(&[b"h2", b"http/1.1"])),
            ..Serving::default()
        };
        World {
            server: Service::start(serving, |_| whole(200, "")),
            directory,
        }
    }

    fn endpoint(&self, host: &str) -> Endpoint {
        let mut endpoint = endpoint(self.server.address);
        endpoint.url = format!("https://{host}:{}/hook", self.server.address.port());
        endpoint.allow_networks.push("::1".parse().unwrap());
        endpoint.ca_file = Some(self.directory.path().join("ca.pem"));
        endpoint
    }
}

#[tokio::test]
async fn a_certificate_of_the_given_file_is_trusted_for_its_name_and_its_address() {
    let world = World::new();
    for host in ["localhost", "127.0.0.1"] {
        let webhook = Webhook::new(Options::new(world.endpoint(host))).unwrap();
        assert!(send(&webhook, "m").await.is_accepted(), "{host}");
        assert!(send(&webhook, "m").await.is_accepted(), "{host}");
        let asked = world.server.last();
        assert!(asked.field("host").starts_with(host));
        assert_eq!(asked.version, http::Version::HTTP_11);
    }
    // Kept connections do over TLS too.
    let ends: std::collections::HashSet<_> = world
        .server
        .asked()
        .iter()
        .map(|asked| asked.ends)
        .collect();
    assert_eq!(ends.len(), 2);
}

#[tokio::test]
async fn a_certificate_that_nobody_trusts_or_of_another_name_is_an_outage() {
    let world = World::new();
    let mut stranger = world.endpoint("localhost");
    stranger.ca_file = None;
    // The same server, by an address that its certificate does not name.
    let other = world.endpoint("[::ffff:127.0.0.1]");
    for endpoint in [stranger, other] {
        let outage = outage(&Webhook::new(Options::new(endpoint)).unwrap()).await;
        assert!(!outage.permanent);
        assert!(outage.reason.starts_with("TLS: "), "{outage}");
    }
    assert_eq!(world.server.asked().len(), 0);
}

#[tokio::test]
async fn a_server_without_tls_is_an_outage() {
    let plain = Service::start(Serving::default(), |_| whole(200, ""));
    let mut endpoint = endpoint(plain.address);
    endpoint.url = endpoint.url.replace("http:", "https:");
    let outage = outage(&Webhook::new(Options::new(endpoint)).unwrap()).await;
    assert!(outage.reason.starts_with("TLS: "), "{outage}");
    assert_eq!(plain.asked().len(), 0);
}

#[test]
fn a_file_without_certificates_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.pem");
    for content in [None, Some("nothing")] {
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let mut endpoint = Endpoint::new("https://example.com/");
        endpoint.ca_file = Some(path.clone());
        let refused = Webhook::new(Options::new(endpoint)).unwrap_err();
        assert!(matches!(refused, EndpointError::CaFile { .. }), "{refused}");
    }
}
