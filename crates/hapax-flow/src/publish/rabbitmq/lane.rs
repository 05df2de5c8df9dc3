//! A channel, on which one message at a time is under way.

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Confirmation};

use super::parcel::Parcel;
use crate::rabbitmq::Link;

#[derive(Default)]
pub(super) struct Lane {
    channel: Option<Channel>,
    /// A call was dropped before its message was confirmed.
    is_in_doubt: bool,
}

impl Lane {
    /// Publishes a message and waits until it is confirmed.
    ///
    /// If the call is dropped, the next one waits for the confirmation first: otherwise what this
    /// one has sent could be overtaken by what the next one sends.
    ///
    /// # Errors
    ///
    /// If the server closed the channel, or the connection is lost.
    pub(super) async fn publish(
        &mut self,
        link: &Link,
        parcel: Parcel,
    ) -> lapin::Result<Confirmation> {
        let channel = self.ready(link).await?;
        self.is_in_doubt = true;
        self.channel = Some(channel.clone());
        let published = channel.basic_publish(
            parcel.exchange,
            parcel.routing_key,
            BasicPublishOptions {
                mandatory: true,
                ..BasicPublishOptions::default()
            },
            &parcel.payload,
            parcel.properties,
        );
        let confirmation = match published.await {
            Ok(confirming) => confirming.await,
            Err(error) => Err(error),
        };
        self.is_in_doubt = false;
        if confirmation.is_err() {
            self.give_up();
        }
        confirmation
    }

    /// The next message gets another channel.
    pub(super) fn give_up(&mut self) {
        self.channel = None;
        self.is_in_doubt = false;
    }

    /// A channel on which nothing is under way. Taken out of its place: if this call is dropped
    /// meanwhile, it is not used again.
    async fn ready(&mut self, link: &Link) -> lapin::Result<Channel> {
        if let Some(channel) = self.channel.take().filter(|one| one.status().connected()) {
            if self.is_in_doubt {
                channel.wait_for_confirms().await?;
            }
            return Ok(channel);
        }
        let channel = link.channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(channel)
    }
}
