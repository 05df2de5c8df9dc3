//! Checks the claims of a verified token: whether it is valid here and now, and which caller it
//! names.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hapax::Principal;
use serde_json::Value;

use super::Flawed;
use crate::config::{self, Audience, Claim, Issuer};
use crate::gateway::principal::name;

/// The claims that a token must have.
pub(super) struct Rules {
    claim: Claim,
    issuer: Issuer,
    audience: Audience,
    leeway: Duration,
}

impl Rules {
    pub(super) fn new(settings: &config::Jwt, claim: &Claim) -> Rules {
        let config::Jwt {
            issuer,
            audience,
            leeway,
            ..
        } = settings.clone();
        Rules {
            claim: claim.clone(),
            issuer,
            audience,
            leeway,
        }
    }

    /// The caller that the token names, if it is valid at that time.
    pub(super) fn judge(&self, claims: &Value, now: SystemTime) -> Result<Principal, Flawed> {
        self.judge_time(claims, now.duration_since(UNIX_EPOCH).unwrap_or_default())?;
        let issuer = self.issuer(claims)?;
        self.judge_audience(claims)?;
        let name = self.name(claims).ok_or(Flawed::Claim)?;
        // Neither an issuer nor a claim's path contains a space, so everything after the second
        // space is the name.
        Ok(Principal::named(format!(
            "jwt:{} {issuer} {name}",
            self.claim
        )))
    }

    fn judge_time(&self, claims: &Value, now: Duration) -> Result<(), Flawed> {
        let (now, leeway) = (now.as_secs_f64(), self.leeway.as_secs_f64());
        // A token without an expiry could never be revoked.
        let end = claims
            .get("exp")
            .and_then(Value::as_f64)
            .ok_or(Flawed::Malformed)?;
        if now >= end + leeway {
            return Err(Flawed::Expired);
        }
        match claims.get("nbf").map(Value::as_f64) {
            Some(None) => Err(Flawed::Malformed),
            Some(Some(begin)) if now + leeway < begin => Err(Flawed::NotYetValid),
            _ => Ok(()),
        }
    }

    fn issuer<'a>(&self, claims: &'a Value) -> Result<&'a str, Flawed> {
        let issuer = match claims.get("iss") {
            None => "",
            Some(issuer) => issuer.as_str().ok_or(Flawed::Issuer)?,
        };
        let is_right = match &self.issuer {
            Issuer::Just(wanted) => **wanted == *issuer,
            Issuer::Any => {
                issuer.is_empty()
                    || !name(issuer.as_bytes())
                        .is_none_or(|name| name.contains(char::is_whitespace))
            }
        };
        if is_right {
            Ok(issuer)
        } else {
            Err(Flawed::Issuer)
        }
    }

    fn judge_audience(&self, claims: &Value) -> Result<(), Flawed> {
        let Audience::OneOf(wanted) = &self.audience else {
            return Ok(());
        };
        let is_wanted = |audience: &Value| {
            audience
                .as_str()
                .is_some_and(|audience| wanted.iter().any(|wanted| wanted == audience))
        };
        let is_right = match claims.get("aud") {
            Some(Value::Array(audiences)) => audiences.iter().any(is_wanted),
            Some(audience) => is_wanted(audience),
            None => false,
        };
        if is_right {
            Ok(())
        } else {
            Err(Flawed::Audience)
        }
    }

    /// The name: a string, or the digits of an integer.
    fn name(&self, claims: &Value) -> Option<String> {
        match self.claim.of(claims)? {
            Value::String(text) => name(text.as_bytes()).map(str::to_owned),
            Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_000_000;

    fn rules(claim: &str) -> Rules {
        Rules {
            claim: claim.parse().unwrap(),
            issuer: Issuer::Just("https://id.example".into()),
            audience: Audience::OneOf(vec!["api".to_owned(), "api2".to_owned()]),
            leeway: Duration::from_secs(30),
        }
    }

    /// Valid claims, overridden by `other`; a null removes a claim.
    fn claims(other: &Value) -> Value {
        let mut claims = json!({"iss": "https://id.example", "aud": "api", "exp": NOW + 60, "sub": "ada", "account": {"id": 7}});
        for (name, value) in other.as_object().unwrap() {
            match value {
                Value::Null => claims.as_object_mut().unwrap().remove(name),
                value => claims
                    .as_object_mut()
                    .unwrap()
                    .insert(name.clone(), value.clone()),
            };
        }
        claims
    }

    fn judged(rules: &Rules, other: &Value) -> Result<String, Flawed> {
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        rules
            .judge(&claims(other), now)
            .map(|principal| principal.to_string())
    }

    #[test]
    fn a_token_is_good_for_its_time_its_issuer_and_its_audience() {
        let ada = || Ok("jwt:sub https://id.example ada".to_owned());
        let rules = rules("sub");
        for (other, expected) in [
            (json!({}), ada()),
            (json!({"exp": NOW}), ada()),
            (json!({"exp": NOW - 29}), ada()),
            (json!({"exp": NOW as f64 - 29.5}), ada()),
            (json!({"exp": NOW - 30}), Err(Flawed::Expired)),
            (json!({"exp": 0}), Err(Flawed::Expired)),
            (json!({"exp": -1}), Err(Flawed::Expired)),
            (json!({"exp": null}), Err(Flawed::Malformed)),
            (json!({"exp": "9999999999"}), Err(Flawed::Malformed)),
            (json!({"exp": [9_999_999_999_u64]}), Err(Flawed::Malformed)),
            (json!({"nbf": NOW + 30}), ada()),
            (json!({"nbf": NOW + 31}), Err(Flawed::NotYetValid)),
            (json!({"nbf": "0"}), Err(Flawed::Malformed)),
            (json!({"iss": "https://id.example/"}), Err(Flawed::Issuer)),
            (json!({"iss": "HTTPS://id.example"}), Err(Flawed::Issuer)),
            (json!({"iss": ["https://id.example"]}), Err(Flawed::Issuer)),
            (json!({"iss": null}), Err(Flawed::Issuer)),
            (json!({"aud": "api2"}), ada()),
            (json!({"aud": ["other", "api"]}), ada()),
            (json!({"aud": "other"}), Err(Flawed::Audience)),
            (json!({"aud": "API"}), Err(Flawed::Audience)),
            (json!({"aud": "any"}), Err(Flawed::Audience)),
            (json!({"aud": []}), Err(Flawed::Audience)),
            (json!({"aud": {"api": 1}}), Err(Flawed::Audience)),
            (json!({"aud": null}), Err(Flawed::Audience)),
        ] {
            assert_eq!(judged(&rules, &other), expected, "{other}");
        }
    }

    #[test]
    fn a_name_is_text_or_a_whole_number() {
        let named = |name: &str| Ok(format!("jwt:sub https://id.example {name}"));
        for (sub, expected) in [
            (json!("a b"), named("a b")),
            (json!("J\u{f6}rg"), named("J\u{f6}rg")),
            (json!(42), named("42")),
            (json!(-1), named("-1")),
            (json!(u64::MAX), named("18446744073709551615")),
            (json!(""), Err(Flawed::Claim)),
            (json!("a\nb"), Err(Flawed::Claim)),
            (json!("a".repeat(513)), Err(Flawed::Claim)),
            (json!(4.0), Err(Flawed::Claim)),
            (json!(true), Err(Flawed::Claim)),
            (json!(["ada"]), Err(Flawed::Claim)),
            (json!({"id": 1}), Err(Flawed::Claim)),
            (json!(null), Err(Flawed::Claim)),
        ] {
            assert_eq!(judged(&rules("sub"), &json!({ "sub": sub })), expected);
        }
        assert_eq!(
            judged(&rules("/account/id"), &json!({})),
            Ok("jwt:/account/id https://id.example 7".to_owned())
        );
        assert_eq!(
            judged(&rules("/account/name"), &json!({})),
            Err(Flawed::Claim)
        );
        assert_eq!(
            judged(
                &rules("https://example.com/user"),
                &json!({"https://example.com/user": "eve"})
            ),
            Ok("jwt:https://example.com/user https://id.example eve".to_owned())
        );
    }

    #[test]
    fn two_issuers_never_share_a_caller() {
        let any = Rules {
            issuer: Issuer::Any,
            audience: Audience::Any,
            ..rules("sub")
        };
        let of = |iss: Value, sub: &str| judged(&any, &json!({"iss": iss, "sub": sub}));
        assert_eq!(of(json!("a"), "b c"), Ok("jwt:sub a b c".to_owned()));
        assert_eq!(of(json!("a b"), "c"), Err(Flawed::Issuer));
        assert_eq!(of(Value::Null, "c"), Ok("jwt:sub  c".to_owned()));
        assert_eq!(of(json!(""), "c"), Ok("jwt:sub  c".to_owned()));
        assert_eq!(of(json!(["a"]), "c"), Err(Flawed::Issuer));
    }

    #[test]
    fn times_beyond_all_numbers_overflow_nothing() {
        let rules = rules("sub");
        assert!(judged(&rules, &json!({"exp": f64::MAX, "nbf": f64::MIN})).is_ok());
        assert_eq!(
            judged(&rules, &json!({"exp": f64::MAX, "nbf": u64::MAX})),
            Err(Flawed::NotYetValid)
        );
    }
}
