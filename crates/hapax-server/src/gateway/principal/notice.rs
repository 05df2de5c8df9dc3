//! Logs fields that may identify the caller, each once.

use std::collections::HashSet;

use hapax::core::rejection;
use parking_lot::RwLock;

use super::anonymous::Unread;

/// Limit on the logged fields. Anyone can make up names, and the log must not grow with them.
const FIELDS_MAX: usize = 64;
/// The longest name that is logged in full.
const NAME_BYTES_MAX: usize = 64;

/// The fields that were logged.
#[derive(Default)]
pub(super) struct Notices(RwLock<HashSet<(Kind, String)>>);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Refused,
    Ignored,
}

impl Notices {
    /// Logs that requests with this field are refused.
    pub(super) fn refused(&self, unread: &rejection::Unread) {
        let Some(field) = self.first(Kind::Refused, &unread.name) else {
            return;
        };
        let looked_at = &*unread.looked_at;
        let source = unread.principal.as_deref().unwrap_or("another source");
        if unread.may_be_anonymous {
            tracing::warn!(
                field,
                looked_at,
                "a guarded request without the credential that `principal` reads was refused, as all like it will be: this field may say \
                 who is asking. Set principal = \"{source}\" if callers are known by it, or add it to `anonymous_fields` if it identifies nobody"
            );
        } else {
            tracing::warn!(
                field,
                looked_at,
                "a guarded request without the credential that `principal` reads was refused, as all like it will be: it has another one. Set \
                 principal = \"{source}\" if callers are known by that"
            );
        }
    }

    /// Logs that requests with this field are accepted, and that the field does not identify the
    /// caller.
    pub(super) fn ignored(&self, unread: &Unread) {
        let Some(field) = self.first(Kind::Ignored, &unread.name()) else {
            return;
        };
        if unread.label() == "other" {
            tracing::info!(
                field,
                "this field stands beside the one that `principal` reads, and does not tell callers apart. If it should, add it \
                 to `principal`; if it identifies nobody, add it to `anonymous_fields`"
            );
        } else {
            tracing::warn!(
                field,
                "a credential stands beside the one that `principal` reads, and does not tell callers apart: callers who share \
                 the first get each other's answers under the same key. Add it to `principal` if it says who is asking"
            );
        }
    }

    /// The field's name, if it was not logged yet.
    fn first(&self, kind: Kind, name: &str) -> Option<String> {
        let name: String = name.chars().take(NAME_BYTES_MAX).collect();
        let entry = (kind, name);
        {
            let told = self.0.read();
            if told.len() >= FIELDS_MAX || told.contains(&entry) {
                return None;
            }
        }
        let mut told = self.0.write();
        (told.len() < FIELDS_MAX && told.insert(entry.clone())).then_some(entry.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_told_once_and_not_too_many() {
        let notices = Notices::default();
        assert_eq!(
            notices.first(Kind::Ignored, "cookie").as_deref(),
            Some("cookie")
        );
        assert_eq!(notices.first(Kind::Ignored, "cookie"), None);
        assert!(notices.first(Kind::Refused, "cookie").is_some());
        let told = (0..1_000)
            .filter(|number| {
                notices
                    .first(Kind::Refused, &format!("x-{number}"))
                    .is_some()
            })
            .count();
        assert_eq!(told, FIELDS_MAX - 2);
        let long = Notices::default().first(Kind::Refused, &"x".repeat(9_000));
        assert_eq!(long.map(|name| name.len()), Some(NAME_BYTES_MAX));
    }
}
