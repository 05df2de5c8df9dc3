//! Messages: what leaves after an effect.
//!
//! A message commits in the outbox together with its effect. The relay reads it from there and
//! publishes it at least once to each reader, in commit order per topic and key.
//!
//! 1. [`MessageId`]: the same for every publication of a message.
//! 2. [`Envelope`]: a message as the relay reads and sends it.
//! 3. [`Verdict`]: what a destination said of it, and [`Plan`]: what the relay does about a batch.
//! 4. [`RetryPolicy`]: when a message that failed is tried again, and when it is given up.
//! 5. [`ReceiptId`] and [`Receipt`]: a message at a consumer, and what becomes of it there.

mod envelope;
mod headers_json;
mod message_id;
mod plan;
pub mod receipt;
mod retry;

pub use envelope::{Envelope, EnvelopeError, check, headers, limits};
pub use headers_json::{headers_from_json, headers_to_json};
pub use message_id::MessageId;
pub use plan::{Outage, Plan, Verdict};
pub use receipt::{EntityId, Gaps, Receipt, ReceiptId, Window};
pub use retry::{GiveUp, Next, RetryPolicy};
