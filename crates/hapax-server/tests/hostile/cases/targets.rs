//! Request targets.

use super::{Case, passes, refused, request, too_large};

fn to(target: &str) -> String {
    request(
        &format!("POST {target} HTTP/1.1"),
        "Content-Length: 0\r\n",
        "",
    )
}

pub fn cases(all: &mut Vec<Case>) {
    for (name, target) in [
        ("target //x", "//x-{n}"),
        ("target ///x", "///x-{n}"),
        ("target /../x", "/../x-{n}"),
        ("target /a/../../x", "/a/../../x-{n}"),
        ("target /./x", "/./x-{n}"),
        ("target with %00", "/%00-{n}"),
        ("target with %2f", "/a%2fb-{n}"),
        ("target with %2e%2e", "/%2e%2e/x-{n}"),
        ("target with %0d%0a", "/a%0d%0aX:%20y-{n}"),
        ("target with half a percent sign", "/a%-{n}"),
        ("target with %zz", "/a%zz-{n}"),
        ("target with a semicolon", "/;x=y-{n}"),
        ("target with an empty path and a query", "/?{n}"),
        ("target with two question marks", "/a??b=/../-{n}"),
        ("target with a backslash", "/a\\b-{n}"),
        ("target with braces and bars", "/{a}|b-{n}"),
        ("target with an at sign", "/@evil-{n}"),
        ("target with a colon", "/http://evil/-{n}"),
        (
            "target with a query in a query",
            "/a?b=GET%20/x%20HTTP/1.1-{n}",
        ),
    ] {
        all.push(passes(name, to(target), "").arrives("POST", target));
    }
    let long = format!("/{}-{{n}}", "a".repeat(20_000));
    all.push(passes("target of 20,000 bytes", to(&long), "").arrives("POST", &long));
    all.push(too_large(
        "target of 40,000 bytes",
        to(&format!("/{}-{{n}}", "a".repeat(40_000))),
    ));
    for (name, target) in [
        ("target with a fragment", "/first-{n}#x"),
        ("target of a query alone", "?first-{n}"),
        ("target that is not ASCII", "/\u{fc}-{n}"),
        ("target with a NUL", "/\0-{n}"),
        ("target with a tab", "/a\tb-{n}"),
        ("target with a bare CR", "/a\rb-{n}"),
        ("target with DEL", "/\u{7f}-{n}"),
        ("target with a quote in its query", "/a?\"-{n}"),
        ("target with angle brackets", "/<script>-{n}"),
        ("target without a slash", "first-{n}"),
        ("target *", "*"),
        ("target empty", ""),
        ("target of an authority", "h:80"),
    ] {
        all.push(refused(name, to(target)));
    }
    absolute(all);
}

fn absolute(all: &mut Vec<Case>) {
    for (name, target) in [
        ("absolute, of this host", "http://h/first-{n}"),
        ("absolute, of this host in capitals", "HTTP://H/first-{n}"),
        ("absolute, with https", "https://h/first-{n}"),
    ] {
        all.push(passes(name, to(target), ""));
    }
    for (name, target) in [
        ("absolute, of another host", "http://evil/first-{n}"),
        ("absolute, of another port", "http://h:81/first-{n}"),
        ("absolute, with a user", "http://h@evil/first-{n}"),
        (
            "absolute, with this host as a user",
            "http://h:80@evil/first-{n}",
        ),
        ("absolute, without a host", "http:///first-{n}"),
        ("absolute, with a query for a path", "http://h?first-{n}"),
        ("absolute, with a backslash", "http://h\\evil/first-{n}"),
        ("absolute, of ftp", "ftp://h/first-{n}"),
        ("absolute, of a file", "file:///etc/passwd"),
        ("absolute, with one slash", "http:/h/first-{n}"),
    ] {
        all.push(refused(name, to(target)));
    }
    all.push(refused(
        "absolute, without Host",
        "POST http://h/first-{n} HTTP/1.1\r\n{key}Content-Length: 0\r\n\r\n",
    ));
    all.push(passes(
        "absolute, in HTTP/1.0 kept alive",
        "POST http://h/first-{n} HTTP/1.0\r\nConnection: keep-alive\r\n{key}Content-Length: 0\r\n\r\n",
        "",
    ));
    all.push(
        passes("OPTIONS *", request("OPTIONS * HTTP/1.1", "", ""), "").arrives("OPTIONS", "*"),
    );
    all.push(refused(
        "OPTIONS of a host",
        request("OPTIONS http://h HTTP/1.1", "", ""),
    ));
}
