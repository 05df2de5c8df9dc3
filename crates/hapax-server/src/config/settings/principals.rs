//! The settings that identify callers.

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use jsonwebtoken::Algorithm;

use super::declare::{
    count, debug, directory, duration, file, list, settings, several, shown_text, text, texts,
    timeout,
};
use super::{Kind, Settings};
use crate::config::file::principals::{algorithms, audience, field, issuer, passed, shown};
use crate::config::file::value::parse_texts;
use crate::config::principal::identity_field;
use crate::config::url::believable_url;
use crate::config::{Audience, Issuer, KeysFrom, ServiceUrl};

settings! {
    /// How the token of a request is verified: `[jwt]`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Jwt {
        /// what tokens may be signed with: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384,
        /// EdDSA; or HS256, HS384, HS512, but not both kinds
        algorithms: Vec<Algorithm> = words "`RS256`; with `secret_file`, `HS256`",
            several(Kind::TextOrList, |section, _| algorithms(section), debug),
            "[\"ES256\", \"RS256\"]";
        /// public keys: a JWK set, or one key in PEM. Read again when it changes
        keys_file: Option<PathBuf> = none, file(), "jwks.json";
        /// public keys at a URL: a JWK set. Plain `http` only on loopback
        keys_url: Option<ServiceUrl> = none,
            shown_text(
                |text| believable_url(text).map(Some),
                |url| url.as_ref().map(ToString::to_string),
            )
            .compared_by(|url| url.as_ref().map(|url| url.expose().to_string())),
            "https://id.example.com/jwks.json";
        /// the secret of HS256, HS384 and HS512, alone in a file. Read again when it changes
        secret_file: Option<PathBuf> = none, file(), "jwt.secret";
        /// what `iss` in the tokens says, or `any`
        issuer: Issuer = required, text(issuer), "https://id.example.com";
        /// what `aud` in the tokens says, one or a list of which one must be there, or `any`
        audience: Audience = required, texts(audience, debug), "https://api.example.com";
        /// the field that carries the token: behind `Bearer` in `authorization`, alone in any other
        field: HeaderName = is "authorization",
            text(|text| identity_field(text, "authorization")), "x-jwt";
        // Clocks that differ by more are broken.
        /// by how much clocks may differ; at most `5m`
        leeway: Duration = is "30s",
            duration(
                true,
                Duration::from_secs(5 * 60),
                "tokens would be good for much longer than their issuer meant: write at most \
                 \"5m\", and set the clocks",
            ),
            "5s";
        /// how often the keys of `keys_url` are asked for
        refresh: Duration = is "5m", timeout(), "1m";
        /// how long keys are good that could not be had anew; after that requests get 503
        stale_max: Duration = is "1h", timeout(), "30m";
        /// authorities in PEM that are believed besides the system's, for a `keys_url` with `https`
        ca_file: Option<PathBuf> = none, file(), "ca.pem";
    }
}

impl Jwt {
    /// The default settings.
    pub fn new(
        algorithms: Vec<Algorithm>,
        keys: KeysFrom,
        issuer: Issuer,
        audience: Audience,
    ) -> Jwt {
        let jwt = Jwt {
            algorithms,
            issuer,
            audience,
            ..Jwt::read(None)
        };
        match keys {
            KeysFrom::File(path) => Jwt {
                keys_file: Some(path),
                ..jwt
            },
            KeysFrom::Url(url) => Jwt {
                keys_url: Some(url),
                ..jwt
            },
            KeysFrom::Secret(path) => Jwt {
                secret_file: Some(path),
                ..jwt
            },
        }
    }

    /// The source of the keys that verify signatures; `None` only if a check has refused the
    /// settings.
    pub fn keys(&self) -> Option<KeysFrom> {
        let from_file = self.keys_file.clone().map(KeysFrom::File);
        from_file
            .or_else(|| self.keys_url.clone().map(KeysFrom::Url))
            .or_else(|| self.secret_file.clone().map(KeysFrom::Secret))
    }
}

settings! {
    /// How another service is asked who is asking: `[forward_auth]`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ForwardAuth {
        /// the field of its answer that names the caller
        principal_field: HeaderName = required, text(field), "x-auth-user";
        /// fields of the request that it is shown, besides `Authorization` and `Cookie`
        forward: Vec<HeaderName> = none,
            texts(|value, _| parse_texts("x-api-key", shown, value), list), "[\"x-api-key\"]";
        /// fields of its answer that the upstream is shown. Clients cannot set them
        pass: Vec<HeaderName> = none,
            texts(|value, _| parse_texts("x-auth-user", passed, value), list), "[\"x-auth-user\"]";
        /// how long it may take, from asking to the last byte of its answer; at most `60s`
        timeout: Duration = is "2s",
            duration(
                false,
                Duration::from_secs(60),
                "every guarded request waits for this: write at most \"60s\"",
            ),
            "500ms";
        /// how many requests may be asked about at the same time
        concurrency_max: usize = is "256", count(1, 100_000), "64";
        /// authorities in PEM that are believed besides the system's, when it shows its certificate
        ca_file: Option<PathBuf> = none, file(), "ca.pem";
    }
}

impl ForwardAuth {
    /// The default settings.
    pub fn new(principal_field: HeaderName) -> ForwardAuth {
        ForwardAuth {
            principal_field,
            ..ForwardAuth::read(None)
        }
    }
}

settings! {
    /// How webhooks that come in are verified: `[standard_webhooks]`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct StandardWebhooks {
        /// the directory with the secrets: the file of a sender is called as the sender, and has a
        /// secret (`whsec_…`) on each line, several for a rotation
        secret_directory: Option<PathBuf> = required, directory(), "webhooks";
        /// by how much the time of a webhook may differ from the clock here; at most `1h`
        tolerance: Duration = is "5m",
            duration(
                false,
                Duration::from_secs(60 * 60),
                "whoever has seen a webhook could send it again for so long, once it is forgotten \
                 here: write at most \"1h\"",
            ),
            "1m";
    }
}

impl StandardWebhooks {
    /// The default settings, with this directory of secrets.
    pub fn new(secret_directory: PathBuf) -> StandardWebhooks {
        StandardWebhooks {
            secret_directory: Some(secret_directory),
            ..StandardWebhooks::read(None)
        }
    }
}
