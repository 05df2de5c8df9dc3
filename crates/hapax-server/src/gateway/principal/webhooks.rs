//! Senders of webhooks, and the secrets that they sign with.

use hapax::StandardWebhooks;

use crate::config::{self, WebhookSender};

/// A sender, with the secrets in its file: one on each line.
///
/// # Errors
///
/// If there is none, or one cannot be read; without the secret.
pub(super) fn sender(
    name: &WebhookSender,
    settings: &config::StandardWebhooks,
) -> Result<StandardWebhooks, String> {
    let directory = settings
        .secret_directory
        .as_ref()
        .ok_or("[standard_webhooks] lacks `secret_directory`")?;
    let path = directory.join(name.as_str());
    let shown = path.display();
    let text = std::fs::read_to_string(&path).map_err(|error| {
        format!("the secrets of standard-webhooks:{name} cannot be read from {shown}: {error}")
    })?;
    let mut webhooks = StandardWebhooks::new(name.as_str()).tolerance(settings.tolerance);
    let lines = text.lines().map(str::trim).enumerate();
    let mut secrets = lines.filter(|(_, line)| !line.is_empty()).peekable();
    if secrets.peek().is_none() {
        return Err(format!(
            "{shown} has no secret: write whsec_… of standard-webhooks:{name} into it"
        ));
    }
    for (index, secret) in secrets {
        webhooks = webhooks
            .secret(secret)
            .map_err(|error| format!("{shown}, line {}: {error}", index + 1))?;
    }
    Ok(webhooks)
}
