//! The `OTEL_*` variables for traces. The SDK itself reads those that are not read here: resource
//! attributes, headers, sizes of batch and queue.

use std::time::Duration;

use http::Uri;
use opentelemetry_sdk::trace::Sampler;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Where traces are sent, and which of them.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) endpoint: Uri,
    pub(super) timeout: Duration,
    pub(super) sampler: Sampler,
    /// The default name of the service, if the environment gives none.
    pub(super) service_name: Option<&'static str>,
}

impl Settings {
    /// Reads the variables. `None` if they request no traces; an error names the variable and its
    /// valid values.
    pub(super) fn read(var: impl Fn(&str) -> Option<String>) -> Result<Option<Settings>, String> {
        // By the specification, an empty variable counts as not set.
        let var = |name: &str| {
            var(name)
                .map(|value| value.trim().to_owned())
                .filter(|value| !value.is_empty())
        };
        let off = |name: &str, value: &str| {
            var(name).is_some_and(|given| given.eq_ignore_ascii_case(value))
        };
        if off("OTEL_SDK_DISABLED", "true") || off("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        let Some(endpoint) = endpoint(&var)? else {
            return Ok(None);
        };
        check_protocol(&var)?;
        let is_named = var("OTEL_SERVICE_NAME").is_some()
            || var("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|list| {
                list.split(',')
                    .any(|pair| pair.trim().starts_with("service.name="))
            });
        Ok(Some(Settings {
            endpoint,
            timeout: timeout(&var)?,
            sampler: sampler(&var)?,
            service_name: (!is_named).then_some("hapax"),
        }))
    }
}

/// The endpoint for traces as given, or the common endpoint with the path for traces appended.
fn endpoint(var: &impl Fn(&str) -> Option<String>) -> Result<Option<Uri>, String> {
    let (name, given, url) = match (
        var("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        var("OTEL_EXPORTER_OTLP_ENDPOINT"),
    ) {
        (Some(url), _) => ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url.clone(), url),
        (None, Some(url)) => (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            url.clone(),
            format!("{}/v1/traces", url.trim_end_matches('/')),
        ),
        (None, None) => return Ok(None),
    };
    match url.parse::<Uri>() {
        Ok(uri) if matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some() => {
            Ok(Some(uri))
        }
        _ => Err(format!(
            "{name}={given} is no URL to send traces to: write one such as http://127.0.0.1:4318"
        )),
    }
}

fn check_protocol(var: &impl Fn(&str) -> Option<String>) -> Result<(), String> {
    for name in [
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    ] {
        match var(name).as_deref() {
            Some("http/protobuf") => return Ok(()),
            None => {}
            Some(other) => {
                return Err(format!(
                    "{name}={other} is not spoken here: use http/protobuf, on port 4318 of most collectors"
                ));
            }
        }
    }
    Ok(())
}

fn timeout(var: &impl Fn(&str) -> Option<String>) -> Result<Duration, String> {
    for name in [
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
        "OTEL_EXPORTER_OTLP_TIMEOUT",
    ] {
        if let Some(given) = var(name) {
            let millis = given.parse().map_err(|_| {
                format!("{name}={given} is no number of milliseconds, such as 10000")
            })?;
            return Ok(Duration::from_millis(millis));
        }
    }
    Ok(TIMEOUT)
}

fn sampler(var: &impl Fn(&str) -> Option<String>) -> Result<Sampler, String> {
    let parent_based = |sampler: Sampler| Sampler::ParentBased(Box::new(sampler));
    Ok(match var("OTEL_TRACES_SAMPLER").as_deref() {
        None | Some("parentbased_always_on") => parent_based(Sampler::AlwaysOn),
        Some("parentbased_always_off") => parent_based(Sampler::AlwaysOff),
        Some("parentbased_traceidratio") => parent_based(Sampler::TraceIdRatioBased(ratio(var)?)),
        Some("always_on") => Sampler::AlwaysOn,
        Some("always_off") => Sampler::AlwaysOff,
        Some("traceidratio") => Sampler::TraceIdRatioBased(ratio(var)?),
        Some(other) => {
            return Err(format!(
                "OTEL_TRACES_SAMPLER={other} is not known: use always_on, always_off or traceidratio, each also with parentbased_ before it"
            ));
        }
    })
}

fn ratio(var: &impl Fn(&str) -> Option<String>) -> Result<f64, String> {
    let Some(given) = var("OTEL_TRACES_SAMPLER_ARG") else {
        return Ok(1.0);
    };
    let ratio = given
        .parse()
        .ok()
        .filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| {
        format!("OTEL_TRACES_SAMPLER_ARG={given} is no share of traces: write a number from 0 to 1")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        Settings::read(|name| {
            vars.iter()
                .find(|(given, _)| *given == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");

    #[test]
    fn without_an_endpoint_there_are_no_traces() {
        for vars in [
            &[][..],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "  ")],
            &[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")],
            &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")],
            &[("OTEL_TRACES_SAMPLER", "nonsense")],
        ] {
            assert!(read(vars).unwrap().is_none(), "{vars:?}");
        }
    }

    #[test]
    fn the_endpoint_for_traces_counts_before_the_common_one() {
        assert_eq!(
            read(&[ENDPOINT]).unwrap().unwrap().endpoint,
            "http://collector:4318/v1/traces"
        );
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://own/path");
        assert_eq!(
            read(&[ENDPOINT, own]).unwrap().unwrap().endpoint,
            "https://own/path"
        );
    }

    #[test]
    fn the_rest_is_read_and_has_defaults() {
        let settings = read(&[ENDPOINT]).unwrap().unwrap();
        assert_eq!(
            (settings.timeout, settings.service_name),
            (TIMEOUT, Some("hapax"))
        );
        let settings = read(&[
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b, service.name=shop"),
        ]);
        let settings = settings.unwrap().unwrap();
        assert_eq!(
            (settings.timeout, settings.service_name),
            (Duration::from_millis(500), None)
        );
        assert!(matches!(settings.sampler, Sampler::TraceIdRatioBased(ratio) if ratio == 0.25));
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_name() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://collector"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
        ] {
            let error = read(&[ENDPOINT, (name, value)]).unwrap_err();
            assert!(error.contains(&format!("{name}={value}")), "{error}");
        }
        let often = [
            ENDPOINT,
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "7"),
        ];
        assert!(
            read(&often)
                .unwrap_err()
                .contains("OTEL_TRACES_SAMPLER_ARG=7")
        );
    }
}
