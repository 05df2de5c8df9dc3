//! One run of an SDK, in its own process.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

use super::harness::install::Installed;
use super::install;

/// An SDK that retried against the gateway's advice would take longer: thirty retries, most of them
/// some four seconds apart.
const LONGEST: Duration = Duration::from_secs(60);

/// How an order ended, as reported by the SDK.
#[derive(Debug, Deserialize)]
pub struct Report {
    pub order: String,
    /// The id of the charge, if the SDK reports one.
    pub id: Option<String>,
    /// The code of the gateway's rejection otherwise.
    pub code: Option<String>,
    #[expect(dead_code, reason = "shown when something is wrong")]
    error: Option<String>,
    #[expect(dead_code, reason = "shown when something is wrong")]
    status: Option<u16>,
}

/// Pays `orders` orders at this address.
pub async fn pay(sdk: &Installed, to: SocketAddr, orders: usize) -> Vec<Report> {
    let program = Command::from(install::program(sdk))
        .args([format!("http://{to}"), orders.to_string()])
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ran = tokio::time::timeout(LONGEST, program)
        .await
        .expect("the SDK is still at it after a minute")
        .unwrap();
    assert!(
        ran.status.success(),
        "{}: {}",
        install::name(sdk),
        String::from_utf8_lossy(&ran.stderr)
    );
    let lines = String::from_utf8(ran.stdout).unwrap();
    let reports: Vec<_> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    assert_eq!(reports.len(), orders, "each order ends");
    reports
}
