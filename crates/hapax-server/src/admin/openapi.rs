//! The OpenAPI document, generated from the routes and their types.

use std::sync::Arc;

use axum::Extension;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, Ref, ResponseBuilder, SecurityRequirement,
};

use super::problem;

/// Answers that any request may get, in addition to those that its route names.
const EVERYWHERE: [(&str, &str); 5] = [
    (
        "400",
        "What was sent cannot be read, or does not say what it must.",
    ),
    ("401", "`unauthorized`: the token is missing or wrong."),
    (
        "403",
        "`not-allowed`: the settle token opens other paths. `refused`: a page of another site, or a name in Host where only addresses are answered.",
    ),
    (
        "500",
        "`store-damaged`, `not-done`: what is stored cannot be trusted. A change may have happened all the same.",
    ),
    (
        "503",
        "`store-unavailable`, `too-slow`, `not-erased`: try again. A change may have happened all the same: look first.",
    ),
];
/// The routes that need no token and answer with a line of text.
const TEXT: [&str; 2] = ["/healthz", "/readyz"];

/// The document without the routes.
pub(super) fn frame() -> OpenApi {
    let mut document = OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Hapax: administration")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(
                    "What operators ask of a gateway: its health, its metrics, and the keys it remembers. Errors are problem details (RFC 9457).",
                ))
                .license(Some(utoipa::openapi::License::new(env!("CARGO_PKG_LICENSE"))))
                .build(),
        )
        .build();
    let components = document.components.get_or_insert_default();
    for (name, what) in [
        (
            "admin_token",
            "The `admin_token` of the configuration. Needed wherever one is set.",
        ),
        (
            "settle_token",
            "The `settle_token` of the configuration, for the upstream's own reconciliation job.",
        ),
    ] {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(what))
            .build();
        components.add_security_scheme(name, SecurityScheme::Http(scheme));
    }
    document
}

/// The document as it is sent: what applies to every route is written into each.
pub(super) fn spelled(document: &OpenApi) -> Document {
    let mut document = document.clone();
    for (path, item) in &mut document.paths.paths {
        let operations = [
            &mut item.get,
            &mut item.post,
            &mut item.put,
            &mut item.delete,
            &mut item.patch,
        ];
        for operation in operations
            .into_iter()
            .flatten()
            .filter(|_| !TEXT.contains(&path.as_str()))
        {
            complete(path, operation);
        }
    }
    Document(
        document
            .to_json()
            .expect("it has no maps with odd keys")
            .into(),
    )
}

fn complete(path: &str, operation: &mut Operation) {
    let takes_settle_token = path == "/v1/settle" || path == "/v1/unknown";
    // An empty requirement: no token is needed where none is configured.
    let mut security = vec![SecurityRequirement::default(), requirement("admin_token")];
    security.extend(takes_settle_token.then(|| requirement("settle_token")));
    operation.security = Some(security);
    for (status, what) in EVERYWHERE {
        let content = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name("Problem")))
            .build();
        let response = ResponseBuilder::new()
            .description(what)
            .content(problem::CONTENT, content)
            .build();
        operation
            .responses
            .responses
            .entry(status.to_owned())
            .or_insert_with(|| response.into());
    }
}

fn requirement(scheme: &str) -> SecurityRequirement {
    SecurityRequirement::new::<_, [&str; 0], &str>(scheme, [])
}

/// The document, encoded once.
#[derive(Clone)]
pub(super) struct Document(Arc<str>);

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "health", responses((status = 200, body = Object, content_type = "application/json", description = "OpenAPI 3.1")))]
pub(super) async fn document(Extension(Document(text)): Extension<Document>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], text.to_string())
}
