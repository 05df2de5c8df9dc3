//! Tells the log of fields that may identify somebody, each once.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};

use super::anonymous::Unread;

/// Fields that are told of. Anybody can make up names, and the log must not grow with them.
const FIELDS_MAX: usize = 64;
/// The longest name that is repeated in full.
const NAME_BYTES_MAX: usize = 64;

/// Which fields the log has been told of.
#[derive(Default)]
pub(super) struct Notices(RwLock<HashSet<(Kind, String)>>);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Refused,
    Ignored,
}

impl Notices {
    /// Requests with this field are refused.
    pub(super) fn refused(&self, unread: &Unread) {
        if let Some(field) = self.first(Kind::Refused, unread) {
            tracing::warn!(
                field,
                "guarded requests with this field are refused: it may say who is asking. Set `principal` if callers are known \
                 by it, or add it to `anonymous_fields` if it identifies nobody"
            );
        }
    }

    /// Requests with this field are taken, and it says nothing of who is asking.
    pub(super) fn ignored(&self, unread: &Unread) {
        let Some(field) = self.first(Kind::Ignored, unread) else { return };
        if unread.word() == "other" {
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

    /// The field's name, if the log has not been told of it.
    fn first(&self, kind: Kind, unread: &Unread) -> Option<String> {
        let name: String = unread.name().chars().take(NAME_BYTES_MAX).collect();
        let entry = (kind, name);
        {
            let told = self.0.read().unwrap_or_else(PoisonError::into_inner);
            if told.len() >= FIELDS_MAX || told.contains(&entry) {
                return None;
            }
        }
        let mut told = self.0.write().unwrap_or_else(PoisonError::into_inner);
        (told.len() < FIELDS_MAX && told.insert(entry.clone())).then_some(entry.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_told_once_and_not_too_many() {
        let notices = Notices::default();
        let field = |name: &str| Unread::Field(name.parse().unwrap());
        assert_eq!(notices.first(Kind::Ignored, &field("cookie")).as_deref(), Some("cookie"));
        assert_eq!(notices.first(Kind::Ignored, &field("cookie")), None);
        assert!(notices.first(Kind::Refused, &field("cookie")).is_some());
        let told = (0..1_000).filter(|number| notices.first(Kind::Refused, &field(&format!("x-{number}"))).is_some()).count();
        assert_eq!(told, FIELDS_MAX - 2);
        let long = Notices::default().first(Kind::Refused, &field(&"x".repeat(9_000)));
        assert_eq!(long.map(|name| name.len()), Some(NAME_BYTES_MAX));
    }
}
