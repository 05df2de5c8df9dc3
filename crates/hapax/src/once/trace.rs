//! The trace that a request belongs to.

use std::sync::Arc;

use http::HeaderMap;

/// Bytes of a `tracestate` that are passed on; the specification asks for no more.
const STATE_BYTES_MAX: usize = 512;

/// W3C Trace Context of a request, for what it causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) parent: Arc<str>,
    pub(crate) state: Option<Arc<str>>,
}

impl Trace {
    /// That of a request, if its fields say so. By the specification, two `traceparent` count as
    /// none, and several `tracestate` are one list.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Trace> {
        let lines = |name| {
            headers
                .get_all(name)
                .iter()
                .map(|line| line.to_str().ok())
                .collect::<Option<Vec<_>>>()
        };
        let [parent] = lines("traceparent")?[..] else {
            return None;
        };
        let state = lines("tracestate").unwrap_or_default().join(",");
        is_traceparent(parent).then(|| Trace {
            parent: parent.into(),
            state: (!state.is_empty() && state.len() <= STATE_BYTES_MAX).then(|| state.into()),
        })
    }
}

/// Whether this is a `traceparent` of version 00: `00-TRACE-SPAN-FLAGS`.
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_sized =
        |(part, length): (&&str, usize)| part.len() == length && part.bytes().all(is_hex);
    parts.len() == 4 && parts[0] == "00" && parts.iter().zip([2, 32, 16, 2]).all(is_sized)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn of(fields: &[(&'static str, &str)]) -> Option<Trace> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        Trace::of(&headers)
    }

    #[test]
    fn only_a_whole_context_is_taken() {
        let parent = ("traceparent", PARENT);
        let trace = of(&[parent, ("tracestate", "a=1"), ("tracestate", "b=2")]).unwrap();
        assert_eq!(
            (&*trace.parent, trace.state.as_deref()),
            (PARENT, Some("a=1,b=2"))
        );
        assert_eq!(of(&[parent]).unwrap().state, None);
        let long = "x".repeat(STATE_BYTES_MAX + 1);
        assert_eq!(of(&[parent, ("tracestate", &long)]).unwrap().state, None);
        assert_eq!(of(&[("tracestate", "a=1")]), None);
        assert_eq!(of(&[parent, parent]), None);
        for wrong in [
            "",
            "00-0af7-b7ad-01",
            &PARENT.to_uppercase(),
            &PARENT[1..],
            "a b",
        ] {
            assert_eq!(of(&[("traceparent", wrong)]), None, "{wrong}");
        }
    }
}
