//! Callers whose credentials are invalid, or cannot be verified now.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use hapax_server::config::{Audience, Config, ForwardAuth, Issuer, Jwt, KeysFrom};
use jsonwebtoken::{Algorithm, EncodingKey, Header};

use super::{Row, deferred, rejected};
use crate::client::post;
use crate::harness::With;

const SECRET: &[u8] = b"a secret that issuer and gateway share";

pub fn rows() -> Vec<Row> {
    vec![
        rejected("token that is none", 401, "credentials-invalid", 0)
            .config(by_token)
            .by(async |world| world.send(post("k", "charge").bearer("garbage")).await),
        rejected("token that has expired", 401, "credentials-invalid", 1)
            .config(by_token)
            .by(async |world| {
                let now = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap()
                    .as_secs();
                world
                    .send(post("k", "charge").with("authorization", &token(now + 600)))
                    .await;
                world
                    .send(post("k", "charge").with("authorization", &token(now - 600)))
                    .await
            }),
        rejected("no token", 400, "principal-missing", 0)
            .config(by_token)
            .by(async |world| world.send(post("k", "charge")).await),
        deferred(
            "nobody there to say who is asking",
            503,
            "principal-unavailable",
            0,
        )
        .config(|config| {
            config.principal = "forward-auth:http://127.0.0.1:1/verify".parse().unwrap();
            config.forward_auth = Some(ForwardAuth::new("x-auth-user".parse().unwrap()));
        })
        .by(async |world| world.send(post("k", "charge")).await),
    ]
}

fn by_token(config: &mut Config) {
    // The same file for every row. It is replaced atomically, because the gateway of another row
    // may be reading it.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("contract-secret");
    let aside = path.with_extension(uuid::Uuid::new_v4().to_string());
    std::fs::write(&aside, SECRET).unwrap();
    std::fs::rename(&aside, &path).unwrap();
    config.principal = "jwt:sub".parse().unwrap();
    config.jwt = Some(Jwt::new(
        vec![Algorithm::HS256],
        KeysFrom::Secret(path),
        Issuer::Any,
        Audience::Any,
    ));
}

fn token(until: u64) -> String {
    let claims = serde_json::json!({"sub": "ada", "exp": until});
    let token = jsonwebtoken::encode(
        &Header::new(Algorithm::HS256),
        &claims,
        &EncodingKey::from_secret(SECRET),
    )
    .unwrap();
    format!("Bearer {token}")
}
