//! Headers as a JSON object of texts, which is how the tables keep them.

use json_event_parser::{JsonEvent, SliceJsonParser, WriterJsonSerializer};

/// Writes headers as a JSON object. The last one of a name counts. A zero byte, which Postgres
/// cannot keep in JSON, becomes U+FFFD.
pub fn headers_to_json(headers: &[(String, String)]) -> String {
    let mut json = WriterJsonSerializer::new(Vec::new());
    let clean = |text: &str| text.replace('\0', "\u{fffd}");
    let mut write = |event| {
        json.serialize_event(event)
            .expect("memory takes every event");
    };
    write(JsonEvent::StartObject);
    for (place, (name, value)) in headers.iter().enumerate() {
        if headers[place + 1..].iter().all(|(later, _)| later != name) {
            write(JsonEvent::ObjectKey(clean(name).into()));
            write(JsonEvent::String(clean(value).into()));
        }
    }
    write(JsonEvent::EndObject);
    let json = json.finish().expect("a whole object");
    String::from_utf8(json).expect("JSON is text")
}

/// Reads what [`headers_to_json`] wrote, sorted by name. `None` if it is anything but an object of
/// texts.
pub fn headers_from_json(json: &[u8]) -> Option<Vec<(String, String)>> {
    let mut parser = SliceJsonParser::new(json);
    let mut headers = Vec::new();
    if parser.parse_next().ok()? != JsonEvent::StartObject {
        return None;
    }
    loop {
        match parser.parse_next().ok()? {
            JsonEvent::EndObject => break,
            JsonEvent::ObjectKey(name) => {
                let name = name.into_owned();
                let JsonEvent::String(value) = parser.parse_next().ok()? else {
                    return None;
                };
                headers.push((name, value.into_owned()));
            }
            _ => return None,
        }
    }
    headers.sort();
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(headers: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        owned.collect()
    }

    #[test]
    fn headers_come_back() {
        let headers = owned(&[("b", "\"x\"\n\\ \u{1}"), ("a", ""), ("ü", "ß\u{1f600}")]);
        let mut sorted = headers.clone();
        sorted.sort();
        let json = headers_to_json(&headers);
        assert_eq!(headers_from_json(json.as_bytes()), Some(sorted));
        assert_eq!(headers_to_json(&[]), "{}");
    }

    #[test]
    fn the_last_one_of_a_name_counts_and_zeros_are_replaced() {
        let json = headers_to_json(&owned(&[("a", "1"), ("a", "2\0")]));
        assert_eq!(json, "{\"a\":\"2\u{fffd}\"}");
    }

    #[test]
    fn anything_else_is_no_headers() {
        for json in ["", "[]", "{\"a\":1}", "{\"a\":{}}", "{\"a\":\"b\"", "null"] {
            assert_eq!(headers_from_json(json.as_bytes()), None, "{json}");
        }
    }
}
