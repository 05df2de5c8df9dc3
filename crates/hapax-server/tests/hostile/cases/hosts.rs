//! The `Host` field.

use super::{Case, passes, refused};

fn with(hosts: &str) -> String {
    format!("POST /first-{{n}} HTTP/1.1\r\n{hosts}{{key}}Content-Length: 5\r\n\r\nhello")
}

pub fn cases(all: &mut Vec<Case>) {
    for (name, hosts) in [
        ("no Host", ""),
        ("Host twice", "Host: h\r\nHost: h\r\n"),
        ("Host twice, different", "Host: h\r\nHost: evil\r\n"),
        ("Host empty", "Host:\r\n"),
        ("Host of a space", "Host:  \r\n"),
        ("Host with a path", "Host: h/x\r\n"),
        ("Host with a user", "Host: u@h\r\n"),
        ("Host with a comma", "Host: h,evil\r\n"),
        ("Host with a space", "Host: h evil\r\n"),
        ("Host with a question mark", "Host: h?x\r\n"),
        ("Host with a number sign", "Host: h#x\r\n"),
        ("Host with a percent sign", "Host: h%00\r\n"),
        ("Host with a scheme", "Host: http://h\r\n"),
        ("Host with a port too high", "Host: h:99999\r\n"),
        ("Host with a port of nothing", "Host: h:\r\n"),
        ("Host with a signed port", "Host: h:+80\r\n"),
        ("Host with two ports", "Host: h:80:81\r\n"),
        ("Host with half a bracket", "Host: [::1\r\n"),
        (
            "Host with something behind the bracket",
            "Host: [::1]evil\r\n",
        ),
        ("Host that is not ASCII", "Host: h\u{e9}\r\n"),
        ("Host with a NUL", "Host: h\0\r\n"),
        ("Host with a space before the colon", "Host : h\r\n"),
        ("Host folded", "Host: h\r\n evil\r\n"),
    ] {
        all.push(refused(name, with(hosts)));
    }
    for (name, hosts) in [
        ("Host with a port", "Host: h:80\r\n"),
        ("Host with a last dot", "Host: h.\r\n"),
        ("Host in brackets", "Host: [::1]:80\r\n"),
        (
            "Host beside X-Forwarded-Host",
            "Host: h\r\nX-Forwarded-Host: evil\r\n",
        ),
        ("HOST", "HOST: h\r\n"),
    ] {
        all.push(passes(name, with(hosts), "hello"));
    }
}
