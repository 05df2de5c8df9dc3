//! The container image. No container engine runs here, so the tests check its Dockerfile, and run
//! the program as in the image: as a user without a name, on a read-only root with two writable
//! directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use hapax_server::config::file;
use hapax_testkit::origin::Origin;
use hapax_testkit::skipped;

use super::harness::{Program, Signal, hapax};
use super::tools::{documents, is_root, needed, ran, root, run, text, yaml};

const DOCKERFILE: &str = "packaging/docker/Dockerfile";

/// The instructions of the Dockerfile: the keyword and the rest on one line.
fn instructions() -> Vec<(String, String)> {
    let file = text(DOCKERFILE);
    let lines = file
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n")
        .replace("\\\n", " ");
    let split = |line: &str| {
        line.split_once(' ').map(|(word, rest)| {
            (
                word.to_owned(),
                rest.split_whitespace().collect::<Vec<_>>().join(" "),
            )
        })
    };
    lines
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| split(line.trim()).unwrap_or_else(|| panic!("{line}")))
        .collect()
}

/// The last instruction with this keyword, which takes effect.
fn last(word: &str) -> String {
    instructions()
        .into_iter()
        .rev()
        .find(|(have, _)| have == word)
        .unwrap_or_else(|| panic!("no {word}"))
        .1
}

/// The words of an instruction in list form, which needs no shell: the image has none.
fn list(rest: &str) -> Vec<String> {
    serde_json::from_str(rest).unwrap_or_else(|error| panic!("{rest} needs a shell: {error}"))
}

#[test]
fn every_instruction_is_known_and_every_image_pinned() {
    let known = [
        "FROM",
        "RUN",
        "COPY",
        "ARG",
        "ENV",
        "LABEL",
        "USER",
        "WORKDIR",
        "VOLUME",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    ];
    for (word, rest) in instructions() {
        assert!(known.contains(&word.as_str()), "{word} {rest}");
        if word == "FROM" {
            let (_, tag) = rest
                .split(' ')
                .next()
                .unwrap()
                .rsplit_once(':')
                .unwrap_or_else(|| panic!("{rest} has no tag"));
            assert_ne!(tag, "latest", "{rest}");
        }
    }
    let rust = text("Cargo.toml")
        .lines()
        .find_map(|line| {
            Some(
                line.strip_prefix("rust-version = \"")?
                    .trim_end_matches('"')
                    .to_owned(),
            )
        })
        .unwrap();
    assert!(
        instructions()[0].1.starts_with(&format!("rust:{rust}-")),
        "built with another Rust than {rust}"
    );
}

#[test]
fn what_is_copied_exists_and_is_in_the_context() {
    let ignore = text(".dockerignore");
    assert!(ignore.lines().any(|line| line == "*"), "an allow list");
    let mut copied = 0;
    for (_, rest) in instructions()
        .into_iter()
        .filter(|(word, rest)| word == "COPY" && !rest.starts_with("--from"))
    {
        let mut words: Vec<_> = rest.split(' ').collect();
        words.pop();
        for source in words {
            assert!(
                root().join(source).exists(),
                "COPY {source}: it is not there"
            );
            let is_allowed = ignore
                .lines()
                .filter_map(|line| line.strip_prefix('!'))
                .any(|allowed| source.starts_with(allowed));
            assert!(is_allowed, ".dockerignore leaves {source} out");
            copied += 1;
        }
    }
    assert!(copied >= 5, "{copied}");
}

#[test]
fn it_runs_as_nobody_in_particular_and_without_a_shell() {
    let user = last("USER");
    let (uid, gid) = user.split_once(':').unwrap();
    assert!(
        uid.parse::<u32>().unwrap() > 0 && gid.parse::<u32>().unwrap() > 0,
        "{user}"
    );
    assert_eq!(
        list(&last("VOLUME")),
        ["/var/lib/hapax", "/var/spool/hapax"]
    );
    assert_eq!(
        last("ENV"),
        "TMPDIR=/var/spool/hapax STATE_DIRECTORY=/var/lib/hapax",
        "bodies are not buffered beside the store"
    );
    assert_eq!(list(&last("ENTRYPOINT")), ["/usr/bin/hapax"]);
    let check = last("HEALTHCHECK");
    assert_eq!(
        list(&check[check.find('[').unwrap()..]),
        ["/usr/bin/hapax", "health"]
    );
    let command = list(&last("CMD"));
    let help = ran(hapax().args([&command[0], "--help"]));
    assert!(
        command
            .iter()
            .filter(|word| word.starts_with("--"))
            .all(|flag| help.contains(flag.as_str())),
        "{command:?}"
    );
    assert!(command.contains(&"/etc/hapax/hapax.toml".to_owned()));
}

#[test]
fn the_examples_for_compose_and_kubernetes_say_the_same() {
    let version = format!("hapax:{}", env!("CARGO_PKG_VERSION"));
    let compose = yaml("packaging/docker/compose.yaml");
    let service = &compose["services"]["hapax"];
    assert_eq!(
        (service["image"].as_str(), service["read_only"].as_bool()),
        (Some(version.as_str()), Some(true))
    );
    for volume in ["state:/var/lib/hapax", "spill:/var/spool/hapax"] {
        assert!(
            service["volumes"]
                .as_array()
                .unwrap()
                .iter()
                .any(|have| have == volume),
            "{volume}"
        );
    }
    // Clients send POST requests, so the upstream must accept them.
    let upstream = compose["services"]["upstream"]["image"].as_str().unwrap();
    assert!(
        upstream.starts_with("traefik/whoami:v"),
        "{upstream} takes every method, and has a tag"
    );
    let documents = documents("packaging/kubernetes/hapax.yaml");
    let of_kind = |kind: &str| {
        documents
            .iter()
            .find(|document| document["kind"] == kind)
            .unwrap_or_else(|| panic!("no {kind}"))
    };
    let pod = &of_kind("StatefulSet")["spec"]["template"]["spec"];
    reached(
        of_kind("ConfigMap"),
        of_kind("Service"),
        of_kind("StatefulSet"),
    );
    let container = &pod["containers"][0];
    let mounted: Vec<_> = container["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| &mount["mountPath"])
        .collect();
    assert!(
        mounted.iter().any(|path| **path == "/var/spool/hapax"),
        "{mounted:?}"
    );
    assert_eq!(container["image"].as_str(), Some(version.as_str()));
    assert_eq!(
        container["securityContext"]["readOnlyRootFilesystem"].as_bool(),
        Some(true)
    );
    assert_eq!(
        format!(
            "{}:{}",
            pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]
        ),
        last("USER")
    );
    // The grace period is longer than a drain with default settings.
    assert_eq!(service["stop_grace_period"].as_str(), Some("60s"));
    assert_eq!(pod["terminationGracePeriodSeconds"].as_u64(), Some(60));
    for probe in ["readinessProbe", "livenessProbe"] {
        assert_eq!(
            container[probe]["exec"]["command"][1].as_str(),
            Some("health"),
            "{probe}"
        );
    }
}

/// The configuration is mounted and valid, and the service routes to the port it listens on.
fn reached(map: &serde_json::Value, service: &serde_json::Value, set: &serde_json::Value) {
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(
        pod["volumes"][0]["configMap"]["name"],
        map["metadata"]["name"]
    );
    let text = map["data"]["hapax.toml"].as_str().unwrap();
    let config = file::parse(Path::new("hapax.toml"), text, &file::Overrides::default())
        .unwrap()
        .config;
    assert!(
        config.listen.ip().is_unspecified(),
        "nobody reaches {}",
        config.listen
    );
    let port = &pod["containers"][0]["ports"][0];
    assert_eq!(
        port["containerPort"].as_u64(),
        Some(config.listen.port().into())
    );
    assert_eq!(service["spec"]["ports"][0]["targetPort"], port["name"]);
    assert_eq!(
        service["spec"]["selector"],
        set["spec"]["template"]["metadata"]["labels"]
    );
    assert_eq!(set["spec"]["serviceName"], service["metadata"]["name"]);
}

/// The libraries that the program is linked with, by name.
fn libraries() -> BTreeMap<String, PathBuf> {
    let said = run(Path::new("/usr/bin/ldd"), [env!("CARGO_BIN_EXE_hapax")]);
    let path = |line: &str| {
        line.split_whitespace()
            .find(|word| word.starts_with('/'))
            .map(PathBuf::from)
    };
    said.lines()
        .filter_map(path)
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .collect()
}

#[test]
fn the_last_stage_has_the_libraries_it_needs() {
    assert!(
        last("FROM").starts_with("gcr.io/distroless/cc-debian12:"),
        "what follows is about that image"
    );
    let has = [
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
    ];
    for library in libraries().keys() {
        assert!(
            has.contains(&library.as_str()) || library.starts_with("ld-linux"),
            "{library} is not in the image"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_cannot_be_written_is_enough() {
    let (Some(unshare), Some(_), Some(_)) =
        (needed("unshare"), needed("chroot"), needed("setpriv"))
    else {
        return;
    };
    if !is_root()
        || !Command::new(&unshare)
            .args(["--mount", "true"])
            .status()
            .is_ok_and(|status| status.success())
    {
        return skipped("needs root, and leave to mount");
    }
    let directory = tempfile::tempdir().unwrap();
    let (jail, state, spill) = (
        directory.path().join("root"),
        directory.path().join("state"),
        directory.path().join("spill"),
    );
    furnish(&jail);
    let user = last("USER");
    let (uid, gid) = user.split_once(':').unwrap();
    for writable in [&state, &spill] {
        std::fs::create_dir(writable).unwrap();
        std::os::unix::fs::chown(
            writable,
            Some(uid.parse().unwrap()),
            Some(gid.parse().unwrap()),
        )
        .unwrap();
    }

    let upstream = Origin::start().await;
    let script = format!(
        "set -e; mount --bind {root} {root}; mount --bind {state} {root}/var/lib/hapax; mount --bind {spill} {root}/var/spool/hapax; mount -o remount,bind,ro {root}; \
         ! touch {root}/var/lib/probe 2>/dev/null; exec setpriv --no-new-privs chroot --userspec={user} {root} \"$@\"",
        root = jail.display(),
        state = state.display(),
        spill = spill.display()
    );
    let mut command = Command::new(unshare);
    command.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &script,
        "sh",
    ]);
    // As in the image, except for the log format, because the test reads the banner.
    let words = list(&last("CMD")).into_iter().map(|word| {
        if word == "json" {
            "text".to_owned()
        } else {
            word
        }
    });
    command.args(list(&last("ENTRYPOINT"))).args(words);
    command.args([
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--upstream",
        &format!("http://{}", upstream.address()),
    ]);
    let variables = last("ENV");
    let variables = variables
        .split(' ')
        .filter_map(|variable| variable.split_once('='));
    let mut program = Program::serve(
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(variables),
    );

    assert!(
        program
            .charge("small", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        program
            .charge("small", b"amount=1")
            .contains("idempotent-replayed: true")
    );
    // A body larger than the memory limit is buffered in a file.
    assert!(
        program
            .charge("spilled", &[b'x'; 2 << 20])
            .starts_with("HTTP/1.1 200")
    );
    assert_eq!(
        ran(hapax().args(["health", "--admin", &format!("http://{}", program.admin)])),
        "ready\n"
    );
    program.signal(Signal::TERM);
    assert!(program.ended().success());
    let made = std::fs::metadata(state.join("hapax.db")).unwrap();
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!(
        (
            format!("{}:{}", made.uid(), made.gid()),
            made.mode() & 0o077
        ),
        (user, 0),
        "whose it is, and that it is nobody else's"
    );
    assert_eq!(
        (
            upstream.ledger().count("small"),
            upstream.ledger().count("spilled")
        ),
        (1, 1)
    );
}

/// Copies the files of the last stage: the program, its libraries, its configuration, its
/// directory.
fn furnish(jail: &Path) {
    for path in libraries().values() {
        let to = jail.join(path.strip_prefix("/").unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(path, to).unwrap();
    }
    for (from, to) in [
        (Path::new(env!("CARGO_BIN_EXE_hapax")), "usr/bin/hapax"),
        (
            &root().join("packaging/docker/hapax.toml"),
            "etc/hapax/hapax.toml",
        ),
    ] {
        let to = jail.join(to);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    }
    std::fs::create_dir_all(jail.join("var/lib/hapax")).unwrap();
    std::fs::create_dir_all(jail.join("var/spool/hapax")).unwrap();
}
