//! Why bytes are refused, as a code and as a sentence.

use std::fmt;

use http::StatusCode;

/// Why a client's bytes are not an unambiguous request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    LineEnd,
    RequestLine,
    Version,
    Target,
    Connect,
    MethodCase,
    AuthorityDiffers,
    Folded,
    FieldName,
    FieldValue,
    HeadTooLarge,
    TooManyFields,
    HeadTooSlow,
    ContentLength,
    ContentLengthRepeated,
    TransferEncoding,
    TransferEncodingRepeated,
    TransferEncodingOld,
    BothLengths,
    HostMissing,
    HostRepeated,
    HostNotPlain,
    Expect,
    ConnectionOption,
    ConnectionNames,
    ConnectionSpecific,
    ChunkSize,
    ChunkExtension,
    ChunkEnd,
    TrailerField,
    TrailersTooLarge,
}

impl Refusal {
    /// All refusals.
    const ALL: [Refusal; 31] = [
        Refusal::LineEnd,
        Refusal::RequestLine,
        Refusal::Version,
        Refusal::Target,
        Refusal::Connect,
        Refusal::MethodCase,
        Refusal::AuthorityDiffers,
        Refusal::Folded,
        Refusal::FieldName,
        Refusal::FieldValue,
        Refusal::HeadTooLarge,
        Refusal::TooManyFields,
        Refusal::HeadTooSlow,
        Refusal::ContentLength,
        Refusal::ContentLengthRepeated,
        Refusal::TransferEncoding,
        Refusal::TransferEncodingRepeated,
        Refusal::TransferEncodingOld,
        Refusal::BothLengths,
        Refusal::HostMissing,
        Refusal::HostRepeated,
        Refusal::HostNotPlain,
        Refusal::Expect,
        Refusal::ConnectionOption,
        Refusal::ConnectionNames,
        Refusal::ConnectionSpecific,
        Refusal::ChunkSize,
        Refusal::ChunkExtension,
        Refusal::ChunkEnd,
        Refusal::TrailerField,
        Refusal::TrailersTooLarge,
    ];

    /// The refusal with this code.
    pub(crate) fn from_word(word: &str) -> Option<Refusal> {
        Refusal::ALL
            .into_iter()
            .find(|refusal| refusal.code() == word)
    }

    /// The status to answer with.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Refusal::HeadTooLarge | Refusal::TooManyFields => {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
            Refusal::HeadTooSlow => StatusCode::REQUEST_TIMEOUT,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// The code for metrics and logs.
    pub(crate) fn code(self) -> &'static str {
        self.code_and_sentence().0
    }

    /// A sentence for the author of the client.
    pub(crate) fn sentence(self) -> &'static str {
        self.code_and_sentence().1
    }

    fn code_and_sentence(self) -> (&'static str, &'static str) {
        match self {
            Refusal::LineEnd => (
                "line-end",
                "A line of the request does not end in CRLF: send CR and LF after each, and neither of them alone.",
            ),
            Refusal::RequestLine => (
                "request-line",
                "The request line is not a method, a target and a version with one space between them.",
            ),
            Refusal::Version => (
                "version",
                "The version in the request line is neither HTTP/1.1 nor HTTP/1.0.",
            ),
            Refusal::Target => (
                "target",
                "The target of the request is not one this gateway serves: send a path that begins with '/' and is of visible ASCII without '#', with everything else percent-encoded.",
            ),
            Refusal::Connect => (
                "connect",
                "CONNECT is not served: this gateway stands in front of one service and is no tunnel.",
            ),
            Refusal::MethodCase => (
                "method-case",
                "The method is not written in capital letters. Methods are compared letter by letter, and a service may read `post` as POST: send it as POST, PATCH and so on.",
            ),
            Refusal::AuthorityDiffers => (
                "authority-differs",
                "The host in the target of the request and the one in Host differ: send the same in both.",
            ),
            Refusal::Folded => (
                "folded",
                "A field continues on a line that begins with a space or a tab: send each field on one line.",
            ),
            Refusal::FieldName => (
                "field-name",
                "The name of a field is not a token that is followed at once by a colon.",
            ),
            Refusal::FieldValue => (
                "field-value",
                "The value of a field holds a control character.",
            ),
            Refusal::HeadTooLarge => (
                "head-too-large",
                "The head of the request is larger than this gateway takes: send fewer or shorter fields.",
            ),
            Refusal::TooManyFields => (
                "too-many-fields",
                "The request has more fields than this gateway takes: send fewer.",
            ),
            Refusal::HeadTooSlow => (
                "head-too-slow",
                "The head of the request took too long to arrive: nothing of it was acted upon, so it may be sent again.",
            ),
            Refusal::ContentLength => (
                "content-length",
                "Content-Length is not a plain number: send 1 to 19 digits and nothing else.",
            ),
            Refusal::ContentLengthRepeated => (
                "content-length-repeated",
                "Content-Length is given more than once: send it once.",
            ),
            Refusal::TransferEncoding => (
                "transfer-encoding",
                "Transfer-Encoding is not 'chunked': no other coding is taken, and no list of them.",
            ),
            Refusal::TransferEncodingRepeated => (
                "transfer-encoding-repeated",
                "Transfer-Encoding is given more than once: send it once.",
            ),
            Refusal::TransferEncodingOld => (
                "transfer-encoding-old",
                "Transfer-Encoding is given in an HTTP/1.0 request, which does not have it: send HTTP/1.1.",
            ),
            Refusal::BothLengths => (
                "both-lengths",
                "Both Content-Length and Transfer-Encoding are given: where the request ends would depend on who reads it. Send one of them.",
            ),
            Refusal::HostMissing => (
                "host-missing",
                "Host is missing: every request must say once which host it is for.",
            ),
            Refusal::HostRepeated => (
                "host-repeated",
                "Host is given more than once: send it once.",
            ),
            Refusal::HostNotPlain => (
                "host-not-plain",
                "Host is not a plain host with, perhaps, a port after it.",
            ),
            Refusal::Expect => (
                "expect",
                "Expect is not, once, '100-continue': nothing else can be expected.",
            ),
            Refusal::ConnectionOption => {
                ("connection-option", "Connection is not a list of options.")
            }
            Refusal::ConnectionNames => (
                "connection-names",
                "Connection names a field that must reach the service, such as Idempotency-Key, Authorization or Content-Type: it may only name fields between two neighbours.",
            ),
            Refusal::ConnectionSpecific => (
                "connection-specific",
                "The request has a field that HTTP/2 does not: Connection, Keep-Alive, Proxy-Connection, Transfer-Encoding, Upgrade, or TE other than 'trailers'.",
            ),
            Refusal::ChunkSize => (
                "chunk-size",
                "The size of a chunk is not 1 to 16 hexadecimal digits, followed at once by the end of the line or an extension.",
            ),
            Refusal::ChunkExtension => (
                "chunk-extension",
                "The extensions of the body's chunks are too long or hold a control character: send none.",
            ),
            Refusal::ChunkEnd => (
                "chunk-end",
                "A chunk is not followed by CRLF: its size does not fit its data.",
            ),
            Refusal::TrailerField => (
                "trailer-field",
                "A field that says where a request ends, whom it is for or who sends it stands after the body: send it in the head.",
            ),
            Refusal::TrailersTooLarge => (
                "trailers-too-large",
                "The fields after the body are larger or more than this gateway takes: send fewer or shorter ones.",
            ),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

impl std::error::Error for Refusal {}
