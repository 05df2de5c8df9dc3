use hapax_testkit::servers::Postgres;

use super::server::{Server, give, signed_by_itself, switch_tls_on};
use super::*;

const ENCRYPTED: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

#[tokio::test]
async fn a_certificate_of_the_right_authority_and_name_is_trusted() {
    let Some(server) = Server::shared() else {
        return;
    };
    let text = server.named(
        "guarded",
        &format!("sslmode=verify-full sslrootcert={}", server.file("ca.pem")),
    );
    assert_eq!(ask(&connected(&text).await, ENCRYPTED).await, "t");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_trusted_for_this_one() {
    let Some(server) = Server::shared() else {
        return;
    };
    let error = failure(&server.at(
        "guarded",
        &format!("sslmode=verify-full sslrootcert={}", server.file("ca.pem")),
    ))
    .await;
    assert_eq!(error.kind(), ConnectKind::Untrusted);
    assert!(error.to_string().contains("not for that host"), "{error}");
    // `verify-ca` checks the authority but not the host name.
    connected(&server.at(
        "guarded",
        &format!("sslmode=verify-ca sslrootcert={}", server.file("ca.pem")),
    ))
    .await;
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_not_trusted() {
    let Some(server) = Server::shared() else {
        return;
    };
    for mode in ["verify-full", "verify-ca", "require"] {
        let error = failure(&server.named(
            "guarded",
            &format!("sslmode={mode} sslrootcert={}", server.file("other-ca.pem")),
        ))
        .await;
        assert_eq!(error.kind(), ConnectKind::Untrusted, "{error}");
        assert!(error.to_string().contains("sslrootcert"), "{error}");
    }
    let error = failure(&server.named("guarded", "sslrootcert=system")).await;
    assert!(matches!(error.kind(), ConnectKind::Untrusted), "{error}");
}

#[tokio::test]
async fn tls_without_anybody_to_trust_takes_any_certificate() {
    let Some(server) = Server::shared() else {
        return;
    };
    for mode in ["require", "prefer", "allow"] {
        assert_eq!(
            ask(
                &connected(&server.at("guarded", &format!("sslmode={mode}"))).await,
                ENCRYPTED
            )
            .await,
            "t",
            "{mode}"
        );
    }
}

#[tokio::test]
async fn without_tls_a_server_that_wants_it_lets_nobody_in() {
    let Some(server) = Server::shared() else {
        return;
    };
    let error = failure(&server.at("guarded", "sslmode=disable")).await;
    assert_eq!(error.kind(), ConnectKind::NotAdmitted);
    assert!(error.to_string().contains("pg_hba.conf"), "{error}");
}

#[tokio::test]
async fn a_user_who_is_let_in_only_without_tls_gets_in_unless_tls_is_a_must() {
    let Some(server) = Server::shared() else {
        return;
    };
    for mode in ["prefer", "allow", "disable"] {
        assert_eq!(
            ask(
                &connected(&server.at("open", &format!("sslmode={mode}"))).await,
                ENCRYPTED
            )
            .await,
            "f",
            "{mode}"
        );
    }
    assert_eq!(
        failure(&server.at("open", "sslmode=require")).await.kind(),
        ConnectKind::NotAdmitted
    );
}

#[tokio::test]
async fn a_server_without_tls_is_taken_only_where_tls_is_no_must() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = postgres.url("postgres");
    connected(&url).await;
    let error = failure(&format!("{url}?sslmode=require")).await;
    assert_eq!(error.kind(), ConnectKind::NoTls);
    assert!(error.to_string().contains("ssl = on"), "{error}");
}

#[tokio::test]
async fn a_user_with_a_card_gets_in_by_it() {
    let Some(server) = Server::shared() else {
        return;
    };
    let card = format!(
        "sslcert={} sslkey={}",
        server.file("carded.pem"),
        server.file("carded.key")
    );
    let text = server.named(
        "carded",
        &format!(
            "sslmode=verify-full sslrootcert={} {card}",
            server.file("ca.pem")
        ),
    );
    assert_eq!(
        ask(&connected(&text).await, "SELECT current_user").await,
        "carded"
    );
    assert_eq!(
        failure(&server.named("carded", "sslmode=require"))
            .await
            .kind(),
        ConnectKind::NotAdmitted
    );
}

#[tokio::test]
async fn a_key_that_others_may_read_is_not_used() {
    let Some(server) = Server::shared() else {
        return;
    };
    let key = server.files.path().join("open.key");
    std::fs::copy(server.file("carded.key"), &key).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let text = server.named(
        "carded",
        &format!(
            "sslmode=require sslcert={} sslkey={}",
            server.file("carded.pem"),
            key.display()
        ),
    );
    let Err(error) = connect(&options(&text)).await else {
        panic!("it was used")
    };
    assert_eq!(error.kind(), ConnectKind::Files);
    assert!(error.to_string().contains("chmod 0600"), "{error}");
}

#[tokio::test]
async fn a_missing_file_is_named() {
    let Some(server) = Server::shared() else {
        return;
    };
    let Err(error) = connect(&options(
        &server.named("guarded", "sslmode=verify-full sslrootcert=/nowhere/ca.pem"),
    ))
    .await
    else {
        panic!("there is nobody to trust")
    };
    assert_eq!(error.kind(), ConnectKind::Files);
    assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
}

#[tokio::test]
async fn a_password_is_bound_to_the_tls_connection() {
    let Some(server) = Server::shared() else {
        return;
    };
    let text = server.named(
        "known",
        "password=hush-hush sslmode=require channel_binding=require",
    );
    connected(&text).await;
    let error = failure(&server.named(
        "known_of_old",
        "password=hush-hush sslmode=require channel_binding=require",
    ))
    .await;
    assert_eq!(error.kind(), ConnectKind::Tls);
    assert!(error.to_string().contains("scram-sha-256"), "{error}");
}

#[tokio::test]
async fn a_server_that_signed_its_own_certificate_is_trusted_by_a_copy_of_it() {
    let Some(postgres) = Postgres::start() else {
        return;
    };
    let files = tempfile::tempdir().unwrap();
    let (certificate, key) = signed_by_itself();
    give(&postgres, "server.crt", &certificate);
    give(&postgres, "server.key", &key);
    switch_tls_on(&postgres);
    let trusted = files.path().join("server.pem");
    std::fs::write(&trusted, certificate).unwrap();
    let named = format!(
        "host=localhost hostaddr=127.0.0.1 port={} user=postgres sslrootcert={}",
        postgres.port(),
        trusted.display()
    );
    assert_eq!(
        ask(
            &connected(&format!("{named} sslmode=verify-full")).await,
            ENCRYPTED
        )
        .await,
        "t"
    );
    let addressed = format!(
        "host=127.0.0.1 port={} user=postgres sslrootcert={}",
        postgres.port(),
        trusted.display()
    );
    assert_eq!(
        failure(&format!("{addressed} sslmode=verify-full"))
            .await
            .kind(),
        ConnectKind::Untrusted
    );
    connected(&format!("{addressed} sslmode=verify-ca")).await;
    std::fs::write(&trusted, signed_by_itself().0).unwrap();
    assert_eq!(
        failure(&format!("{named} sslmode=verify-ca")).await.kind(),
        ConnectKind::Untrusted
    );
}
