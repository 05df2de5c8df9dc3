//! Effects, as recorded by the service.

use std::collections::BTreeMap;

/// The fences of the effects of each key, in order.
pub type Effects = BTreeMap<String, Vec<u64>>;

/// Checks that every key had at most one effect. The error names the first that had more.
pub fn judge(effects: &Effects) -> Result<(), String> {
    match effects.iter().find(|(_, fences)| fences.len() > 1) {
        Some((key, fences)) => Err(format!(
            "{key} had {} effects, with these fences: {fences:?}",
            fences.len()
        )),
        None => Ok(()),
    }
}

/// The number of effects. Panics if a key had two.
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
    // Two effects are wrong even with the same fence.
    assert!(judge(&of(&[2, 2])).is_err());
}
