//! Serves one connection with hyper.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use bytes::BytesMut;
use http::StatusCode;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::Instant;

use super::connection::Connection;
use super::sniff::Rewound;
use super::streams::Streams;
use crate::gateway::stream::Stream;
use crate::gateway::wire::Wire;

/// The interval of pings on a quiet HTTP/2 connection, and the time within which one must be
/// answered.
const PING: Duration = Duration::from_secs(20);
/// How often the streams of a connection are checked within the shortest of their timeouts.
const CHECKS_PER_TIMEOUT: u32 = 4;
const LOOK_MIN: Duration = Duration::from_millis(50);
/// Limit on the bytes of an answer that one stream may have waiting to be sent.
const SEND_BUFFER_BYTES_MAX: usize = 256 << 10;
/// How much a client may send on one connection before the gateway reads it: bodies that wait for a
/// connection to the upstream. No memory budget counts these bytes, so the limit is small; hyper's
/// default is four times as large.
const WINDOW_BYTES: u32 = 256 << 10;

pub(super) async fn http1(origin: Connection, stream: Stream, sniffed: BytesMut) {
    let (wire, handle) = Wire::new(stream, sniffed, origin.wire.clone());
    let limits = &origin.config.limits;
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .half_close(true);
    // hyper requires at least 8 KiB. Heads over the configured limit never reach hyper.
    builder.max_buf_size(limits.header_bytes_max.max(16 << 10));
    if limits.header_fields_max > 100 {
        builder.max_headers(limits.header_fields_max);
    }
    let service = service_fn(|request| {
        let (refusal, body_end) = handle.next_request();
        let ((live, client), handle) = (origin.now(), &handle);
        async move {
            let response = live
                .stack
                .answer(request, &client, refusal, Some(body_end))
                .await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                handle.open();
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = pin!(builder.serve_connection(wire, service).with_upgrades());
    tokio::select! {
        // The reason why a client's connection ended does not matter here.
        _ = connection.as_mut() => return,
        () = origin.shared.closing.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

pub(super) async fn http2(origin: Connection, stream: Rewound) {
    let limits = &origin.config.limits;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .max_concurrent_streams(limits.streams_max)
        .max_header_list_size(u32::try_from(limits.header_bytes_max).unwrap_or(u32::MAX))
        .max_send_buf_size(SEND_BUFFER_BYTES_MAX);
    let streams = Streams::new();
    let service = service_fn(|request| {
        let ((live, client), stream) = (origin.now(), streams.begin());
        async move {
            Ok::<_, Infallible>(
                stream.answer(live.stack.answer(request, &client, None, None).await),
            )
        }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let timeouts = &origin.config.timeouts;
    let look = (timeouts.header.min(timeouts.keep_alive).min(timeouts.stall) / CHECKS_PER_TIMEOUT)
        .max(LOOK_MIN);
    let mut looks = tokio::time::interval_at(Instant::now() + look, look);
    let mut is_ending = false;
    loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            () = origin.shared.closing.cancelled(), if !is_ending => {}
            _ = looks.tick() => match streams.look(timeouts) {
                false => continue,
                // The client was told to go away, and has not closed.
                true if is_ending => return,
                true => {}
            },
        }
        is_ending = true;
        connection.as_mut().graceful_shutdown();
    }
}
