//! Connections that move to the shard of the cells that they ask for, seen by their clients: each
//! request is answered once and in order, whatever comes while they move.

use std::time::{Duration, Instant};

use super::raw_http::{Dev, PATIENCE, Raw, wait_for};

const WORKER: &str = "follow";

/// Two cells that are not on the same shard.
fn apart(dev: &Dev) -> [String; 2] {
    let isolate = |cell: &str| dev.json(&format!("/?cell={cell}"))["cell"].clone();
    let first = isolate("0");
    let other = (1..).map(|n| n.to_string()).find(|cell| isolate(cell) != first);
    ["0".to_owned(), other.expect("names have no end")]
}

/// Asks once, and whether the connection is where the cell is.
fn is_near(client: &mut Raw, cell: &str) -> bool {
    let answer = client.get(&format!("/?cell={cell}")).json();
    answer["worker"] == answer["cell"]
}

/// Asks in many ways, until the connection is where the cell is. Returns how often.
fn follow(client: &mut Raw, cell: &str, count: &mut u64) -> u64 {
    let begun = Instant::now();
    let mut asked = 0;
    loop {
        // Several at once, one in pieces, with a body and without, with answers of all sizes.
        let requests: Vec<String> = (0..=asked % 5)
            .map(|n| match (asked + n) % 3 {
                0 => format!("GET /?cell={cell} HTTP/1.1\r\nhost: a\r\n\r\n"),
                1 => format!(
                    "POST /?cell={cell}&padding=70000 HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody"
                ),
                _ => format!(
                    "PUT /?cell={cell} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
                     2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n"
                ),
            })
            .collect();
        let bytes = requests.concat();
        let (first, rest) = bytes.split_at(usize::try_from(asked).expect("few") * 7 % bytes.len());
        client.send(first);
        std::thread::yield_now();
        client.send(rest);
        let mut is_there = false;
        for request in &requests {
            let answer = client.reply(request).json();
            *count += 1;
            asked += 1;
            assert_eq!(answer["count"], *count, "{request}");
            let has_body = !request.starts_with("GET");
            assert_eq!(answer["body"], if has_body { "body" } else { "" });
            is_there = answer["worker"] == answer["cell"];
        }
        if is_there {
            return asked;
        }
        assert!(begun.elapsed() < PATIENCE, "it still has not moved after {asked} requests");
    }
}

#[test]
fn a_connection_goes_where_its_cells_are_and_loses_nothing() {
    let dev = Dev::start(WORKER, 2);
    let cells = apart(&dev);
    let mut counts = cells
        .each_ref()
        .map(|cell| dev.json(&format!("/?cell={cell}"))["count"].as_u64().expect("a count"));
    let mut client = dev.open();
    for round in 0..6 {
        for (cell, count) in cells.iter().zip(&mut counts) {
            let asked = follow(&mut client, cell, count);
            // Wherever it was accepted, only its first cell can have been there already.
            assert!(round == 0 || asked >= 16, "it moved after {asked} requests");
        }
    }
}

#[test]
fn a_body_that_comes_after_its_head_is_waited_for_wherever_the_connection_is() {
    let dev = Dev::start(WORKER, 2);
    let cells = apart(&dev);
    let mut client = dev.open();
    for round in 0..6 {
        let cell = &cells[round % 2];
        let get = format!("GET /?cell={cell}&wait=20 HTTP/1.1\r\nhost: a\r\n\r\n");
        let post = format!("POST /?cell={cell} HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n");
        // One more, so that the streak is full when the GET of a pair is answered.
        client.get(&format!("/?cell={cell}"));
        let begun = Instant::now();
        loop {
            let asked = Instant::now();
            // The head is read before the answer to the GET, and its body comes then.
            client.send(get.clone() + &post);
            std::thread::sleep(Duration::from_millis(5));
            client.send("body");
            let first = client.reply(&get).json();
            assert_eq!(client.reply(&post).json()["body"], "body");
            // What stalls is cut off after half a minute.
            assert!(asked.elapsed() < PATIENCE / 3, "it took {:?}", asked.elapsed());
            if first["worker"] == first["cell"] {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "it has not moved");
        }
    }
}

#[test]
fn no_client_has_the_address_that_it_claims_to_have() {
    let dev = Dev::start(WORKER, 2);
    let [first, second] = apart(&dev);
    for _ in 0..12 {
        let mut client = dev.open();
        wait_for("the connection's move", || is_near(&mut client, &first).then_some(()));
        (0..16).for_each(|_| drop(client.get(&format!("/?cell={second}"))));
        // The next one moves. With a byte more, so that it is served although the client has gone.
        client.send(format!(
            "GET /?cell={second} HTTP/1.1\r\nhost: a\r\ncf-connecting-ip: 6.6.6.6\r\n\r\nX"
        ));
        client.reset();
    }
    let from = dev.json(&format!("/?cell={second}"))["from"].clone();
    assert_eq!(from, serde_json::json!(["127.0.0.1"]));
}

#[test]
fn a_connection_that_has_moved_ends_as_any_other() {
    let dev = Dev::start(WORKER, 2);
    let cells = apart(&dev);
    // By the client's wish, by what it sends, by the end of what it sends, and by the server's end.
    for end in ["close", "malformed", "half", "stop"] {
        let mut client = dev.open();
        for cell in &cells {
            wait_for("the connection's move", || is_near(&mut client, cell).then_some(()));
        }
        match end {
            "close" => {
                client.send("GET /?cell=0 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
                assert_eq!(client.reply(end).status, 200);
            }
            "malformed" => {
                client.send("NOT HTTP\r\n\r\n");
                assert_eq!(client.reply(end).status, 400);
            }
            "half" => {
                client.half_close();
            }
            _ => dev.terminate(),
        }
        assert!(client.is_closed(), "{end}");
    }
}
