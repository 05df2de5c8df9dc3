//! Answers that SQL encodes are stored byte for byte as Rust would encode them.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hapax::middleware::is_never_kept;
use hapax_core::store::{Change, Finish, Terms};
use hapax_core::{Answer, Condition, Put, State, Store};
use tokio_postgres::Client;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

use super::{Attempt, HOUR, Shop, code, run, terms};

const RANDOM_ANSWERS: usize = 400;

/// The stored bytes of a record's answer.
async fn stored(session: &Client, attempt: &Attempt) -> Option<Vec<u8>> {
    let id = &attempt.head.id.as_bytes()[..];
    session
        .query_one("SELECT answer FROM hapax.get(ARRAY[$1::bytea])", &[&id])
        .await
        .expect("asked")
        .get(0)
}

/// A value that is sent as text without a type, as many drivers do.
#[derive(Debug)]
struct Untyped<'a>(&'a str);

impl ToSql for Untyped<'_> {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// A fixed pseudo-random sequence.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("small")
    }

    fn text(&mut self, alphabet: &str, len_max: usize) -> String {
        let letters: Vec<char> = alphabet.chars().collect();
        (0..self.below(len_max + 1))
            .map(|_| letters[self.below(letters.len())])
            .collect()
    }

    fn bytes(&mut self, len_max: usize) -> Vec<u8> {
        (0..self.below(len_max + 1))
            .map(|_| self.next().to_le_bytes()[0])
            .collect()
    }

    fn answer(&mut self) -> Answer {
        let status = u16::try_from(200 + self.below(400)).expect("small");
        let headers = (0..self.below(8)).map(|_| {
            let name = format!("x{}", self.text("abcxyz0189!#$%&'*+-.^_`|~", 12));
            let value = self
                .text("abc XYZ,;=\"\\'{}[]\t~éπ\u{80}\u{a0}漢🦀", 20)
                .trim_matches([' ', '\t'])
                .to_owned();
            (name, Bytes::from(value))
        });
        Answer {
            status,
            headers: headers.collect(),
            body: self.bytes(300).into(),
            trailers: Vec::new(),
        }
    }
}

fn json_text(text: &str) -> String {
    let escaped: String = text
        .chars()
        .map(|letter| match letter {
            '"' | '\\' => format!("\\{letter}"),
            letter if u32::from(letter) < 0x20 => format!("\\u{:04x}", u32::from(letter)),
            letter => letter.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}

/// The fields as an array of pairs, the form that preserves any order, with names in mixed case.
fn pairs(answer: &Answer) -> String {
    let pair = |(name, value): &(String, Bytes)| {
        let value = std::str::from_utf8(value).expect("a text");
        format!(
            "[{}, {}]",
            json_text(&name.to_uppercase()),
            json_text(value)
        )
    };
    format!(
        "[{}]",
        answer
            .headers
            .iter()
            .map(pair)
            .collect::<Vec<_>>()
            .join(", ")
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_encoded_in_sql_as_in_rust() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let (session, mut random) = (shop.session().await, Random(7));
    for number in 0..RANDOM_ANSWERS {
        let answer = random.answer();
        let version = [None, Some("2024-11-05"), Some("v2 é")][random.below(3)];
        let terms = Terms {
            version: version.map(Into::into),
            ..terms()
        };
        let attempt = shop
            .claimed_for(&format!("random {number}"), HOUR, Some(terms))
            .await;
        let (fence, status, body) = (attempt.fence(), i32::from(answer.status), &answer.body[..]);
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&attempt.operation.as_str(), Type::TEXT),
            (&fence, Type::INT8),
            (&status, Type::INT4),
            (&Untyped(&pairs(&answer)), Type::UNKNOWN),
            (&body, Type::BYTEA),
        ];
        session
            .query_typed("SELECT hapax.complete($1, $2, $3, $4, $5)", &parameters)
            .await
            .expect("completed");
        let expected = answer.under(version);
        assert_eq!(
            stored(&session, &attempt).await,
            Some(expected.encode(&attempt.head.id)),
            "{expected:?}"
        );
        let record = shop.record(attempt.head.id).await.expect("a record");
        let state = if (400..500).contains(&expected.status) {
            State::Failed
        } else {
            State::Completed
        };
        assert_eq!(
            (record.head.state, record.head.status, record.head.kept),
            (state, Some(expected.status), true)
        );
        assert_eq!(
            record.answer.as_deref(),
            Some(&expected),
            "what a replay is made of"
        );
    }
}

/// A record ended by the store's statement equals one ended through the store, except for the time
/// of the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joined_record_is_one_that_ended_through_the_store() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let (session, mut random) = (shop.session().await, Random(11));
    for (number, state) in [
        State::Completed,
        State::Failed,
        State::Retryable,
        State::Unknown,
        State::Completed,
    ]
    .into_iter()
    .enumerate()
    {
        let answer =
            matches!(state, State::Completed | State::Failed).then(|| Arc::new(random.answer()));
        let status = answer
            .as_ref()
            .map(|answer| answer.status)
            .or((number != 3).then_some(503));
        let finish = |attempt: &Attempt| Put {
            id: attempt.head.id,
            condition: Condition::Held {
                fence: attempt.head.fence,
            },
            change: Change::Finish(Finish {
                state,
                status,
                answer: answer.clone(),
                lifetime: terms().lifetime,
            }),
        };
        let joined = shop.claimed(&format!("joined {number}")).await;
        let statement = shop
            .store
            .joins()
            .expect("Postgres joins")
            .statement(&finish(&joined));
        let now = run(&session, &statement).await.expect("joined");
        let through = shop.claimed(&format!("through {number}")).await;
        crate::lanes::won(shop.store.put_if(finish(&through)).await);
        let (joined, through) = (
            shop.record(joined.head.id).await,
            shop.record(through.head.id).await,
        );
        let (joined, through) = (joined.expect("a record"), through.expect("a record"));
        assert_eq!(joined.answer, through.answer);
        assert_eq!(
            joined.head.finished_at.as_micros(),
            u64::try_from(now).expect("a time")
        );
        let rest = |record: &hapax_core::Record| {
            let head = &record.head;
            let times = (
                head.expires_at.since(head.finished_at),
                head.tombstone_until.since(head.expires_at),
            );
            (
                head.state,
                head.status,
                head.kept,
                head.attempts,
                head.version - head.fence.as_u64(),
                times,
            )
        };
        assert_eq!(rest(&joined), rest(&through), "{state:?}");
    }
}

/// The forms that drivers and people write; all mean the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_say_it_is_understood() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let answer = |headers: &[(&str, &str)], body: &'static [u8]| Answer {
        status: 201,
        headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Bytes::from((*value).to_owned())))
            .collect(),
        body: Bytes::from_static(body),
        trailers: Vec::new(),
    };
    let link = [("link", "<a>"), ("link", "<b>")];
    let cases: [(&str, Answer); 13] = [
        ("{o}, {f}, 201", answer(&[], b"")),
        ("{o}, {f}, 201, NULL", answer(&[], b"")),
        (
            "operation => {o}, fence => {f}, status => 201",
            answer(&[], b""),
        ),
        (
            "{o}, '{n}', '201', '{\"Link\": \"<a>\"}'",
            answer(&link[..1], b""),
        ),
        (
            "{o}, {f}, 201, '{\"Link\": [\"<a>\", \"<b>\"]}', 'paid'",
            answer(&link, b"paid"),
        ),
        (
            "{o}, {f}, 201::int2, '[[\"Link\", \"<a>\"], [\"link\", \" <b>\\t\"]]'::jsonb, 'paid'::varchar",
            answer(&link, b"paid"),
        ),
        // Escapes in a text are not interpreted.
        (
            "{o}, {f}, 201::int8, '[]', '\\x41\\101'",
            answer(&[], b"\\x41\\101"),
        ),
        (
            "{o}, {f}, 201, '{}', '\\x410042ff'::bytea",
            answer(&[], b"A\0B\xff"),
        ),
        (
            "headers => '{}', status => 201, body => 'paid', operation => {o}, fence => {f}",
            answer(&[], b"paid"),
        ),
        (
            "{o}, {f}, 201, jsonb_build_object('x-count', 3, 'x-none', ''), 'é'",
            answer(&[("x-none", ""), ("x-count", "3")], "é".as_bytes()),
        ),
        ("{o}, {f}, 201, '{}', NULL::text", answer(&[], b"")),
        ("{o}, {f}, 201, '{}', NULL::bytea", answer(&[], b"")),
        ("{o}, {f}, 201, '{\"x-none\": []}', ''", answer(&[], b"")),
    ];
    // Settings under which the same text could be parsed differently, and names that could shadow
    // those of the schema.
    let surroundings = [
        "SELECT 1",
        "SET standard_conforming_strings = off; SET escape_string_warning = off; SET backslash_quote = on",
        "SET search_path = mine, pg_catalog; SET bytea_output = escape; SET plan_cache_mode = force_custom_plan; SET default_transaction_isolation = 'serializable'",
        "SET enable_indexscan = off; SET enable_bitmapscan = off; SET jit_above_cost = 0",
    ];
    shop.session()
        .await
        .batch_execute("CREATE SCHEMA mine; CREATE FUNCTION mine.sha256(bytea) RETURNS bytea LANGUAGE sql AS $$ SELECT 'mine'::bytea $$; CREATE TABLE mine.heads ()")
        .await
        .expect("somebody else's");
    for (round, surroundings) in surroundings.into_iter().enumerate() {
        let session = shop.session().await;
        session.batch_execute(surroundings).await.expect("set");
        for (number, (arguments, expected)) in cases.iter().enumerate() {
            let attempt = shop.claimed(&format!("form {round} {number}")).await;
            let (operation, fence) = (
                format!("'{}'", attempt.operation),
                attempt.fence().to_string(),
            );
            let mut arguments = arguments
                .replace("{o}", &operation)
                .replace("{f}", &fence)
                .replace("{n}", &fence);
            if round == 1 {
                arguments = arguments.replace('\\', "\\\\");
            }
            session
                .batch_execute(&format!("SELECT hapax.complete({arguments})"))
                .await
                .unwrap_or_else(|error| panic!("{arguments}: {error:?}"));
            let record = shop.record(attempt.head.id).await.expect("a record");
            assert_eq!(
                record.answer.as_deref(),
                Some(expected),
                "{arguments} where {surroundings}"
            );
        }
    }
}

/// As a driver that declares no parameter types.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_without_types_are_understood() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let (session, attempt) = (shop.session().await, shop.claimed("untyped").await);
    let (operation, fence) = (attempt.operation.as_str(), attempt.fence().to_string());
    let texts = [
        operation,
        &fence,
        "201",
        r#"{"content-type": "text/plain"}"#,
        r"\x41",
    ]
    .map(Untyped);
    let parameters: Vec<_> = texts
        .iter()
        .map(|text| (text as &(dyn ToSql + Sync), Type::UNKNOWN))
        .collect();
    session
        .query_typed("SELECT hapax.complete($1, $2, $3, $4, $5)", &parameters)
        .await
        .expect("completed");
    let answer = shop
        .record(attempt.head.id)
        .await
        .expect("a record")
        .answer
        .expect("kept");
    assert_eq!((&answer.body[..], answer.headers.len()), (&br"\x41"[..], 1));
}

/// Texts are stored as UTF-8, whatever the client's encoding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_are_kept_in_one_encoding() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let (session, attempt) = (shop.session().await, shop.claimed("latin").await);
    // In the client's encoding these bytes would be two characters.
    session
        .batch_execute("SET client_encoding = 'LATIN1'")
        .await
        .expect("set");
    let sql = format!(
        "SELECT hapax.complete('{}', {}, 201, '{{\"x\": \"\\u00e9\"}}', chr(233))",
        attempt.operation,
        attempt.fence()
    );
    session.batch_execute(&sql).await.expect("completed");
    let answer = shop
        .record(attempt.head.id)
        .await
        .expect("a record")
        .answer
        .expect("kept");
    assert_eq!(
        (&answer.body[..], &answer.headers[0].1[..]),
        ("é".as_bytes(), "é".as_bytes())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_never_kept_of_an_answer_is_not_kept_of_this_one() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let session = shop.session().await;
    let never = [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "date",
        "age",
        "idempotent-replayed",
        "idempotency-expires",
        "hapax-fence",
        "hapax-operation",
        "hapax-keep",
        "hapax-trace",
        "hapax-answer-version",
    ];
    let kept = [
        "content-type",
        "content-encoding",
        "location",
        "etag",
        "retry-after",
        "x-hapax",
        "idempotency-key",
        "via",
        "cache-control",
        "vary",
    ];
    assert!(
        never
            .iter()
            .all(|name| is_never_kept(&name.parse().expect("a name")))
    );
    assert!(
        !kept
            .iter()
            .any(|name| is_never_kept(&name.parse().expect("a name")))
    );
    let all = never.iter().chain(&kept).chain(&[
        "content-length",
        "set-cookie",
        "x-mine",
        "hapax-whatever",
    ]);
    let mut pairs: Vec<_> = all.map(|name| format!("[\"{name}\", \"x\"]")).collect();
    pairs.push("[\"Connection\", \"close , X-Mine\"]".to_owned());
    for cookies in [false, true] {
        let attempt = shop
            .claimed_for(
                &format!("cookies {cookies}"),
                HOUR,
                Some(Terms { cookies, ..terms() }),
            )
            .await;
        let sql = format!(
            "SELECT hapax.complete('{}', {}, 201, '[{}]')",
            attempt.operation,
            attempt.fence(),
            pairs.join(", ")
        );
        session.batch_execute(&sql).await.expect("completed");
        let answer = shop
            .record(attempt.head.id)
            .await
            .expect("a record")
            .answer
            .expect("kept");
        let names: Vec<&str> = answer
            .headers
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        let expected: Vec<&str> = kept
            .into_iter()
            .chain(cookies.then_some("set-cookie"))
            .collect();
        assert_eq!(names, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_not_to_be_kept_is_noted() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let session = shop.session().await;
    let cases = [
        (
            Terms {
                keep: false,
                ..terms()
            },
            "{}",
            "paid",
            false,
        ),
        (
            Terms {
                bytes_max: 3,
                ..terms()
            },
            "{}",
            "paid",
            false,
        ),
        (
            Terms {
                bytes_max: 4,
                ..terms()
            },
            "{}",
            "paid",
            true,
        ),
        (
            Terms {
                bytes_max: 1,
                ..terms()
            },
            "{}",
            "é",
            false,
        ),
        (terms(), r#"{"Hapax-Keep": "NO"}"#, "paid", false),
        (terms(), r#"{"Hapax-Keep": "yes"}"#, "paid", true),
    ];
    for (number, (terms, headers, body, is_kept)) in cases.into_iter().enumerate() {
        let attempt = shop
            .claimed_for(&format!("kept {number}"), HOUR, Some(terms.clone()))
            .await;
        let sql = format!(
            "SELECT hapax.complete('{}', {}, 201, '{headers}', '{body}')",
            attempt.operation,
            attempt.fence()
        );
        session.batch_execute(&sql).await.expect("completed");
        let record = shop.record(attempt.head.id).await.expect("a record");
        assert_eq!(
            (record.head.state, record.head.status),
            (State::Completed, Some(201))
        );
        assert_eq!(
            (record.head.kept, record.answer.is_some()),
            (is_kept, is_kept),
            "{number}"
        );
        assert_eq!(
            record.head.expires_at.since(record.head.finished_at),
            terms.lifetime.retention
        );
    }
    // An invalid answer is refused whether it would be kept or not.
    let attempt = shop
        .claimed_for(
            "wrong",
            HOUR,
            Some(Terms {
                keep: false,
                ..terms()
            }),
        )
        .await;
    let sql = format!(
        "SELECT hapax.complete('{}', {}, 201, '{{\"a b\": \"c\"}}')",
        attempt.operation,
        attempt.fence()
    );
    assert_eq!(
        session.batch_execute(&sql).await.map_err(code),
        Err("22023".to_owned())
    );
}
