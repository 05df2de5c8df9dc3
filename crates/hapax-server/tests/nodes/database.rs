//! The database that the gateways share.

use std::process::Command;

use hapax_testkit::servers::Postgres;

/// A new database on this server, prepared as an operator does it. Returns its URL.
pub fn migrated(server: &Postgres) -> String {
    let url = server.database();
    let output = Command::new(env!("CARGO_BIN_EXE_hapax"))
        .args(["migrate", "--store", &url])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    url
}

/// Its name in the URL.
pub fn name(url: &str) -> &str {
    url.rsplit_once('/').expect("a URL").1
}
