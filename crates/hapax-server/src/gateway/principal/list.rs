//! The name of a caller that several sources identify.
//!
//! The parts stand in the order of the list, so that callers that differ in any part have different
//! names. A part that the request lacks has a distinct value too.

use hapax::Principal;

use crate::config::PrincipalSources;

/// Joins the results of all sources of a list. The caller is anonymous if no source identifies it.
pub(super) fn join(sources: &PrincipalSources, said: &[Option<Principal>]) -> Principal {
    if said.iter().all(Option::is_none) {
        return Principal::Anonymous;
    }
    let part = |(source, said): (&_, &Option<Principal>)| match said {
        Some(principal) => principal.to_string(),
        None => format!("no {source}"),
    };
    let parts: Vec<String> = sources.iter().zip(said).map(part).collect();
    Principal::named(joined(&parts))
}

/// Joins parts with `&`; an `&` within a part is doubled. So a single `&` always separates, and two
/// different lists never produce the same text.
fn joined(parts: &[String]) -> String {
    let escaped: Vec<String> = parts.iter().map(|part| part.replace('&', "&&")).collect();
    format!("list:{}", escaped.join(" & "))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn what_is_absent_is_a_value_of_its_own() {
        let sources: PrincipalSources = "digest:authorization, header:stripe-account"
            .parse()
            .unwrap();
        let named = |name: &str| Some(Principal::named(name));
        for (said, name) in [
            (
                [named("digest:1"), named("header:stripe-account a")],
                "list:digest:1 & header:stripe-account a",
            ),
            (
                [named("digest:1"), None],
                "list:digest:1 & no header:stripe-account",
            ),
            (
                [None, named("header:stripe-account a & b")],
                "list:no digest:authorization & header:stripe-account a && b",
            ),
            ([None, None], "(anonymous)"),
        ] {
            assert_eq!(join(&sources, &said).to_string(), name);
        }
    }

    /// Compares all lists of two or three parts made of all short texts over the relevant
    /// characters.
    #[test]
    fn no_two_lists_have_the_same_name() {
        let mut texts = vec![String::new()];
        for length in 0..3 {
            let longer: Vec<String> = texts
                .iter()
                .filter(|text| text.len() == length)
                .cloned()
                .collect();
            texts.extend(
                longer
                    .iter()
                    .flat_map(|text| ["a", " ", "&"].map(|next| format!("{text}{next}"))),
            );
        }
        let mut seen = HashMap::new();
        let mut check = |parts: Vec<String>| {
            let name = joined(&parts);
            if let Some(other) = seen.insert(name.clone(), parts.clone()) {
                panic!("{other:?} and {parts:?} are both {name:?}");
            }
        };
        let short = texts
            .iter()
            .filter(|text| text.len() <= 2)
            .collect::<Vec<_>>();
        for one in &texts {
            check(vec![one.clone()]);
            for other in &texts {
                check(vec![one.clone(), other.clone()]);
            }
        }
        for one in &short {
            for other in &short {
                short.iter().for_each(|third| {
                    check(vec![(*one).clone(), (*other).clone(), (*third).clone()]);
                });
            }
        }
    }
}
