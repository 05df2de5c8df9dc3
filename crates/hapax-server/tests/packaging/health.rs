//! `hapax health`: exit codes for health checks that can only run a program.

use std::io::Write as _;
use std::net::TcpListener;

use super::harness::{Program, Signal, hapax, serve};
use hapax_testkit::origin::Origin;

fn asked(admin: &str, flags: &[&str]) -> (Option<i32>, String) {
    let output = hapax()
        .args(["health", "--admin", admin])
        .args(flags)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

fn gateway(upstream: &Origin, notice: &str) -> Program {
    let settings = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstore = \"memory:\"\n[upstream]\nurl = \"http://{}\"\n[drain]\nnotice = \"{notice}\"\n",
        upstream.address()
    );
    serve(&settings)
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_is_0_draining_is_1_and_gone_is_3() {
    let upstream = Origin::start().await;
    let mut program = gateway(&upstream, "1h");
    let admin = format!("http://{}", program.admin);
    assert_eq!(asked(&admin, &[]), (Some(0), "ready\n".to_owned()));
    program.signal(Signal::TERM);
    program.wait_for("draining");
    assert_eq!(
        asked(&admin, &[]),
        (Some(1), "hapax: not ready: draining\n".to_owned())
    );
    assert_eq!(
        asked(&admin, &["--live"]),
        (Some(0), "ok\n".to_owned()),
        "it still runs"
    );
    program.signal(Signal::TERM);
    program.ended();
    let (code, said) = asked(&admin, &[]);
    assert!(
        code == Some(3) && said.contains("nobody answers at"),
        "{said}"
    );
}

#[test]
fn whoever_is_silent_or_no_gateway_is_3_and_a_wrong_address_is_2() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, said) = asked(
        &format!("http://{}", silent.local_addr().unwrap()),
        &["--timeout", "1s"],
    );
    assert!(
        code == Some(3) && said.contains("no answer in time"),
        "{said}"
    );
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    std::thread::spawn(move || {
        other
            .accept()
            .unwrap()
            .0
            .write_all(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
            .unwrap();
    });
    let (code, said) = asked(&format!("http://{address}"), &[]);
    assert!(code == Some(3), "{said}");
    let (code, said) = asked("localhost:4001", &[]);
    assert!(
        code == Some(2) && said.contains("write http://HOST:PORT"),
        "{said}"
    );
}
