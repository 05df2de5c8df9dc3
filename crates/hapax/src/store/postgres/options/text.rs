//! Parses the two forms of a connection text, `postgres://…` and `key=value …`, into names and
//! values.
//!
//! No error shows text that may be part of a password. If an `@`, a `/` or a space in a password is
//! not escaped, the rest of the password looks like a host, a database or a parameter. Such texts
//! are refused, not guessed at.

use super::OptionsError;

/// The names and values in a text, in order.
pub(super) fn read(text: &str) -> Result<Vec<(String, String)>, OptionsError> {
    let text = text.trim();
    match text.split_once("://") {
        Some(("postgres" | "postgresql", rest)) => url(rest),
        Some((scheme, _)) if scheme.chars().all(|c| c.is_ascii_alphanumeric()) => {
            Err(OptionsError::NotPostgres)
        }
        _ if text.is_empty() || text.contains('=') => pairs(text),
        _ => Err(OptionsError::NotPostgres),
    }
}

fn url(rest: &str) -> Result<Vec<(String, String)>, OptionsError> {
    let mut said = Vec::new();
    // As in libpq, the credentials end at the first `@` before any `/`, so a password may contain a
    // `?`.
    let rest = match rest.find(['@', '/']) {
        Some(end) if rest[end..].starts_with('@') => {
            credentials(&rest[..end], &mut said)?;
            &rest[end + 1..]
        }
        _ => rest,
    };
    let (place, query) = rest
        .split_once('?')
        .map_or((rest, None), |(place, query)| (place, Some(query)));
    let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
    if place.contains('@') || database.contains('/') {
        return Err(OptionsError::Syntax(
            "what comes after the user and the password may not hold an @, nor a database's name a /: write them as %40 and %2F, in a password too",
        ));
    }
    addresses(hosts, &mut said)?;
    said.push(("dbname".into(), decoded(database)?));
    for pair in query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .filter(|pair| !pair.is_empty())
    {
        said.push(parameter(pair)?);
    }
    Ok(said)
}

fn credentials(text: &str, said: &mut Vec<(String, String)>) -> Result<(), OptionsError> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    said.push(("user".into(), decoded(user)?));
    said.push(("password".into(), decoded(password)?));
    Ok(())
}

/// `host:port,host:port`, where any part may be missing.
fn addresses(text: &str, said: &mut Vec<(String, String)>) -> Result<(), OptionsError> {
    let mut hosts = Vec::new();
    let mut ports = Vec::new();
    for address in text.split(',') {
        let (host, port) = address_of(address)?;
        hosts.push(decoded(host)?);
        ports.push(decoded(port)?);
    }
    if ports
        .iter()
        .any(|port| !port.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return Err(OptionsError::Syntax(
            "a port is a number. If the password holds a / or an @, write them as %2F and %40",
        ));
    }
    said.push(("host".into(), list(&hosts)));
    said.push(("port".into(), list(&ports)));
    Ok(())
}

fn address_of(address: &str) -> Result<(&str, &str), OptionsError> {
    match address.strip_prefix('[') {
        Some(bracketed) => {
            let (host, port) = bracketed.split_once(']').ok_or(OptionsError::Syntax(
                "a [ before an IPv6 address wants a ] after it",
            ))?;
            Ok((host, port.strip_prefix(':').unwrap_or(port)))
        }
        None => Ok(address.split_once(':').unwrap_or((address, ""))),
    }
}

/// A comma-separated list, or an empty text if all its elements are empty.
fn list(words: &[String]) -> String {
    if words.iter().all(String::is_empty) {
        String::new()
    } else {
        words.join(",")
    }
}

fn parameter(pair: &str) -> Result<(String, String), OptionsError> {
    let (name, value) = pair.split_once('=').ok_or(OptionsError::Syntax(
        "after the ? come name=value, with & between them",
    ))?;
    let (name, value) = (decoded(name)?, decoded(value)?);
    // JDBC's name for it, which libpq accepts too.
    Ok(if name == "ssl" && value == "true" {
        ("sslmode".into(), "require".into())
    } else {
        (name, value)
    })
}

fn decoded(text: &str) -> Result<String, OptionsError> {
    const WRONG: OptionsError = OptionsError::Syntax(
        "a % wants two hexadecimal digits after it, of UTF-8 and not 00: write a % itself as %25",
    );
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, more) = rest.split_at_checked(2).ok_or(WRONG)?;
        rest = more;
        let digits = std::str::from_utf8(digits)
            .ok()
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .ok_or(WRONG)?;
        bytes.push(
            u8::from_str_radix(digits, 16)
                .ok()
                .filter(|byte| *byte != 0)
                .ok_or(WRONG)?,
        );
    }
    String::from_utf8(bytes).map_err(|_| WRONG)
}

fn pairs(text: &str) -> Result<Vec<(String, String)>, OptionsError> {
    let mut said: Vec<(String, String)> = Vec::new();
    let mut rest = text.chars().peekable();
    loop {
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        if rest.peek().is_none() {
            return Ok(said);
        }
        let name = std::iter::from_fn(|| rest.next_if(|c| *c != '=' && !c.is_whitespace()))
            .collect::<String>();
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        let after_password = said.last().is_some_and(|(name, _)| name == "password");
        if rest.next_if_eq(&'=').is_none() {
            return Err(OptionsError::Syntax(
                "every name wants a = after it, and a value with spaces wants '…' around it",
            ));
        }
        if after_password && !super::is_known(&name) {
            return Err(OptionsError::Syntax(
                "what comes after the password is no parameter: if the password holds spaces, put '…' around it",
            ));
        }
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        said.push((name, value(&mut rest)?));
    }
}

/// A word or a quoted text. A backslash escapes the next character.
fn value(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<String, OptionsError> {
    let quoted = rest.next_if_eq(&'\'').is_some();
    let mut value = String::new();
    while let Some(c) = rest.next_if(|c| quoted || !c.is_whitespace()) {
        match c {
            '\'' if quoted => return Ok(value),
            '\\' => value.extend(rest.next()),
            c => value.push(c),
        }
    }
    if quoted {
        Err(OptionsError::Syntax(
            "a ' wants another after the value: write a ' itself as \\'",
        ))
    } else {
        Ok(value)
    }
}
