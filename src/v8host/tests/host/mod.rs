//! A small shard: plays the host of one realm, with a clock that jumps to the next timer.
//!
//! Global `fetch` reaches these hosts:
//! - `http://echo.test/…`: JSON of method, url, headers, body; with `?stream` the body comes back in
//!   pieces of 3 bytes;
//! - `http://status.test/CODE`: that status; 301..308 with `location: http://echo.test/moved`;
//! - `http://refused.test/`: a failure;
//! - `http://ws.test/echo`: a WebSocket that echoes; `/refuse`: status 403;
//! - `http://self.test/…`: a new request to the default export of the file under test;
//! - `http://harness.test/logs` and `/uncaught`: what was reported so far, and forgets it;
//!   `/evict`: closes every cell; `/scheduled?cron=…`: runs `scheduled`; `/lose` and `/break`: what
//!   every WebSocket hears.

mod alarms;
mod sockets;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use alarms::Due;
use bytes::Bytes;
use celld_v8host::host::{
    Answer, Body, CallId, CellSlot, EventId, Failure, HostCall, Input, LogLevel, OpenCell, Request,
    Response, SectionId, SocketEvent, SocketId, StreamId, Target, Turn,
};
use celld_v8host::{Database, Realm, Sockets};
use http::{HeaderMap, HeaderValue, Method};
use sockets::End;

/// Who waits for the response of an event.
enum Waiter {
    Test,
    Call(CallId),
    Scheduled(CallId),
}

/// Where the pieces of a stream that JavaScript makes go.
enum Sink {
    /// Into a stream that JavaScript reads.
    Relay(StreamId),
    /// Collected: the body of the test's response.
    Test(Response, Vec<u8>),
    /// Collected: the body of a request to a host of ours.
    Request(CallId, Request, Vec<u8>),
}

/// Where the pieces of a stream that JavaScript reads come from.
enum Source {
    Relay(StreamId),
    Pieces(VecDeque<Bytes>),
}

struct Cell {
    target: Target,
    slot: CellSlot,
    open: bool,
    /// `alarm()` runs, with so many failures before.
    alarm: Option<u32>,
    sections: Vec<SectionId>,
    /// Requests that wait for the input gate.
    waiting: VecDeque<Input>,
    database: Rc<Database>,
    sockets: Rc<Sockets>,
}

/// Plays the shard for one realm.
pub struct Host {
    pub realm: Realm,
    /// Milliseconds since 1970.
    pub now: f64,
    /// `level: text` of each log line.
    pub logs: Vec<(LogLevel, String)>,
    pub uncaught: Vec<Failure>,
    /// Cells that have reset themselves, and what their callers are told.
    lost: HashMap<CellSlot, Failure>,
    queue: VecDeque<Input>,
    timers: BTreeMap<(u64, u64), Due>,
    events: HashMap<EventId, Waiter>,
    cells: HashMap<(String, String), Cell>,
    sinks: HashMap<StreamId, Sink>,
    sources: HashMap<StreamId, Source>,
    ends: HashMap<SocketId, End>,
    next: u64,
    response: Option<Result<(Response, Vec<u8>), Failure>>,
}

impl Host {
    pub fn new(realm: Realm) -> Self {
        Self {
            realm,
            now: 1_700_000_000_000.0,
            logs: Vec::new(),
            uncaught: Vec::new(),
            lost: HashMap::new(),
            queue: VecDeque::new(),
            timers: BTreeMap::new(),
            events: HashMap::new(),
            cells: HashMap::new(),
            sinks: HashMap::new(),
            sources: HashMap::new(),
            ends: HashMap::new(),
            next: 0,
            response: None,
        }
    }

    /// A request to the realm, and what came of it: the response with its whole body.
    pub fn fetch(&mut self, request: Request) -> Result<(Response, Vec<u8>), Failure> {
        let event = EventId(self.number());
        self.events.insert(event, Waiter::Test);
        self.queue.push_back(Input::Fetch { event, cell: None, request });
        self.response = None;
        while self.response.is_none() {
            if !self.step() {
                let reported: Vec<String> =
                    self.uncaught.drain(..).map(|failure| failure.to_string()).collect();
                let text = format!(
                    "the test never ends: nothing is left that could happen; reported: {reported:?}"
                );
                return Err(Failure::new("Error", text));
            }
        }
        self.response.take().expect("the loop has ended with it")
    }

    /// `GET url`
    pub fn get(&mut self, url: &str) -> Result<(Response, Vec<u8>), Failure> {
        self.fetch(request(url))
    }

    /// Runs what is left: `waitUntil`, timers.
    pub fn run_idle(&mut self) {
        while self.step() {}
    }

    fn number(&mut self) -> u64 {
        self.next += 2;
        self.next
    }

    /// One turn; `false`: nothing to do.
    fn step(&mut self) -> bool {
        let input = match self.queue.pop_front() {
            Some(input) => input,
            None => match self.timers.pop_first() {
                Some(((at, _), due)) => {
                    self.now = self.now.max(at as f64);
                    match due {
                        Due::Timer(timer) => Input::Timer { timer },
                        Due::Alarm(key) => {
                            self.alarm_due(&key);
                            return true;
                        }
                    }
                }
                None => return false,
            },
        };
        let input = match input {
            // The input gate has closed since the request was let in.
            Input::Fetch { cell: Some(slot), .. }
            | Input::Alarm { cell: slot, .. }
            | Input::CellSocket { cell: slot, .. }
                if self.is_blocked(slot) =>
            {
                self.cell(slot).waiting.push_back(input);
                return true;
            }
            input => input,
        };
        let mut calls = Vec::new();
        let ended = Self::ended_socket(&input);
        let turn = self.realm.turn(self.now, input, &mut calls);
        if let Some((slot, socket)) = ended {
            self.cell(slot).sockets.remove(socket);
        }
        match turn {
            Turn::Ended { wrote } => {
                for slot in wrote {
                    self.cell(slot)
                        .database
                        .end_turn()
                        .expect("the transaction of the turn commits");
                    self.alarm_changed(slot);
                }
            }
            Turn::Terminated(why) => self.uncaught.push(Failure::new("Error", format!("{why:?}"))),
        }
        for call in calls {
            self.perform(call);
        }
        true
    }

    fn perform(&mut self, call: HostCall) {
        match call {
            HostCall::Respond { event, response, cell } => {
                // What a cell says that has reset itself is told to nobody.
                let lost = cell.and_then(|cell| self.lost.get(&cell)).cloned();
                self.respond(event, lost.map_or(response, Err));
            }
            HostCall::SocketPair { sockets, .. } => self.pair(sockets),
            HostCall::SocketAccept { socket, .. } => self.accept(socket),
            HostCall::SocketHibernate { socket, cell, .. } => self.hibernate(socket, cell),
            HostCall::SocketSend { socket, message, .. } => self.send(socket, message),
            HostCall::AlarmEnded { cell, result, .. } => self.alarm_ended(cell, result),
            HostCall::Opened { cell, result } => self.opened(cell, result),
            HostCall::Done { event } => {
                if let Some(Waiter::Scheduled(call)) = self.events.remove(&event) {
                    self.answer(call, 200, "done".into());
                }
            }
            HostCall::Fetch { call, request, .. } => self.fetch_out(call, request),
            HostCall::FetchCell { call, target, request, .. } => {
                self.fetch_cell(call, &target, request)
            }
            HostCall::Abandon { .. } => {}
            HostCall::SetTimer { timer, delay_ms, .. } => {
                self.timers.insert((self.now as u64 + delay_ms, timer.0), Due::Timer(timer));
            }
            HostCall::ClearTimer { timer } => {
                self.timers.retain(|_, other| *other != Due::Timer(timer))
            }
            HostCall::Pull { stream, .. } => self.pull(stream),
            HostCall::Cancel { stream } => {
                if let Some(Source::Relay(from)) = self.sources.remove(&stream) {
                    self.sinks.remove(&from);
                    self.queue
                        .push_back(Input::Cancel { stream: from, reason: "cancelled".to_owned() });
                }
            }
            HostCall::Chunk { stream, chunk, .. } => self.chunk(stream, chunk),
            HostCall::BlockConcurrency { cell, section, .. } => {
                self.cell(cell).sections.push(section)
            }
            HostCall::Unblock { cell, section, failure } => {
                self.cell(cell).sections.retain(|open| *open != section);
                match failure {
                    Some(failure) => self.reset(cell, &failure),
                    None => self.let_in(cell),
                }
            }
            HostCall::Sync { call, .. } => {
                self.queue.push_back(Input::Answer { call, answer: Ok(Answer::Done) })
            }
            HostCall::AbortCell { cell, failure } => self.reset(cell, &failure),
            HostCall::Log { level, message, .. } => self.logs.push((level, message)),
            HostCall::Uncaught { failure, .. } => self.uncaught.push(failure),
        }
    }

    fn respond(&mut self, event: EventId, response: Result<Response, Failure>) {
        match (self.events.remove(&event), response) {
            (Some(Waiter::Test), Ok(mut response)) => match std::mem::take(&mut response.body) {
                Body::Empty => self.response = Some(Ok((response, Vec::new()))),
                Body::Bytes(bytes) => self.response = Some(Ok((response, bytes.to_vec()))),
                Body::Stream { id, .. } => self.collect(id, Sink::Test(response, Vec::new())),
            },
            (Some(Waiter::Test), Err(failure)) => self.response = Some(Err(failure)),
            (Some(Waiter::Call(call)), Ok(mut response)) => {
                response.body = self.relay(std::mem::take(&mut response.body));
                response.web_socket = response.web_socket.map(|socket| self.hand_over(socket));
                self.queue
                    .push_back(Input::Answer { call, answer: Ok(Answer::Response(response)) });
            }
            (Some(Waiter::Call(call)), Err(mut failure)) => {
                failure.remote = true;
                self.queue.push_back(Input::Answer { call, answer: Err(failure) });
            }
            (Some(Waiter::Scheduled(call)), _) => {
                self.events.insert(event, Waiter::Scheduled(call));
            }
            (None, _) => panic!("a response to {event:?}, which nobody waits for"),
        }
    }

    /// Reads a whole stream into a sink: one that JavaScript makes, or one of ours that passes through.
    fn collect(&mut self, id: StreamId, sink: Sink) {
        match self.sources.remove(&id) {
            None => {
                self.sinks.insert(id, sink);
                self.queue.push_back(Input::Pull { stream: id });
            }
            Some(Source::Relay(from)) => {
                self.sinks.insert(from, sink);
                self.queue.push_back(Input::Pull { stream: from });
            }
            Some(Source::Pieces(pieces)) => {
                self.sinks.insert(id, sink);
                for piece in pieces {
                    self.chunk(id, Ok(Some(piece)));
                }
                self.chunk(id, Ok(None));
            }
        }
    }

    /// A body that JavaScript makes, as one that it reads.
    fn relay(&mut self, body: Body) -> Body {
        let Body::Stream { id: from, length } = body else { return body };
        if self.sources.contains_key(&from) {
            return Body::Stream { id: from, length };
        }
        let id = StreamId(self.number());
        self.sinks.insert(from, Sink::Relay(id));
        self.sources.insert(id, Source::Relay(from));
        Body::Stream { id, length }
    }

    fn pull(&mut self, stream: StreamId) {
        match self.sources.get_mut(&stream) {
            Some(Source::Relay(from)) => self.queue.push_back(Input::Pull { stream: *from }),
            Some(Source::Pieces(pieces)) => {
                let piece = pieces.pop_front();
                self.queue.push_back(Input::Chunk { stream, chunk: Ok(piece) });
            }
            None => panic!("a pull from {stream:?}, which does not exist"),
        }
    }

    fn chunk(&mut self, stream: StreamId, chunk: Result<Option<Bytes>, Failure>) {
        let is_end = !matches!(chunk, Ok(Some(_)));
        match (self.sinks.remove(&stream), chunk) {
            (Some(Sink::Relay(to)), chunk) => {
                if !is_end {
                    self.sinks.insert(stream, Sink::Relay(to));
                }
                self.queue.push_back(Input::Chunk { stream: to, chunk });
            }
            (Some(mut sink), Ok(Some(bytes))) => {
                let (Sink::Test(_, all) | Sink::Request(_, _, all)) = &mut sink else {
                    unreachable!("taken above")
                };
                all.extend_from_slice(&bytes);
                self.sinks.insert(stream, sink);
                self.queue.push_back(Input::Pull { stream });
            }
            (Some(Sink::Test(response, all)), Ok(None)) => {
                self.response = Some(Ok((response, all)))
            }
            (Some(Sink::Request(call, request, all)), Ok(None)) => self.serve(call, &request, &all),
            (Some(Sink::Test(..)), Err(failure)) => self.response = Some(Err(failure)),
            (Some(Sink::Request(call, ..)), Err(failure)) => {
                self.queue.push_back(Input::Answer { call, answer: Err(failure) });
            }
            (None, _) => {}
        }
    }

    fn fetch_out(&mut self, call: CallId, mut request: Request) {
        if request.url.starts_with("http://self.test/") {
            let event = EventId(self.number());
            self.events.insert(event, Waiter::Call(call));
            // A message of RPC comes whole.
            if !request.is_rpc {
                request.body = self.relay(std::mem::take(&mut request.body));
            }
            self.queue.push_back(Input::Fetch { event, cell: None, request });
            return;
        }
        match std::mem::take(&mut request.body) {
            Body::Empty => self.serve(call, &request, b""),
            Body::Bytes(bytes) => self.serve(call, &request, &bytes),
            Body::Stream { id, .. } => self.collect(id, Sink::Request(call, request, Vec::new())),
        }
    }

    fn serve(&mut self, call: CallId, request: &Request, body: &[u8]) {
        let rest = request.url.strip_prefix("http://").unwrap_or_default();
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        match (host, path) {
            ("echo.test", _) => self.echo(call, request, body),
            ("ws.test", path) => self.connect(call, request, path),
            ("harness.test", "lose") => {
                self.all_ends_hear(&SocketEvent::Lost);
                self.answer(call, 200, String::new());
            }
            ("harness.test", "break") => {
                let failure = Failure::new("Error", "WebSocket protocol error");
                self.all_ends_hear(&SocketEvent::Failed(failure));
                self.answer(call, 200, String::new());
            }
            ("status.test", code) => self.answer(call, code.parse().unwrap_or(500), String::new()),
            ("harness.test", "logs") => {
                let lines: Vec<String> =
                    self.logs.drain(..).map(|(level, text)| format!("{level:?}: {text}")).collect();
                self.answer(call, 200, serde_json::json!(lines).to_string());
            }
            ("harness.test", "uncaught") => {
                let lines: Vec<String> =
                    self.uncaught.drain(..).map(|failure| failure.to_string()).collect();
                self.answer(call, 200, serde_json::json!(lines).to_string());
            }
            ("harness.test", "evict") => {
                for cell in self.cells.values_mut().filter(|cell| cell.open) {
                    cell.open = false;
                    self.queue.push_back(Input::CloseCell { cell: cell.slot });
                }
                self.answer(call, 200, String::new());
            }
            ("harness.test", path) if path.starts_with("scheduled") => {
                let event = EventId(self.number());
                let cron = path.split_once("cron=").map_or("", |(_, cron)| cron).to_owned();
                self.events.insert(event, Waiter::Scheduled(call));
                self.queue.push_back(Input::Scheduled { event, cron, scheduled_time: self.now });
            }
            _ => {
                let failure =
                    Failure::new("TypeError", "internal error; the connection was refused");
                self.queue.push_back(Input::Answer { call, answer: Err(failure) });
            }
        }
    }

    fn echo(&mut self, call: CallId, request: &Request, body: &[u8]) {
        let headers: Vec<(String, String)> = request
            .headers
            .iter()
            .map(|(name, value)| {
                (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
            })
            .collect();
        let text = serde_json::json!({
            "method": request.method.as_str(),
            "url": request.url,
            "headers": headers,
            "body": String::from_utf8_lossy(body),
        })
        .to_string();
        if !request.url.contains("?stream") {
            return self.answer(call, 200, text);
        }
        let id = StreamId(self.number());
        let pieces = text.as_bytes().chunks(3).map(Bytes::copy_from_slice).collect();
        self.sources.insert(id, Source::Pieces(pieces));
        let mut response = response(200, Body::Stream { id, length: None });
        response.url = request.url.clone();
        self.queue.push_back(Input::Answer { call, answer: Ok(Answer::Response(response)) });
    }

    fn answer(&mut self, call: CallId, status: u16, text: String) {
        let body = if text.is_empty() { Body::Empty } else { Body::Bytes(text.into()) };
        let mut response = response(status, body);
        if (300..400).contains(&status) {
            response.headers.insert("location", HeaderValue::from_static("http://echo.test/moved"));
        }
        self.queue.push_back(Input::Answer { call, answer: Ok(Answer::Response(response)) });
    }

    fn fetch_cell(&mut self, call: CallId, target: &Target, mut request: Request) {
        // A message of RPC comes whole.
        if !request.is_rpc {
            request.body = self.relay(std::mem::take(&mut request.body));
        }
        let event = EventId(self.number());
        self.events.insert(event, Waiter::Call(call));
        let slot = self.open(target);
        self.cell(slot).waiting.push_back(Input::Fetch { event, cell: Some(slot), request });
        self.let_in(slot);
    }

    /// The slot of a cell, which is opened if it is not.
    fn open(&mut self, target: &Target) -> CellSlot {
        let key = (target.namespace.clone(), target.id.clone());
        if !self.cells.get(&key).is_some_and(|cell| cell.open) {
            let number = self.number();
            let slot = CellSlot(u32::try_from(number).expect("few cells"));
            let database = match self.cells.get(&key) {
                Some(cell) => Rc::clone(&cell.database),
                None => Rc::new(database()),
            };
            let sockets = self.cells.get(&key).map(|cell| cell.sockets.clone()).unwrap_or_default();
            let open = OpenCell {
                class: target.class.clone(),
                id: target.id.clone(),
                name: target.name.clone(),
                namespace: target.namespace.clone(),
                database: Rc::clone(&database),
                sockets: Rc::clone(&sockets),
            };
            self.queue.push_back(Input::OpenCell { event: EventId(number), cell: slot, open });
            // The constructor is a section of its own: requests wait for `Opened`.
            let sections = vec![SectionId(u64::MAX)];
            self.cells.insert(
                key.clone(),
                Cell {
                    target: target.clone(),
                    slot,
                    open: true,
                    alarm: None,
                    sections,
                    waiting: VecDeque::new(),
                    database,
                    sockets,
                },
            );
        }
        self.cells[&key].slot
    }

    fn is_blocked(&self, slot: CellSlot) -> bool {
        self.cells.values().any(|cell| cell.slot == slot && !cell.sections.is_empty())
    }

    fn cell(&mut self, slot: CellSlot) -> &mut Cell {
        self.cells.values_mut().find(|cell| cell.slot == slot).expect("a cell that is open")
    }

    /// Delivers what waits, when no section is open.
    fn let_in(&mut self, slot: CellSlot) {
        let cell = self.cell(slot);
        if cell.sections.is_empty() {
            let waiting = std::mem::take(&mut cell.waiting);
            self.queue.extend(waiting);
        }
    }

    fn opened(&mut self, slot: CellSlot, result: Result<(), Failure>) {
        self.cell(slot).sections.retain(|section| *section != SectionId(u64::MAX));
        match result {
            Ok(()) => self.let_in(slot),
            Err(failure) => self.reset(slot, &failure),
        }
    }

    /// Closes the cell; its callers get the failure.
    fn reset(&mut self, slot: CellSlot, failure: &Failure) {
        let cell = self.cell(slot);
        if !cell.open {
            return;
        }
        cell.open = false;
        let waiting = std::mem::take(&mut cell.waiting);
        self.lost.insert(slot, failure.clone());
        let mut failed: Vec<EventId> = Vec::new();
        for input in waiting {
            let Input::Fetch { event, .. } = input else { continue };
            failed.push(event);
        }
        self.queue.push_back(Input::CloseCell { cell: slot });
        for event in failed {
            self.respond(event, Err(failure.clone()));
        }
    }
}

/// A cell's database in memory.
fn database() -> Database {
    let conn = rusqlite::Connection::open_in_memory().expect("SQLite opens a database in memory");
    Database::new(conn).expect("a new database is sound")
}

/// `GET url`
pub fn request(url: &str) -> Request {
    Request {
        is_rpc: false,
        method: Method::GET,
        url: url.to_owned(),
        headers: HeaderMap::new(),
        body: Body::Empty,
        redirect: Default::default(),
        answer: Default::default(),
    }
}

fn response(status: u16, body: Body) -> Response {
    Response {
        status,
        status_text: String::new(),
        headers: HeaderMap::new(),
        body,
        url: String::new(),
        encoding: Default::default(),
        redirected: false,
        web_socket: None,
    }
}
