//! What clients send, and what they get: the messages of HTTP/1.1 as they should be and as they
//! should not.

use std::io::{BufRead as _, BufReader};

use super::raw_http::{Dev, Raw};

const HEAD: &str = "host: test\r\n";

/// Sends a request that is broken on its way, and returns the status of the answer.
fn status(dev: &Dev, request: &str) -> u16 {
    dev.open().send(request).half_close().reply(&format!("{request:.100?}")).status
}

#[test]
fn requests_in_one_packet_are_answered_in_order() {
    let dev = Dev::start("http", 2);
    let mut client = dev.open();
    let mut all = String::new();
    for i in 0..50 {
        all += &format!("GET /show?{i} HTTP/1.1\r\n{HEAD}\r\n");
        all += &format!("POST /show?{i} HTTP/1.1\r\n{HEAD}content-length: 4\r\n\r\n{i:04}");
    }
    // The last one is cut in the middle: the answers before it must not wait for its rest.
    let (first, rest) = all.split_at(all.len() - 10);
    client.send(first);
    for i in 0..100 {
        if i == 99 {
            client.send(rest);
        }
        let shown = client.reply("one of many").json();
        assert_eq!(shown["url"], format!("http://test/show?{}", i / 2));
        let body = if i % 2 == 0 { String::new() } else { format!("{:04}", i / 2) };
        assert_eq!(shown["body"], body);
    }
}

#[test]
fn heads_that_are_malformed_are_answered_with_their_status() {
    let dev = Dev::start("http", 1);
    let get = |rest: &str| format!("GET / HTTP/1.1\r\n{rest}\r\n");
    let post = |rest: &str| format!("POST /show HTTP/1.1\r\n{HEAD}{rest}\r\n\r\nhello");
    for request in [
        "GET / HTTP/1.2\r\nhost: a\r\n\r\n".to_owned(),
        "GET /\r\n\r\n".to_owned(),
        "GET  / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "GET / HTTP/1.1 x\r\nhost: a\r\n\r\n".to_owned(),
        "GET /\0 HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "GET foo HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "G(T / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "\x16\x03\x01\x02\0\x01\0\r\n\r\n".to_owned(),
        // Hosts.
        get(""),
        get("host:\r\n"),
        get("host: a\r\nhost: b\r\n"),
        get("host: a/b?c\r\n"),
        get("host: user@a\r\n"),
        get("host: a b\r\n"),
        // Header lines.
        get("host: a\r\nx: 1\r\n 2\r\n"),
        get("host: a\r\nx: 1\x002\r\n"),
        get("host: a\rx: 1\r\n"),
        get("host: a\r\nx y: 1\r\n"),
        get("host: a\r\nx : 1\r\n"),
        get("host: a\r\n: 1\r\n"),
        // Two answers to where the body ends are how requests are smuggled.
        post("content-length: 3\r\ncontent-length: 5"),
        post("content-length: 5, 5"),
        post("content-length: +5"),
        post("content-length: -5"),
        post("content-length: 0x5"),
        post("content-length: 99999999999999999999999"),
        post("content-length : 5"),
        post("transfer-encoding: gzip"),
        post("transfer-encoding: gzip, chunked"),
        post("transfer-encoding: chunked, gzip"),
        post("transfer-encoding: xchunked"),
        post("transfer-encoding: chunked\r\ntransfer-encoding: identity"),
        "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
    ] {
        let mut client = dev.open();
        client.send(&request);
        assert_eq!(client.reply(&request).status, 400, "{request:?}");
        assert!(client.is_closed(), "{request:?}");
    }
    assert_eq!(status(&dev, "CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n"), 405);
    assert_eq!(dev.text("/ok"), "ok", "the server is as it was");
}

#[test]
fn what_is_too_large_is_answered_with_its_status() {
    let dev = Dev::start("http", 1);
    let with = |value: usize| format!("GET /ok HTTP/1.1\r\n{HEAD}x: {}\r\n\r\n", "a".repeat(value));
    let to = |path: usize| format!("GET /{} HTTP/1.1\r\n{HEAD}\r\n", "a".repeat(path));
    assert_eq!(status(&dev, &with(120 << 10)), 200);
    assert_eq!(status(&dev, &with(130 << 10)), 431);
    assert_eq!(status(&dev, &with(1 << 20)), 431);
    let many: String = (0..300).map(|i| format!("x-{i}: 1\r\n")).collect();
    assert_eq!(status(&dev, &format!("GET /ok HTTP/1.1\r\n{HEAD}{many}\r\n")), 431);
    assert_eq!(status(&dev, &to(16_000)), 200);
    assert_eq!(status(&dev, &to(17 << 10)), 414);
    assert_eq!(status(&dev, &to(70 << 10)), 414);
    let big = format!("POST /ok HTTP/1.1\r\n{HEAD}content-length: {}\r\n\r\n", 501 << 20);
    let mut client = dev.open();
    // The answer arrives although the client goes on sending.
    client.send(&big).send(vec![b'x'; 300 << 10]);
    assert_eq!(client.reply("413").status, 413);
    assert!(client.is_closed(), "what follows is not the next request");
}

#[test]
fn chunked_uploads_are_exact_or_refused() {
    let dev = Dev::start("http", 1);
    let start = format!("POST /show HTTP/1.1\r\n{HEAD}transfer-encoding: chunked\r\n\r\n");
    let mut client = dev.open();
    // Trailers and extensions are read over, and the next request is found behind them.
    client.send(format!("{start}5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nx-t: 1\r\n\r\n"));
    assert_eq!(client.reply("chunks").json()["body"], "hello!");
    assert_eq!(client.get("/ok").text(), "ok");
    // A length beside it is not believed, and ends the connection.
    client.send(start.replace(HEAD, "host: test\r\ncontent-length: 3\r\n"));
    client.send("5\r\nhello\r\n0\r\n\r\n");
    let reply = client.reply("both");
    assert_eq!(reply.json()["body"], "hello");
    assert!(client.is_closed());
    for body in ["zz\r\nhello\r\n0\r\n\r\n", "5\r\nhelloXX0\r\n\r\n", "fffffffffffffffff\r\nhello"]
    {
        let mut client = dev.open();
        client.send(format!("{start}{body}"));
        // The Worker saw its body break.
        assert_eq!(client.reply(body).status, 500);
        assert!(client.is_closed());
    }
    let mut client = dev.open();
    client.send(format!("{start}5\r\nhello\r\n")).half_close();
    assert!(client.try_reply(true).is_ok_and(|reply| reply.status == 500) || client.is_closed());
    let mut client = dev.open();
    client
        .send(format!("POST /show HTTP/1.1\r\n{HEAD}content-length: 9\r\n\r\nhello"))
        .half_close();
    assert_eq!(client.reply("a body that is cut off").status, 400);
}

#[test]
fn a_client_that_waits_for_100_is_told_to_continue() {
    let dev = Dev::start("http", 1);
    let mut client = dev.open();
    let head =
        format!("POST /show HTTP/1.1\r\n{HEAD}content-length: 5\r\nexpect: 100-continue\r\n\r\n");
    client.send(&head);
    assert_eq!(client.reply("the word to go on").status, 100);
    client.send("hello");
    assert_eq!(client.reply("the answer").json()["body"], "hello");
    // One that is refused is not invited to send.
    client.send(head.replace("length: 5", "length: 999999999"));
    assert_eq!(client.reply("the refusal").status, 413);
}

#[test]
fn the_phrase_of_a_status_is_the_workers() {
    let dev = Dev::start("http", 1);
    for (query, phrase) in [
        ("status=200", "200 OK"),
        ("status=200&text=Fine", "200 Fine"),
        ("status=404&text=N%C3%A4h", "404 N\u{e4}h"),
        ("status=599", "599 "),
    ] {
        let mut client = dev.open();
        client.send(format!("GET /status?{query} HTTP/1.1\r\n{HEAD}\r\n"));
        let mut line = String::new();
        BufReader::new(&client.stream).read_line(&mut line).expect("a status line");
        assert_eq!(line, format!("HTTP/1.1 {phrase}\r\n"));
    }
}

#[test]
fn answers_without_a_body_have_none() {
    let dev = Dev::start("http", 1);
    let mut client = dev.open();
    let head = |path: &str| format!("HEAD {path} HTTP/1.1\r\n{HEAD}\r\n");
    let reply = client.send(head("/length")).try_reply(false).expect("HEAD");
    assert_eq!((reply.status, reply.header("content-length")), (200, Some("10")));
    let reply = client.send(head("/length?head=1234")).try_reply(false).expect("HEAD");
    assert_eq!(reply.header("content-length"), Some("1234"), "the length that GET would give");
    assert_eq!(
        client.send(head("/stream?bytes=1000000")).try_reply(false).expect("HEAD").status,
        200
    );
    for status in [204, 304] {
        let reply = client.get(&format!("/status?status={status}"));
        assert_eq!((reply.status, reply.header("transfer-encoding")), (status, None));
    }
    assert_eq!(client.get("/ok").text(), "ok", "the next answer is found");
    // What the Worker says of the length does not break the connection.
    for claimed in ["5", "50"] {
        for path in ["/length", "/stream-length"] {
            let reply = client.get(&format!("{path}?claim={claimed}"));
            assert_eq!(reply.text(), "0123456789", "{path} {claimed}");
        }
    }
}

#[test]
fn http_1_0_and_the_end_of_connections() {
    let dev = Dev::start("http", 1);
    let mut client = dev.open();
    let reply = client.send("GET /show HTTP/1.0\r\n\r\n").reply("1.0");
    assert_eq!(reply.json()["url"], format!("http://{}/show", dev.address()));
    assert!(client.is_closed());
    let mut client = dev.open();
    for _ in 0..2 {
        client.send("GET /ok HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
        assert_eq!(client.reply("1.0 that stays").text(), "ok");
    }
    // A stream to a client that knows no chunks ends with the connection.
    let reply = client.send("GET /stream?bytes=200000 HTTP/1.0\r\n\r\n").reply("1.0 stream");
    assert_eq!((reply.body.len(), reply.header("transfer-encoding")), (200_000, None));
    let mut client = dev.open();
    client.send(format!("GET /ok HTTP/1.1\r\n{HEAD}connection: close\r\n\r\n"));
    assert_eq!(client.reply("the last").header("connection"), Some("close"));
    assert!(client.is_closed());
    // A client that has said all and waits gets its answer.
    let mut client = dev.open();
    client.send(format!("GET /ok HTTP/1.1\r\n{HEAD}\r\n")).half_close();
    assert_eq!(client.reply("half closed").text(), "ok");
    assert!(client.is_closed());
}

#[test]
fn the_worker_sees_a_url_that_is_serialised() {
    let dev = Dev::start("http", 1);
    let url = |line: &str, host: &str| {
        let request = format!("{line} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        dev.open().send(request).reply(line).json()
    };
    for (line, host, expected) in [
        ("GET /show", "EXAMPLE.com:80", "http://example.com/show"),
        ("GET /a/../show?q='", "h:99", "http://h:99/show?q=%27"),
        ("GET //show//x", "h", "http://h//show//x"),
        ("OPTIONS *", "h", "http://h/"),
        ("GET http://Other:81/show", "h", "http://other:81/show"),
    ] {
        assert_eq!(url(line, host)["url"], expected, "{line}");
    }
    let seen = url("GET http://Other:81/show", "h")["headers"].to_string();
    assert!(seen.contains(r#"["host","Other:81"]"#), "{seen}");
    // Nobody can say that he is somebody else.
    let mut client = dev.open();
    let forged = "cf-connecting-ip: 9.9.9.9\r\ncf-connecting-ip: 8.8.8.8\r\n";
    let seen = client.send(format!("GET /show HTTP/1.1\r\n{HEAD}{forged}\r\n")).reply("forged");
    assert!(seen.text().contains(r#"["cf-connecting-ip","127.0.0.1"]"#), "{}", seen.text());
}

#[test]
fn thousands_of_connections_at_once() {
    let dev = Dev::start("http", 2);
    let idle: Vec<Raw> = (0..2_000).map(|_| dev.open()).collect();
    let mut busy: Vec<Raw> = (0..1_000).map(|_| dev.open()).collect();
    for client in &mut busy {
        client.send(format!("GET /ok HTTP/1.1\r\n{HEAD}\r\n"));
    }
    for client in &mut busy {
        assert_eq!(client.reply("one of a thousand").text(), "ok");
    }
    // Those that said nothing so far are served as the others are.
    for mut client in idle {
        client.send(format!("GET /ok HTTP/1.1\r\n{HEAD}\r\n"));
        assert_eq!(client.reply("one that was idle").text(), "ok");
    }
}
