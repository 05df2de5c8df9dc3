//! Malicious strings in every place where a caller or an operator can put one: they are shown as
//! text and interpreted nowhere.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use hapax::core::record::State;
use hapax::{Answer, Key, Principal, Scope, Sqlite};
use serde_json::{Value, json};

use crate::fixture::{ended, id, scope};
use crate::harness::{self, Program, hapax, words};
use crate::world::{send, text};

/// Marks each string, so that it can be searched for.
const MARK: &str = "zq";

const STRINGS: [&str; 46] = [
    // SQL
    "'; DROP TABLE heads; --",
    "' OR '1'='1",
    "\" OR \"\"=\"",
    "1; ATTACH DATABASE '/tmp/x' AS x",
    "%' ESCAPE '\\' --",
    "\\'; SELECT load_extension('x')",
    // HTML, scripts, styles
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><svg/onload=alert(1)>",
    "</textarea><b>",
    "javascript:alert(1)",
    "<!--#exec cmd=\"id\"-->",
    "&lt;b&gt;&amp;&#0;",
    // templates, formats, shells, paths
    "{{7*7}}",
    "${jndi:ldap://127.0.0.1/x}",
    "#{7*7}%{7*7}<%= 7*7 %>",
    "{0}{} %s%n%x%p",
    "$(id)`id`|id;id&&id",
    "../../../../etc/passwd",
    "..\\..\\windows\\win.ini",
    "file:///etc/passwd",
    // terminals
    "\u{1b}[31mred\u{1b}[0m",
    "\u{1b}[2J\u{1b}[H",
    "\u{1b}]0;title\u{7}",
    "\u{1b}]8;;http://evil.example\u{1b}\\link\u{1b}]8;;\u{1b}\\",
    "\u{1b}P+q544e\u{1b}\\",
    "\u{9b}31mred",
    "a\rb\u{8}\u{8}c\u{7f}",
    "\u{7}\u{0c}\u{0b}\u{1}\u{2}\u{1f}",
    // lines and columns
    "a\nb",
    "a\r\nSet-Cookie: x=1\r\n\r\n<b>",
    "a\tb\tc\td\te\tf\tg\th",
    "\u{2028}line\u{2029}paragraph\u{85}next",
    // direction and presence
    "\u{202e}gnp.exe\u{202c}",
    "\u{2066}\u{2067}isolates\u{2069}\u{2069}",
    "admin\u{200b}\u{200d}\u{feff}\u{ad}",
    "\u{e0041}\u{e0042}tags",
    "\u{fff9}a\u{fffa}b\u{fffb}",
    // encodings
    "nul\u{0}nul",
    "\\ud800\\u0000\\x00%00%ff%c0%af",
    "\u{fffd}\u{ffff}\u{10ffff}",
    "Z\u{300}\u{301}\u{302}\u{303}\u{304}\u{305}\u{306}\u{307}\u{308}a\u{334}\u{335}\u{336}lgo",
    "пαураl 🏴\u{200d}☠\u{fe0f} ＜script＞",
    "\"\\/\u{8}\u{c}\n\r\t",
    "=cmd|' /C calc'!A0,+1-1,@SUM(1)",
    "overlong", // Replaced by a long string below.
];

/// The strings, each with its mark.
fn strings() -> Vec<String> {
    let string = |(number, text): (usize, &&str)| match *text {
        "overlong" => format!("{MARK}{number}{}", "🦀<".repeat(4_000)),
        text => format!("{MARK}{number}{text}"),
    };
    STRINGS.iter().enumerate().map(string).collect()
}

/// The first character that a terminal acts on, or that disguises a line. Newlines and tabs are
/// allowed: the program itself prints them.
fn harm(text: &str) -> Option<char> {
    text.chars().find(|&c| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
            || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    })
}

fn assert_harmless(what: &str, text: &str) {
    assert_eq!(harm(text), None, "{what}: {}", text.escape_debug());
}

#[tokio::test]
async fn strings_made_to_hurt_are_shown_as_text_everywhere() {
    let (directory, strings) = (tempfile::tempdir().unwrap(), strings());
    fill(directory.path(), &strings).await;
    let mut shown = 0;
    for (run, log) in ["json", "text"].into_iter().enumerate() {
        let gateway = Served::start(directory.path(), log);
        let table = Table {
            gateway: &gateway,
            strings: &strings,
        };
        shown += table.records_are_told_exactly().await;
        shown += table.changes_are_told_exactly(run).await;
        shown += table.problems_are_told_exactly().await;
        shown += table.clients_get_problems().await;
        shown += table.commands_print_text(directory.path());
        let metrics = gateway.get("/metrics").await;
        assert!(
            !metrics.text().contains(MARK),
            "a metric names what somebody sent"
        );
        shown += strings.len();
        shown += logs_are_text(log, &gateway.0.end(), &strings);
    }
    hapax_testkit::report!("{} strings, shown as text in {shown} places", strings.len());
    assert!(
        strings.len() >= 40 && shown >= 1_000,
        "{} {shown}",
        strings.len()
    );
}

/// For each string two unknown records and a completed one, whose answer contains the string too.
async fn fill(directory: &Path, strings: &[String]) {
    let store = Sqlite::open(directory.join("hapax.db")).await.unwrap();
    for (number, string) in strings.iter().enumerate() {
        for run in 0..2 {
            ended(
                &store,
                &of(string),
                &key(number, string, run),
                State::Unknown,
                None,
            )
            .await;
        }
        let headers = vec![("x-hurt".to_owned(), string.clone().into_bytes().into())];
        let answer = Answer {
            headers,
            ..Answer::new(200, string.clone().into_bytes())
        };
        ended(
            &store,
            &of(string),
            &key(number, string, 2),
            State::Completed,
            Some(answer),
        )
        .await;
    }
}

fn of(string: &str) -> Arc<Scope> {
    scope(Principal::named(string), "POST", &format!("/{string}"))
}

/// The string itself if it is a valid key.
fn key(number: usize, string: &str, run: usize) -> String {
    let key = format!("{string}{run}");
    if Key::new(key.as_str()).is_ok() {
        key
    } else {
        format!("{MARK}{number}-{run}")
    }
}

/// The program with this log format.
struct Served(Program);

impl Served {
    fn start(directory: &Path, format: &str) -> Served {
        let mut command = hapax();
        command
            .args(words("serve --listen 127.0.0.1:0 --admin 127.0.0.1:0"))
            .args(["--upstream", "http://127.0.0.1:1", "--log", format])
            .current_dir(directory)
            .env("NO_COLOR", "1")
            .env_remove("HAPAX_LOG");
        let mut program = Program::start(&mut command);
        if format == "json" {
            let serves: Value =
                serde_json::from_str(&program.wait_for("the gateway serves")).unwrap();
            let address = |name: &str| {
                let url = serves[name].as_str().unwrap();
                url.strip_prefix("http://").unwrap().parse().unwrap()
            };
            (program.clients, program.admin) = (address("listen"), address("admin"));
        } else {
            program.wait_served();
        }
        Served(program)
    }

    async fn get(&self, target: &str) -> harness::Answer {
        send(self.0.admin, "GET", target, &[], "").await
    }
}

struct Table<'a> {
    gateway: &'a Served,
    strings: &'a [String],
}

impl Table<'_> {
    /// A listing and the page of each key return every string unchanged.
    async fn records_are_told_exactly(&self) -> usize {
        let page = as_data(&self.gateway.get("/v1/keys?limit=1000").await);
        let keys: BTreeMap<_, _> = page["keys"]
            .as_array()
            .unwrap()
            .iter()
            .map(|key| (key["id"].as_str().unwrap(), key))
            .collect();
        for (number, string) in self.strings.iter().enumerate() {
            for run in 0..3 {
                let key = key(number, string, run);
                let id = id(&of(string), &key).to_string();
                let entry = keys[id.as_str()];
                assert_eq!(
                    (&entry["principal"], &entry["path"], &entry["key"]),
                    (&json!(string), &json!(format!("/{string}")), &json!(key))
                );
            }
            let id = id(&of(string), &key(number, string, 2));
            let shown = as_data(
                &self
                    .gateway
                    .get(&format!("/v1/keys/{id}?answer=true"))
                    .await,
            );
            assert_eq!(
                (&shown["answer"]["headers"][0], &shown["answer"]["body"]),
                (&json!(["x-hurt", string]), &json!(string))
            );
            // A string that is too long for a URL is left out.
            if string.len() < 1_000 {
                let by = self
                    .gateway
                    .get(&format!(
                        "/v1/keys?limit=1000&principal={}",
                        percent(string)
                    ))
                    .await;
                assert_eq!(
                    as_data(&by)["keys"].as_array().unwrap().len(),
                    3,
                    "{}",
                    string.escape_debug()
                );
            }
        }
        self.strings.len() * (3 * 3 + 3 + 1) - 1
    }

    /// Settles with every string as the operator's name and as the reason.
    async fn changes_are_told_exactly(&self, run: usize) -> usize {
        let mut told = 0;
        for (number, string) in self.strings.iter().enumerate() {
            let settle = format!(
                "/v1/keys/{}/settle",
                id(&of(string), &key(number, string, run))
            );
            let body = json!({"outcome": "done", "status": 200, "body": string, "by": string, "reason": string}).to_string();
            let got = send(
                self.gateway.0.admin,
                "POST",
                &settle,
                &[("Content-Type", "application/json")],
                &body,
            )
            .await;
            if string.len() > 200 {
                assert_eq!(got.refusal().0, 400);
                continue;
            }
            assert_eq!(
                (got.status, &as_data(&got)["state"]),
                (200, &json!("completed")),
                "{}",
                string.escape_debug()
            );
            let log = as_data(&self.gateway.get("/v1/log?limit=1").await);
            let (entry, record) = (&log["entries"][0], &log["entries"][0]["record"]);
            assert_eq!(
                (&entry["by"], &entry["reason"]),
                (&json!(string), &json!(string))
            );
            assert_eq!(
                (&record["principal"], &record["path"]),
                (&json!(string), &json!(format!("/{string}")))
            );
            told += 6;
        }
        told
    }

    /// Errors that quote the invalid text quote it unchanged.
    async fn problems_are_told_exactly(&self) -> usize {
        for string in self.strings.iter().filter(|string| string.len() < 1_000) {
            for (target, says_it) in [
                (format!("/v1/keys?state={}", percent(string)), true),
                (format!("/v1/keys?route={}", percent(string)), true),
                (format!("/v1/keys?{}=1", percent(string)), false),
                (format!("/v1/keys?after={}", percent(string)), false),
                (format!("/v1/keys/{}", percent(string)), false),
                (format!("/{}", percent(string)), false),
            ] {
                let got = self.gateway.get(&target).await;
                assert!(matches!(got.refusal().0, 400 | 404), "{target}");
                let problem = as_data(&got);
                assert!(
                    !says_it
                        || problem["detail"]
                            .as_str()
                            .unwrap()
                            .contains(string.as_str()),
                    "{target}: {problem}"
                );
            }
        }
        (self.strings.len() - 1) * 6
    }

    /// Every string as a client's key, raw and quoted: the result is a record or a problem, and the
    /// problem contains nothing harmful.
    async fn clients_get_problems(&self) -> usize {
        let mut sent = 0;
        for string in self
            .strings
            .iter()
            .filter(|string| string.len() < 1_000 && !string.contains(['\r', '\n', '\0']))
        {
            for key in [
                string.clone(),
                format!("\"{}\"", string.replace('\\', "\\\\").replace('"', "\\\"")),
            ] {
                let got = send(
                    self.gateway.0.clients,
                    "POST",
                    "/v1/charges",
                    &[("Idempotency-Key", &key)],
                    "x",
                )
                .await;
                // There is no service behind the gateway.
                assert!(
                    matches!(got.refusal().0, 400 | 502),
                    "{}: {got:?}",
                    key.escape_debug()
                );
                assert_harmless("a problem", got.text());
                sent += 1;
            }
        }
        sent
    }

    /// The printed text has no raw control characters, and each key is one line of eight cells.
    fn commands_print_text(&self, directory: &Path) -> usize {
        let admin = format!("http://{}", self.gateway.0.admin);
        let run = |args: &[&str]| {
            let ran = Command::new(env!("CARGO_BIN_EXE_hapax"))
                .arg("keys")
                .args(args)
                .args(["--admin", &admin])
                .current_dir(directory)
                .output();
            printed(&ran.unwrap())
        };
        let list = run(&words("list --limit 1000"));
        let lines: Vec<_> = list.lines().filter(|line| line.contains(MARK)).collect();
        assert!(
            lines.len() >= 3 * self.strings.len()
                && lines.iter().all(|line| line.split('\t').count() == 8),
            "{list}"
        );
        let log = run(&words("log --limit 1000"));
        assert!(
            log.lines().all(|line| line.split('\t').count() == 9),
            "{log}"
        );
        let mut all = vec![
            list,
            log,
            run(&words("list --json --limit 1000")),
            run(&words("log --json --limit 1000")),
        ];
        for (number, string) in self.strings.iter().enumerate() {
            let id = id(&of(string), &key(number, string, 2)).to_string();
            let page = run(&["show", &id, "--answer"]);
            assert!(
                page.contains(&format!("principal        {MARK}{number}")),
                "{page}"
            );
            all.push(page);
        }
        for args in [
            &words("keys list --limit 1000")[..],
            &words("keys log --limit 1000"),
        ] {
            let page = on_a_terminal(directory, &[args, &["--admin", &admin]].concat());
            assert!(page.lines().count() > self.strings.len() - 2, "{page}");
            all.push(page);
        }
        all.iter()
            .for_each(|page| assert_harmless("what is printed", page));
        // Once in each of six listings, and on its own page.
        self.strings.len() * (6 + 1)
    }
}

/// Parses an answer that must be declared as JSON, with every string escaped so that it cannot be
/// taken for markup.
fn as_data(got: &harness::Answer) -> Value {
    let content_type = got.field("content-type").unwrap();
    assert!(
        matches!(
            content_type,
            "application/json" | "application/problem+json"
        ),
        "{content_type}"
    );
    assert_eq!(got.field("x-content-type-options"), Some("nosniff"));
    assert!(
        !got.text().trim_end().contains(|c: char| c < ' '),
        "raw controls in JSON"
    );
    got.json()
}

fn printed(ran: &Output) -> String {
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert_harmless("what is said", &text(&ran.stderr));
    text(&ran.stdout)
}

/// The same command with its output on a pseudo-terminal that Python opens.
fn on_a_terminal(directory: &Path, args: &[&str]) -> String {
    let spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))";
    let mut python = Command::new("python3");
    python
        .args(["-c", spawn, env!("CARGO_BIN_EXE_hapax")])
        .args(args)
        .current_dir(directory)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    let ran = python.output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    // A terminal receives CR LF for a line's end.
    text(&ran.stdout)
        .replace("\r\n", "\n")
        .replace("^D\u{8}\u{8}", "")
}

/// Every change is in the log, and the log contains nothing harmful.
fn logs_are_text(format: &str, log: &str, strings: &[String]) -> usize {
    assert_harmless(format, log);
    for number in 0..strings.len() - 1 {
        assert!(
            log.contains(&format!("{MARK}{number}")),
            "{format}: {number}"
        );
    }
    if format == "json" {
        let reasons: Vec<Value> = log
            .lines()
            .filter(|line| line.starts_with('{'))
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            })
            .collect();
        for string in strings.iter().filter(|string| string.len() <= 200) {
            assert!(
                reasons.iter().any(|line| line["reason"] == **string),
                "{}",
                string.escape_debug()
            );
        }
    }
    strings.len() - 1
}

/// The text percent-encoded for a URL.
fn percent(text: &str) -> String {
    text.bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}
