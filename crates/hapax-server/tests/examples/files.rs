//! The examples as they are in the repository.

use std::path::PathBuf;

/// The folder of an example.
pub fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(name)
}

#[test]
fn the_examples_have_the_same_tables() {
    let schema = |name| std::fs::read_to_string(example(name).join("schema.sql")).unwrap();
    assert_eq!(schema("orders-python"), schema("orders-node"));
    assert_eq!(schema("orders-python"), schema("orders-psql"));
}

#[test]
fn the_lock_file_names_no_registry() {
    for folder in ["orders-node", "stock-node", "two-calls/node"] {
        let lock = std::fs::read_to_string(example(folder).join("package-lock.json")).unwrap();
        assert!(
            !lock.contains("\"resolved\""),
            "{folder}: npm install --omit-lockfile-registry-resolved leaves the addresses out"
        );
        assert!(lock.contains("\"integrity\""));
    }
}
