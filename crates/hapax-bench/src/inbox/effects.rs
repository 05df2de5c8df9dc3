//! The effect of a message is a row with its id.

use futures_util::future::try_join_all;
use tokio::sync::OnceCell;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use crate::Error;
use crate::postgres::connect;

const INSERT: &str = "INSERT INTO effects (id, item) VALUES ($1, $2)";
const INSERT_ALL: &str = "INSERT INTO effects (id, item) SELECT e, $2 FROM unnest($1::uuid[]) AS e";

/// How the effects of a batch are written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// Each is awaited before the next.
    OneByOne,
    /// All are sent, and then awaited.
    Together,
    /// One statement has all rows.
    OneStatement,
}

impl Form {
    pub(super) const ALL: [Form; 3] = [Form::OneByOne, Form::Together, Form::OneStatement];

    pub(super) fn name(self) -> &'static str {
        match self {
            Form::OneByOne => "one by one",
            Form::Together => "sent together",
            Form::OneStatement => "one statement",
        }
    }
}

/// Writes effects over one connection.
pub(super) struct Effects {
    form: Form,
    statement: OnceCell<Statement>,
}

impl Effects {
    pub(super) fn new(form: Form) -> Effects {
        Effects {
            form,
            statement: OnceCell::new(),
        }
    }

    /// Writes the effects of messages with these ids, in the transaction that is open.
    pub(super) async fn write<'a>(
        &self,
        client: &Client,
        ids: impl Iterator<Item = &'a str>,
    ) -> Result<(), Error> {
        let ids: Vec<Uuid> = ids.map(str::parse).collect::<Result<_, _>>()?;
        let sql = match self.form {
            Form::OneStatement => INSERT_ALL,
            Form::OneByOne | Form::Together => INSERT,
        };
        let statement = self
            .statement
            .get_or_try_init(|| client.prepare(sql))
            .await?;
        match self.form {
            Form::OneByOne => {
                for id in &ids {
                    client.execute(statement, &[id, &"a book"]).await?;
                }
            }
            Form::Together => {
                let inserts = ids
                    .iter()
                    .map(|id| async move { client.execute(statement, &[id, &"a book"]).await });
                try_join_all(inserts).await?;
            }
            Form::OneStatement => {
                client.execute(statement, &[&ids, &"a book"]).await?;
            }
        }
        Ok(())
    }
}

pub(super) async fn make_table(url: &str) -> Result<(), Error> {
    let sql = "CREATE TABLE effects (id uuid PRIMARY KEY, item text NOT NULL)";
    Ok(connect(url).await?.batch_execute(sql).await?)
}

/// Fails if the number of effects is another.
pub(super) async fn check(url: &str, applied: usize) -> Result<(), Error> {
    let sql = "SELECT count(*) FROM effects";
    let found: i64 = connect(url).await?.query_one(sql, &[]).await?.get(0);
    if usize::try_from(found)? != applied {
        return Err(
            format!("{applied} messages were applied, and {found} effects are there").into(),
        );
    }
    Ok(())
}
