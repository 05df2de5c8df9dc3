use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::*;

/// Parses with an environment that only names the user.
fn parse(text: &str) -> Result<ConnectOptions, OptionsError> {
    parse_in(text, &[])
}

fn parse_in(text: &str, variables: &[(&str, &str)]) -> Result<ConnectOptions, OptionsError> {
    let mut all: HashMap<String, String> = [("USER".to_owned(), "ada".to_owned())].into();
    all.extend(
        variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    ConnectOptions::parse_with(text, &|name| all.get(name).cloned())
}

fn refusal(text: &str) -> String {
    parse(text).expect_err("this cannot be read").to_string()
}

fn password(options: &ConnectOptions) -> Option<String> {
    match options.password_for(&options.hosts[0]) {
        Found::Password(password) => Some(password),
        Found::Nothing => None,
        Found::NotUsed(why) => panic!("{why}"),
    }
}

fn application_name(options: &ConnectOptions) -> &str {
    options.config.get_application_name().unwrap()
}

fn private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    let mut permissions = fs::metadata(path).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
    fs::set_permissions(path, permissions).unwrap();
}

#[test]
fn a_url_says_where_and_who() {
    let options =
        parse("postgres://hapax:s%40cret@db-1:5433,[::1],db-3:5434/pay%2Fments?application_name=shop&connect_timeout=3").unwrap();
    assert_eq!(
        options.addresses(),
        ["db-1:5433", "[::1]:5432", "db-3:5434"]
    );
    assert_eq!((options.user(), options.database()), ("hapax", "pay/ments"));
    assert_eq!(password(&options).as_deref(), Some("s@cret"));
    assert_eq!(
        (application_name(&options), options.timeout),
        ("shop", Duration::from_secs(3))
    );
}

#[test]
fn pairs_say_the_same_as_a_url() {
    let options = parse(
        r"host = db-1,db-2 port=5433 dbname='pay ments' user=hapax password='it\'s \\ secret'",
    )
    .unwrap();
    assert_eq!(options.addresses(), ["db-1:5433", "db-2:5433"]);
    assert_eq!((options.user(), options.database()), ("hapax", "pay ments"));
    assert_eq!(password(&options).as_deref(), Some(r"it's \ secret"));
}

#[test]
fn what_is_not_said_is_what_libpq_would_take() {
    let options = parse("postgres://db").unwrap();
    assert_eq!((options.user(), options.database()), ("ada", "ada"));
    assert_eq!(options.addresses(), ["db:5432"]);
    assert_eq!(
        (application_name(&options), options.tls.mode),
        ("hapax", Mode::Prefer)
    );
    assert_eq!(options.tls.roots, Roots::Anybody);
}

#[test]
fn the_last_word_of_a_url_counts() {
    let options =
        parse("postgres://ada@db/shop?user=bob&host=/var/run/other&dbname=bank&ssl=true").unwrap();
    assert_eq!(
        (options.user(), options.database(), options.tls.mode),
        ("bob", "bank", Mode::Require)
    );
    assert_eq!(
        options.hosts[0].place,
        Place::Socket("/var/run/other".into())
    );
}

#[test]
fn a_name_and_an_address_are_one_host() {
    let options = parse("host=db.example hostaddr=10.0.0.7 user=ada").unwrap();
    assert_eq!(
        options.hosts[0].place,
        Place::Tcp {
            name: "db.example".into(),
            address: Some("10.0.0.7".parse().unwrap())
        }
    );
}

#[test]
fn variables_fill_what_the_text_does_not_say() {
    let variables = [
        ("PGHOST", "db-9"),
        ("PGPORT", "6000"),
        ("PGUSER", "bob"),
        ("PGDATABASE", "shop"),
        ("PGPASSWORD", "secret"),
        ("PGAPPNAME", "till"),
        ("PGSSLMODE", "require"),
        ("PGCONNECT_TIMEOUT", "7"),
        ("PGTARGETSESSIONATTRS", "any"),
        ("PGSSLCERT", "/c.pem"),
        ("PGSSLKEY", "/k.pem"),
        ("PGSSLROOTCERT", "/ca.pem"),
    ];
    let options = parse_in("", &variables).unwrap();
    assert_eq!(options.to_string(), "postgres://bob@db-9:6000/shop");
    assert_eq!(password(&options).as_deref(), Some("secret"));
    assert_eq!(
        (application_name(&options), options.timeout),
        ("till", Duration::from_secs(7))
    );
    assert_eq!(
        (options.tls.mode, &options.tls.roots),
        (Mode::Require, &Roots::File("/ca.pem".into()))
    );
    assert_eq!(
        options.tls.identity,
        Some(Identity {
            certificate: "/c.pem".into(),
            key: "/k.pem".into()
        })
    );

    let options = parse_in("postgres://ada:mine@db-1:1/bank", &variables).unwrap();
    assert_eq!(
        (options.to_string().as_str(), password(&options).as_deref()),
        ("postgres://ada@db-1:1/bank", Some("mine"))
    );
}

#[test]
fn a_password_comes_from_the_first_line_that_fits() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(".pgpass");
    private(
        &file,
        "# host:port:database:user:password\ndb-1:5432:shop:ada:first\n*:*:*:bob:a\\:b:c\n/run/x:*:shop:ada:socket\nlocalhost:*:*:ada:here\n",
    );
    let home = [("HOME", directory.path().to_str().unwrap())];
    let found = |text: &str| password(&parse_in(text, &home).unwrap());
    assert_eq!(found("postgres://ada@db-1/shop").as_deref(), Some("first"));
    assert_eq!(found("postgres://ada@db-1:5433/shop"), None);
    assert_eq!(
        found("postgres://bob@anywhere/at_all").as_deref(),
        Some("a:b:c")
    );
    assert_eq!(
        found("host=/run/x user=ada dbname=shop").as_deref(),
        Some("socket")
    );
    assert_eq!(
        found("host=/tmp user=ada dbname=shop").as_deref(),
        Some("here")
    );
    assert_eq!(
        found("postgres://ada:mine@db-1/shop").as_deref(),
        Some("mine")
    );
}

#[test]
fn a_file_of_passwords_that_others_may_read_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("passwords");
    fs::write(&file, "*:*:*:*:secret\n").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(&file, open).unwrap();
    let options = parse_in(
        "postgres://db/shop",
        &[("PGPASSFILE", file.to_str().unwrap())],
    )
    .unwrap();
    let Found::NotUsed(why) = options.password_for(&options.hosts[0]) else {
        panic!("it was used")
    };
    assert!(
        why.contains("chmod 0600") && why.contains("passwords"),
        "{why}"
    );
}

#[test]
fn a_parameter_that_nobody_knows_is_named_with_those_there_are() {
    for text in [
        "postgres://db/shop?sslmod=require",
        "host=db sslmod=require",
    ] {
        let error = refusal(text);
        assert!(
            error.contains("\"sslmod\"") && error.contains(" sslmode,"),
            "{error}"
        );
    }
}

#[test]
fn what_cannot_be_kept_is_refused_rather_than_dropped() {
    assert!(refusal("host=db options='-c statement_timeout=1s'").contains("ALTER ROLE"));
    assert!(refusal("host=db sslcrl=/crl.pem").starts_with("sslcrl cannot be used"));
    assert!(refusal("service=shop").starts_with("service cannot be used"));
    assert!(refusal("host=db target_session_attrs=standby").contains("written to"));
    assert!(refusal("host=db client_encoding=LATIN1").contains("UTF8"));
    assert!(refusal("host=db gssencmode=require").contains("GSSAPI"));
    for variable in ["PGOPTIONS", "PGSERVICE", "PGREQUIREAUTH"] {
        let error = parse_in("host=db", &[(variable, "x")]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with(&format!("{variable} cannot be used")),
            "{error}"
        );
    }
}

#[test]
fn a_value_that_makes_no_sense_is_named_with_where_it_came_from() {
    assert_eq!(
        refusal("host=db sslmode=on"),
        "sslmode is \"on\": it takes disable, allow, prefer, require, verify-ca or verify-full"
    );
    assert_eq!(
        parse_in("host=db", &[("PGPORT", "x")])
            .unwrap_err()
            .to_string(),
        "PGPORT is \"x\": it takes a number from 1 to 65535"
    );
    assert!(refusal("host=a,b port=1,2,3").contains("as many as there are hosts"));
    assert!(refusal("host=db connect_timeout=soon").contains("whole number"));
    assert!(refusal("mysql://db/shop").contains("postgres://"));
    assert!(refusal("payments").contains("postgres://"));
}

#[test]
fn tls_is_never_weaker_than_what_was_asked_for() {
    assert!(refusal("host=db sslmode=verify-full").contains("sslrootcert"));
    assert!(refusal("host=db sslmode=require sslrootcert=system").contains("verify-full"));
    assert!(refusal("host=db sslnegotiation=direct").contains("require"));
    assert!(refusal("host=db sslcert=/c.pem").contains("sslkey"));
    assert!(refusal("host=db ssl_min_protocol_version=TLSv1.3").contains("cannot be used"));
    let options = parse("host=db sslrootcert=system").unwrap();
    assert_eq!(
        (options.tls.mode, &options.tls.roots),
        (Mode::VerifyFull, &Roots::System)
    );
}

#[test]
fn the_usual_files_of_a_home_are_found() {
    let home = tempfile::tempdir().unwrap();
    let own = home.path().join(".postgresql");
    fs::create_dir(&own).unwrap();
    for name in ["root.crt", "postgresql.crt", "postgresql.key"] {
        fs::write(own.join(name), "").unwrap();
    }
    let options = parse_in(
        "host=db sslmode=verify-ca",
        &[("HOME", home.path().to_str().unwrap())],
    )
    .unwrap();
    assert_eq!(options.tls.roots, Roots::File(own.join("root.crt")));
    assert_eq!(
        options.tls.identity,
        Some(Identity {
            certificate: own.join("postgresql.crt"),
            key: own.join("postgresql.key")
        })
    );
}

#[test]
fn keepalives_are_on_unless_switched_off() {
    let config = |text| parse(text).unwrap().config;
    let usual = config("host=db");
    assert!(usual.get_keepalives());
    assert_eq!(usual.get_keepalives_idle(), Duration::from_secs(10));
    let other = config("host=db keepalives_idle=60 keepalives_count=9");
    assert_eq!(other.get_keepalives_idle(), Duration::from_secs(60));
    assert_eq!(other.get_keepalives_retries(), Some(9));
    let zero = config("host=db keepalives_count=0");
    assert_eq!(
        zero.get_keepalives_retries(),
        Some(3),
        "as if it were not there"
    );
    assert!(!config("host=db keepalives=0").get_keepalives());
    assert_eq!(
        config("host=db tcp_user_timeout=2500").get_tcp_user_timeout(),
        Some(&Duration::from_millis(2500))
    );
}

#[test]
fn no_piece_of_a_password_is_ever_shown() {
    let texts = [
        "postgres://ada:hush@db/shop",
        "postgres://ada:hu@hush@db/shop",
        "postgres://ada:hush/more@db/shop",
        "postgres://ada:12/hush@db/shop",
        "postgres://ada:hush%zz@db/shop",
        "postgres://ada:hush%2@db/shop",
        "postgres://ada:hush@db:x/shop",
        "postgres://ada:hush@db/shop?bad=1",
        "postgres://ada@db/shop?password=hush&port=x",
        "host=db password=more hush user=ada",
        "host=db password=more hush=1 user=ada",
        "host=db password='hush user=ada",
        "host=db password=hush sslmode=on",
        "ada:hush@db",
        "postgres://ada:hush@[::1/shop",
        "password=hush",
    ];
    for text in texts {
        let shown = match parse(text) {
            Ok(options) => format!("{options} {options:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains("hush"), "{text}: {shown}");
    }
}

#[test]
fn what_is_shown_can_be_read_again() {
    for text in [
        "host=/tmp/my,db-2,::1 port=1,2,3 user='a b' dbname=a/b",
        "postgres://%C3%A4@db/sh%40p",
    ] {
        let shown = parse(text).unwrap().to_string();
        assert_eq!(parse(&shown).unwrap().to_string(), shown);
    }
}
