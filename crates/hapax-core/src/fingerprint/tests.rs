use super::*;
use crate::scope::Principal;

fn scope() -> Scope {
    Scope {
        namespace: "n".into(),
        principal: Principal::named("p"),
        method: "POST".into(),
        path: "/orders".into(),
    }
}

fn fingerprint(
    policy: &FingerprintPolicy,
    headers: &[(&'static str, &'static str)],
    body: &[u8],
    chunk: usize,
) -> [u8; 32] {
    let scope = scope();
    let headers = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()))
        .collect();
    let head = RequestHead {
        scope: &scope,
        target: "/orders?x=1",
        headers,
    };
    let mut fingerprinter = Fingerprinter::new(&Arc::new(policy.clone()), &head);
    body.chunks(chunk)
        .for_each(|chunk| fingerprinter.update(chunk));
    fingerprinter.finish().digest
}

#[track_caller]
fn check(policy: &FingerprintPolicy, a: &str, b: &str, same: bool) {
    let digest = |body: &str, chunk| fingerprint(policy, &[], body.as_bytes(), chunk);
    assert_eq!(
        digest(a, usize::MAX) == digest(b, usize::MAX),
        same,
        "{a:?} and {b:?}"
    );
    for text in [a, b] {
        for chunk in 1..8 {
            assert_eq!(
                digest(text, usize::MAX),
                digest(text, chunk),
                "{text:?} in chunks of {chunk}"
            );
        }
    }
}

#[test]
fn raw_mode_merges_nothing() {
    let raw = FingerprintPolicy::raw();
    check(&raw, "abc", "abc", true);
    check(&raw, r#"{"a":1}"#, r#"{"a": 1}"#, false);
    check(&raw, "", "\0", false);
}

#[test]
fn the_digest_is_pinned() {
    // A change here would turn every repeat across an upgrade into a 422.
    let hex = |policy: FingerprintPolicy, body: &str| {
        hex(&fingerprint(
            &policy,
            &[("content-type", "application/json")],
            body.as_bytes(),
            3,
        ))
    };
    assert_eq!(
        hex(FingerprintPolicy::raw(), "{}"),
        "27c721047eeee9b82474679a0a86e22fe742209b8f25f69c6fef9a70fd841833"
    );
    assert_eq!(
        hex(FingerprintPolicy::json(), r#"{"b":[1,"x",null],"a":true}"#),
        "bea468cc682d105711b0703d7f094ac5d98b00bcad3ecbd2a20defe6bf8585be"
    );
}

/// By default, a client that builds the same body again sends the same request.
#[test]
fn a_body_is_read_as_its_content_type_says() {
    let auto = FingerprintPolicy::default();
    let same = |content_type: &'static str, a: &str, b: &str| {
        let digest =
            |body: &str| fingerprint(&auto, &[("content-type", content_type)], body.as_bytes(), 3);
        digest(a) == digest(b)
    };
    let (compact, spaced) = (r#"{"a":1,"b":"\u0041"}"#, r#"{ "b": "A", "a": 1 }"#);
    for json in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/vnd.api+json",
        "image/x+json",
    ] {
        assert!(same(json, compact, spaced), "{json}");
        assert!(!same(json, compact, r#"{"a":2,"b":"A"}"#), "{json}");
        assert!(
            !same(
                json,
                r#"{"a":9007199254740993}"#,
                r#"{"a":9007199254740992}"#
            ),
            "{json}: numbers are exact"
        );
        assert!(
            !same(json, r#"{"a":1,"a":2}"#, r#"{"a":1, "a":2}"#),
            "{json}: duplicate names are never merged"
        );
        assert!(!same(json, "not json", "not  json"), "{json}");
    }
    for bytes in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonx",
        "application/x-ndjson",
        "+json",
        "json",
        "",
    ] {
        assert!(!same(bytes, compact, spaced), "{bytes}");
        assert!(same(bytes, compact, compact), "{bytes}");
    }
    let multipart = |boundary: &'static str, content_type: &'static str| {
        let body = format!("--{boundary}\r\n\r\npart\r\n--{boundary}--\r\n");
        fingerprint(&auto, &[("content-type", content_type)], body.as_bytes(), 5)
    };
    assert_eq!(
        multipart("one", "multipart/form-data; boundary=one"),
        multipart("two", "multipart/form-data; boundary=two")
    );
    assert_ne!(
        multipart("one", "multipart/form-data; boundary=one"),
        multipart("two", "multipart/form-data; boundary=one")
    );
    // With two content types the body is read byte for byte.
    let two = [
        ("content-type", "application/json"),
        ("content-type", "application/json"),
    ];
    assert_ne!(
        fingerprint(&auto, &two, compact.as_bytes(), 3),
        fingerprint(&auto, &two, spaced.as_bytes(), 3)
    );
}

#[test]
fn each_part_of_the_request_counts() {
    let base = scope();
    let digest = |scope: &Scope, target: &str, headers: &[(&str, &[u8])], body: &[u8]| {
        let head = RequestHead {
            scope,
            target,
            headers: headers.to_vec(),
        };
        let mut fingerprinter = Fingerprinter::new(
            &Arc::new(FingerprintPolicy::default().with_header("X-Tenant")),
            &head,
        );
        fingerprinter.update(body);
        fingerprinter.finish().digest
    };
    let other = Scope {
        principal: Principal::named("q"),
        ..base.clone()
    };
    let digests = [
        digest(&base, "/orders", &[], b"x"),
        digest(&other, "/orders", &[], b"x"),
        digest(&base, "/orders?a", &[], b"x"),
        digest(&base, "/orders", &[("content-type", b"text/plain")], b"x"),
        digest(
            &base,
            "/orders",
            &[("content-encoding", b"text/plain")],
            b"x",
        ),
        digest(&base, "/orders", &[("x-tenant", b"1")], b"x"),
        digest(
            &base,
            "/orders",
            &[("x-tenant", b"1"), ("x-tenant", b"2")],
            b"x",
        ),
        digest(&base, "/orders", &[("x-tenant", b"1, 2")], b"x"),
        digest(&base, "/orders", &[], b"y"),
    ];
    let distinct: BTreeSet<_> = digests.iter().collect();
    assert_eq!(distinct.len(), digests.len());
    assert_eq!(
        digest(&base, "/orders", &[("accept", b"a")], b"x"),
        digests[0],
        "a header that was not chosen does not count"
    );
}

#[test]
fn json_mode_merges_the_published_equivalences_and_nothing_else() {
    let json = FingerprintPolicy::json();
    for (a, b, same) in [
        // Spacing, member order, the spelling of escapes.
        (
            r#"{"a":1,"b":[1,2]}"#,
            "{ \"b\" : [ 1 ,\n2 ] ,\t\"a\":1 }\r\n",
            true,
        ),
        (r#"{"a":{"x":1,"y":2}}"#, r#"{"a":{"y":2,"x":1}}"#, true),
        (r#""\u0041\/\u00e9""#, r#""A/é""#, true),
        (r#"{"\u0061":1}"#, r#"{"a":1}"#, true),
        (r#""\ud83d\ude00""#, r#""😀""#, true),
        // Array order, kinds, structure.
        ("[1,2]", "[2,1]", false),
        ("[[1],2]", "[1,[2]]", false),
        ("[]", "{}", false),
        ("[]", "[[]]", false),
        ("null", r#""null""#, false),
        ("1", r#""1""#, false),
        ("true", "false", false),
        (r#"{"a":null}"#, "{}", false),
        // Numbers count by their spelling.
        ("9007199254740993", "9007199254740992", false),
        ("1", "1.0", false),
        ("1", "1e0", false),
        ("1e1", "1E1", false),
        ("0", "-0", false),
        ("0.1", "0.10", false),
        // Unicode is not normalised.
        ("\"\u{e9}\"", "\"e\u{301}\"", false),
        // A text that readers understand differently counts byte for byte.
        (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#, false),
        (r#"{"a":1,"a":1}"#, r#"{"a":1}"#, false),
        (r#"{"a":1,"a":1}"#, r#"{"a":1, "a":1}"#, false),
        (r#"{"a":1,"\u0061":1}"#, r#"{"a":1,"a":1}"#, false),
        (
            r#"{"amount":1,"Amount":2}"#,
            r#"{"Amount":2,"amount":1}"#,
            false,
        ),
        (
            r#"{"amount":1,"Amount":2}"#,
            r#"{"amount":1, "Amount":2}"#,
            false,
        ),
        (
            r#"{"o":{"kind":1,"\u212Aind":2}}"#,
            r#"{"o":{"\u212Aind":2,"kind":1}}"#,
            false,
        ),
        (
            r#"{"status":1,"ſtatus":2}"#,
            r#"{"ſtatus":2,"status":1}"#,
            false,
        ),
        (r#"[{"a":1},{"A":2}]"#, r#"[{"a" :1}, {"A":2}]"#, true),
        (r#"{"a":{"A":2}}"#, r#"{"a" : {"A":2}}"#, true),
        (
            r#"{"createdAt":1,"updatedAt":2}"#,
            r#"{"updatedAt":2,"createdAt":1}"#,
            true,
        ),
        (r#""\ud800""#, r#" "\ud800""#, false),
        (r#""\ud800""#, r#""\uD800""#, false),
        ("\u{feff}1", "1", false),
        ("1 2", "1  2", false),
        ("{", " {", false),
        ("01", " 01", false),
        ("", " ", false),
    ] {
        check(&json, a, b, same);
    }
}

#[test]
fn excessive_depth_width_and_tokens_are_never_merged() {
    let json = FingerprintPolicy::json();
    let same = |a: &str, b: &str| {
        fingerprint(&json, &[], a.as_bytes(), 4096) == fingerprint(&json, &[], b.as_bytes(), 1000)
    };
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(same(&deep(128), &format!(" {}", deep(128))));
    assert!(!same(&deep(129), &format!(" {}", deep(129))));

    let wide = |members: usize| {
        format!(
            "{{{}}}",
            (0..members)
                .map(|i| format!("\"{i}\":0"))
                .collect::<Vec<_>>()
                .join(",")
        )
    };
    assert!(same(&wide(16_384), &format!(" {}", wide(16_384))));
    assert!(!same(&wide(16_385), &format!(" {}", wide(16_385))));

    let long = |bytes: usize| format!("\"{}\"", "x".repeat(bytes));
    assert!(same(&long(1 << 20), &format!(" {}", long(1 << 20))));
    assert!(!same(
        &long((1 << 20) + 1),
        &format!(" {}", long((1 << 20) + 1))
    ));
    let escaped = format!("\"{}\"", "\\u0078".repeat(1 << 20));
    assert!(
        same(&long(1 << 20), &escaped),
        "the limit is on what a token says, not on how it is spelled"
    );
}

#[test]
fn a_long_token_counts_the_same_however_it_arrives() {
    for length in [1 << 20, (1 << 20) + (1 << 18), 8 << 20] {
        let body = format!("{{\"file\":\"{}\"}}", "A".repeat(length));
        let digest = |chunk| fingerprint(&FingerprintPolicy::json(), &[], body.as_bytes(), chunk);
        for chunk in [8 << 10, 70_000, 350_000, 1 << 20] {
            assert_eq!(
                digest(chunk),
                digest(usize::MAX),
                "{length} bytes in chunks of {chunk}"
            );
        }
    }
}

#[test]
fn volatile_fields_are_left_out() {
    let policy =
        FingerprintPolicy::json_without(["/sent_at", "/items/*/nonce", "/meta/~1~0", "/list/1"])
            .unwrap();
    for (a, b, same) in [
        (
            r#"{"amount":5,"sent_at":1}"#,
            r#"{"sent_at":{"x":[2]},"amount":5}"#,
            true,
        ),
        (r#"{"amount":5,"sent_at":1}"#, r#"{"amount":5}"#, true),
        (
            r#"{"amount":5,"sent_at":1}"#,
            r#"{"amount":6,"sent_at":1}"#,
            false,
        ),
        (
            r#"{"items":[{"id":1,"nonce":1},{"id":2,"nonce":2}]}"#,
            r#"{"items":[{"id":1,"nonce":3},{"nonce":4,"id":2}]}"#,
            true,
        ),
        (
            r#"{"items":[{"id":1},{"id":2}]}"#,
            r#"{"items":[{"id":2},{"id":1}]}"#,
            false,
        ),
        (r#"{"nonce":1}"#, r#"{"nonce":2}"#, false),
        (
            r#"{"meta":{"/~":1,"k":2}}"#,
            r#"{"meta":{"/~":9,"k":2}}"#,
            true,
        ),
        (r#"{"list":[1,2,3]}"#, r#"{"list":[1,9,3]}"#, true),
        (r#"{"list":[1,2,3]}"#, r#"{"list":[1,3]}"#, false),
        // A duplicate inside an omitted value still makes the text odd.
        (r#"{"sent_at":{"a":1,"a":2}}"#, r#"{"sent_at":1}"#, false),
    ] {
        check(&policy, a, b, same);
    }
}

#[test]
fn only_named_fields_are_taken() {
    let policy = FingerprintPolicy::json_only(["/amount", "/card/number", "/items/*/id"]).unwrap();
    for (a, b, same) in [
        (
            r#"{"amount":5,"note":"a"}"#,
            r#"{"note":"b","amount":5}"#,
            true,
        ),
        (r#"{"amount":5}"#, r#"{"amount":6}"#, false),
        (
            r#"{"card":{"number":1,"cvc":2}}"#,
            r#"{"card":{"number":1,"cvc":3}}"#,
            true,
        ),
        (
            r#"{"card":{"number":1}}"#,
            r#"{"card":{"number":2}}"#,
            false,
        ),
        (r#"{"card":1}"#, r#"{"card":2}"#, false),
        // A service that ignores letter case takes these values too.
        (r#"{"Amount":5}"#, r#"{"Amount":6}"#, false),
        (
            r#"{"card":{"NUMBER":1}}"#,
            r#"{"card":{"NUMBER":2}}"#,
            false,
        ),
        (
            r#"{"Card":{"number":1}}"#,
            r#"{"Card":{"number":2}}"#,
            false,
        ),
        (r#"{"note":{"Amount":5}}"#, r#"{"note":{"Amount":6}}"#, true),
        (
            r#"{"items":[{"id":1,"x":1}]}"#,
            r#"{"items":[{"id":1,"x":2}]}"#,
            true,
        ),
        (
            r#"{"items":[{"id":1},{"id":2}]}"#,
            r#"{"items":[{"id":2},{"id":1}]}"#,
            false,
        ),
    ] {
        check(&policy, a, b, same);
    }
}

#[test]
fn multipart_mode_ignores_the_boundary_and_nothing_else() {
    let policy = FingerprintPolicy::multipart();
    let body = |boundary: &str, value: &str| {
        format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{value}\r\n--{boundary}--\r\n"
        )
    };
    let digest = |boundary: &str, body: &str, chunk| {
        let content_type = format!("multipart/form-data; boundary={boundary}").leak();
        fingerprint(
            &policy,
            &[("content-type", content_type)],
            body.as_bytes(),
            chunk,
        )
    };
    let first = digest("xyz", &body("xyz", "1"), usize::MAX);
    for chunk in 1..80 {
        assert_eq!(
            first,
            digest("\"other-boundary\"", &body("other-boundary", "1"), chunk)
        );
    }
    assert_ne!(first, digest("xyz", &body("xyz", "2"), usize::MAX));
    assert_ne!(
        first,
        digest("xyz", &body("zyx", "1"), usize::MAX),
        "a body without its delimiter counts byte for byte"
    );
    assert_ne!(
        first,
        digest("xyz", &body("xyz", "1").replace("xyz--", "xyz"), usize::MAX),
        "so does one that is not closed"
    );

    // The boundary is a prefix of a line inside a part: two parts that differ there must not be
    // taken for one.
    let tricky = |boundary: &str| body(boundary, &format!("one\r\n--{boundary}more\r\ntwo"));
    assert_ne!(
        digest("xyz", &tricky("xyz"), usize::MAX),
        digest("abc", &tricky("abc"), usize::MAX)
    );
    // Nor may one body under two boundaries be taken for one, if it is well-formed under neither
    // and a lenient reader would see two different forms.
    let unclosed = "--AAA\r\n\r\n1\r\n--CCC\r\n\r\n1000\r\n";
    assert_ne!(
        digest("AAA", unclosed, usize::MAX),
        digest("CCC", unclosed, usize::MAX)
    );
    // Nor may two requests that differ in a second content type.
    let second = |second| {
        let headers = [
            ("content-type", "multipart/form-data; boundary=b"),
            ("content-type", second),
        ];
        fingerprint(&policy, &headers, body("b", "1").as_bytes(), 7)
    };
    assert_ne!(second("text/plain"), second("application/json"));
    // Nor may two content types that differ in more than the boundary.
    let typed = |content_type: &'static str| {
        fingerprint(
            &policy,
            &[("content-type", content_type)],
            body("b", "1").as_bytes(),
            7,
        )
    };
    assert_eq!(
        typed("multipart/form-data; boundary=b"),
        typed("Multipart/Form-Data;boundary=\"b\"")
    );
    assert_ne!(
        typed("multipart/form-data; boundary=b"),
        typed("multipart/mixed; boundary=b")
    );
    assert_ne!(
        typed("multipart/form-data; boundary=b"),
        typed("multipart/form-data; boundary=b; charset=x")
    );
}

#[test]
fn policies_survive_storage() {
    for policy in [
        FingerprintPolicy::default(),
        FingerprintPolicy::json()
            .with_header("X-Tenant")
            .without_header("Content-Type"),
        FingerprintPolicy::json_without(["/a~1b/*/c d", "/", "/x~0"]).unwrap(),
        FingerprintPolicy::json_only(["/é"]).unwrap(),
        FingerprintPolicy::multipart(),
    ] {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert!("3 sha256 json".parse::<FingerprintPolicy>().is_err());
    assert!("2 sha256 raw".parse::<FingerprintPolicy>().is_err());
    assert!(
        "1 sha256 raw\ncolour blue"
            .parse::<FingerprintPolicy>()
            .is_err()
    );
    assert!("".parse::<FingerprintPolicy>().is_err());
}

/// A record made before letter case counted keeps its digest, and an identical repeat still matches
/// it.
#[test]
fn old_json_policies_keep_the_rules_they_were_made_with() {
    let text = "1 sha256 json\nheader content-encoding\nheader content-type";
    let old: FingerprintPolicy = text.parse().unwrap();
    assert_eq!(old.to_string(), text);
    assert_ne!(old, FingerprintPolicy::json());
    check(
        &old,
        r#"{"amount":1,"Amount":2}"#,
        r#"{"Amount":2, "amount":1}"#,
        true,
    );
    check(&old, r#"{"a":1,"a":2}"#, r#"{"a":1, "a":2}"#, false);
    let head = |policy: &FingerprintPolicy| {
        let scope = scope();
        let head = RequestHead {
            scope: &scope,
            target: "/",
            headers: vec![],
        };
        canonical::of(policy, &head, br#"{"a":1,"A":2}"#).body
    };
    assert!(matches!(head(&old), canonical::Body::Json(_)));
    assert!(matches!(
        head(&FingerprintPolicy::json()),
        canonical::Body::Bytes {
            odd: Some(canonical::Odd::LetterCase(..)),
            ..
        }
    ));
    // All other texts have the same digest under both sets of rules.
    let body = br#"{"amount": 5, "Currency": "EUR"}"#;
    let digest = |policy| fingerprint(policy, &[], body, 7);
    assert_eq!(digest(&old), digest(&FingerprintPolicy::json()));
    let old: FingerprintPolicy = "1 sha256 json-only\nonly /amount".parse().unwrap();
    check(&old, r#"{"Amount":5}"#, r#"{"Amount":6}"#, true);
}

#[test]
fn pointers_that_are_none_are_refused() {
    for (text, error) in [
        ("", PointerError::Empty),
        ("a", PointerError::NoSlash),
        ("/a~2", PointerError::BadEscape),
        ("/a\nb", PointerError::Control),
    ] {
        assert_eq!(text.parse::<Pointer>(), Err(error));
    }
}

#[test]
fn canonical_forms_are_equal_iff_fingerprints_are() {
    let multipart =
        |boundary: &str, part: &str| format!("--{boundary}\r\n\r\n{part}\r\n--{boundary}--\r\n");
    let json = |policy: FingerprintPolicy| (policy, "application/json".to_owned());
    let cases: Vec<(FingerprintPolicy, String, String)> = [
        (
            json(FingerprintPolicy::default()),
            vec!["{}", "{ }", "", "[]"],
        ),
        (
            json(FingerprintPolicy::json()),
            vec![
                "{}",
                "{ }",
                "",
                "[1,2]",
                "[2,1]",
                "[1, 2]",
                "1",
                "1.0",
                "\u{feff}{}",
                "{\"a\":1,\"a\":1}",
            ],
        ),
        (
            json(FingerprintPolicy::json_without(["/0", "/t"]).unwrap()),
            vec![
                "[1,2]",
                "[3,2]",
                "[2]",
                "[]",
                "{\"t\":1}",
                "{}",
                "{\"t\":1,\"t\":2}",
            ],
        ),
        (
            json(FingerprintPolicy::json_only(["/a/*"]).unwrap()),
            vec![
                "{\"a\":[1],\"b\":2}",
                "{\"a\":[1]}",
                "{\"a\":{}}",
                "{\"a\":7}",
                "{}",
            ],
        ),
    ]
    .into_iter()
    .flat_map(|((policy, content_type), bodies)| {
        bodies
            .into_iter()
            .map(move |body| (policy.clone(), content_type.clone(), body.to_owned()))
    })
    .chain(["a", "b"].into_iter().flat_map(|boundary| {
        let content_type = format!("multipart/form-data; boundary={boundary}");
        let bodies = [
            multipart("a", "x"),
            multipart("b", "x"),
            multipart("b", "y"),
            "x".to_owned(),
        ];
        bodies.map(|body| (FingerprintPolicy::multipart(), content_type.clone(), body))
    }))
    .collect();
    let scope = scope();
    let form = |(policy, content_type, body): &(FingerprintPolicy, String, String)| {
        let head = RequestHead {
            scope: &scope,
            target: "/",
            headers: vec![("content-type", content_type.as_bytes())],
        };
        let mut fingerprinter = Fingerprinter::new(&Arc::new(policy.clone()), &head);
        fingerprinter.update(body.as_bytes());
        (
            fingerprinter.finish().digest,
            canonical::of(policy, &head, body.as_bytes()),
        )
    };
    let mut merged = 0;
    for a in &cases {
        for b in cases.iter().filter(|b| a.0 == b.0) {
            let ((digest_a, canonical_a), (digest_b, canonical_b)) = (form(a), form(b));
            assert_eq!(
                digest_a == digest_b,
                canonical_a == canonical_b,
                "{a:?} {b:?}\n{canonical_a:?}\n{canonical_b:?}"
            );
            merged += usize::from(digest_a == digest_b && a != b);
        }
    }
    assert!(merged >= 10, "{merged}");
}

#[test]
fn canonical_json_is_the_text_that_counts() {
    let omit = Selection::Omit(vec!["/0".parse().unwrap(), "/2".parse().unwrap()]);
    for (text, selection, expected) in [
        (
            " { \"b\" : [ 1 , 2.50 ] , \"a\\u0062\" : \"\\u0041\\n\\\"\" } ",
            &Selection::All,
            r#"{"ab":"A\u000a\"","b":[1,2.50]}"#,
        ),
        ("[1,2,3,4]", &omit, "[,2,,4]"),
        (
            "[1,[],{},null,true]",
            &Selection::All,
            "[1,[],{},null,true]",
        ),
        ("[1,2]", &omit, "[,2]"),
    ] {
        assert_eq!(
            canonical::json(text.as_bytes(), selection)
                .unwrap()
                .to_string(),
            expected,
            "{text}"
        );
    }
}

#[test]
fn what_is_odd_says_why() {
    use canonical::Odd;
    let odd = |text: &str| canonical::json(text.as_bytes(), &Selection::All).unwrap_err();
    assert_eq!(
        odd("{\"a\":1,\"b\":2,\"a\":1}"),
        Odd::DuplicateName("a".to_owned())
    );
    assert_eq!(
        odd("{\"b\":1,\"a\":2,\"B\":1}"),
        Odd::LetterCase("B".to_owned(), "b".to_owned())
    );
    assert_eq!(odd("\u{feff}{}"), Odd::ByteOrderMark);
    assert_eq!(odd(&"[".repeat(200)), Odd::Deep);
    for text in ["", "{", "{} {}", "\"\\ud800\"", "01"] {
        assert!(matches!(odd(text), Odd::NotJson(_)), "{text} {}", odd(text));
    }
}
