//! What crosses the border between JavaScript and the shard: inputs go in, host calls come out.
//!
//! Invariant: an isolate touches no bucket, no socket and no clock. It is told everything in an
//! [`Input`] and asks for everything in a [`HostCall`], so that a script can play it in a test.
//! Units: `Wall` is milliseconds since 1970; timer delays are milliseconds.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderMap, Method};

use crate::sockets::Sockets;
use crate::storage::Database;

/// One delivered event: a request, a scheduled run, the opening of a cell. It is the I/O context
/// of WORKERS: what it starts belongs to it. Chosen by the shard, never reused in a realm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

/// A cell's slot in one realm. Chosen by the shard, never reused in a realm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellSlot(pub u32);

/// A question of JavaScript that waits for its [`Answer`]. Chosen by the realm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A body that flows in pieces. Even numbers are chosen by the shard (bytes flow into JavaScript),
/// odd ones by the realm (bytes flow out of it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A timer of JavaScript. Chosen by the realm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(pub u64);

/// A `blockConcurrencyWhile` under way. Chosen by the realm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectionId(pub u64);

/// One end of a WebSocket as JavaScript holds it. Chosen by whoever makes the end, with
/// [`SocketId::fresh`]; never reused on a thread, so that it may move to another realm there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u64);

impl SocketId {
    /// One that nobody on this thread has.
    #[must_use]
    pub fn fresh() -> Self {
        thread_local! {
            static NEXT: Cell<u64> = const { Cell::new(1) };
        }
        Self(NEXT.replace(NEXT.get() + 1))
    }
}

/// What goes over a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketMessage {
    Text(String),
    Binary(Bytes),
    /// The last message of its direction. 1005: without a code.
    Close {
        code: u16,
        reason: String,
    },
}

/// What JavaScript hears of a WebSocket.
#[derive(Clone, Debug)]
pub enum SocketEvent {
    Message(SocketMessage),
    /// The other side is gone without a Close.
    Lost,
    /// The other side did what the protocol forbids.
    Failed(Failure),
}

/// The body of a request or a response.
#[derive(Debug, Default)]
pub enum Body {
    /// No body at all (`body` is `null` in JavaScript).
    #[default]
    Empty,
    /// All of it.
    Bytes(Bytes),
    /// Pieces on demand. `length` when it is known before.
    Stream { id: StreamId, length: Option<u64> },
}

/// A request on its way into or out of JavaScript.
#[derive(Debug)]
pub struct Request {
    /// A call of RPC: `body` is its message (`js/rpc.js`), all else says nothing.
    pub is_rpc: bool,
    pub method: Method,
    /// Absolute, serialised as WHATWG URL does.
    pub url: String,
    pub headers: HeaderMap,
    pub body: Body,
    /// What to do with a redirect; read for outgoing requests only.
    pub redirect: Redirect,
    /// How the body of the answer is to come; read for outgoing requests only.
    pub answer: Encoding,
}

impl Request {
    /// A call of RPC.
    #[must_use]
    pub fn rpc(message: Bytes) -> Self {
        Self {
            is_rpc: true,
            method: Method::POST,
            url: String::new(),
            headers: HeaderMap::new(),
            body: Body::Bytes(message),
            redirect: Redirect::Manual,
            answer: Encoding::Automatic,
        }
    }
}

/// `encodeBody` and `encodeResponseBody`: who packs the body of a response as its
/// `content-encoding` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// The host: the script's side of the body is plain.
    #[default]
    Automatic,
    /// The script: its side of the body is what is sent.
    Manual,
}

/// `Request.redirect`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redirect {
    #[default]
    Follow,
    Manual,
}

/// A response on its way into or out of JavaScript.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Empty: the standard phrase.
    pub status_text: String,
    pub headers: HeaderMap,
    pub body: Body,
    pub encoding: Encoding,
    /// The final URL after redirects, for answers of the global `fetch`; empty otherwise.
    pub url: String,
    pub redirected: bool,
    /// With status 101. On its way out of JavaScript: the end that is to be connected to whoever
    /// asked. On its way in: the end that JavaScript gets.
    pub web_socket: Option<SocketId>,
}

impl Response {
    /// What a call of RPC has returned.
    #[must_use]
    pub fn rpc(message: Bytes) -> Self {
        Self {
            status: 200,
            status_text: String::new(),
            headers: HeaderMap::new(),
            body: Body::Bytes(message),
            encoding: Encoding::Automatic,
            url: String::new(),
            redirected: false,
            web_socket: None,
        }
    }
}

/// Why an event or a call ended without a result.
#[derive(Clone, Debug)]
pub struct Failure {
    /// `Error`, `TypeError`, … as JavaScript names it.
    pub name: String,
    pub message: String,
    /// Source-mapped, without the first line; empty when there is none.
    pub stack: String,
    /// `error.remote`, `.retryable`, `.overloaded`, `.durableObjectReset`.
    pub remote: bool,
    pub retryable: bool,
    pub overloaded: bool,
    pub durable_object_reset: bool,
    /// What the code of a cell has thrown besides: an object with the own properties of its error
    /// as `own`, or with an object that is no error as `value`, serialised as values in storage are.
    /// Empty: nothing, or more than a caller is told.
    pub thrown: Bytes,
}

/// Where a host call comes from. The shard holds its effect at this cell's output gate, and
/// delivers its answer through this cell's input gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub event: EventId,
    pub cell: Option<CellSlot>,
    /// Asked inside a `blockConcurrencyWhile`: the answer may pass while that section runs.
    pub section: Option<SectionId>,
}

/// What the shard tells a realm. One input is one turn: JavaScript runs until the microtask queue
/// is empty.
#[derive(Debug)]
pub enum Input {
    /// Runs `fetch` of the default export (`cell: None`) or of the cell's instance; or, for a call of
    /// RPC, whose body comes whole, a method of that instance.
    Fetch {
        event: EventId,
        cell: Option<CellSlot>,
        request: Request,
    },
    /// Runs `scheduled` of the default export.
    Scheduled {
        event: EventId,
        cron: String,
        scheduled_time: f64,
    },
    /// Runs `alarm()` of the cell's instance. Ends in `HostCall::AlarmEnded`.
    Alarm {
        event: EventId,
        cell: CellSlot,
        scheduled_ms: u64,
        /// Failed runs before this one, as far as they count.
        retries: u32,
    },
    /// Something came on a WebSocket that JavaScript has accepted. The next thing comes after this
    /// turn.
    Socket {
        socket: SocketId,
        event: SocketEvent,
    },
    /// The same for a hibernatable one: runs `webSocketMessage`, `webSocketClose` or
    /// `webSocketError` of the cell's instance.
    CellSocket {
        event: EventId,
        cell: CellSlot,
        socket: SocketId,
        happened: SocketEvent,
    },
    /// Constructs an instance of a Durable Object class. Ends in `HostCall::Opened`.
    OpenCell {
        event: EventId,
        cell: CellSlot,
        open: OpenCell,
    },
    /// Forgets the instance; its pending calls, timers and streams are forgotten too.
    CloseCell {
        cell: CellSlot,
    },
    Answer {
        call: CallId,
        answer: Result<Answer, Failure>,
    },
    Timer {
        timer: TimerId,
    },
    /// The shard wants the next piece of a stream that JavaScript makes.
    Pull {
        stream: StreamId,
    },
    /// The shard (its client) has gone away: the stream that JavaScript makes is cancelled.
    Cancel {
        stream: StreamId,
        reason: String,
    },
    /// The next piece of a stream that JavaScript reads: `None` is its end.
    Chunk {
        stream: StreamId,
        chunk: Result<Option<Bytes>, Failure>,
    },
    /// The client of this event has gone away: `request.signal` fires.
    Disconnected {
        event: EventId,
    },
    /// The shard has ended this event: nothing of it counts any more.
    Forget {
        event: EventId,
    },
}

/// What a cell is made of.
#[derive(Debug)]
pub struct OpenCell {
    /// Name of the exported class.
    pub class: String,
    /// 64 hexadecimal digits.
    pub id: String,
    /// `ctx.id.name`: the name that `idFromName` was given, when the caller knew it.
    pub name: Option<String>,
    /// Key of the namespace, which ids are checked against.
    pub namespace: String,
    pub database: Rc<Database>,
    /// Its hibernatable WebSockets.
    pub sockets: Rc<Sockets>,
}

/// What a realm wants. Calls come in the order in which JavaScript made them.
#[derive(Debug)]
pub enum HostCall {
    /// The event's response, or its failure.
    Respond {
        event: EventId,
        cell: Option<CellSlot>,
        response: Result<Response, Failure>,
    },
    /// These two are the ends of one WebSocket. Comes before anything else about them.
    SocketPair {
        sockets: [SocketId; 2],
        origin: Origin,
    },
    /// JavaScript wants to hear of what comes on this end.
    SocketAccept {
        socket: SocketId,
        origin: Origin,
    },
    /// `ctx.acceptWebSocket`: what comes on this end are events of the cell. It is in
    /// [`OpenCell::sockets`] already.
    SocketHibernate {
        socket: SocketId,
        cell: CellSlot,
        origin: Origin,
    },
    /// A message goes out on this end.
    SocketSend {
        socket: SocketId,
        origin: Origin,
        message: SocketMessage,
    },
    /// `alarm()` has ended. The shard writes down what follows (`Database::store_alarm`).
    AlarmEnded {
        event: EventId,
        cell: CellSlot,
        result: Result<(), Failure>,
    },
    /// The constructor ran, and every section that it opened has ended.
    Opened {
        cell: CellSlot,
        result: Result<(), Failure>,
    },
    /// Nothing of the event is left: its response is out, its `waitUntil`s have settled.
    Done {
        event: EventId,
    },
    /// The global `fetch`. Answer: [`Answer::Response`].
    Fetch {
        call: CallId,
        origin: Origin,
        request: Request,
    },
    /// `stub.fetch`, or a method of the stub. Calls on one `stub` must arrive in order. Answer: [`Answer::Response`].
    FetchCell {
        call: CallId,
        origin: Origin,
        stub: u64,
        target: Target,
        request: Request,
    },
    /// The caller is no longer interested (its `AbortSignal` fired).
    Abandon {
        call: CallId,
    },
    SetTimer {
        timer: TimerId,
        origin: Origin,
        delay_ms: u64,
    },
    ClearTimer {
        timer: TimerId,
    },
    /// JavaScript wants the next piece of a stream that the shard makes.
    Pull {
        stream: StreamId,
        origin: Origin,
    },
    /// JavaScript will not read the rest.
    Cancel {
        stream: StreamId,
    },
    /// A piece of a stream that JavaScript makes: `None` is its end.
    Chunk {
        stream: StreamId,
        origin: Origin,
        chunk: Result<Option<Bytes>, Failure>,
    },
    /// The input gate of the cell closes for all but answers to this section.
    BlockConcurrency {
        cell: CellSlot,
        section: SectionId,
        outer: Option<SectionId>,
    },
    /// The section has ended. With a failure the cell is reset.
    Unblock {
        cell: CellSlot,
        section: SectionId,
        failure: Option<Failure>,
    },
    /// `storage.sync()`. Answer: [`Answer::Done`] once all earlier commits of the cell are proven.
    Sync {
        call: CallId,
        cell: CellSlot,
        origin: Origin,
    },
    /// `ctx.abort(reason)`: the cell is reset, its callers get `failure`.
    AbortCell {
        cell: CellSlot,
        failure: Failure,
    },
    /// A line of `console`.
    Log {
        level: LogLevel,
        origin: Option<Origin>,
        message: String,
    },
    /// An exception or a rejection that nobody handled.
    Uncaught {
        origin: Option<Origin>,
        failure: Failure,
    },
}

/// A Durable Object as its caller names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the class in this script.
    pub class: String,
    /// Key of the namespace: with the id it names the cell in the bucket.
    pub namespace: String,
    /// 64 hexadecimal digits.
    pub id: String,
    pub name: Option<String>,
}

/// The good end of a call.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every answer is a response")]
pub enum Answer {
    Response(Response),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Debug,
    Log,
    Info,
    Warn,
    Error,
}

/// How a turn ended.
#[derive(Debug)]
pub enum Turn {
    /// JavaScript gave control back. The shard ends the implicit transaction of each cell in
    /// `wrote` (`Database::end_turn`) before it performs any host call of this turn.
    Ended { wrote: Vec<CellSlot> },
    /// The turn was ended from outside: its CPU budget is used up, or the heap is full. All cells
    /// of the realm must be reset; after `OutOfMemory` the realm must be replaced.
    Terminated(Termination),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    CpuTimeExceeded,
    OutOfMemory,
}
