//! The named points at which a node is killed, and how one comes to stand there.

use super::harness::charges::Halt;
use super::sluice::Commit;

/// In the order in which a request passes them, after those of a node that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Between its birth and its first word.
    Starting,
    /// It listens, and that is all.
    JustStarted,
    BodyHalfRead,
    BeforeClaim,
    /// The database has the claim and is about to make it durable, which it does; the node never
    /// hears of it.
    ClaimCommits,
    AfterClaim,
    BeforeDispatch,
    UpstreamHasRead,
    UpstreamHasActed,
    RenewalCommits,
    AnswerHalfSent,
    BeforeCompletion,
    /// As with the claim.
    CompletionCommits,
    AfterCompletion,
    BeforeAnswer,
    AfterAnswer,
    /// Somebody waits there for an attempt that another node has under way.
    WaitingForAnother,
}

/// Who makes a node stand still.
pub enum Way {
    /// Nobody: the request is at the point when it has been sent so far, or there is none.
    OfItself,
    /// The node itself, when it is armed with the point's name.
    Armed,
    /// The upstream, when the node's next request comes.
    Upstream(Halt),
    /// The database, when the node's next transaction of this kind comes.
    Database(Commit),
}

impl Point {
    pub const ALL: [Point; 17] = [
        Point::Starting,
        Point::JustStarted,
        Point::BodyHalfRead,
        Point::BeforeClaim,
        Point::ClaimCommits,
        Point::AfterClaim,
        Point::BeforeDispatch,
        Point::UpstreamHasRead,
        Point::UpstreamHasActed,
        Point::RenewalCommits,
        Point::AnswerHalfSent,
        Point::BeforeCompletion,
        Point::CompletionCommits,
        Point::AfterCompletion,
        Point::BeforeAnswer,
        Point::AfterAnswer,
        Point::WaitingForAnother,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Point::Starting => "starting",
            Point::JustStarted => "just started",
            Point::BodyHalfRead => "body half read",
            Point::BeforeClaim => "before claim",
            Point::ClaimCommits => "claim commits",
            Point::AfterClaim => "after claim",
            Point::BeforeDispatch => "before dispatch",
            Point::UpstreamHasRead => "upstream has read",
            Point::UpstreamHasActed => "upstream has acted",
            Point::RenewalCommits => "renewal commits",
            Point::AnswerHalfSent => "answer half sent",
            Point::BeforeCompletion => "before completion",
            Point::CompletionCommits => "completion commits",
            Point::AfterCompletion => "after completion",
            Point::BeforeAnswer => "before answer",
            Point::AfterAnswer => "after answer",
            Point::WaitingForAnother => "waiting for another",
        }
    }

    pub fn way(self) -> Way {
        match self {
            Point::Starting | Point::JustStarted | Point::BodyHalfRead | Point::AfterAnswer => {
                Way::OfItself
            }
            Point::BeforeClaim
            | Point::AfterClaim
            | Point::BeforeDispatch
            | Point::BeforeCompletion
            | Point::AfterCompletion
            | Point::BeforeAnswer
            | Point::WaitingForAnother => Way::Armed,
            Point::UpstreamHasRead => Way::Upstream(Halt::BeforeEffect),
            Point::UpstreamHasActed => Way::Upstream(Halt::AfterEffect),
            Point::AnswerHalfSent => Way::Upstream(Halt::HalfSent),
            Point::ClaimCommits => Way::Database(Commit::Claim),
            Point::RenewalCommits => Way::Database(Commit::Renewal),
            Point::CompletionCommits => Way::Database(Commit::Completion),
        }
    }
}
