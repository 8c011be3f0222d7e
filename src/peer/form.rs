//! The form of what calls say, byte by byte: a promise to other nodes, as that of frames is.
//!
//! Two nodes that speak one version of the protocol must understand each other. So whoever changes
//! one of these bytes raises [`PROTOCOL`].

use bytes::Bytes;
use celld_core::cell::CellId;
use celld_core::epoch::{Epoch, FencingToken};
use celld_core::node::{NodeId, SessionId};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::fetch::{Content, Failure, FetchHead, FetchReply, ResponseHead};
use crate::operator::{OperatorReply, OperatorRequest};
use crate::probe::ProbeReply;
use crate::socket::{Close, Message};
use crate::take::{TakeHead, Taken};
use crate::{CallKind, FrameError, PROTOCOL};

/// What is said below: text as it is, other bytes in hexadecimal digits, [`cell`]'s id as `ID`.
const SAID: &[&str] = &[
    "00000002|ns|000000|@ID|00000004|Room|0100000001|a|\
     0100000000000001020e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e00000004|POST|00000009|http://x/|02000000000000000500000003|x-a|00000001|1",
    "00000002|ns|000000|@ID|00000004|Room|000000000004|POST|00000009|http://x/|03",
    "0000c800000002|OK|0100000003|x-a|00000001|1",
    "0000c800000002|OK|0000000003|x-a|00000001|1",
    "0100000005|Error|00000001|m|00000004|at f|0100010000000002ff0f",
    "000200000005|0.1.0|00000002|n7|\
     0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0003000000000000000400050000000601",
    "00000002|ns|000000|@ID|00000004|Room|0100000001|a",
    "0000000000000102",
    "010100000002|ns|000000|@ID|00000009",
    "0200000002|ns|000000|@ID",
    "0300000002|ns|000000|@ID",
    "0400000002|ns|000000|@ID|00000002|n7",
    "0500000002|ns|000000|@ID",
    "06",
    "07",
    "00",
    "0100000001|c|00000001|w|01",
    "0100000001|t",
    "0200000001fe",
    "030000000303e9|r",
    "0300000000",
    "aError|0a|m",
];

fn cell() -> CellId {
    CellId::new("ns", &"0123456789abcdef".repeat(4)).expect("a good name")
}

fn node() -> NodeId {
    NodeId::parse("n7").expect("a name")
}

fn session() -> SessionId {
    SessionId::parse(&"0e".repeat(16)).expect("32 digits")
}

fn epoch() -> Epoch {
    Epoch::from_record(0x0102).expect("not zero")
}

fn headers() -> HeaderMap {
    [(HeaderName::from_static("x-a"), HeaderValue::from_static("1"))].into_iter().collect()
}

fn fetch() -> [Result<Bytes, FrameError>; 2] {
    let whole = FetchHead {
        cell: cell(),
        class: "Room".into(),
        name: Some("a".into()),
        token: Some(FencingToken { epoch: epoch(), session: session() }),
        method: Method::POST,
        url: "http://x/".into(),
        headers: headers(),
        content: Content::Body(Some(5)),
    };
    let least = FetchHead {
        name: None,
        token: None,
        headers: HeaderMap::new(),
        content: Content::Messages,
        ..whole.clone()
    };
    [whole.encode(), least.encode()]
}

fn failure() -> Failure {
    Failure {
        name: "Error".into(),
        message: "m".into(),
        stack: "at f".into(),
        remote: true,
        retryable: false,
        overloaded: true,
        durable_object_reset: false,
        thrown: Bytes::from_static(&[0xff, 0x0f]),
    }
}

fn answers() -> [Result<Bytes, FrameError>; 3] {
    let response = ResponseHead {
        status: 200,
        status_text: "OK".into(),
        headers: headers(),
        content: Content::Body(None),
    };
    let empty = ResponseHead { content: Content::Nothing, ..response.clone() };
    let all = [
        FetchReply::Response(response),
        FetchReply::Response(empty),
        FetchReply::Failure(failure()),
    ];
    all.map(|reply| reply.encode())
}

fn of_nodes() -> [Result<Bytes, FrameError>; 3] {
    let probe = ProbeReply {
        protocol: 2,
        version: "0.1.0".into(),
        node: node(),
        session: session(),
        shards: 3,
        resident_cells: 4,
        load_permille: 5,
        restoring: 6,
        is_draining: true,
    };
    let take = TakeHead { cell: cell(), class: "Room".into(), name: Some("a".into()) };
    [probe.encode(), take.encode(), Ok(Taken { epoch: epoch() }.encode())]
}

fn of_operators() -> [Result<Bytes, FrameError>; 9] {
    let asks = [
        OperatorRequest::ListCells { after: Some(cell()), limit: 9 },
        OperatorRequest::ShowCell(cell()),
        OperatorRequest::EvictCell(cell()),
        OperatorRequest::MoveCell { cell: cell(), to: node() },
        OperatorRequest::PurgeCell(cell()),
        OperatorRequest::Drain,
        OperatorRequest::Flush,
    ];
    let refused = OperatorReply::Refused { code: "c".into(), words: "w".into(), retryable: true };
    let [list, show, evict, move_to, purge, drain, flush] = asks.map(|ask| ask.encode());
    [
        list,
        show,
        evict,
        move_to,
        purge,
        drain,
        flush,
        OperatorReply::Done.encode(),
        refused.encode(),
    ]
}

fn messages() -> [Result<Bytes, FrameError>; 4] {
    let all = [
        Message::Text(Bytes::from_static(b"t")),
        Message::Binary(Bytes::from_static(&[0xfe])),
        Message::Close(Close { code: Some(1001), reason: "r".into() }),
        Message::Close(Close::default()),
    ];
    all.map(|message| message.encode())
}

/// Bytes that can be read: text as it is.
fn shown(bytes: &[u8]) -> String {
    let mut out = String::new();
    let is_text = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    for run in bytes.chunk_by(|a, b| is_text(a) == is_text(b)) {
        if !out.is_empty() {
            out.push('|');
        }
        match std::str::from_utf8(run) {
            Ok(text) if is_text(&run[0]) => out.push_str(text),
            Ok(_) | Err(_) => run.iter().for_each(|byte| out.push_str(&format!("{byte:02x}"))),
        }
    }
    out.replace(&"0123456789abcdef".repeat(4), "ID")
}

#[test]
fn the_bytes_of_heads_in_version_four_stay() {
    let kinds =
        [CallKind::FETCH, CallKind::PROBE, CallKind::OPERATOR, CallKind::TAKE, CallKind::RPC];
    assert_eq!(kinds.map(|kind| kind.0), [1, 2, 3, 4, 5]);
    let words = [Ok(failure().to_words().into())];
    let said =
        [&fetch()[..], &answers(), &of_nodes(), &of_operators(), &messages(), &words].concat();
    let said: Vec<String> = said.into_iter().map(|bytes| shown(&bytes.expect("short"))).collect();
    assert_eq!(said, SAID);
    assert_eq!(PROTOCOL, 4);
}
