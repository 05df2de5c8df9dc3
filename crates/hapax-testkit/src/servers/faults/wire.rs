//! The part of PostgreSQL's protocol that tells whether a statement is in flight.

/// The state of one connection, in both directions.
///
/// On a connection with another protocol, or with encryption, it depends on which side sent last.
#[derive(Default)]
pub(super) struct Wire {
    phase: Phase,
    requests: Frames,
    replies: Frames,
    /// Groups of messages that were sent completely and not answered completely.
    unanswered: u32,
    /// Whether some messages of an incomplete group were sent.
    begun: bool,
}

#[derive(Default, PartialEq, Eq)]
enum Phase {
    /// The client's startup message, which has no kind.
    #[default]
    Greeting,
    /// The client has asked for encryption. The server answers with one byte.
    Asked,
    /// Messages with a kind.
    Talking,
    /// An unknown protocol.
    Opaque,
}

/// The first message of a client that asks for encryption, by TLS or by Kerberos.
const ENCRYPTION: [u32; 2] = [80_877_103, 80_877_104];
/// The longest startup message. A longer one is another protocol.
const GREETING_BYTES_MAX: u32 = 10_000;

impl Wire {
    /// The client has sent these bytes.
    pub(super) fn sent(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        while !bytes.is_empty() && matches!(self.phase, Phase::Greeting | Phase::Asked) {
            bytes = self.greeted(bytes);
        }
        match self.phase {
            Phase::Talking => self.requested(bytes),
            Phase::Opaque => self.begun = true,
            Phase::Greeting | Phase::Asked => {}
        }
    }

    /// The server has sent these bytes.
    pub(super) fn replied(&mut self, bytes: &[u8]) {
        match (&self.phase, bytes) {
            (_, []) | (Phase::Greeting, _) => {}
            (Phase::Asked, [b'N', rest @ ..]) => {
                self.phase = Phase::Greeting;
                self.replied(rest);
            }
            (Phase::Asked, _) => self.phase = Phase::Opaque,
            (Phase::Opaque, _) => self.begun = false,
            (Phase::Talking, _) => {
                let unanswered = &mut self.unanswered;
                // "Ready for query". It also comes once after the startup, which is not counted.
                self.replies.feed(bytes, |kind| {
                    *unanswered = unanswered.saturating_sub(u32::from(kind == b'Z'));
                });
            }
        }
    }

    /// Whether a request has not been answered completely.
    pub(super) fn in_flight(&self) -> bool {
        self.unanswered > 0 || self.begun
    }

    fn greeted<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (message, rest) = self.requests.greeting(bytes);
        match message {
            None => {}
            Some((length, _)) if length > GREETING_BYTES_MAX => self.phase = Phase::Opaque,
            Some((_, code)) if ENCRYPTION.contains(&code) => self.phase = Phase::Asked,
            Some(_) => self.phase = Phase::Talking,
        }
        rest
    }

    fn requested(&mut self, bytes: &[u8]) {
        let (unanswered, begun) = (&mut self.unanswered, &mut self.begun);
        self.requests.feed(bytes, |kind| match kind {
            // A simple query, the end of an extended one, a function call: each is answered by one
            // "ready for query".
            b'Q' | b'S' | b'F' => {
                *unanswered += 1;
                *begun = false;
            }
            // A password, and the end of the connection.
            b'p' | b'X' => {}
            _ => *begun = true,
        });
    }
}

/// Finds the starts of messages in a stream that is cut anywhere.
#[derive(Default)]
struct Frames {
    /// The incomplete head of a message.
    head: Vec<u8>,
    /// How many bytes of the current message are left.
    left: usize,
}

impl Frames {
    /// A kind, and a length that counts itself.
    const HEAD_BYTES: usize = 5;
    /// A length that counts itself, and a code.
    const GREETING_HEAD_BYTES: usize = 8;

    fn feed(&mut self, mut bytes: &[u8], mut begins: impl FnMut(u8)) {
        while !bytes.is_empty() {
            bytes = self.skip(bytes);
            bytes = self.gather(bytes, Frames::HEAD_BYTES);
            if self.head.len() == Frames::HEAD_BYTES {
                begins(self.head[0]);
                self.left = (number(&self.head[1..]) as usize).saturating_sub(4);
                self.head.clear();
            }
        }
    }

    /// The length and the code of a startup message, if its head is complete, and the bytes after
    /// it.
    fn greeting<'a>(&mut self, bytes: &'a [u8]) -> (Option<(u32, u32)>, &'a [u8]) {
        let bytes = self.skip(bytes);
        let rest = self.gather(bytes, Frames::GREETING_HEAD_BYTES);
        if self.head.len() < Frames::GREETING_HEAD_BYTES {
            return (None, rest);
        }
        let (length, code) = (number(&self.head[..4]), number(&self.head[4..]));
        self.left = (length as usize).saturating_sub(Frames::GREETING_HEAD_BYTES);
        self.head.clear();
        (Some((length, code)), rest)
    }

    fn skip<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let skipped = self.left.min(bytes.len());
        self.left -= skipped;
        &bytes[skipped..]
    }

    fn gather<'a>(&mut self, bytes: &'a [u8], whole: usize) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(bytes.len().min(whole - self.head.len()));
        self.head.extend_from_slice(taken);
        rest
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A startup message without parameters.
    pub(in super::super) const GREETING: &[u8] = &[0, 0, 0, 9, 0, 3, 0, 0, 0];

    pub(in super::super) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
    }

    #[test]
    fn a_statement_is_in_flight_until_the_server_is_ready() {
        let statement = [
            message(b'P', b"SELECT 1"),
            message(b'B', &[0; 300]),
            message(b'E', b"x"),
            message(b'S', b""),
        ]
        .concat();
        let reply = [message(b'1', b""), message(b'D', b"Z"), message(b'Z', b"I")].concat();
        // Holds for any fragmentation by the network.
        for piece in [1, 3, 7, 1000] {
            let mut wire = Wire::default();
            GREETING.chunks(piece).for_each(|bytes| wire.sent(bytes));
            [message(b'R', &[0; 4]), message(b'Z', b"I")]
                .concat()
                .chunks(piece)
                .for_each(|bytes| wire.replied(bytes));
            assert!(!wire.in_flight());
            for _ in 0..2 {
                statement.chunks(piece).for_each(|bytes| wire.sent(bytes));
                assert!(wire.in_flight());
                wire.replied(&reply[..reply.len() - 2]);
                assert!(wire.in_flight());
                reply[reply.len() - 2..]
                    .chunks(piece)
                    .for_each(|bytes| wire.replied(bytes));
            }
            wire.replied(&[]);
        }
    }

    #[test]
    fn statements_sent_one_after_the_other_are_all_answered_before_none_is_in_flight() {
        let mut wire = Wire::default();
        wire.sent(GREETING);
        wire.replied(&message(b'Z', b"I"));
        wire.sent(&message(b'Q', b"SELECT 1").repeat(2));
        wire.replied(&message(b'Z', b"I"));
        assert!(wire.in_flight());
        wire.replied(&message(b'Z', b"I"));
        assert!(!wire.in_flight());
        wire.sent(&message(b'X', b""));
        assert!(!wire.in_flight());
    }

    #[test]
    fn encryption_that_was_refused_is_passed_over_and_what_is_encrypted_is_judged_by_who_spoke_last()
     {
        let asks = [&8_u32.to_be_bytes()[..], &80_877_103_u32.to_be_bytes()].concat();
        let mut wire = Wire::default();
        wire.sent(&asks);
        wire.replied(b"N");
        wire.sent(GREETING);
        wire.replied(&message(b'Z', b"I"));
        wire.sent(&message(b'Q', b"SELECT 1"));
        assert!(wire.in_flight());

        let mut wire = Wire::default();
        wire.sent(&asks);
        wire.replied(b"S");
        assert!(!wire.in_flight());
        wire.sent(b"\x16\x03");
        assert!(wire.in_flight());
        wire.replied(b"\x16\x03");
        assert!(!wire.in_flight());
    }

    #[test]
    fn another_protocol_is_judged_by_who_spoke_last() {
        let mut wire = Wire::default();
        wire.sent(b"POST / HTTP/1.1\r\n\r\n");
        assert!(wire.in_flight());
        wire.replied(b"HTTP/1.1 200 OK\r\n\r\n");
        assert!(!wire.in_flight());
    }
}
