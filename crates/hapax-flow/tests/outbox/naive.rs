//! Relays as they are often written. Each loses messages, or turns their order round, or stands
//! still, where the real one does not: see `traps`.

use tokio_postgres::Client;

fn texts(rows: &[tokio_postgres::Row]) -> Vec<String> {
    let payload = |row: &tokio_postgres::Row| row.get::<_, Vec<u8>>("payload");
    rows.iter()
        .map(|row| String::from_utf8(payload(row)).expect("a text"))
        .collect()
}

/// Remembers the highest number that it has seen.
pub(crate) struct ByNumber(i64);

impl ByNumber {
    pub(crate) fn new() -> ByNumber {
        ByNumber(0)
    }

    pub(crate) async fn walk(&mut self, session: &Client) -> Vec<String> {
        let sql = "SELECT seq, payload FROM hapax.outbox WHERE seq > $1 ORDER BY seq";
        let rows = session.query(sql, &[&self.0]).await.expect("rows");
        if let Some(last) = rows.last() {
            self.0 = last.get("seq");
        }
        texts(&rows)
    }
}

/// Reads what is below the oldest running transaction, in the order of transactions.
pub(crate) struct ByXmin(i64, i64);

impl ByXmin {
    pub(crate) fn new() -> ByXmin {
        ByXmin(0, 0)
    }

    pub(crate) async fn walk(&mut self, session: &Client) -> Vec<String> {
        let sql = "SELECT xid::text::int8 AS xid, seq, payload FROM hapax.outbox
                   WHERE xid < pg_snapshot_xmin(pg_current_snapshot()) AND (xid::text::int8, seq) > ($1, $2) ORDER BY xid, seq";
        let rows = session.query(sql, &[&self.0, &self.1]).await.expect("rows");
        if let Some(last) = rows.last() {
            (self.0, self.1) = (last.get("xid"), last.get("seq"));
        }
        texts(&rows)
    }
}

/// Reads by snapshots as the real one does, and believes that every message of a transaction that
/// began after a snapshot has a number above the sequence at that snapshot.
pub(crate) struct BySnapshot {
    lo: String,
    floor: i64,
}

impl BySnapshot {
    pub(crate) fn new() -> BySnapshot {
        BySnapshot {
            lo: "3:3:".into(),
            floor: 0,
        }
    }

    pub(crate) async fn walk(&mut self, session: &Client) -> Vec<String> {
        let top = session
            .query_one("SELECT hapax.outbox_top()", &[])
            .await
            .expect("a number");
        let sql =
            "SELECT hi, payload FROM hapax.outbox_page($1, NULL, $2, -1, 1000000, 1000000000)";
        let rows = session
            .query(sql, &[&self.lo, &self.floor])
            .await
            .expect("rows");
        self.lo = rows[0].get("hi");
        self.floor = top.get(0);
        texts(&rows[1..])
    }
}
