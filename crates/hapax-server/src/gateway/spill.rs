//! Checks the spill directory for request bodies.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hapax::BodyBudget;

use crate::config::{Config, StoreUrl};

/// Refuses a configured directory that cannot be written to. For a directory that is not configured
/// it only warns, because small bodies need no file. It also warns about a directory on the disk of
/// the store, where buffered bodies could take most of the free space.
pub(super) fn check(config: &Config, budget: &BodyBudget) -> Result<(), String> {
    let directory = config
        .spill_directory
        .clone()
        .unwrap_or_else(std::env::temp_dir);
    let shown = directory.display();
    if let Err(error) = budget.check_directory() {
        if config.spill_directory.is_some() {
            return Err(format!(
                "spill_directory {shown}: no file can be made there ({error}): let the program write to it, or name another"
            ));
        }
        tracing::warn!(
            %error,
            "no file can be made in {shown}: request bodies over body_memory_bytes_max get 503 buffer-full. Set spill_directory to a directory that the program may write to"
        );
        return Ok(());
    }
    if let StoreUrl::Sqlite(store) = &config.store
        && is_on_same_disk(&directory, store)
        && let bytes_max = config.limits.buffered_disk_bytes_max
        && let free = free_bytes(&directory)
        && bytes_max > free / 2
    {
        tracing::warn!(
            bytes_max,
            free,
            "large request bodies are written to {shown}, on the file system of the store, which takes no new keys when it is full. Set spill_directory to a directory on another one, or keep limits.buffered_disk_bytes_max well under the free space"
        );
    }
    Ok(())
}

/// The free bytes on the disk of a directory; zero if the system does not report them.
fn free_bytes(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn is_on_same_disk(directory: &Path, store: &Path) -> bool {
    let beside = store
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .map_or_else(|| PathBuf::from("."), Path::to_owned);
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let store = device(store).or_else(|| device(&beside));
    store.is_some() && store == device(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_beside_the_store_is_on_its_disk_and_another_file_system_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("hapax.db");
        assert!(
            is_on_same_disk(directory.path(), &store),
            "the store need not be there yet"
        );
        // On Linux, /proc is a separate file system.
        assert!(!is_on_same_disk(Path::new("/proc"), &store));
        assert!(!is_on_same_disk(Path::new("/does/not/exist"), &store));
    }
}
