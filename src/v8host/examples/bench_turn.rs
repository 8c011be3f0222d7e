//! What one turn costs: `bench_turn [ROUNDS [WORD]]` prints nanoseconds of CPU of each kind of request
//! whose name contains WORD, and what realms and cells cost to make. CPU time of this thread: other
//! work on the machine counts little. `V8_FLAGS` in the environment are flags to try.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use celld_v8host::host::{Answer, Body, CellSlot, EventId, HostCall, Input, OpenCell, Request};
use celld_v8host::storage::Database;
use celld_v8host::{DurableObjectBinding, Limits, Module, ModuleKind, Realm, Script};
use http::{HeaderMap, HeaderValue, Method};

const SOURCE: &str = "
import { DurableObject } from 'cloudflare:workers';
export class Counter extends DurableObject {
  async fetch(request) {
    let value = this.ctx.storage.kv.get('value') ?? 0;
    if (request.method === 'POST') {
      value += 1;
      this.ctx.storage.kv.put('value', value);
    }
    return new Response(`${value}\\n`);
  }
}
export default {
  fetch(request, env, ctx) {
    switch (request.method) {
      case 'GET': return new Response('hello');
      case 'PUT': return (async () => { await null; return new Response('hello'); })();
      case 'HEAD': return new Response(null, { status: 204, headers: { 'x-a': request.headers.get('user-agent') } });
      case 'POST': return request.json().then((value) => Response.json({ got: value.a }));
      case 'TRACE': return cell(request, env);
      default: return new Response(new URL(request.url).pathname);
    }
  },
};
async function cell(request, env) {
  const { pathname } = new URL(request.url);
  const [, name] = pathname.match(/^\\/some\\/([^/]+)$/) ?? [];
  return env.COUNTERS.getByName(decodeURIComponent(name)).fetch(request);
}";

/// Cells that take turns in the reads.
const CELLS: u32 = 64;

fn main() {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(200_000);
    let word = std::env::args().nth(2).unwrap_or_default();
    if let Ok(flags) = std::env::var("V8_FLAGS") {
        v8::V8::set_flags_from_string(&flags);
    }
    let started = cpu();
    let snapshot = celld_v8host::startup();
    println!("snapshot          {:>9.2} ms  {} KiB", ms(cpu() - started), snapshot.len() / 1024);
    let script = Arc::new(Script {
        modules: vec![Module::new("index.js", ModuleKind::EsModule, SOURCE)],
        main: "index.js".to_owned(),
        durable_objects: vec![DurableObjectBinding {
            name: "COUNTERS".to_owned(),
            class: "Counter".to_owned(),
            namespace: "counters".to_owned(),
        }],
        ..Script::default()
    });
    for name in ["first realm", "second realm"] {
        let started = cpu();
        let realm = Realm::new(&script, Limits::default()).expect("it loads");
        println!("{name:<18}{:>9.2} ms", ms(cpu() - started));
        drop(realm);
    }
    let mut host = Host::new(Realm::new(&script, Limits::default()).expect("it loads"));
    for (name, method, headers, body) in [
        ("hello", Method::GET, 1, ""),
        ("hello, 8 headers", Method::GET, 8, ""),
        ("hello, async", Method::PUT, 1, ""),
        ("204 with header", Method::HEAD, 1, ""),
        ("json in and out", Method::POST, 1, "{\"a\":[1,2,3]}"),
        ("new URL", Method::DELETE, 1, ""),
        ("cell read", Method::TRACE, 1, ""),
        ("cell, 8 headers", Method::TRACE, 8, ""),
        ("empty turn", Method::CONNECT, 0, ""),
    ] {
        if !name.contains(&word) {
            continue;
        }
        let template = template(method, headers, body);
        host.run(&template, rounds / 5);
        let best =
            (0..5).map(|_| host.run(&template, rounds / 5)).min().expect("there are five runs");
        println!("{name:<18}{:>9.0} ns", best.as_nanos() as f64 / f64::from(rounds / 5));
    }
    if word.is_empty() {
        host.open_many(4_000);
    }
    let usage = host.realm.usage();
    println!("heap              {:>9.2} MiB", usage.heap_bytes as f64 / f64::from(1 << 20));
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid, and the clock of the calling thread exists.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(failed, 0);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("below a second"))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

const NAMES: [&str; 8] = [
    "host",
    "user-agent",
    "accept",
    "accept-encoding",
    "x-request-id",
    "cookie",
    "accept-language",
    "cache-control",
];

fn template(method: Method, headers: usize, body: &'static str) -> (Method, HeaderMap, Bytes) {
    let mut map = HeaderMap::new();
    for name in &NAMES[..headers] {
        map.insert(*name, HeaderValue::from_static("some value that is not short"));
    }
    (method, map, Bytes::from_static(body.as_bytes()))
}

/// The least that a shard does: a realm, and the cells that it has opened.
struct Host {
    realm: Realm,
    calls: Vec<HostCall>,
    events: u64,
    /// Numbers of the cells by what the names of their stubs end in.
    cells: Vec<Option<CellSlot>>,
    opened: u32,
}

impl Host {
    fn new(realm: Realm) -> Self {
        Self { realm, calls: Vec::new(), events: 0, cells: vec![None; CELLS as usize], opened: 0 }
    }

    fn turn(&mut self, input: Input) {
        self.realm.turn(1e12, input, &mut self.calls);
    }

    fn next_event(&mut self) -> EventId {
        self.events += 2;
        EventId(self.events)
    }

    fn run(
        &mut self,
        (method, headers, body): &(Method, HeaderMap, Bytes),
        rounds: u32,
    ) -> Duration {
        let started = cpu();
        for round in 0..rounds {
            if method == Method::CONNECT {
                // Nobody knows this event: an entry that does nothing.
                self.turn(Input::Disconnected { event: EventId(1) });
                continue;
            }
            let request = Request {
                is_rpc: false,
                method: method.clone(),
                url: format!("http://localhost:8787/some/{}", round % CELLS),
                headers: headers.clone(),
                body: if body.is_empty() { Body::Empty } else { Body::Bytes(body.clone()) },
                redirect: Default::default(),
                answer: Default::default(),
            };
            let event = self.next_event();
            self.turn(Input::Fetch { event, cell: None, request });
            self.settle();
        }
        cpu() - started
    }

    /// Performs calls until the event of the Worker has its response.
    fn settle(&mut self) {
        let mut waiting = None;
        let mut answered = false;
        let mut calls = std::mem::take(&mut self.calls);
        while !calls.is_empty() {
            for call in calls.drain(..) {
                match call {
                    HostCall::Respond { cell: None, response: Ok(_), .. } => answered = true,
                    HostCall::Respond { cell: Some(_), response: Ok(response), .. } => {
                        let call = waiting.take().expect("somebody has asked the cell");
                        let answer = Ok(Answer::Response(response));
                        self.turn(Input::Answer { call, answer });
                    }
                    HostCall::FetchCell { call, target, request, .. } => {
                        waiting = Some(call);
                        let name = target.name.expect("cells have names");
                        let number = name.parse::<usize>().expect("the name is a number");
                        let cell = self.cells[number];
                        let cell = cell.unwrap_or_else(|| self.open(target.id, Some(name)));
                        self.cells[number] = Some(cell);
                        let event = self.next_event();
                        self.turn(Input::Fetch { event, cell: Some(cell), request });
                    }
                    HostCall::Done { .. } | HostCall::Opened { result: Ok(()), .. } => {}
                    other => panic!("nobody expects {other:?}"),
                }
            }
            std::mem::swap(&mut calls, &mut self.calls);
        }
        self.calls = calls;
        assert!(answered);
    }

    fn open(&mut self, id: String, name: Option<String>) -> CellSlot {
        self.opened += 1;
        let connection = rusqlite::Connection::open_in_memory().expect("memory");
        connection
            .execute_batch(
                "CREATE TABLE _cf_KV (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
                INSERT INTO _cf_KV VALUES ('value', x'ff0f4902')",
            )
            .expect("a table");
        let database = Rc::new(Database::new(connection).expect("a database"));
        let cell = CellSlot(self.opened);
        let open = OpenCell {
            class: "Counter".to_owned(),
            id,
            name,
            namespace: "counters".to_owned(),
            database,
            sockets: Rc::default(),
        };
        let event = self.next_event();
        self.turn(Input::OpenCell { event, cell, open });
        cell
    }

    /// What cells need of V8's heap once they have been opened and have answered a request.
    fn open_many(&mut self, count: u32) {
        let before = self.collected_bytes();
        let started = cpu();
        for number in 0..count {
            let cell = self.open(format!("{number:064x}"), None);
            let event = self.next_event();
            let (method, headers, _) = template(Method::GET, 1, "");
            let url = "http://localhost/".to_owned();
            let request = Request {
                is_rpc: false,
                method,
                url,
                headers,
                body: Body::Empty,
                redirect: Default::default(),
                answer: Default::default(),
            };
            self.turn(Input::Fetch { event, cell: Some(cell), request });
            self.calls.clear();
        }
        let time = (cpu() - started).as_secs_f64() * 1e6 / f64::from(count);
        let bytes = (self.collected_bytes() - before) / f64::from(count);
        println!("open a cell       {time:>9.2} µs  {bytes:.0} bytes of V8's heap");
    }

    /// Bytes on the heap without garbage, about: the least of what is seen while garbage is made.
    fn collected_bytes(&mut self) -> f64 {
        let template = template(Method::GET, 8, "");
        let mut least = usize::MAX;
        for _ in 0..400 {
            self.run(&template, 200);
            least = least.min(self.realm.usage().heap_bytes);
        }
        least as f64
    }
}
