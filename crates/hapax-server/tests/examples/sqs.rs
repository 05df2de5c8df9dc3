//! SQS, as `moto` plays it: an id of the producer's own makes a repeat known, the id of the message
//! does not.

use hapax_testkit::servers::Postgres;

use super::harness::{Program, database_name, install, migrated};
use super::install::Language;

const REQUIREMENTS: &str = include_str!("sqs/requirements.txt");
const PROGRAM: &str = include_str!("sqs/sqs.py");

#[test]
fn an_event_that_is_sent_twice_to_sqs_is_known_by_its_own_id_only() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let wanted = [("requirements.txt", REQUIREMENTS.to_owned())];
    let sources = [("sqs.py", PROGRAM.to_owned())];
    let folder = "sqs-installed";
    let Some(installed) = install::install(folder, Language::Python, &wanted, &sources) else {
        return;
    };
    let url = migrated(postgres);
    let psql = |sql| postgres.psql(database_name(&url), sql);
    psql("CREATE TABLE effects (consumer text)");
    let mut command = installed.interpreter();
    let mut program = Program::start(command.arg("sqs.py").env("DATABASE_URL", &url));
    for consumer in ["by-event", "by-message-id"] {
        let said = program.wait_for(consumer);
        assert!(said.ends_with("4 deliveries of 2 messages"), "{said}");
    }
    program.wait_for("done");
    let effects = psql("SELECT consumer, count(*) FROM effects GROUP BY 1 ORDER BY 1");
    assert_eq!(effects, "by-event|1\nby-message-id|2");
}
