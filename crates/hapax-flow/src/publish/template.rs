//! How a broker's name for a place is made of a message's topic.

/// Stands for the topic in a template.
const TOPIC: &str = "{topic}";

/// Text with `{topic}` in it, or one fixed name. What a broker allows in a name is its publisher's
/// to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template(String);

impl Template {
    /// # Errors
    ///
    /// Why this is no template.
    pub(crate) fn parse(text: &str) -> Result<Template, &'static str> {
        let example = text.replace(TOPIC, "topic");
        if text.is_empty() {
            return Err("it is empty");
        }
        match example.contains(['{', '}']) {
            false => Ok(Template(text.to_owned())),
            true => Err("only {topic} may stand in braces"),
        }
    }

    /// The name for the messages of a topic.
    pub(crate) fn name(&self, topic: &str) -> String {
        self.0.replace(TOPIC, topic)
    }

    /// The text before the first `{topic}`; all of it, if there is none.
    pub(crate) fn prefix(&self) -> &str {
        self.0.split(TOPIC).next().unwrap_or_default()
    }

    /// Whether every topic has the same name.
    pub(crate) fn is_fixed(&self) -> bool {
        !self.0.contains(TOPIC)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_makes_names_of_topics() {
        let name = |template| Template::parse(template).unwrap().name("orders");
        assert_eq!(name("{topic}"), "orders");
        assert_eq!(name("shop.{topic}.v1"), "shop.orders.v1");
        assert_eq!(name("everything"), "everything");
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for template in ["", "{key}", "{topic", "a}"] {
            assert!(Template::parse(template).is_err(), "{template:?}");
        }
    }
}
