//! The syntax of a plain host.

/// Whether this is `name`, `1.2.3.4` or `[::1]`, with an optional port. Refuses everything that the
/// upstream could read as several hosts or as another host.
pub(super) fn is_plain(host: &[u8]) -> bool {
    let (name, port) = match host {
        [b'[', rest @ ..] => match memchr::memchr(b']', rest) {
            Some(at) if is_v6(&rest[..at]) => (&rest[..at], &rest[at + 1..]),
            _ => return false,
        },
        _ => {
            let at = memchr::memchr(b':', host).unwrap_or(host.len());
            if !host[..at].iter().all(|&byte| is_name(byte)) {
                return false;
            }
            host.split_at(at)
        }
    };
    !name.is_empty() && (port.is_empty() || is_port(port))
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn is_v6(address: &[u8]) -> bool {
    address
        .iter()
        .all(|&byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'))
}

fn is_port(port: &[u8]) -> bool {
    let [b':', digits @ ..] = port else {
        return false;
    };
    std::str::from_utf8(digits).is_ok_and(|digits| {
        digits.bytes().all(|byte| byte.is_ascii_digit())
            && digits.parse::<u16>().is_ok_and(|port| port > 0)
    })
}
