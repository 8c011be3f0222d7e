//! Content codings: what scripts read, what clients get, and what is left as it is. What is expected
//! here is what workerd does with the same script.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};

use super::raw_http::{Dev, Raw, Reply};
use celld_v8host::compression::{Decoder, Encoder, Format, Members, STEP_BYTES};
use serde_json::{Value, json};

/// "hello world" as `gzip` packs it, and as the reference encoder of Brotli does.
const GZIP: &str = "1f8b0800000000000203cb48cdc9c95728cf2fca49010085114a0d0b000000";
const BROTLI: &str = "0b058068656c6c6f20776f726c6403";

fn bytes(hex: &str) -> Vec<u8> {
    hex::decode(hex).expect("hexadecimal digits")
}

/// A server that answers `/TYPE` with that content-encoding, and anything else with what it was
/// asked.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut asked = vec![0; 64 << 10];
                while let Ok(read @ 1..) = stream.read(&mut asked) {
                    let text = String::from_utf8_lossy(&asked[..read]).into_owned();
                    let path = text.split(' ').nth(1).unwrap_or_default();
                    let (coding, body) = of_path(path.trim_start_matches('/'), &text);
                    let head = format!(
                        "HTTP/1.1 200 OK\r\n{coding}content-length: {}\r\n\r\n",
                        body.len()
                    );
                    let body = if text.starts_with("HEAD") { Vec::new() } else { body };
                    let _gone = stream.write_all(&[head.into_bytes(), body].concat());
                }
            });
        }
    });
    address
}

fn of_path(path: &str, asked: &str) -> (String, Vec<u8>) {
    let gzip = bytes(GZIP);
    let (coding, body) = match path {
        "gzip" => ("gzip", gzip),
        "br" => ("br", bytes(BROTLI)),
        "GZIP" => ("GZIP", gzip),
        "twice" => ("gzip, gzip", gzip),
        "deflate" => ("deflate", b"left alone".to_vec()),
        "members" => ("gzip", [&gzip[..], &gzip].concat()),
        "junk" => ("gzip", [&gzip[..], b"junk"].concat()),
        "cut" => ("gzip", gzip[..20].to_vec()),
        "bad" => ("gzip", b"not gzip at all".to_vec()),
        "bomb" => ("gzip", bomb()),
        _ => return (String::new(), asked.as_bytes().to_vec()),
    };
    (format!("content-encoding: {coding}\r\n"), body)
}

/// 256 MiB of zeros.
fn bomb() -> Vec<u8> {
    let (mut encoder, mut out) = (Encoder::new(Format::Gzip), Vec::new());
    for _ in 0..(256 << 20) / STEP_BYTES {
        encoder.push(&[0; STEP_BYTES], &mut out);
    }
    encoder.finish(&mut out);
    out
}

fn unpack(format: Format, mut input: &[u8]) -> Vec<u8> {
    let (mut decoder, mut out) = (Decoder::new(format, Members::One), Vec::new());
    loop {
        let before = out.len();
        input = &input[decoder.step(input, &mut out).expect("good bytes")..];
        if out.len() == before && input.is_empty() {
            decoder.end().expect("a whole stream");
            return out;
        }
    }
}

/// Content-encoding, content-length and body of a reply.
fn parts(reply: &Reply) -> (Option<&str>, Option<&str>, &[u8]) {
    assert_eq!(reply.status, 200, "{}", reply.text());
    (reply.header("content-encoding"), reply.header("content-length"), &reply.body)
}

#[test]
fn scripts_read_plain_bodies_and_see_the_headers_as_they_came() {
    let dev = Dev::start("codings", 1);
    let up = upstream();
    let read = |path: &str| dev.json(&format!("/read?url=http://{up}/{path}"));
    assert_eq!(read("gzip"), json!(["gzip", "31", "hello world"]));
    assert_eq!(read("br"), json!(["br", "15", "hello world"]));
    assert_eq!(read("members"), json!(["gzip", "62", "hello worldhello world"]));
    for other in ["GZIP", "twice"] {
        assert_eq!(read(other)[2], GZIP, "{other}");
    }
    assert_eq!(read("deflate")[2], "left alone");
    assert_eq!(read("gzip&manual"), json!(["gzip", "31", GZIP]));
    assert_eq!(read("br&manual"), json!(["br", "15", BROTLI]));
    for (broken, words) in [
        ("bad", "TypeError: Gzip decompression failed."),
        ("junk", "TypeError: Gzip decompression failed."),
        ("cut", "TypeError: Gzip compressed stream ended prematurely."),
    ] {
        assert_eq!(read(broken)[2], words, "{broken}");
    }
    let before = dev.json(&format!("/read-request?url=http://{up}/gzip"));
    assert_eq!(before[2], "hello world");
    let option = dev.text(&format!("/bad-option?url=http://{up}/gzip"));
    assert_eq!(option, "TypeError: encodeResponseBody: unexpected value: sometimes");
    // Nothing is asked for by itself.
    let asked = dev.text(&format!("/pass?url=http://{up}/show"));
    assert!(!asked.to_ascii_lowercase().contains("accept-encoding"), "{asked}");
}

#[test]
fn what_is_handed_on_stays_as_it_came_unless_the_script_says_otherwise() {
    let dev = Dev::start("codings", 1);
    let up = upstream();
    let get = |path: &str| dev.get(path);
    for way in ["/pass", "/pass-copy", "/pass?manual", "/pass-copy?manual"] {
        let joint = if way.contains('?') { '&' } else { '?' };
        for (coding, length, body) in [("gzip", "31", GZIP), ("br", "15", BROTLI)] {
            let reply = get(&format!("{way}{joint}url=http://{up}/{coding}"));
            assert_eq!(parts(&reply), (Some(coding), Some(length), &bytes(body)[..]), "{way}");
        }
    }
    let plain = get(&format!("/pass-plain?url=http://{up}/gzip"));
    assert_eq!(parts(&plain), (None, None, &b"hello world"[..]));
    for way in ["/pass-clone?", "/pass-other?type=gzip&"] {
        let other = get(&format!("{way}url=http://{up}/br"));
        let format = if way.contains("gzip") { Format::Gzip } else { Format::Brotli };
        assert_eq!(unpack(format, &other.body), b"hello world", "{way}");
    }
    // Damaged bytes that nobody looks into are handed on, too.
    let bad = get(&format!("/pass?url=http://{up}/bad"));
    assert_eq!(bad.body, b"not gzip at all");
    let head = dev
        .open()
        .send(format!("HEAD /pass?url=http://{up}/gzip HTTP/1.1\r\nhost: t\r\n\r\n"))
        .try_reply(false)
        .expect("an answer");
    assert_eq!(head.header("content-encoding"), Some("gzip"));
    // A request has its body as it is read.
    let sent = dev.text(&format!("/upload?url=http://{up}/gzip&to=http://{up}/show"));
    assert!(sent.contains("hello world") && !sent.contains("content-encoding"), "{sent}");
}

#[test]
fn a_script_that_names_a_coding_gets_its_body_packed() {
    let dev = Dev::start("codings", 1);
    for (coding, format) in [("gzip", Format::Gzip), ("br", Format::Brotli)] {
        let small = dev.get(&format!("/make?type={coding}"));
        assert_eq!(unpack(format, parts(&small).2), b"hello world");
        let large = dev.get(&format!("/make?type={coding}&bytes=5000000"));
        assert!(large.body.len() < 50_000 && large.header("content-length").is_none());
        assert!(unpack(format, parts(&large).2) == vec![0; 5_000_000]);
    }
    for as_it_is in ["type=gzip&manual", "type=GZIP", "type=deflate"] {
        let reply = dev.get(&format!("/make?{as_it_is}"));
        assert_eq!((parts(&reply).1, &reply.body[..]), (Some("11"), &b"hello world"[..]));
    }
    let mut posted = dev.open();
    posted.send(
        "POST /echo HTTP/1.1\r\nhost: t\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
    );
    assert_eq!(posted.reply("an echo").text(), "616263", "bodies of requests are not touched");
    // The first words of a stream that goes on arrive before its end.
    let mut slow = Raw::connect(dev.address());
    slow.send("GET /make?type=gzip&pieces HTTP/1.1\r\nhost: t\r\n\r\n").head().expect("a head");
    let (mut decoder, mut out) = (Decoder::new(Format::Gzip, Members::One), Vec::new());
    while out.is_empty() {
        let chunk = slow.chunk().expect("a chunk").expect("not the end");
        decoder.step(&chunk, &mut out).expect("good bytes");
    }
    assert_eq!(out, b"first");
}

#[test]
fn cells_and_their_callers_agree_on_codings_on_one_shard_and_on_two() {
    for shards in [1, 2] {
        let dev = Dev::start("codings", shards);
        let up = upstream();
        let read = |path: &str| dev.json(&format!("/read-cell?path={path}"))[2].clone();
        assert_eq!(read("/make?type=gzip"), "hello world");
        assert_eq!(read("/make?type=gzip%26manual"), "TypeError: Gzip decompression failed.");
        assert_eq!(read("/make?type=gzip%26manual&manual"), "hello world");
        let packed = read("/make?type=br&manual");
        let packed = bytes(packed.as_str().expect("packed bytes"));
        assert_eq!(unpack(Format::Brotli, &packed), b"hello world");
        // From a server through a cell and the Worker to the client.
        let through = dev.get(&format!("/cell?path=/through?url=http://{up}/gzip"));
        assert_eq!(parts(&through), (Some("gzip"), Some("31"), &bytes(GZIP)[..]));
        let through = dev.json(&format!("/read-cell?path=/through?url=http://{up}/br"));
        assert_eq!(through, json!(["br", "15", "hello world"]));
    }
}

#[test]
fn a_small_body_that_is_huge_when_unpacked_takes_little_memory() {
    let dev = Dev::start("codings", 1);
    let up = upstream();
    let sent = dev.get(&format!("/pass?url=http://{up}/bomb"));
    assert!(sent.body.len() < 1 << 20);
    let before = dev.memory();
    let mut client = dev.open();
    client.send(format!("GET /pass-plain?url=http://{up}/bomb HTTP/1.1\r\nhost: t\r\n\r\n"));
    client.head().expect("a head");
    let mut total = 0;
    while let Some(chunk) = client.chunk().expect("a chunk") {
        total += chunk.len();
    }
    let more = dev.memory().saturating_sub(before);
    assert_eq!(total, 256 << 20);
    assert!(more < 64 << 20, "{more} bytes more");
    let whole: Value = dev.json(&format!("/read?url=http://{up}/bomb"));
    assert_eq!(whole[2], "TypeError: Memory limit would be exceeded before EOF.");
    assert_eq!(dev.text("/make?type=none"), "hello world", "it lives");
}
