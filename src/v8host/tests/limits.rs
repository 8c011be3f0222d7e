//! No script takes the process, the thread or a neighbour with it: CPU and memory end.

mod host;

use std::sync::Arc;
use std::time::Duration;

use celld_v8host::host::{CellSlot, EventId, HostCall, Input, Termination, Turn};
use celld_v8host::{Limits, LoadError, Module, ModuleKind, Realm, Script};
use host::{Host, request};

fn script(source: &str) -> Arc<Script> {
    Arc::new(Script {
        modules: vec![Module::new("index.js", ModuleKind::EsModule, source.to_owned())],
        main: "index.js".to_owned(),
        ..Script::default()
    })
}

fn small() -> Limits {
    Limits {
        heap_bytes_max: 32 << 20,
        buffer_bytes_max: 32 << 20,
        turn_cpu_max: Duration::from_millis(100),
        startup_cpu_max: Duration::from_secs(5),
    }
}

fn load(source: &str, limits: Limits) -> Realm {
    Realm::new(&script(source), limits).expect("it loads")
}

fn turn(realm: &mut Realm, event: u64, path: &str) -> (Turn, Vec<HostCall>) {
    let mut calls = Vec::new();
    let input = Input::Fetch {
        event: EventId(event),
        cell: None,
        request: request(&format!("http://test/{path}")),
    };
    let turn = realm.turn(1e12, input, &mut calls);
    (turn, calls)
}

/// A Worker that does `body` for `/bad` and answers everything else.
fn worker(body: &str) -> String {
    format!(
        "export default {{ async fetch(request) {{
           if (request.url.endsWith('/bad')) {{ {body} }}
           return new Response('fine');
         }} }};"
    )
}

#[track_caller]
fn assert_serves(realm: &mut Realm, event: u64) {
    let (turn, calls) = turn(realm, event, "good");
    assert!(matches!(turn, Turn::Ended { .. }), "{turn:?}");
    let ok = |call: &HostCall| matches!(call, HostCall::Respond { response: Ok(response), .. } if response.status == 200);
    assert!(calls.iter().any(ok), "{calls:?}");
}

#[test]
fn endless_code_ends_and_the_realm_goes_on() {
    let endless = [
        "for (;;);",
        "await null; for (;;);",
        "const loop = () => Promise.resolve().then(loop); await loop();",
        "const loop = () => queueMicrotask(loop); loop(); await new Promise(() => {});",
        "/(a*)*b/.test('a'.repeat(100));",
        "const deep = []; for (let i = 0; i < 2e6; i++) deep.push({ i, s: 'text' }); for (;;) JSON.stringify(deep);",
        "try { for (;;); } finally { for (;;); }",
        "for (;;) { try { for (;;); } catch {} }",
        "[...(function* () { for (;;) yield 1; })()].length;",
        "for (;;) new Array(1e6).join('x').indexOf('y');",
        "for (;;) new Array(1000).fill(7);",
        "const all = []; for (;;) { all.push(new Array(1000).fill(all.length)); if (all.length > 1000) all.length = 0; }",
        "for (;;) structuredClone([1, 2, 3]);",
        "for (;;) crypto.subtle.digest('SHA-256', new Uint8Array(1e6));",
        "let s = 'ab'.repeat(1e5); for (;;) s.replaceAll('a', 'c');",
        "const a = Array.from({ length: 1e5 }, (_, i) => -i); for (;;) a.toSorted(() => 0);",
    ];
    for body in endless {
        let limits = Limits { heap_bytes_max: 256 << 20, ..small() };
        let mut realm = load(&worker(body), limits);
        let (ended, _) = turn(&mut realm, 2, "bad");
        assert!(
            matches!(ended, Turn::Terminated(Termination::CpuTimeExceeded)),
            "{body}: {ended:?}"
        );
        assert_serves(&mut realm, 4);
    }
}

#[test]
fn a_short_turn_is_never_hit_by_the_end_of_another() {
    let limits = Limits { turn_cpu_max: Duration::from_millis(1), ..small() };
    let mut realm = load(&worker("for (let i = 0; i < 1e7; i++) Math.random();"), limits);
    for round in 0..40 {
        turn(&mut realm, 10 * round + 2, "bad");
        assert_serves(&mut realm, 10 * round + 4);
    }
}

#[test]
fn memory_without_end_ends_the_turn_and_no_neighbour() {
    let hungry = [
        "const all = []; for (;;) all.push({ a: 1, b: [2] });",
        "const all = []; for (;;) all.push(new Array(1000).fill(all.length));",
        "const all = new Map(); for (let i = 0; ; i++) all.set(i, String(i));",
        "let all = 'x'; const kept = []; for (let i = 0; ; i++) kept.push(all.padEnd(100000, String(i)));",
        "const all = []; for (;;) all.push(new Array(1 << 21).fill(0));",
        "const all = []; for (;;) all.push(() => all);",
        "const loop = (x) => Promise.resolve([x, x]).then((y) => Promise.all([loop(y), loop(y)])); await loop([]);",
        "const all = []; for (let i = 0; ; i++) { all.push(i); all.push(Symbol(String(i))); }",
        "const all = []; for (;;) all.push(new Headers([['a', 'b']]));",
        "let o = {}; for (let i = 0; ; i++) o['key' + i] = i;",
        "const all = []; for (;;) all.push(2n ** 100000n + BigInt(all.length));",
        "const all = []; for (;;) { try { for (;;) all.push([1, 2, 3]); } catch {} }",
    ];
    let mut neighbour = load(&worker(""), small());
    for body in hungry {
        let mut realm =
            load(&worker(body), Limits { turn_cpu_max: Duration::from_secs(20), ..small() });
        let (ended, _) = turn(&mut realm, 2, "bad");
        assert!(matches!(ended, Turn::Terminated(Termination::OutOfMemory)), "{body}: {ended:?}");
        let (again, _) = turn(&mut realm, 4, "good");
        assert!(
            matches!(again, Turn::Terminated(Termination::OutOfMemory)),
            "{body}: a spent realm runs nothing"
        );
        drop(realm);
        assert_serves(&mut neighbour, 6);
    }
}

#[test]
fn buffers_and_long_strings_throw_and_the_script_may_go_on() {
    let makes = [
        "const kept = []; for (;;) kept.push(new ArrayBuffer(1 << 20));",
        "new Uint8Array(1e9);",
        "const kept = []; for (;;) kept.push(new Uint8Array(1 << 20));",
        "'x'.repeat(2 ** 30);",
        "new Array(-1);",
        "new WebAssembly.Memory({ initial: 65536 });",
    ];
    for make in makes {
        let source = worker(&format!(
            "try {{ {make} }} catch (error) {{ return new Response(error.name); }}"
        ));
        let mut host =
            Host::new(load(&source, Limits { turn_cpu_max: Duration::from_secs(20), ..small() }));
        let (_, body) = host.get("http://test/bad").expect("a response");
        assert_eq!(String::from_utf8_lossy(&body), "RangeError", "{make}");
        assert_serves(&mut host.realm, 1000);
    }
}

#[test]
fn freed_buffers_are_given_back() {
    let source = "export default { async fetch() { for (let i = 0; i < 200; i++) new Uint8Array(1 << 20)[5] = 1; return new Response('ok'); } }";
    let mut host =
        Host::new(load(source, Limits { turn_cpu_max: Duration::from_secs(20), ..small() }));
    for _ in 0..3 {
        let (_, body) = host.get("http://test/").expect("a response");
        host.run_idle();
        assert_eq!(body, b"ok");
    }
}

#[test]
fn memory_and_cpu_at_start_up_are_load_errors() {
    let result = Realm::new(&script("const all = []; for (;;) all.push([all]);"), small());
    assert!(matches!(result, Err(LoadError::OutOfMemory)));
}

#[test]
fn deep_recursion_is_a_range_error() {
    let mut host = Host::new(load(&worker("const deep = () => deep() + 1; deep();"), small()));
    let failure = host.get("http://test/bad").expect_err("it throws");
    assert_eq!(
        (failure.name.as_str(), failure.message.as_str()),
        ("RangeError", "Maximum call stack size exceeded")
    );
}

#[test]
fn inputs_for_what_is_gone_are_no_panic() {
    let mut realm = load(&worker(""), small());
    let mut calls = Vec::new();
    for input in [
        Input::CloseCell { cell: CellSlot(7) },
        Input::Timer { timer: celld_v8host::host::TimerId(9) },
        Input::Pull { stream: celld_v8host::host::StreamId(9) },
        Input::Cancel { stream: celld_v8host::host::StreamId(9), reason: "gone".to_owned() },
        Input::Chunk { stream: celld_v8host::host::StreamId(8), chunk: Ok(None) },
        Input::Disconnected { event: EventId(9) },
    ] {
        assert!(matches!(realm.turn(1e12, input, &mut calls), Turn::Ended { .. }));
    }
    assert!(calls.is_empty(), "{calls:?}");
}
