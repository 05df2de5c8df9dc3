//! URLs and addresses that are not used.

use hapax_flow::publish::Webhook;
use hapax_flow::publish::webhook::{Endpoint, EndpointError, Options};
use hapax_testkit::harness::{Service, Serving, whole};

use super::world::{endpoint, outage, send};

#[tokio::test]
async fn an_address_that_is_not_allowed_is_not_reached_by_any_spelling() {
    let server = Service::start(Serving::default(), |_| whole(200, ""));
    let port = server.address.port();
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "127.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "0",
        "0.0.0.0",
    ] {
        let mut endpoint = Endpoint::new(format!("http://{host}:{port}/"));
        endpoint.allow_http = true;
        let outage = outage(&Webhook::new(Options::new(endpoint)).unwrap()).await;
        assert!(!outage.permanent);
        assert!(outage.reason.contains("allow_networks"), "{host}: {outage}");
    }
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn a_name_is_resolved_and_stays_the_host_of_the_request() {
    let server = Service::start(Serving::default(), |_| whole(200, ""));
    let mut endpoint = endpoint(server.address);
    endpoint.url = format!("http://localhost:{}/hook", server.address.port());
    endpoint.allow_networks.push("::1".parse().unwrap());
    let webhook = Webhook::new(Options::new(endpoint)).unwrap();
    assert!(send(&webhook, "m").await.is_accepted());
    let asked = server.last();
    assert_eq!(
        asked.field("host"),
        format!("localhost:{}", server.address.port())
    );
    assert_eq!(asked.uri, "/hook");
    assert_eq!(asked.method, "POST");
    assert!(asked.field("user-agent").starts_with("hapax/"));
}

#[test]
fn http_is_for_this_machine_unless_it_is_allowed() {
    for host in [
        "127.0.0.1",
        "127.8.9.1:8080",
        "[::1]:80",
        "localhost:1",
        "Localhost",
    ] {
        let endpoint = Endpoint::new(format!("http://{host}/"));
        assert!(Webhook::new(Options::new(endpoint)).is_ok(), "{host}");
    }
    for host in [
        "example.com",
        "10.0.0.1",
        "[::2]",
        "localhost.example.com",
        "127.1",
    ] {
        let mut endpoint = Endpoint::new(format!("http://{host}/"));
        let refused = Webhook::new(Options::new(endpoint.clone())).unwrap_err();
        assert!(matches!(refused, EndpointError::Http(_)), "{host}");
        endpoint.allow_http = true;
        assert!(Webhook::new(Options::new(endpoint)).is_ok(), "{host}");
    }
}

#[test]
fn what_is_no_url_of_a_webhook_is_refused_and_not_repeated() {
    for url in [
        "",
        "example.com",
        "/hook",
        "ftp://example.com/",
        "https://",
        "https:///hook",
        "https://user:hunter2@example.com/",
        "https://user@example.com/",
        "https://example.com:0/",
        "https://example.com:/",
        "https://example.com:65536/",
        "https://example.com:+1/",
        "https://example.com/#hunter2",
        "https://exa mple.com/",
        "https://example.com/\r\nx: y",
    ] {
        let refused = Webhook::new(Options::new(Endpoint::new(url))).unwrap_err();
        assert_eq!(refused, EndpointError::Url, "{url}");
        assert!(!refused.to_string().contains("hunter2"));
    }
}

#[test]
fn nothing_secret_is_printed() {
    let mut options = Options::new(Endpoint::new("https://example.com/hunter2?token=hunter2"));
    let secret = "whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg==";
    options.secrets = vec![secret.parse().unwrap()];
    let printed = format!("{options:?} {:?}", Webhook::new(options.clone()).unwrap());
    assert!(printed.contains("example.com"), "{printed}");
    for hidden in ["hunter2", "aHVu"] {
        assert!(!printed.contains(hidden), "{printed}");
    }
}
