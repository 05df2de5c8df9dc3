//! Decides what happens to each piece of data of a connection. Performs no I/O.

use std::collections::BTreeMap;

use super::wire::Wire;

/// The planned faults, and those that have occurred.
#[derive(Default)]
pub(super) struct Plan {
    mode: Mode,
    armed: Option<Cut>,
    links: BTreeMap<u64, Link>,
    opened: u64,
    faults: u64,
}

/// What happens to all data.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// It is forwarded.
    #[default]
    Flow,
    /// It is kept and forwarded later.
    Stall,
    /// It is dropped.
    Blackhole,
}

/// A fault that occurs once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// After `left` bytes of replies, counted over all connections.
    Replies { left: u64 },
    /// After `left` bytes of replies, counted from the next statement on, on its connection.
    Statement { left: u64 },
    /// The same, once that statement was sent.
    Struck { link: u64, left: u64 },
    /// Before the next statement reaches the server.
    Request,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Request,
    Reply,
}

/// What to do with data that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    /// Forwards this many bytes, and cuts the connection.
    PassThenCut(usize),
    Lose,
    /// Keeps the data and asks again when the plan has changed.
    Keep,
}

/// A connection of a client, with the proxy's own to the server.
#[derive(Default)]
struct Link {
    wire: Wire,
    cut: bool,
    /// Whether it is about to end by itself, after the last bytes that may pass.
    struck: bool,
    /// Whether some of its bytes were lost, so that nothing that follows makes sense.
    lossy: bool,
    /// Whether it is already counted as hit by the current mode.
    hit: bool,
}

impl Plan {
    pub(super) fn open(&mut self) -> u64 {
        self.opened += 1;
        let lossy = self.mode == Mode::Blackhole;
        self.links.insert(
            self.opened,
            Link {
                lossy,
                ..Link::default()
            },
        );
        self.opened
    }

    /// A connection has ended. A cut that waited for more of its replies now waits for the next
    /// statement.
    pub(super) fn close(&mut self, id: u64) {
        self.links.remove(&id);
        if let Some(Cut::Struck { link, left }) = self.armed
            && link == id
        {
            self.armed = Some(Cut::Statement { left });
        }
    }

    pub(super) fn is_cut(&self, id: u64) -> bool {
        self.links.get(&id).is_none_or(|link| link.cut)
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        for link in self.links.values_mut() {
            link.hit = false;
            // Lost data is not sent again, so the stream is useless from there on.
            link.cut |= link.lossy && mode != Mode::Blackhole;
            self.faults += u64::from(mode != Mode::Flow && link.is_hit());
        }
    }

    pub(super) fn arm(&mut self, cut: Cut) {
        self.armed = Some(cut);
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    pub(super) fn cut_all(&mut self) {
        for link in self.links.values_mut() {
            self.faults += u64::from(link.is_open() && link.wire.in_flight());
            link.cut = true;
        }
    }

    pub(super) fn faults(&self) -> u64 {
        self.faults
    }

    pub(super) fn connections(&self) -> usize {
        self.links.len()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.links
            .values()
            .filter(|link| link.is_open() && link.wire.in_flight())
            .count()
    }

    pub(super) fn judge(&mut self, id: u64, direction: Direction, bytes: &[u8]) -> Verdict {
        let Some(link) = self.links.get_mut(&id).filter(|link| link.is_open()) else {
            return Verdict::PassThenCut(0);
        };
        match (self.mode, direction) {
            (Mode::Flow, Direction::Request) => self.request(id, bytes),
            (Mode::Flow, Direction::Reply) => self.reply(id, bytes),
            (Mode::Stall, _) => {
                // The wire does not see the bytes yet, because they come again later. Any data that
                // is kept belongs to a statement in flight, so it counts as a fault.
                self.faults += u64::from(!link.hit);
                link.hit = true;
                Verdict::Keep
            }
            (Mode::Blackhole, _) => {
                link.lossy = true;
                if direction == Direction::Request {
                    link.wire.sent(bytes);
                }
                self.faults += u64::from(link.is_hit());
                Verdict::Lose
            }
        }
    }

    fn request(&mut self, id: u64, bytes: &[u8]) -> Verdict {
        let link = self
            .links
            .get_mut(&id)
            .expect("asked about one that is open");
        let was_idle = !link.wire.in_flight();
        link.wire.sent(bytes);
        let begins = was_idle && link.wire.in_flight();
        match self.armed {
            Some(Cut::Statement { left }) if begins => {
                self.armed = Some(Cut::Struck { link: id, left });
                Verdict::Pass
            }
            Some(Cut::Request) if begins => self.strike(id, 0),
            _ => Verdict::Pass,
        }
    }

    fn reply(&mut self, id: u64, bytes: &[u8]) -> Verdict {
        let link = self
            .links
            .get_mut(&id)
            .expect("asked about one that is open");
        let left = match &mut self.armed {
            Some(Cut::Replies { left }) => Some(left),
            Some(Cut::Struck { link, left }) if *link == id => Some(left),
            _ => None,
        };
        let passed = left.as_ref().map_or(bytes.len(), |left| {
            bytes
                .len()
                .min(usize::try_from(**left).unwrap_or(usize::MAX))
        });
        link.wire.replied(&bytes[..passed]);
        match left {
            Some(left) if *left <= bytes.len() as u64 => self.strike(id, passed),
            Some(left) => {
                *left -= passed as u64;
                Verdict::Pass
            }
            None => Verdict::Pass,
        }
    }

    fn strike(&mut self, id: u64, passed: usize) -> Verdict {
        self.armed = None;
        let link = self
            .links
            .get_mut(&id)
            .expect("asked about one that is open");
        link.struck = true;
        self.faults += u64::from(link.wire.in_flight());
        Verdict::PassThenCut(passed)
    }
}

impl Link {
    fn is_open(&self) -> bool {
        !self.cut && !self.struck
    }

    /// Whether the current mode hits one of its statements for the first time.
    fn is_hit(&mut self) -> bool {
        let first = self.wire.in_flight() && !self.hit;
        self.hit |= first;
        first
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::tests::{GREETING, message};
    use super::*;
    use Direction::{Reply, Request};

    fn ready() -> Vec<u8> {
        message(b'Z', b"I")
    }

    fn query() -> Vec<u8> {
        message(b'Q', b"SELECT 1")
    }

    fn greeted(plan: &mut Plan) -> u64 {
        let id = plan.open();
        plan.judge(id, Request, GREETING);
        plan.judge(id, Reply, &ready());
        id
    }

    #[test]
    fn a_cut_counts_as_a_fault_only_where_a_statement_is_in_flight() {
        let mut plan = Plan::default();
        let (idle, busy) = (greeted(&mut plan), greeted(&mut plan));
        plan.judge(busy, Request, &query());
        assert_eq!(plan.in_flight(), 1);
        plan.cut_all();
        plan.cut_all();
        assert!(plan.is_cut(idle) && plan.is_cut(busy));
        assert_eq!(plan.faults(), 1);
        assert_eq!(plan.judge(busy, Reply, &ready()), Verdict::PassThenCut(0));
    }

    #[test]
    fn a_cut_after_reply_bytes_lets_exactly_so_many_through() {
        let mut plan = Plan::default();
        let (first, second) = (greeted(&mut plan), greeted(&mut plan));
        plan.judge(first, Request, &query());
        plan.judge(second, Request, &query());
        plan.arm(Cut::Replies { left: 8 });
        assert_eq!(plan.judge(first, Reply, &ready()), Verdict::Pass);
        assert_eq!(plan.judge(second, Reply, &ready()), Verdict::PassThenCut(2));
        assert_eq!((plan.faults(), plan.is_armed()), (1, false));
    }

    #[test]
    fn a_cut_after_the_whole_reply_hits_no_statement() {
        let mut plan = Plan::default();
        let id = greeted(&mut plan);
        plan.judge(id, Request, &query());
        plan.arm(Cut::Replies { left: 6 });
        assert_eq!(plan.judge(id, Reply, &ready()), Verdict::PassThenCut(6));
        assert_eq!(plan.faults(), 0);
    }

    #[test]
    fn a_cut_of_the_next_statement_leaves_the_present_one_alone() {
        let mut plan = Plan::default();
        let (present, next) = (greeted(&mut plan), greeted(&mut plan));
        plan.judge(present, Request, &query());
        plan.arm(Cut::Statement { left: 0 });
        assert_eq!(plan.judge(present, Reply, &ready()), Verdict::Pass);
        assert_eq!(plan.judge(next, Request, &query()), Verdict::Pass);
        assert_eq!(plan.judge(present, Request, &query()), Verdict::Pass);
        assert_eq!(plan.judge(present, Reply, &ready()), Verdict::Pass);
        assert_eq!(plan.judge(next, Reply, &ready()), Verdict::PassThenCut(0));
        assert_eq!(plan.faults(), 1);
    }

    #[test]
    fn a_cut_whose_connection_ends_first_takes_the_next() {
        let mut plan = Plan::default();
        let (first, second) = (greeted(&mut plan), greeted(&mut plan));
        plan.arm(Cut::Statement { left: 3 });
        plan.judge(first, Request, &query());
        plan.close(first);
        plan.judge(second, Request, &query());
        assert_eq!(plan.judge(second, Reply, &ready()), Verdict::PassThenCut(3));
    }

    #[test]
    fn a_lost_statement_never_reaches_the_server() {
        let mut plan = Plan::default();
        let id = greeted(&mut plan);
        plan.arm(Cut::Request);
        assert_eq!(plan.judge(id, Request, &query()), Verdict::PassThenCut(0));
        assert_eq!(plan.faults(), 1);
    }

    #[test]
    fn a_connection_that_lost_bytes_is_cut_when_the_hole_closes_and_others_live_on() {
        let mut plan = Plan::default();
        let (hit, idle, waiting) = (greeted(&mut plan), greeted(&mut plan), greeted(&mut plan));
        plan.judge(waiting, Request, &query());
        plan.set_mode(Mode::Blackhole);
        assert_eq!(plan.judge(hit, Request, &query()), Verdict::Lose);
        assert_eq!(plan.judge(waiting, Reply, &ready()), Verdict::Lose);
        let new = plan.open();
        assert_eq!(plan.faults(), 2);
        plan.set_mode(Mode::Flow);
        assert_eq!(
            [hit, idle, waiting, new].map(|id| plan.is_cut(id)),
            [true, false, true, true]
        );
        assert_eq!(plan.judge(idle, Request, &query()), Verdict::Pass);
    }

    #[test]
    fn what_is_kept_is_passed_on_later() {
        let mut plan = Plan::default();
        let id = greeted(&mut plan);
        plan.set_mode(Mode::Stall);
        assert_eq!(plan.judge(id, Request, &query()), Verdict::Keep);
        plan.set_mode(Mode::Flow);
        assert_eq!(plan.judge(id, Request, &query()), Verdict::Pass);
        assert_eq!(plan.judge(id, Reply, &ready()), Verdict::Pass);
        assert_eq!((plan.in_flight(), plan.faults()), (0, 1));
    }
}
