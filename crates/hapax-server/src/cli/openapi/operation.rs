//! The operations of a document.

use http::Method;
use serde_json::Value;

use super::document::{follow, items, members, words};

/// One operation of an API.
pub(super) struct Operation<'a> {
    pub(super) document: &'a Value,
    /// The path in the document, without the server's path.
    pub(super) path: &'a str,
    pub(super) method: Method,
    /// The path item, which applies to all its operations.
    pub(super) item: &'a Value,
    /// The operation object.
    pub(super) node: &'a Value,
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

/// Names of the field in other APIs, besides those that contain `idempotency`.
const KEY_FIELDS: [&str; 2] = ["paypal-request-id", "x-idempotence-id"];

/// Names of the member in other APIs, in lower case and with letters only.
const KEY_MEMBERS: [&str; 5] = [
    "clienttoken",
    "clientrequesttoken",
    "idempotencykey",
    "idempotencytoken",
    "clientreferencetoken",
];

/// All operations that change something, in the order of their paths.
pub(super) fn all(document: &Value) -> Vec<Operation<'_>> {
    let mut operations = Vec::new();
    for (path, item) in members(document, "paths") {
        let Some(item) = follow(document, item) else {
            continue;
        };
        for method in [Method::PUT, Method::POST, Method::DELETE, Method::PATCH] {
            if let Some(node) = item.get(method.as_str().to_ascii_lowercase()) {
                operations.push(Operation {
                    document,
                    path,
                    method,
                    item,
                    node,
                });
            }
        }
    }
    operations
}

impl Operation<'_> {
    /// Its parameters with all references followed; those of the operation come before those of its
    /// path.
    fn parameters(&self) -> impl Iterator<Item = &Value> {
        let lists = [self.node, self.item].map(|node| items(node, "parameters"));
        lists
            .into_iter()
            .flatten()
            .filter_map(|parameter| follow(self.document, parameter))
    }

    /// The header parameter that carries a key, if the document has one.
    pub(super) fn key_field(&self) -> Option<KeyField> {
        self.parameters().find_map(|parameter| {
            let name = parameter.get("name")?.as_str()?;
            let lower = name.to_ascii_lowercase();
            let is_key = lower.contains("idempotency") || KEY_FIELDS.contains(&&*lower);
            let is_header = parameter["in"] == "header";
            // A field of Hapax that is not a key: the time at which the caller gives up.
            let is_deadline = lower == "idempotency-deadline";
            (is_key && is_header && !is_deadline).then(|| KeyField {
                name: name.to_owned(),
                is_required: parameter["required"] == true,
            })
        })
    }

    /// The member of a JSON body that carries a key, if the document has one.
    pub(super) fn key_member(&self) -> Option<KeyMember> {
        let (_, media) = self.media().find(|(kind, _)| kind.ends_with("json"))?;
        let schema = follow(self.document, media.get("schema")?)?;
        let parts = items(schema, "allOf")
            .iter()
            .filter_map(|part| follow(self.document, part));
        std::iter::once(schema).chain(parts).find_map(|schema| {
            let plain = |name: &str| {
                name.chars()
                    .filter(char::is_ascii_alphanumeric)
                    .collect::<String>()
                    .to_ascii_lowercase()
            };
            let (name, _) = members(schema, "properties")
                .find(|(name, _)| KEY_MEMBERS.contains(&&*plain(name)))?;
            Some(KeyMember {
                name: name.to_owned(),
                is_required: items(schema, "required").iter().any(|other| other == name),
            })
        })
    }

    /// The media types of its request body.
    pub(super) fn media(&self) -> impl Iterator<Item = (&str, &Value)> {
        let body = self.node.get("requestBody");
        let body = body.and_then(|body| follow(self.document, body));
        body.into_iter()
            .flat_map(|body| members(body, "content"))
            .map(|(kind, media)| (kind.split(';').next().unwrap_or_default().trim(), media))
    }

    /// Whether the document describes an answer with exactly this status.
    pub(super) fn answers(&self, status: &str) -> bool {
        self.node
            .get("responses")
            .is_some_and(|responses| responses.get(status).is_some())
    }

    /// The beginning of every path of the server: the innermost `servers` applies, and its first
    /// entry.
    pub(super) fn base(&self) -> String {
        let servers = [self.node, self.item, self.document]
            .into_iter()
            .find_map(|node| node.get("servers"));
        let Some(server) = servers.and_then(|servers| servers.get(0)) else {
            return String::new();
        };
        let mut url = server.get("url").map(words).unwrap_or_default();
        for (name, variable) in members(server, "variables") {
            let value = variable.get("default").map(words).unwrap_or_default();
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
