//! Which subject a message goes to.

use crate::nats::NatsError;
use crate::publish::template;

/// The subject of every message: text with `{topic}` in it, or one fixed subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(template::Template);

impl Template {
    pub(super) fn parse(text: &str) -> Result<Template, NatsError> {
        let wrong = |reason| NatsError::Subject(text.to_owned(), reason);
        let template = template::Template::parse(text).map_err(wrong)?;
        check(&template.name("topic")).map_err(wrong)?;
        Ok(Template(template))
    }

    /// The subject of the messages of a topic.
    ///
    /// # Errors
    ///
    /// Why nothing can be published there.
    pub(super) fn subject(&self, topic: &str) -> Result<String, String> {
        let subject = self.0.name(topic);
        let checked = check(&subject).and_then(|()| self.check_reserved(&subject));
        match checked {
            Ok(()) => Ok(subject),
            Err(reason) => Err(format!("{subject:?} is no subject of NATS: {reason}")),
        }
    }

    /// Every subject that the template can make matches this pattern.
    pub(super) fn pattern(&self) -> String {
        let prefix = self.0.prefix();
        if self.0.is_fixed() {
            return prefix.to_owned();
        }
        // A topic may have several tokens, so that nothing is known from its first one on.
        let before = prefix.rsplit_once('.');
        before.map_or(">".to_owned(), |(tokens, _)| format!("{tokens}.>"))
    }

    /// The server does what is said under `$JS` and answers clients under `_INBOX`. Whoever may
    /// name a topic must not reach either. An operator may by the template.
    fn check_reserved(&self, subject: &str) -> Result<(), &'static str> {
        let is_reserved = subject.starts_with('$') || subject.starts_with("_INBOX.");
        if is_reserved && self.0.prefix().is_empty() {
            return Err("a topic may begin neither with $ nor with _INBOX");
        }
        Ok(())
    }
}

fn check(subject: &str) -> Result<(), &'static str> {
    if subject
        .chars()
        .any(|character| character.is_whitespace() || character.is_control())
    {
        return Err("it has white space or control characters");
    }
    if subject.split('.').any(str::is_empty) {
        return Err("a token between its dots is empty");
    }
    if subject.split('.').any(|token| matches!(token, "*" | ">")) {
        return Err("it has a wildcard");
    }
    Ok(())
}

/// Whether some subject matches both patterns.
pub(super) fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(left), Some(right)) if left == right || left == "*" || right == "*" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_makes_subjects_of_topics() {
        let subject = |template| Template::parse(template).unwrap().subject("orders.paid");
        assert_eq!(subject("{topic}").unwrap(), "orders.paid");
        assert_eq!(subject("shop.{topic}.v1").unwrap(), "shop.orders.paid.v1");
        assert_eq!(subject("everything").unwrap(), "everything");
    }

    #[test]
    fn a_template_that_makes_no_subject_is_refused() {
        for template in [
            "", "a b", ".{topic}", "{topic}.", "{key}", "a.*", "a.>", "{topic",
        ] {
            assert!(Template::parse(template).is_err(), "{template:?}");
        }
    }

    #[test]
    fn a_topic_that_is_no_subject_is_refused() {
        let template = Template::parse("{topic}").unwrap();
        for topic in [
            "",
            "a b",
            "a\tb",
            ".a",
            "a.",
            "a..b",
            "*",
            "a.*.b",
            ">",
            "a.>",
            "$JS.API.INFO",
            "_INBOX.x",
            "a\u{a0}b",
        ] {
            assert!(template.subject(topic).is_err(), "{topic:?}");
        }
        for topic in ["a", "a.b", "a*b", "größe", "a-b_c", "a$b"] {
            assert_eq!(template.subject(topic).unwrap(), topic);
        }
    }

    #[test]
    fn a_template_may_begin_where_a_topic_may_not() {
        let template = Template::parse("$KV.bucket.{topic}").unwrap();
        assert_eq!(template.subject("a").unwrap(), "$KV.bucket.a");
        assert_eq!(template.subject("$JS").unwrap(), "$KV.bucket.$JS");
    }

    #[test]
    fn a_pattern_covers_what_a_template_makes() {
        let pattern = |template| Template::parse(template).unwrap().pattern();
        assert_eq!(pattern("{topic}"), ">");
        assert_eq!(pattern("shop.eu.{topic}.v1"), "shop.eu.>");
        assert_eq!(pattern("shop.v1-{topic}"), "shop.>");
        assert_eq!(pattern("everything"), "everything");
    }

    #[test]
    fn patterns_overlap_when_a_subject_matches_both() {
        for (one, other) in [
            ("a", "a"),
            ("a.>", "a.b"),
            (">", "a"),
            ("a.*", "a.b"),
            ("*.b", "a.*"),
            ("a.>", "*.b.c"),
        ] {
            assert!(overlap(one, other) && overlap(other, one), "{one} {other}");
        }
        for (one, other) in [
            ("a", "b"),
            ("a", "a.b"),
            ("a.>", "a"),
            ("a.*", "a.b.c"),
            ("a.*.c", "a.b"),
        ] {
            assert!(
                !overlap(one, other) && !overlap(other, one),
                "{one} {other}"
            );
        }
    }
}
