//! What answers mean.

use hapax_flow::publish::Verdict;
use hapax_testkit::harness::{Service, Serving, whole, with};
use hapax_testkit::origin::{Origin, Step, answer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

use super::world::{assert_unclear, message, outage, publish, send, webhook};

fn answering(status: u16) -> Service {
    Service::start(Serving::default(), move |_| whole(status, ""))
}

#[tokio::test]
async fn the_status_decides() {
    for status in [200, 201, 202, 204, 299] {
        let server = answering(status);
        let verdict = send(&webhook(server.address), "m").await;
        assert_eq!(verdict, Verdict::ACCEPTED, "{status}");
    }
    for status in [408, 425, 429, 500, 502, 503, 504, 599] {
        let server = answering(status);
        let verdict = send(&webhook(server.address), "m").await;
        assert!(
            matches!(verdict, Verdict::Failed(_)),
            "{status} {verdict:?}"
        );
    }
    for status in [
        300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 405, 409, 413, 421, 422,
    ] {
        let server = answering(status);
        let verdict = send(&webhook(server.address), "m").await;
        assert!(
            matches!(verdict, Verdict::Refused(_)),
            "{status} {verdict:?}"
        );
    }
}

#[tokio::test]
async fn gone_stops_the_reader_for_good_and_the_rest_is_not_sent() {
    let server = Service::start(Serving::default(), |_| whole(410, "we moved away"));
    let webhook = webhook(server.address);
    let outage = outage(&webhook).await;
    assert!(outage.permanent);
    assert_eq!(outage.reason, "410 Gone: we moved away");
    let batch: Vec<_> = (0..100)
        .map(|number| message(&format!("k{number}"), "m"))
        .collect();
    let outage = publish(&webhook, &batch).await.unwrap_err();
    assert!(outage.permanent);
    let sent = server.asked().len() - 1;
    assert!(
        sent <= 16,
        "{sent} requests although the first was answered"
    );
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let private = answering(200);
    let location = format!("http://{}/private", private.address);
    let public = Service::start(Serving::default(), move |_| {
        with(whole(307, ""), "location", &location)
    });
    let verdict = send(&webhook(public.address), "m").await;
    let wanted = format!(
        "307 Temporary Redirect, to http://{}/private, which is not followed",
        private.address
    );
    assert_eq!(verdict, Verdict::Refused(wanted));
    assert_eq!(public.asked().len(), 1);
    assert_eq!(private.asked().len(), 0);
}

#[tokio::test]
async fn the_reason_says_when_to_come_again() {
    for (value, wanted) in [
        ("120", "503 Service Unavailable, Retry-After 120 s"),
        (
            "Thu, 01 Jan 1970 00:00:00 GMT",
            "503 Service Unavailable, Retry-After 0 s",
        ),
        ("soon", "503 Service Unavailable"),
        ("-1", "503 Service Unavailable"),
    ] {
        let server = Service::start(Serving::default(), move |_| {
            with(whole(503, ""), "retry-after", value)
        });
        let verdict = send(&webhook(server.address), "m").await;
        assert_eq!(verdict, Verdict::Failed(wanted.into()), "{value}");
    }
}

#[tokio::test]
async fn what_a_server_says_is_shown_harmlessly() {
    let server = Service::start(Serving::default(), |_| {
        whole(
            400,
            "bad\x1b[2J\r\nlevel=INFO msg=\"all is well\" \u{202e}x",
        )
    });
    let verdict = send(&webhook(server.address), "m").await;
    let wanted = "400 Bad Request: bad?[2J level=INFO msg=\"all is well\" ?x";
    assert_eq!(verdict, Verdict::Refused(wanted.into()));
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 4096]).await.unwrap();
        let head = "HTTP/1.1 500 Endless\r\ncontent-length: 99999999999\r\n\r\n";
        socket.write_all(head.as_bytes()).await.unwrap();
        // Until the other side has enough.
        while socket.write_all(&[b'a'; 4096]).await.is_ok() {}
    });
    let verdict = send(&webhook(address), "m").await;
    let wanted = format!("500 Internal Server Error: {}…", "a".repeat(200));
    assert_eq!(verdict, Verdict::Failed(wanted));
    server.await.unwrap();
}

#[tokio::test]
async fn a_head_without_end_is_unclear() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 4096]).await.unwrap();
        socket.write_all(b"HTTP/1.1 200 OK\r\nx: ").await.unwrap();
        while socket.write_all(&[b'a'; 4096]).await.is_ok() {}
    });
    assert_unclear(&send(&webhook(address), "m").await, "lost");
    server.await.unwrap();
}

#[tokio::test]
async fn an_answer_that_is_no_http_is_unclear() {
    let origin = Origin::start().await;
    origin.script([
        Step::Read,
        Step::Write(b"SSH-2.0-OpenSSH\r\n\r\n".to_vec()),
        Step::Close,
    ]);
    assert_unclear(&send(&webhook(origin.address()), "m").await, "lost");
}

#[tokio::test]
async fn a_body_that_breaks_off_does_not_change_the_answer() {
    let origin = Origin::start().await;
    let part = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhal".to_vec();
    origin.script([Step::Read, Step::Write(part), Step::Close]);
    let verdict = send(&webhook(origin.address()), "m").await;
    assert_eq!(verdict, Verdict::ACCEPTED);
}

#[tokio::test]
async fn an_answer_counts_although_the_request_was_not_read_to_its_end() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(8).unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut unread, _) = listener.accept().await.unwrap();
        let _ = unread.read(&mut [0; 512]).await.unwrap();
        unread
            .write_all(&answer(413, "", "too large"))
            .await
            .unwrap();
        let (mut fresh, _) = listener.accept().await.unwrap();
        let _ = fresh.read(&mut [0; 4096]).await.unwrap();
        fresh.write_all(&answer(200, "", "")).await.unwrap();
        drop(unread);
    });
    let webhook = webhook(address);
    // More than a message may have, and than the system takes of it. Between two machines that is
    // far less than here.
    let large = "x".repeat(8 << 20);
    let refused = Verdict::Refused("413 Payload Too Large: too large".into());
    assert_eq!(send(&webhook, &large).await, refused);
    // Not behind the rest of that request, on a connection that nobody reads.
    assert_eq!(send(&webhook, "next").await, Verdict::ACCEPTED);
    server.await.unwrap();
}

#[tokio::test]
async fn answers_before_the_answer_are_passed_over() {
    let origin = Origin::start().await;
    let early = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".to_vec();
    let last = answer(200, "", "");
    origin.script([Step::Read, Step::Write([early, last].concat())]);
    let verdict = send(&webhook(origin.address()), "m").await;
    assert_eq!(verdict, Verdict::ACCEPTED);
}
