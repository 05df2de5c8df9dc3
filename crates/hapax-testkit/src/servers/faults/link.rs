//! One proxied connection, with both its sides.

use std::future::pending;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch::Receiver;

use super::Shared;
use super::plan::{Direction, Mode, Verdict};

const PIECE_BYTES: usize = 16 * 1024;

/// Forwards between a client and the server, until one of them or the plan ends the connection.
pub(super) async fn run(client: TcpStream, shared: Arc<Shared>) {
    let changes = shared.changes();
    let id = shared.plan().open();
    let link = Link {
        id,
        changes,
        shared,
    };
    tokio::select! {
        // The result is ignored: the connection ended as planned, or one of the sides ended it.
        _ = link.pass(client) => {}
        () = link.cut() => {}
    }
}

struct Link {
    id: u64,
    changes: Receiver<u64>,
    shared: Arc<Shared>,
}

impl Link {
    async fn pass(&self, mut client: TcpStream) -> Result<()> {
        if self.shared.plan().mode() == Mode::Blackhole {
            // Nothing sent here is forwarded. The connection is cut when the blackhole ends.
            return pending().await;
        }
        let mut server = TcpStream::connect(self.shared.target()).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let requests = self.pump(Direction::Request, from_client, to_server);
        let replies = self.pump(Direction::Reply, from_server, to_client);
        tokio::try_join!(requests, replies).map(drop)
    }

    async fn pump(
        &self,
        direction: Direction,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
    ) -> Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let bytes = from.read(&mut piece).await?;
            if bytes == 0 {
                self.flowing().await;
                return to.shutdown().await;
            }
            self.hand_on(direction, &piece[..bytes], &mut to).await?;
        }
    }

    async fn hand_on(
        &self,
        direction: Direction,
        bytes: &[u8],
        to: &mut WriteHalf<'_>,
    ) -> Result<()> {
        let mut changes = self.changes.clone();
        loop {
            changes.mark_unchanged();
            let verdict = self.shared.plan().judge(self.id, direction, bytes);
            match verdict {
                Verdict::Pass => return to.write_all(bytes).await,
                Verdict::PassThenCut(passed) => {
                    to.write_all(&bytes[..passed]).await?;
                    return Err(Error::from(ErrorKind::ConnectionAborted));
                }
                Verdict::Lose => return Ok(()),
                Verdict::Keep => changed(&mut changes).await,
            }
        }
    }

    /// Waits while nothing may pass. The end of a stream must not get through either.
    async fn flowing(&self) {
        let mut changes = self.changes.clone();
        loop {
            changes.mark_unchanged();
            if self.shared.plan().mode() == Mode::Flow {
                return;
            }
            changed(&mut changes).await;
        }
    }

    /// Returns when the plan says that this connection is cut.
    async fn cut(&self) {
        let mut changes = self.changes.clone();
        loop {
            changes.mark_unchanged();
            if self.shared.plan().is_cut(self.id) {
                return;
            }
            changed(&mut changes).await;
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.plan().close(self.id);
    }
}

async fn changed(changes: &mut Receiver<u64>) {
    if changes.changed().await.is_err() {
        pending::<()>().await;
    }
}
