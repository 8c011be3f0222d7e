//! Bodies that flow: how much memory they take, and what happens when one side goes away.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use super::raw_http::{Dev, wait_for};

const HEAD: &str = "host: test\r\n";
/// What a node may take more while a body many times as large flows through it: the buffers that an
/// isolate may hold before it must look for garbage, and half as much again.
const MEMORY_MAX: u64 = 192 << 20;

fn events(dev: &Dev) -> String {
    dev.text("/events")
}

fn wait_for_event(dev: &Dev, event: &str) {
    wait_for(event, || events(dev).contains(event).then_some(()));
}

#[test]
fn a_slow_reader_slows_the_worker_down() {
    let dev = Dev::start("http", 1);
    let mut client = dev.open();
    client.send(format!("GET /stream?bytes={} HTTP/1.1\r\n{HEAD}\r\n", 500 << 20));
    assert_eq!(client.head().expect("a head").status, 200);
    let before = dev.memory();
    // Nothing is read for a while: what is made meanwhile would be in memory.
    std::thread::sleep(Duration::from_millis(500));
    let mut most = dev.memory();
    let mut bytes = 0;
    let mut number = 0_usize;
    while let Some(chunk) = client.chunk().expect("a chunk") {
        assert!(chunk.iter().all(|&byte| usize::from(byte) == number % 251), "chunk {number}");
        bytes += chunk.len();
        number += 1;
        if number.is_multiple_of(512) {
            most = most.max(dev.memory());
        }
    }
    assert_eq!(bytes, 500 << 20);
    assert!(most < before + MEMORY_MAX, "{before} bytes became {most}");
}

#[test]
fn an_upload_flows_through_without_staying() {
    let dev = Dev::start("http", 1);
    let size: usize = 300 << 20;
    for path in ["/echo", "/echo-through"] {
        let mut client = dev.open();
        let before = dev.memory();
        let head = format!("POST {path} HTTP/1.1\r\n{HEAD}content-length: {size}\r\n\r\n");
        client.send(head);
        let mut up = client.stream.try_clone().expect("a second handle");
        let sender = std::thread::spawn(move || {
            let mut piece = vec![0; 1 << 20];
            for number in 0..size >> 20 {
                piece.fill(number as u8);
                up.write_all(&piece).expect("the server takes it");
            }
        });
        let reply = client.head().expect("a head");
        assert_eq!(reply.status, 200);
        let is_chunked = reply.header("transfer-encoding").is_some();
        let (mut at, mut most, mut looked) = (0, before, 0);
        let mut room = vec![0; 1 << 20];
        let mut check = |bytes: &[u8]| {
            for &byte in bytes {
                assert_eq!(byte, (at >> 20) as u8, "{path}: byte {at}");
                at += 1;
            }
            if at >> 23 > looked {
                looked = at >> 23;
                most = most.max(dev.memory());
            }
            at
        };
        if is_chunked {
            while let Some(chunk) = client.chunk().expect("a chunk") {
                check(&chunk);
            }
        } else {
            let mut stream = client.stream.try_clone().expect("a second handle");
            let first = client.buffered();
            let mut seen = check(&first);
            while seen < size {
                let read = stream.read(&mut room).expect("the echo");
                assert!(read > 0, "{path}: the echo ended after {seen}");
                seen = check(&room[..read]);
            }
        }
        assert_eq!(at, size, "{path}");
        sender.join().expect("all was sent");
        assert!(most < before + MEMORY_MAX, "{path}: {before} bytes became {most}");
    }
}

#[test]
fn a_client_that_goes_away_is_noticed() {
    let dev = Dev::start("http", 1);
    // In the middle of a response that flows.
    let mut client = dev.open();
    client.send(format!("GET /ticks HTTP/1.1\r\n{HEAD}\r\n"));
    client.head().expect("a head");
    client.chunk().expect("a first piece");
    drop(client);
    wait_for_event(&dev, "ticks: cancelled");
    wait_for_event(&dev, "ticks: signal");
    // Before the response: the handler hears of it, and what it left behind still runs.
    let mut client = dev.open();
    client.send(format!("GET /slow HTTP/1.1\r\n{HEAD}\r\n"));
    std::thread::sleep(Duration::from_millis(50));
    drop(client);
    wait_for_event(&dev, "slow: signal");
    wait_for_event(&dev, "slow: waited");
    // In the middle of an upload.
    let mut client = dev.open();
    client.send(format!("POST /upload-breaks HTTP/1.1\r\n{HEAD}content-length: 1000000\r\n\r\nx"));
    std::thread::sleep(Duration::from_millis(50));
    drop(client);
    wait_for_event(&dev, "upload: Error");
    // What comes after the response runs all the same.
    let started = Instant::now();
    assert_eq!(dev.text("/later"), "now");
    assert!(started.elapsed() < Duration::from_secs(5));
    wait_for_event(&dev, "later: waited");
    assert!(!events(&dev).contains("upload: whole"), "{}", events(&dev));
}

#[test]
fn a_response_that_fails_half_way_is_no_whole_one() {
    let dev = Dev::start("http", 1);
    let mut client = dev.open();
    client.send(format!("GET /half HTTP/1.1\r\n{HEAD}\r\n"));
    assert_eq!(client.head().expect("a head").status, 200);
    assert_eq!(client.chunk().expect("a piece").as_deref(), Some(&b"piece"[..]));
    assert_eq!(client.chunk().expect("a piece").as_deref(), Some(&b"piece"[..]));
    assert!(client.chunk().is_err(), "the last chunk would say that all is there");
    assert_eq!(dev.text("/ok"), "ok");
}

#[test]
fn clients_that_stall_are_cut_off() {
    let dev = Dev::start("http", 1);
    let started = Instant::now();
    let mut silent = dev.open();
    let mut head = dev.open();
    head.send("GET /ok HTTP/1.1\r\nhost: te");
    let mut small = dev.open();
    small.send(format!("POST /show HTTP/1.1\r\n{HEAD}content-length: 9\r\n\r\nhello"));
    let mut large = dev.open();
    large.send(format!("POST /upload-breaks HTTP/1.1\r\n{HEAD}content-length: 1000000\r\n\r\nx"));
    let mut reader = dev.open();
    reader.send(format!("GET /stream?bytes={} HTTP/1.1\r\n{HEAD}\r\n", 100 << 20));
    // All five wait side by side for the 30 seconds that they have. The last may have them twice:
    // what the kernel still finds room for after the first is progress.
    assert_eq!(small.reply("a body that does not come").status, 408);
    assert!(silent.is_closed() && head.is_closed());
    wait_for_event(&dev, "upload: Error");
    wait_for_event(&dev, "stream cancelled");
    let took = started.elapsed();
    assert!(took > Duration::from_secs(29) && took < Duration::from_secs(85), "{took:?}");
    drop((large, reader));
    assert_eq!(dev.text("/ok"), "ok");
}
