//! The part of Restate's service protocol that a handler without steps needs, so that Restate can
//! use the same upstream as the other peers.
//!
//! A request is the start of an invocation and its input; the response is its output and its end.
//! Each message has a kind (two bytes), flags (two) and a length (four), followed by a protobuf
//! message.

/// The content type of the only supported version.
pub(super) const INVOCATION: &str = "application/vnd.restate.invocation.v5";
/// The content type of the service description.
pub(super) const MANIFEST: &str = "application/vnd.restate.endpointmanifest.v3+json";

const OUTPUT: u16 = 0x0401;
const END: u16 = 0x0003;
/// Field 14 of an output is its value, and field 1 of a value its content; both are preceded by
/// their length.
const VALUE: u8 = 14 << 3 | 2;
const CONTENT: u8 = 1 << 3 | 2;

/// The description that Restate asks for when a service is registered.
pub(super) fn manifest() -> &'static str {
    concat!(
        r#"{"protocolMode":"REQUEST_RESPONSE","minProtocolVersion":5,"maxProtocolVersion":5,"#,
        r#""services":[{"name":"charges","ty":"SERVICE","handlers":[{"name":"charge","#,
        r#""input":{"required":false,"contentType":"application/json"},"#,
        r#""output":{"setContentTypeIfEmpty":false,"contentType":"application/json"}}]}]}"#
    )
}

/// This JSON as the output of a handler. It ends with the number of the run, which tells a replay
/// from a second run.
pub(super) fn answer(json: &str, run: u64) -> Vec<u8> {
    let run = format!("{run}\"}}");
    let content = [&json.as_bytes()[..json.len() - run.len()], run.as_bytes()].concat();
    let value = field(VALUE, &field(CONTENT, &content));
    [message(OUTPUT, &value), message(END, &[])].concat()
}

fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    let flags = 0_u16;
    [
        &kind.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &(body.len() as u32).to_be_bytes(),
        body,
    ]
    .concat()
}

fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let (mut written, mut length) = (vec![tag], bytes.len());
    while length >= 0x80 {
        written.push(length as u8 | 0x80);
        length >>= 7;
    }
    written.push(length as u8);
    written.extend_from_slice(bytes);
    written
}
