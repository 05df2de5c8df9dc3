//! The operations of a document.

use http::Method;

use super::document::Node;

/// One operation of an API.
pub(super) struct Operation<'a> {
    pub(super) document: &'a Node,
    /// The path as the document has it, without the server's.
    pub(super) path: &'a str,
    pub(super) method: Method,
    /// What stands under the path, for all its operations.
    pub(super) item: &'a Node,
    /// What stands under the method.
    pub(super) node: &'a Node,
}

/// A header field that carries a key.
pub(super) struct KeyField {
    pub(super) name: String,
    pub(super) is_required: bool,
}

/// A member of the body that carries a key.
pub(super) struct KeyMember {
    pub(super) name: String,
    pub(super) is_required: bool,
}

/// How other APIs call the field, besides whatever has `idempotency` in its name.
const KEY_FIELDS: [&str; 2] = ["paypal-request-id", "x-idempotence-id"];

/// How other APIs call the member of a body, in small letters alone.
const KEY_MEMBERS: [&str; 5] = [
    "clienttoken",
    "clientrequesttoken",
    "idempotencykey",
    "idempotencytoken",
    "clientreferencetoken",
];

/// All operations, in the order of the document.
pub(super) fn all(document: &Node) -> Vec<Operation<'_>> {
    let mut operations = Vec::new();
    for (path, item) in document.get("paths").map_or(&[][..], Node::entries) {
        let Some(item) = document.follow(item) else {
            continue;
        };
        for (name, node) in item.entries() {
            operations.extend(verb(name).map(|method| Operation {
                document,
                path,
                method,
                item,
                node,
            }));
        }
    }
    operations
}

fn verb(name: &str) -> Option<Method> {
    let known = [
        "get", "put", "post", "delete", "options", "head", "patch", "trace",
    ];
    let upper = name.to_ascii_uppercase();
    known
        .contains(&name)
        .then(|| Method::from_bytes(upper.as_bytes()).ok())
        .flatten()
}

impl Operation<'_> {
    /// Its parameters with all references followed; those of the operation before those of its
    /// path.
    pub(super) fn parameters(&self) -> Vec<&Node> {
        let lists =
            [self.node, self.item].map(|node| node.get("parameters").map_or(&[][..], Node::items));
        lists
            .into_iter()
            .flatten()
            .filter_map(|parameter| self.document.follow(parameter))
            .collect()
    }

    /// The header parameter that carries a key, if the document has one.
    pub(super) fn key_field(&self) -> Option<KeyField> {
        self.parameters().into_iter().find_map(|parameter| {
            let name = parameter.get("name")?.as_text()?;
            let lower = name.to_ascii_lowercase();
            let is_key = lower.contains("idempotency") || KEY_FIELDS.contains(&&*lower);
            let is_header = parameter.get("in").and_then(Node::as_text) == Some("header");
            // Ours, and no key: when the caller gives up.
            let is_deadline = lower == "idempotency-deadline";
            (is_key && is_header && !is_deadline).then(|| KeyField {
                name: name.to_owned(),
                is_required: parameter.get("required").is_some_and(Node::is_true),
            })
        })
    }

    /// The member of a JSON body that carries a key, if the document has one.
    pub(super) fn key_member(&self) -> Option<KeyMember> {
        let (_, media) = self
            .media()
            .into_iter()
            .find(|(kind, _)| kind.ends_with("json"))?;
        let schema = self.document.follow(media.get("schema")?)?;
        let parts = schema
            .get("allOf")
            .map_or(&[][..], Node::items)
            .iter()
            .filter_map(|part| self.document.follow(part));
        std::iter::once(schema).chain(parts).find_map(|schema| {
            let plain = |name: &str| {
                name.chars()
                    .filter(char::is_ascii_alphanumeric)
                    .collect::<String>()
                    .to_ascii_lowercase()
            };
            let properties = schema.get("properties").map_or(&[][..], Node::entries);
            let (name, _) = properties
                .iter()
                .find(|(name, _)| KEY_MEMBERS.contains(&&*plain(name)))?;
            let required = schema.get("required").map_or(&[][..], Node::items);
            Some(KeyMember {
                name: name.clone(),
                is_required: required.iter().any(|other| other.as_text() == Some(name)),
            })
        })
    }

    /// The kinds of bodies it takes.
    pub(super) fn media(&self) -> Vec<(&str, &Node)> {
        let body = self
            .node
            .get("requestBody")
            .and_then(|body| self.document.follow(body));
        let content = body
            .and_then(|body| body.get("content"))
            .map_or(&[][..], Node::entries);
        content
            .iter()
            .map(|(kind, media)| (kind.split(';').next().unwrap_or_default().trim(), media))
            .collect()
    }

    /// Whether the document has an answer of its own with this status.
    pub(super) fn answers(&self, status: &str) -> bool {
        self.node
            .get("responses")
            .is_some_and(|responses| responses.get(status).is_some())
    }

    /// What every path of the server begins with: the nearest `servers` counts, and of several the
    /// first.
    pub(super) fn base(&self) -> String {
        let servers = [self.node, self.item, self.document]
            .into_iter()
            .find_map(|node| node.get("servers"));
        let Some(server) = servers.and_then(|servers| servers.items().first()) else {
            return String::new();
        };
        let mut url = server.get("url").map(Node::words).unwrap_or_default();
        for (name, variable) in server.get("variables").map_or(&[][..], Node::entries) {
            let value = variable.get("default").map(Node::words).unwrap_or_default();
            url = url.replace(&format!("{{{name}}}"), &value);
        }
        let path = match url.split_once("://") {
            Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
            None => &url,
        };
        let path = path
            .split(['?', '#'])
            .next()
            .unwrap_or_default()
            .trim_end_matches('/');
        if path.is_empty() || path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        }
    }
}
