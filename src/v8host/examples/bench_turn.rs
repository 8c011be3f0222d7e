//! What one turn costs: `bench_turn [ROUNDS]` prints nanoseconds of CPU of each kind of request, and
//! what a realm costs to make. CPU time of this thread: other work on the machine counts little.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use celld_v8host::host::{Body, EventId, HostCall, Input, Request};
use celld_v8host::{Limits, Module, ModuleKind, Realm, Script};
use http::{HeaderMap, HeaderValue, Method};

const SOURCE: &str = "
export default {
  fetch(request, env, ctx) {
    switch (request.method) {
      case 'GET': return new Response('hello');
      case 'PUT': return (async () => { await null; return new Response('hello'); })();
      case 'HEAD': return new Response(null, { status: 204, headers: { 'x-a': request.headers.get('user-agent') } });
      case 'POST': return request.json().then((value) => Response.json({ got: value.a }));
      default: return new Response(new URL(request.url).pathname);
    }
  },
};";

fn main() {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(200_000);
    let started = cpu();
    let snapshot = celld_v8host::startup();
    println!("snapshot          {:>9.2} ms  {} KiB", ms(cpu() - started), snapshot.len() / 1024);
    let script = Arc::new(Script {
        modules: vec![Module::new("index.js", ModuleKind::EsModule, SOURCE)],
        main: "index.js".to_owned(),
        ..Script::default()
    });
    for name in ["first realm", "second realm"] {
        let started = cpu();
        let realm = Realm::new(&script, Limits::default()).expect("it loads");
        println!("{name:<18}{:>9.2} ms", ms(cpu() - started));
        drop(realm);
    }
    let mut realm = Realm::new(&script, Limits::default()).expect("it loads");
    for (name, method, headers, body) in [
        ("hello", Method::GET, 0, ""),
        ("hello, 8 headers", Method::GET, 8, ""),
        ("hello, async", Method::PUT, 0, ""),
        ("204 with header", Method::HEAD, 1, ""),
        ("json in and out", Method::POST, 1, "{\"a\":[1,2,3]}"),
        ("new URL", Method::DELETE, 0, ""),
    ] {
        let template = template(method, headers, body);
        run(&mut realm, &template, rounds / 10);
        let best = (0..5).map(|_| run(&mut realm, &template, rounds / 5)).min().expect("five runs");
        println!("{name:<18}{:>9.0} ns/turn", best.as_nanos() as f64 / f64::from(rounds / 5));
    }
    let usage = realm.usage();
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
    "user-agent",
    "accept",
    "host",
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

fn run(
    realm: &mut Realm,
    (method, headers, body): &(Method, HeaderMap, Bytes),
    rounds: u32,
) -> Duration {
    let mut calls = Vec::with_capacity(4);
    let started = cpu();
    for round in 0..rounds {
        let request = Request {
            method: method.clone(),
            url: "http://localhost:8787/some/path?query=1".to_owned(),
            headers: headers.clone(),
            body: if body.is_empty() { Body::Empty } else { Body::Bytes(body.clone()) },
            redirect: Default::default(),
        };
        let event = EventId(2 * u64::from(round) + 2);
        realm.turn(
            1e12 + f64::from(round),
            Input::Fetch { event, cell: None, request },
            &mut calls,
        );
        let answered =
            calls.iter().any(|call| matches!(call, HostCall::Respond { response: Ok(_), .. }));
        assert!(answered, "{calls:?}");
        calls.clear();
    }
    cpu() - started
}
