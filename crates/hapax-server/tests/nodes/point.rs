//! The named points at which a node is killed, and how a request is stopped there.

use super::harness::charges::Halt;
use super::sluice::Commit;

/// First the points of a node without requests, then those of a request in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Between the start of the process and its first line of output.
    Starting,
    /// The node listens and has no requests.
    JustStarted,
    BodyHalfRead,
    BeforeClaim,
    /// The database is about to commit the claim and will do so; the node never gets the reply.
    ClaimCommits,
    AfterClaim,
    BeforeDispatch,
    UpstreamHasRead,
    UpstreamHasActed,
    RenewalCommits,
    AnswerHalfSent,
    BeforeCompletion,
    /// As `ClaimCommits`, for the completion.
    CompletionCommits,
    AfterCompletion,
    BeforeAnswer,
    AfterAnswer,
    /// A request waits at this node for an attempt of another node.
    WaitingForAnother,
}

/// What makes a node stop at a point.
pub enum Way {
    /// Nothing: the request is at the point as soon as it is sent that far, or there is no request.
    OfItself,
    /// The node itself, when it is armed with the point's name.
    Armed,
    /// The upstream, when the node's next request arrives.
    Upstream(Halt),
    /// The database, when the node's next transaction of this kind is about to commit.
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
