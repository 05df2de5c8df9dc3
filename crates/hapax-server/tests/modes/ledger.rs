//! What happened, by the service's own account.

use std::collections::BTreeMap;

/// The fences under which each key had its effect, in their order.
pub type Effects = BTreeMap<String, Vec<u64>>;

/// Whether every key had one effect at the most. Of the first that had more, which.
pub fn judge(effects: &Effects) -> Result<(), String> {
    match effects.iter().find(|(_, fences)| fences.len() > 1) {
        Some((key, fences)) => Err(format!(
            "{key} had {} effects, with these fences: {fences:?}",
            fences.len()
        )),
        None => Ok(()),
    }
}

/// How many there were in all, none of them twice.
#[track_caller]
pub fn count(effects: &Effects) -> usize {
    judge(effects).unwrap_or_else(|verdict| panic!("{verdict}"));
    effects.len()
}

#[test]
fn a_second_effect_is_found() {
    let of = |fences: &[u64]| {
        Effects::from([("a".to_owned(), vec![1]), ("b".to_owned(), fences.to_vec())])
    };
    assert_eq!(count(&of(&[2])), 2);
    assert!(judge(&of(&[2, 3])).is_err_and(|verdict| verdict.contains("b had 2 effects")));
    // However it came about.
    assert!(judge(&of(&[2, 2])).is_err());
}
