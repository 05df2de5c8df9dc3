//! One proposed route.

use http::Method;

use super::one_line;
use crate::cli::openapi::document::words;
use crate::cli::openapi::operation::Operation;
use crate::config::Pattern;

/// The longest name of a route.
const NAME_MAX: usize = 64;

/// A route, with the reasons for its settings.
pub(super) struct Proposed {
    method: Method,
    path: String,
    name: Option<String>,
    reasons: Vec<String>,
    settings: Vec<(&'static str, String)>,
    /// An earlier route matches all its requests.
    is_taken: bool,
}

pub(super) fn propose(operation: &Operation<'_>) -> Proposed {
    let mut reasons = Vec::new();
    if let Some(summary) = operation
        .node
        .get("summary")
        .and_then(|summary| summary.as_str())
    {
        reasons.push(one_line(summary));
    }
    let path = pattern(
        &format!("{}{}", operation.base(), operation.path),
        &mut reasons,
    );
    let mut settings = Vec::new();
    key(operation, &mut settings, &mut reasons);
    if operation
        .media()
        .any(|(kind, _)| kind == "multipart/form-data")
    {
        settings.push(("fingerprint", "multipart".to_owned()));
        reasons.push(
            "It takes multipart/form-data, whose boundary many clients choose anew with each try: parts are compared, not bytes."
                .to_owned(),
        );
    }
    for status in ["409", "422"] {
        if operation.answers(status) {
            reasons.push(format!(
                "The document has {status} of its own: it is kept and replayed. Those of hapax are application/problem+json."
            ));
        }
    }
    let name = operation
        .node
        .get("operationId")
        .and_then(|id| name(&words(id)));
    Proposed {
        method: operation.method.clone(),
        path,
        name,
        reasons,
        settings,
        is_taken: false,
    }
}

fn key(
    operation: &Operation<'_>,
    settings: &mut Vec<(&'static str, String)>,
    reasons: &mut Vec<String>,
) {
    let rule = |is_required| if is_required { "required" } else { "optional" };
    let word = |is_required| if is_required { "requires" } else { "allows" };
    if let Some(field) = operation.key_field() {
        settings.push(("key", rule(field.is_required).to_owned()));
        if can_carry(&field.name) {
            reasons.push(format!(
                "The document {} the field {}.",
                word(field.is_required),
                one_line(&field.name)
            ));
            if !field.name.eq_ignore_ascii_case("idempotency-key") {
                settings.push(("key_field", field.name));
            }
        } else {
            reasons.push(format!(
                "The document names {} for the key, a field that cannot carry one through the gateway: the usual one is taken.",
                one_line(&field.name)
            ));
        }
    } else if let Some(member) = operation.key_member() {
        settings.push(("key", rule(member.is_required).to_owned()));
        settings.push((
            "key_from",
            format!(
                "body:/{}",
                member.name.replace('~', "~0").replace('/', "~1")
            ),
        ));
        reasons.push(format!(
            "The document {} the member {} of the body.",
            word(member.is_required),
            one_line(&member.name)
        ));
    } else {
        settings.push(("key", "optional".to_owned()));
        reasons.push(
            "The document has no field for a key: clients that send Idempotency-Key are guarded. Write \"required\" when all do."
                .to_owned(),
        );
    }
}

fn can_carry(name: &str) -> bool {
    hapax::Policy {
        key_field: name.into(),
        ..hapax::Policy::default()
    }
    .mistakes()
    .is_empty()
        && http::HeaderName::try_from(name)
            .is_ok_and(|name| !hapax::middleware::fields::is_ours(&name))
}

/// A name that is valid in a metric, if some of its characters are.
fn name(id: &str) -> Option<String> {
    let plain: String = id
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') {
                c
            } else {
                '-'
            }
        })
        .collect();
    let plain: String = plain.trim_matches('-').chars().take(NAME_MAX).collect();
    (!plain.is_empty() && plain != "default").then_some(plain)
}

/// A path template as a pattern. A segment that is only partly a placeholder becomes any segment.
fn pattern(template: &str, reasons: &mut Vec<String>) -> String {
    let mut loosened = false;
    let mut segment = |text: &str| {
        let inner = text
            .strip_prefix('{')
            .and_then(|text| text.strip_suffix('}'));
        match inner {
            Some(name)
                if !name.is_empty()
                    && name
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') =>
            {
                text.to_owned()
            }
            _ if text.contains(['{', '}', '*']) => {
                loosened = true;
                "*".to_owned()
            }
            _ => encoded(text),
        }
    };
    let path = template
        .strip_prefix('/')
        .unwrap_or(template)
        .split('/')
        .map(&mut segment)
        .collect::<Vec<_>>()
        .join("/");
    if loosened {
        reasons.push(format!(
            "In {} a segment is more than a placeholder: any segment is taken for it.",
            one_line(template)
        ));
    }
    format!("/{path}")
}

/// The text in its percent-encoded form.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_graphic()
            && !matches!(
                byte,
                b'?' | b'#' | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'|'
            )
        {
            encoded.push(char::from(byte));
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    encoded
}

/// Puts specific routes before general ones, makes names unique, and marks routes that no request
/// would reach.
pub(super) fn arrange(routes: &mut [Proposed]) {
    let is_any = |segment: &str| segment == "*" || segment.starts_with('{');
    routes.sort_by_key(|route| route.path.split('/').map(is_any).collect::<Vec<bool>>());
    let mut names: Vec<String> = Vec::new();
    for at in 0..routes.len() {
        let (earlier, rest) = routes.split_at_mut(at);
        let route = &mut rest[0];
        let covers =
            |other: &Proposed| match (other.path.parse::<Pattern>(), route.path.parse::<Pattern>())
            {
                (Ok(other), Ok(this)) => other.covers(&this),
                _ => false,
            };
        route.is_taken = earlier
            .iter()
            .any(|other| !other.is_taken && other.method == route.method && covers(other));
        let wanted = route.name.take();
        route.name = wanted.filter(|_| !route.is_taken).map(|wanted| {
            let free = |name: &String| !names.contains(name);
            let numbered = (2..)
                .map(|number| format!("{}-{number}", &wanted[..wanted.len().min(NAME_MAX - 8)]));
            std::iter::once(wanted.clone())
                .chain(numbered)
                .find(free)
                .unwrap_or(wanted)
        });
        names.extend(route.name.clone());
    }
}

impl Proposed {
    /// The route as text for a configuration file.
    pub(super) fn text(&self) -> String {
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        if self.is_taken {
            return format!(
                "# {} {} is taken by a route above.\n",
                self.method,
                one_line(&self.path)
            );
        }
        let mut lines: Vec<String> = self
            .reasons
            .iter()
            .map(|reason| format!("# {reason}"))
            .collect();
        lines.push("[[routes]]".to_owned());
        lines.extend(
            self.name
                .iter()
                .map(|name| format!("name = {}", quoted(name))),
        );
        lines.push(format!("method = {}", quoted(self.method.as_str())));
        lines.push(format!("path = {}", quoted(&self.path)));
        lines.extend(
            self.settings
                .iter()
                .map(|(name, value)| format!("{name} = {}", quoted(value))),
        );
        lines.join("\n") + "\n"
    }
}
