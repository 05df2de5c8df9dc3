//! Which requests over HTTP/2 are refused.

use http::Request;

use super::super::{Refusal as R, check_http2};

fn check(request: http::request::Builder) -> Result<(), R> {
    check_http2(&request.body(()).unwrap().into_parts().0)
}

fn post() -> http::request::Builder {
    Request::post("https://a.example/x?y")
}

#[test]
fn plain_requests_pass() {
    assert_eq!(check(post()), Ok(()));
    assert_eq!(check(post().header("host", "A.example")), Ok(()));
    assert_eq!(check(Request::get("/x").header("host", "a")), Ok(()));
    assert_eq!(check(Request::options("*").header("host", "a")), Ok(()));
    assert_eq!(
        check(
            post()
                .header("te", "trailers")
                .header("content-length", "5")
                .header("expect", "100-continue")
        ),
        Ok(())
    );
}

#[test]
fn hosts_and_targets_that_are_not_plain_are_refused() {
    assert_eq!(check(Request::get("/x")), Err(R::HostMissing));
    assert_eq!(
        check(post().header("host", "b.example")),
        Err(R::AuthorityDiffers)
    );
    assert_eq!(
        check(
            post()
                .header("host", "a.example")
                .header("host", "a.example")
        ),
        Err(R::HostRepeated)
    );
    assert_eq!(check(Request::get("https://u:p@a/")), Err(R::HostNotPlain));
    assert_eq!(
        check(Request::get("/").header("host", "a,b")),
        Err(R::HostNotPlain)
    );
    assert_eq!(check(Request::get("*").header("host", "a")), Err(R::Target));
    assert_eq!(check(Request::get("https://a/\u{e9}")), Err(R::Target));
    assert_eq!(check(Request::connect("a:80")), Err(R::Connect));
}

#[test]
fn fields_of_http1_are_refused() {
    for name in [
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
    ] {
        assert_eq!(
            check(post().header(name, "x")),
            Err(R::ConnectionSpecific),
            "{name}"
        );
    }
    assert_eq!(
        check(post().header("te", "gzip")),
        Err(R::ConnectionSpecific)
    );
    assert_eq!(check(post().header("expect", "tea")), Err(R::Expect));
}

#[test]
fn lengths_are_one_plain_number() {
    assert_eq!(
        check(
            post()
                .header("content-length", "5")
                .header("content-length", "5")
        ),
        Err(R::ContentLengthRepeated)
    );
    for length in ["", "+5", "5, 5", "0x5", "10000000000000000000"] {
        assert_eq!(
            check(post().header("content-length", length)),
            Err(R::ContentLength),
            "{length}"
        );
    }
}
