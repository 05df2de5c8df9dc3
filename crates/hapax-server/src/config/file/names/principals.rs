//! How callers are known.

use super::Names;
use super::kind::Fallback::{Is, Nothing, Required, Words};
use super::kind::{Kind, Setting, TIMEOUT, count};
use std::time::Duration;

pub(crate) static JWT: Names = Names {
    section: "jwt",
    header: "[jwt]",
    about: "How tokens are verified, for `principal = \"jwt:CLAIM\"`, see [principals.md](principals.md). One of `keys_file`, `keys_url` and `secret_file` must be there.",
    groups: &[&[
        Setting {
            name: "algorithms",
            kind: Kind::TextOrList,
            fallback: Words("`RS256`; with `secret_file`, `HS256`"),
            example: "[\"ES256\", \"RS256\"]",
            means: "what tokens may be signed with: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA; or HS256, HS384, HS512, but not both kinds",
        },
        Setting {
            name: "keys_file",
            kind: Kind::Path,
            fallback: Nothing,
            example: "jwks.json",
            means: "public keys: a JWK set, or one key in PEM. Read again when it changes",
        },
        Setting {
            name: "keys_url",
            kind: Kind::Text,
            fallback: Nothing,
            example: "https://id.example.com/jwks.json",
            means: "public keys at a URL: a JWK set. Plain `http` only on loopback",
        },
        Setting {
            name: "secret_file",
            kind: Kind::Path,
            fallback: Nothing,
            example: "jwt.secret",
            means: "the secret of HS256, HS384 and HS512, alone in a file. Read again when it changes",
        },
        Setting {
            name: "issuer",
            kind: Kind::Text,
            fallback: Required,
            example: "https://id.example.com",
            means: "what `iss` in the tokens says, or `any`",
        },
        Setting {
            name: "audience",
            kind: Kind::TextOrList,
            fallback: Required,
            example: "https://api.example.com",
            means: "what `aud` in the tokens says, one or a list of which one must be there, or `any`",
        },
        Setting {
            name: "field",
            kind: Kind::Text,
            fallback: Is("authorization"),
            example: "x-jwt",
            means: "the field that carries the token: behind `Bearer` in `authorization`, alone in any other",
        },
        Setting {
            name: "leeway",
            kind: Kind::Duration {
                zero: true,
                max: Duration::from_secs(5 * 60),
            },
            fallback: Is("30s"),
            example: "5s",
            means: "by how much clocks may differ; at most `5m`",
        },
        Setting {
            name: "refresh",
            kind: TIMEOUT,
            fallback: Is("5m"),
            example: "1m",
            means: "how often the keys of `keys_url` are asked for",
        },
        Setting {
            name: "stale_max",
            kind: TIMEOUT,
            fallback: Is("1h"),
            example: "30m",
            means: "how long keys are good that could not be had anew; after that requests get 503",
        },
        Setting {
            name: "ca_file",
            kind: Kind::Path,
            fallback: Nothing,
            example: "ca.pem",
            means: "authorities in PEM that are believed besides the system's, for a `keys_url` with `https`",
        },
    ]],
};

pub(crate) static FORWARD_AUTH: Names = Names {
    section: "forward_auth",
    header: "[forward_auth]",
    about: "How another service is asked who is asking, for `principal = \"forward-auth:URL\"`, see [principals.md](principals.md).",
    groups: &[&[
        Setting {
            name: "principal_field",
            kind: Kind::Text,
            fallback: Required,
            example: "x-auth-user",
            means: "the field of its answer that names the caller",
        },
        Setting {
            name: "forward",
            kind: Kind::TextOrList,
            fallback: Nothing,
            example: "[\"x-api-key\"]",
            means: "fields of the request that it is shown, besides `Authorization` and `Cookie`",
        },
        Setting {
            name: "pass",
            kind: Kind::TextOrList,
            fallback: Nothing,
            example: "[\"x-auth-user\"]",
            means: "fields of its answer that the upstream is shown. Clients cannot set them",
        },
        Setting {
            name: "timeout",
            kind: Kind::Duration {
                zero: false,
                max: Duration::from_secs(60),
            },
            fallback: Is("2s"),
            example: "500ms",
            means: "how long it may take, from asking to the last byte of its answer; at most `60s`",
        },
        Setting {
            name: "concurrency_max",
            kind: count(1, 100_000),
            fallback: Is("256"),
            example: "64",
            means: "how many requests may be asked about at the same time",
        },
        Setting {
            name: "ca_file",
            kind: Kind::Path,
            fallback: Nothing,
            example: "ca.pem",
            means: "authorities in PEM that are believed besides the system's, when it shows its certificate",
        },
    ]],
};
