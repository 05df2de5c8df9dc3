use hapax_testkit::servers::Postgres;
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};

use super::server::{Server, private};
use super::*;

#[tokio::test]
async fn the_right_password_gets_in_and_a_wrong_one_does_not() {
    let Some(server) = Server::shared() else {
        return;
    };
    for user in ["known", "known_of_old"] {
        connected(&server.at(user, "password=hush-hush")).await;
        let error = failure(&server.at(user, "password=hush-not")).await;
        assert_eq!(error.kind(), ConnectKind::Password);
        assert!(error.to_string().contains("password is wrong"), "{error}");
        let error = failure(&server.at(user, "")).await;
        assert_eq!(error.kind(), ConnectKind::Password);
        assert!(error.to_string().contains("there is none"), "{error}");
    }
}

#[tokio::test]
async fn variables_lead_to_the_server() {
    let Some(server) = Server::shared() else {
        return;
    };
    let port = server.postgres.port().to_string();
    let variables = [
        ("PGHOST", "127.0.0.1"),
        ("PGPORT", &port),
        ("PGUSER", "known"),
        ("PGPASSWORD", "hush-hush"),
        ("PGDATABASE", "postgres"),
    ];
    let connected = connect(&options_in("postgres://", &variables))
        .await
        .unwrap();
    assert_eq!(
        ask(
            &connected,
            "SELECT current_user || ' ' || current_setting('application_name')"
        )
        .await,
        "known hapax"
    );
}

#[tokio::test]
async fn a_password_that_was_changed_in_its_file_needs_no_restart() {
    let Some(server) = Server::shared() else {
        return;
    };
    let file = server.files.path().join("passwords");
    private(&file, "127.0.0.1:*:postgres:known:hush-old\n");
    let options = options(&server.at("known", &format!("passfile={}", file.display())));
    assert_eq!(failure_of(&options).await.kind(), ConnectKind::Password);
    private(&file, "127.0.0.1:*:postgres:known:hush-hush\n");
    connect(&options).await.unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let error = failure_of(&options).await;
    assert!(error.to_string().contains("chmod 0600"), "{error}");
}

#[tokio::test]
async fn a_socket_of_this_machine_is_a_host() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let text = format!(
        "host={} port={} user=postgres sslmode=require",
        postgres.sockets().display(),
        postgres.port()
    );
    assert_eq!(
        ask(&connected(&text).await, "SELECT inet_client_addr() IS NULL").await,
        "t"
    );
    let error = failure(&format!(
        "host={} port=1 user=postgres",
        postgres.sockets().display()
    ))
    .await;
    assert_eq!(error.kind(), ConnectKind::Refused);
}

#[tokio::test]
async fn a_database_that_is_not_there_is_named_with_what_makes_it() {
    let Some(server) = Server::shared() else {
        return;
    };
    let error = failure(&server.at("postgres", "dbname=nothing_here")).await;
    assert_eq!(error.kind(), ConnectKind::NoSuchDatabase);
    assert!(
        error
            .to_string()
            .contains("CREATE DATABASE \"nothing_here\""),
        "{error}"
    );
}

#[tokio::test]
async fn who_may_not_come_in_is_told_by_whose_word() {
    let Some(server) = Server::shared() else {
        return;
    };
    let error = failure(&server.at("unlisted", "")).await;
    assert_eq!(error.kind(), ConnectKind::NotAdmitted);
    assert!(error.to_string().contains("pg_hba.conf"), "{error}");
    let error = failure(&server.at("guarded", "dbname=closed sslmode=require")).await;
    assert_eq!(error.kind(), ConnectKind::NotAdmitted);
    assert!(
        error
            .to_string()
            .contains("GRANT CONNECT ON DATABASE \"closed\" TO \"guarded\""),
        "{error}"
    );
}

#[tokio::test]
async fn a_session_that_may_only_read_is_refused() {
    let Some(server) = Server::shared() else {
        return;
    };
    let error = failure(&server.at("stopped", "")).await;
    assert_eq!(error.kind(), ConnectKind::ReadOnly);
    assert!(
        error.to_string().contains("default_transaction_read_only"),
        "{error}"
    );
}

#[tokio::test]
async fn nobody_listens_and_nobody_is_known() {
    let error = failure(&format!("postgres://ada@{}/shop", nowhere())).await;
    assert_eq!(error.kind(), ConnectKind::Refused);
    let error = failure("postgres://ada@nowhere.invalid/shop").await;
    assert_eq!(error.kind(), ConnectKind::NoSuchHost, "{error}");
}

#[tokio::test]
async fn a_host_that_is_dead_leaves_the_way_to_the_next() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let text = format!(
        "postgres://postgres@{},{}/postgres",
        nowhere(),
        postgres.address()
    );
    connected(&text).await;
    connected(&format!("{text}?load_balance_hosts=random")).await;
    let error = failure(&format!("postgres://ada@{},{}/shop", nowhere(), nowhere())).await;
    assert_eq!(error.kind(), ConnectKind::Refused);
}

#[tokio::test]
async fn a_host_that_swallows_everything_has_its_share_of_the_time() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    // The operating system accepts connections for this listener, but it never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent
        .local_addr()
        .map(|address| (silent, address))
        .unwrap();
    let begun = Instant::now();
    connected(&format!(
        "postgres://postgres@{},{}/postgres?connect_timeout=4",
        silent.1,
        postgres.address()
    ))
    .await;
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    let error = failure(&format!(
        "postgres://ada@{}/shop?connect_timeout=1",
        silent.1
    ))
    .await;
    assert_eq!(error.kind(), ConnectKind::Timeout);
    assert!(error.to_string().contains("within 1.0 s"), "{error}");
}

#[tokio::test]
async fn whoever_hangs_up_without_a_word_is_told_of() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let error = failure(&format!("postgres://ada@{address}/shop")).await;
    assert_eq!(error.kind(), ConnectKind::Other, "{error}");
}

#[tokio::test]
async fn the_end_of_a_connection_is_told() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let connected = connected(&postgres.database()).await;
    assert!(!connected.closed.is_cancelled());
    let database = ask(&connected, "SELECT current_database()").await;
    assert_eq!(postgres.terminate_backends(&database), 1);
    connected.closed.cancelled().await;
    assert!(connected.client.is_closed());
}

#[tokio::test]
async fn a_connection_that_is_dropped_closes_its_socket_though_a_statement_is_under_way() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, server) = (listener.local_addr().unwrap(), postgres.address());
    let between = tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(server).await.unwrap();
        let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.split(), far.split());
        tokio::select! {
            said = copy(&mut near_in, &mut far_out) => said.map(|_| "the client has closed"),
            said = copy(&mut far_in, &mut near_out) => said.map(|_| "the server has closed"),
        }
    });
    let connected = connected(&format!(
        "postgres://postgres@{address}/postgres?sslmode=disable"
    ))
    .await;
    let statement = connected.client.simple_query_raw("SELECT pg_sleep(20)");
    drop(statement.await.unwrap());
    let closed = connected.closed.clone();
    drop(connected);
    closed.cancelled().await;
    assert_eq!(between.await.unwrap().unwrap(), "the client has closed");
}
