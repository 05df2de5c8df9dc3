//! What is added to a document.

use super::super::document::Node;

pub(super) const PROBLEM_TYPE: &str = "application/problem+json";

/// Our own answers: status, component, the codes that come with it, and whether there is advice
/// when to come back.
pub(super) const REFUSALS: [(&str, &str, &str, bool); 5] = [
    (
        "409",
        "HapaxConflict",
        "in-flight, outcome-unknown, answer-not-kept or attempts-exhausted: `x-should-retry` says whether to try again",
        true,
    ),
    (
        "410",
        "HapaxKeyExpired",
        "key-expired: the key is past its retention",
        false,
    ),
    (
        "422",
        "HapaxKeyReused",
        "key-reused: the key was used for another request",
        false,
    ),
    (
        "429",
        "HapaxTooManyKeys",
        "too-many-keys or quota-reached: too many new keys",
        true,
    ),
    (
        "503",
        "HapaxUnavailable",
        "store-unavailable, principal-unavailable or draining: nothing was done",
        true,
    ),
];

pub(super) const REPLAY_FIELDS: [(&str, &str); 2] = [
    ("Idempotent-Replayed", "HapaxReplayed"),
    ("Idempotency-Expires", "HapaxExpires"),
];

type Make = fn() -> Vec<(String, Node)>;

/// Each kind of component, and what there is of it.
pub(super) const COMPONENTS: [(&str, Make); 3] = [
    ("schemas", schemas),
    ("headers", headers),
    ("responses", responses),
];

pub(super) fn key_parameter(field: &str, is_required: bool) -> Node {
    Node::map([
        ("name", Node::text(http_spelling(field))),
        ("in", Node::text("header")),
        ("required", Node::Bool(is_required)),
        (
            "description",
            Node::text(
                "One unique value for each operation, and the same one on every retry of it.",
            ),
        ),
        (
            "schema",
            string(&[("minLength", 1.into()), ("maxLength", 255.into())]),
        ),
    ])
}

/// As header fields are usually shown.
fn http_spelling(field: &str) -> String {
    let word = |word: &str| {
        word.get(..1).map_or(String::new(), str::to_ascii_uppercase)
            + word.get(1..).unwrap_or_default()
    };
    field.split('-').map(word).collect::<Vec<_>>().join("-")
}

fn string(more: &[(&str, serde_json::Number)]) -> Node {
    let mut entries = vec![("type".to_owned(), Node::text("string"))];
    entries.extend(
        more.iter()
            .map(|(name, number)| ((*name).to_owned(), Node::Number(number.clone()))),
    );
    Node::Map(entries)
}

pub(super) fn problem_media() -> Node {
    Node::map([(
        "schema",
        Node::reference("#/components/schemas/HapaxProblem"),
    )])
}

fn schemas() -> Vec<(String, Node)> {
    let described = |text: &str| {
        Node::map([
            ("type", Node::text("string")),
            ("description", Node::text(text)),
        ])
    };
    let problem = Node::map([
        ("type", Node::text("object")),
        (
            "description",
            Node::text("An answer that the idempotency gateway itself gives (RFC 9457)."),
        ),
        (
            "required",
            Node::List(
                ["type", "title", "status", "detail", "code"]
                    .map(Node::text)
                    .into(),
            ),
        ),
        (
            "properties",
            Node::map([
                (
                    "type",
                    described(
                        "the path of a page about it: /.well-known/idempotency/problems/ and the code",
                    ),
                ),
                ("title", described("what kind of problem this is")),
                ("status", Node::map([("type", Node::text("integer"))])),
                ("detail", described("what happened this time")),
                (
                    "code",
                    described("the word to act on, as in `in-flight` or `key-reused`"),
                ),
            ]),
        ),
    ]);
    vec![("HapaxProblem".to_owned(), problem)]
}

fn headers() -> Vec<(String, Node)> {
    let header = |text: &str, schema: Node| {
        Node::map([("description", Node::text(text)), ("schema", schema)])
    };
    vec![
        (
            "HapaxReplayed".to_owned(),
            header(
                "`true` where this is the stored answer of an earlier request with the same key; otherwise absent.",
                Node::map([
                    ("type", Node::text("string")),
                    ("enum", Node::List(vec![Node::text("true")])),
                ]),
            ),
        ),
        (
            "HapaxExpires".to_owned(),
            header(
                "Until when a repeat gets this answer: a structured-field date.",
                string(&[]),
            ),
        ),
        (
            "HapaxRetryAfter".to_owned(),
            header(
                "Seconds to wait before the same request is sent again.",
                Node::map([("type", Node::text("integer"))]),
            ),
        ),
        (
            "HapaxShouldRetry".to_owned(),
            header(
                "Whether sending the same request again is of use.",
                Node::map([
                    ("type", Node::text("string")),
                    ("enum", Node::List(["true", "false"].map(Node::text).into())),
                ]),
            ),
        ),
    ]
}

fn responses() -> Vec<(String, Node)> {
    let reference = |name: &str| Node::reference(&format!("#/components/headers/{name}"));
    let response = |(_, component, description, has_advice): (&str, &str, &str, bool)| {
        let mut headers = vec![("x-should-retry".to_owned(), reference("HapaxShouldRetry"))];
        if has_advice {
            headers.push(("Retry-After".to_owned(), reference("HapaxRetryAfter")));
        }
        let response = Node::map([
            ("description", Node::text(description)),
            ("headers", Node::Map(headers)),
            ("content", Node::map([(PROBLEM_TYPE, problem_media())])),
        ]);
        (component.to_owned(), response)
    };
    REFUSALS.map(response).into()
}
