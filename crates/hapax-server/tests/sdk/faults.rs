//! A link that loses answers: all requests arrive, and some answers do not.
//!
//! It does not parse HTTP. The first bytes that come back after some were sent are an answer, and
//! only then is its fate drawn: so a lost answer always belongs to a request that was received and
//! executed.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longer than the SDKs wait, shorter than the gateway waits.
const LATE: Duration = Duration::from_millis(1_600);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Passed,
    Closed,
    Reset,
    Late,
    /// Held back until the client has disconnected.
    Withheld,
}

const FAULTS: [Fate; 4] = [Fate::Closed, Fate::Reset, Fate::Late, Fate::Withheld];

/// The number of answers that arrive for each four that do not.
const PASSED: usize = 8;

pub struct Link {
    pub address: SocketAddr,
    deck: Arc<Mutex<Deck>>,
}

impl Link {
    pub async fn start(to: SocketAddr, seed: u64) -> Link {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let deck = Arc::new(Mutex::new(Deck::new(seed)));
        let drawn_from = deck.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = socket.accept().await {
                let deck = drawn_from.clone();
                // The tests are about connections that end, so errors here are ignored.
                tokio::spawn(
                    async move { carry(near, TcpStream::connect(to).await?, &deck).await },
                );
            }
        });
        Link { address, deck }
    }

    /// A run in which a kind of fault did not happen proves nothing about it.
    #[track_caller]
    pub fn assert_every_kind_landed(&self) {
        let deck = self.deck.lock().unwrap();
        for fault in FAULTS {
            assert!(
                deck.count(fault) > 0,
                "no answer was {fault:?}: the run is void"
            );
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deck = self.deck.lock().unwrap();
        let counts = FAULTS.map(|fault| format!("{} {fault:?}", deck.count(fault)).to_lowercase());
        write!(f, "{} of {}", counts.join(", "), deck.drawn.len())
    }
}

async fn carry(mut near: TcpStream, mut far: TcpStream, deck: &Mutex<Deck>) -> std::io::Result<()> {
    let (mut question, mut answer) = ([0; 16 << 10], [0; 16 << 10]);
    let mut asked = false;
    loop {
        tokio::select! {
            read = near.read(&mut question) => match read? {
                0 => return Ok(()),
                length => {
                    far.write_all(&question[..length]).await?;
                    asked = true;
                }
            },
            read = far.read(&mut answer) => {
                let length = read?;
                let fate = if asked { deck.lock().unwrap().draw() } else { Fate::Passed };
                asked = false;
                match fate {
                    _ if length == 0 => return Ok(()),
                    Fate::Passed => {}
                    Fate::Closed => return Ok(()),
                    Fate::Reset => return near.set_zero_linger(),
                    Fate::Late => tokio::time::sleep(LATE).await,
                    Fate::Withheld => {
                        while near.read(&mut question).await? > 0 {}
                        return Ok(());
                    }
                }
                near.write_all(&answer[..length]).await?;
            }
        }
    }
}

/// Fates are drawn from a shuffled deck, so that every kind of fault happens equally often with any
/// seed.
struct Deck {
    chance: u64,
    cards: Vec<Fate>,
    drawn: Vec<Fate>,
}

impl Deck {
    fn new(seed: u64) -> Deck {
        Deck {
            chance: seed,
            cards: Vec::new(),
            drawn: Vec::new(),
        }
    }

    fn draw(&mut self) -> Fate {
        if self.cards.is_empty() {
            self.cards = [&FAULTS[..], &[Fate::Passed; PASSED]].concat();
        }
        let index = self.below(self.cards.len());
        let fate = self.cards.swap_remove(index);
        self.drawn.push(fate);
        fate
    }

    fn count(&self, fate: Fate) -> usize {
        self.drawn.iter().filter(|drawn| **drawn == fate).count()
    }

    /// A linear congruential generator; its upper bits are good enough to shuffle cards.
    fn below(&mut self, limit: usize) -> usize {
        self.chance = self
            .chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.chance >> 33) as usize % limit
    }
}
