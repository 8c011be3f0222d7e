//! The generator against a server of the standard library that can stall, fail and hang up.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::thread;

use super::*;

/// Serves each connection on a thread; `answer` is told the request line and its number.
fn server(answer: fn(&str, usize) -> Option<u16>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || serve(stream, answer));
        }
    });
    addr
}

fn serve(mut stream: TcpStream, answer: fn(&str, usize) -> Option<u16>) {
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    for n in 0.. {
        let mut first = String::new();
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap_or(0) > 2 {
            line.clear();
        }
        let Some(status) = answer(&first, n) else { return };
        let text = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\nok");
        if stream.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

fn plan(addr: SocketAddr, connections: usize, pace: Pace) -> Plan {
    Plan {
        addr,
        connections,
        requests: vec![http::request("GET", "/a"), http::request("GET", "/b")],
        pace,
        warm_up: Duration::from_millis(20),
        time: Duration::from_millis(400),
    }
}

#[test]
fn a_closed_loop_counts_every_answer() {
    let addr = server(|_, _| Some(200));
    let outcome = run(&plan(addr, 4, Pace::Closed)).expect("a run");
    assert!(outcome.per_second > 200.0, "{}", outcome.per_second);
    assert!(outcome.latency.len() as f64 >= outcome.per_second * 0.4);
    assert_eq!((outcome.errors, outcome.unanswered), (0, 0));
}

#[test]
fn an_open_loop_offers_what_it_was_told() {
    let addr = server(|_, _| Some(200));
    let outcome = run(&plan(addr, 4, Pace::Open(500.0))).expect("a run");
    assert!((199..=201).contains(&outcome.latency.len()), "{}", outcome.latency.len());
}

#[test]
fn a_stall_is_charged_to_all_that_it_kept_waiting() {
    let stall = |_: &str, n: usize| {
        if n == 30 {
            thread::sleep(Duration::from_millis(200));
        }
        Some(200)
    };
    // One connection, 500/s for 0.4 s: 100 of 200 requests are due during the stall.
    let outcome = run(&plan(server(stall), 1, Pace::Open(500.0))).expect("a run");
    let late = outcome.latency.len() - outcome.latency.count_between(1, 20_000);
    assert!(late >= 80, "only {late} requests waited");
    // A closed loop sees the same stall once; it comes early, so nothing is warmed up.
    let closed = Plan { warm_up: Duration::ZERO, ..plan(server(stall), 1, Pace::Closed) };
    let outcome = run(&closed).expect("a run");
    assert_eq!(outcome.latency.len() - outcome.latency.count_between(1, 190_000), 1);
}

#[test]
fn failures_are_counted_apart_and_hang_ups_end_the_run() {
    let addr = server(|line, _| Some(if line.contains("/b") { 503 } else { 200 }));
    let outcome = run(&plan(addr, 1, Pace::Open(200.0))).expect("a run");
    assert!(outcome.errors.abs_diff(outcome.latency.len()) <= 2, "{outcome:?}");
    assert!(outcome.errors > 30);
    let addr = server(|_, n| (n < 3).then_some(200));
    let error = run(&plan(addr, 1, Pace::Closed)).expect_err("the server hangs up");
    assert!(error.to_string().contains("closed"), "{error}");
}
