//! Links on real sockets with real TLS, between two executors of one process.

mod peers;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use celld_core::time::Micros;
use celld_peer::socket::{Close, Message};
use celld_peer::tunnel::{Received, SendError, SocketReader, SocketWriter};
use celld_peer::{Ask, Call, CallKind, Cause, Code, Fate, Link, Patience, Server, WriteError};
use celld_rt as rt;
use futures_lite::{AsyncReadExt as _, StreamExt as _};
use peers::*;

/// Runs a client beside a fresh server, and then stops the server, which must have let go of
/// everything.
fn with_node<F: Future<Output = ()>>(client: impl FnOnce(Link, std::sync::Arc<Seen>) -> F) {
    let node = Node::start();
    rt::block_on(async {
        let link = node.link();
        client(link.clone(), node.seen.clone()).await;
        until(|| get(&node.seen.running) == 0).await;
        drop(link);
    });
    let ended = node.stop(Stop::Drain);
    assert_eq!((ended.connections, ended.refused), (0, 0), "{ended:?}");
}

/// Shows what is lost, repeated or moved.
fn body(len: usize) -> Bytes {
    (0..len).map(|at| ((at * 31 + at / 251) % 251) as u8).collect()
}

#[test]
fn calls_are_answered_with_and_without_bodies() {
    with_node(|link, _| async move {
        for len in [0, 1, 10_000, 100_000, 5_000_000] {
            let answered = call(&link, ECHO, "head", body(len)).await.expect("an answer");
            assert!(answered == ("head".into(), body(len)), "{len}");
        }
        let answer = link.ask(ask(ECHO, "bare")).await.expect("sent").answer().await;
        let answered = whole(answer.expect("an answer")).await.expect("its body");
        assert_eq!(answered, ("bare".into(), Bytes::new()));
        let long = Bytes::from(vec![b'x'; celld_peer::frame::HEAD_MAX]);
        let answer = link.ask(ask(ECHO, long.clone())).await.expect("sent").answer().await;
        assert!(answer.expect("an answer").head == long);
        let probe = link.probe(Duration::from_secs(30)).await.expect("an answer");
        assert_eq!((probe.resident_cells, probe.node.as_str()), (2, "server"));
    });
}

#[test]
fn bodies_flow_in_both_directions_at_once() {
    with_node(|link, _| async move {
        let (asked, mut writer) = link.ask_with_body(ask(ECHO, "h")).await.expect("sent");
        let mut answer = asked.answer().await.expect("an answer before the body");
        let mut got = Vec::new();
        for round in 0..1_000_usize {
            let piece = body(round % 300 + 1);
            writer.write(piece.clone()).await.expect("the server reads");
            let mut back = Vec::new();
            while back.len() < piece.len() {
                back.extend(answer.body.next().await.expect("a piece").expect("not the end"));
            }
            assert_eq!(back, piece);
            got.extend(back);
        }
        writer.finish();
        assert_eq!(answer.body.next().await, Ok(None));
        assert!(answer.body.is_at_end());
    });
}

#[test]
fn ten_thousand_calls_go_at_once_on_one_connection() {
    with_node(|link, seen| async move {
        let mut tasks = Vec::new();
        for n in 0..10_000_usize {
            let link = link.clone();
            tasks.push(rt::spawn_joined(async move {
                let sent = body(n % 2_000);
                let (head, back) = call(&link, ECHO, "h", sent.clone()).await.expect("an answer");
                assert!(head == "h" && back == sent, "call {n}");
            }));
        }
        for task in tasks {
            task.join().await.expect("no panic");
        }
        assert_eq!(get(&seen.begun), 10_000);
    });
}

#[test]
fn a_reader_that_stalls_bounds_its_writer_and_holds_up_nobody() {
    with_node(|link, seen| async move {
        let asked = link.ask(ask(FLOOD, "h")).await.expect("sent");
        let mut stalled = asked.answer().await.expect("an answer");
        for n in 0..200 {
            call(&link, ECHO, "h", body(n * 100)).await.expect("others go on");
        }
        // A first window, the piece that waits for the next one, and the one before it.
        let bound = 16 * 1024 + 2 * FLOOD_PIECE as u64;
        assert!(get(&seen.flooded) <= bound, "{} bytes", get(&seen.flooded));
        // Once it reads, everything flows, in the order in which it was sent.
        let mut read = 0;
        while read < 20_000_000 {
            let piece = stalled.body.next().await.expect("a piece").expect("no end");
            assert!(piece.iter().all(|&byte| byte == 7));
            read += piece.len();
        }
        drop(stalled);
        until(|| get(&seen.gone) == 1).await;
        let bound = read as u64 + 256 * 1024 + 2 * FLOOD_PIECE as u64;
        assert!(get(&seen.flooded) <= bound, "{} of {read}", get(&seen.flooded));
    });
}

#[test]
fn a_writer_waits_for_a_server_that_does_not_read() {
    with_node(|link, _| async move {
        let (asked, mut writer) = link.ask_with_body(ask(HANG, "h")).await.expect("sent");
        let taken = Rc::new(Cell::new(0_usize));
        let counted = taken.clone();
        let writing = rt::spawn_joined(async move {
            loop {
                if let Err(error) = writer.write(body(10_000)).await {
                    return error;
                }
                counted.set(counted.get() + 10_000);
            }
        });
        for _ in 0..100 {
            call(&link, ECHO, "h", body(100)).await.expect("others go on");
        }
        assert!(taken.get() <= 16 * 1024 + 20_000, "{} bytes", taken.get());
        drop(asked);
        let error = writing.join().await.expect("no panic");
        let WriteError::Over(error) = error else { panic!("{error}") };
        assert_eq!((error.fate, error.cause), (Fate::MayHaveRun, Cause::Closed));
    });
}

#[test]
fn a_storm_of_calls_that_are_given_up_leaves_nothing() {
    with_node(|link, seen| async move {
        // The first opens the connection.
        call(&link, ECHO, "h", Bytes::new()).await.expect("an answer");
        for round in 0..200 {
            let mut kept = Vec::new();
            for n in 0..100 {
                let kind = if n % 2 == 0 { HANG } else { FLOOD };
                let (asked, mut writer) = link.ask_with_body(ask(kind, "h")).await.expect("sent");
                match n % 5 {
                    0 => drop(asked),
                    1 => drop(writer),
                    2 => writer.abort("a client left"),
                    3 => {
                        writer.send(body(5_000));
                        kept.push((asked, Some(writer)));
                    }
                    _ => {
                        writer.finish();
                        kept.push((asked, None));
                    }
                }
            }
            if round % 3 == 0 {
                rt::yield_now().await;
            }
            drop(kept);
        }
        until(|| get(&seen.running) == 0).await;
        call(&link, ECHO, "h", body(10)).await.expect("the connection is of use");
        assert!(link.is_up());
    });
}

#[test]
fn a_deadline_ends_a_call_on_both_sides() {
    with_node(|link, seen| async move {
        call(&link, HASTY, "h", Bytes::new()).await.expect("a connection");
        let mut asks = Vec::new();
        for _ in 0..10 {
            let mut ask = ask(HANG, "h");
            ask.wait = Some(Duration::from_millis(50));
            asks.push(link.ask(ask).await.expect("sent"));
        }
        until(|| get(&seen.begun) == 11).await;
        for asked in asks {
            let error = asked.answer().await.map(|_| ()).expect_err("it hangs");
            assert_eq!((error.fate, &error.cause), (Fate::MayHaveRun, &Cause::Deadline));
            assert_eq!((error.code(), error.retryable()), ("deadline", false));
        }
        until(|| get(&seen.gone) == 10).await;
    });
}

#[test]
fn a_refusal_says_whether_the_call_ran() {
    with_node(|link, _| async move {
        for (n, code, word, ran) in [
            (1_u8, Code::NotOwner, "not_owner", false),
            (2, Code::Busy, "peer_busy", false),
            (3, Code::Draining, "peer_draining", false),
            (4, Code::Unsupported, "call_unsupported", false),
            (5, Code::Failed, "call_failed", true),
            (6, Code::Forbidden, "call_forbidden", false),
            (7, Code::Broken, "body_broken", true),
        ] {
            let asked = link.ask(ask(REFUSED, vec![n])).await.expect("sent");
            let error = asked.answer().await.map(|_| ()).expect_err("refused");
            let Cause::Refused(refusal) = &error.cause else { panic!("{error}") };
            assert_eq!((refusal.code, refusal.words.as_str()), (code, "as it was asked"));
            assert_eq!((error.code(), error.fate == Fate::MayHaveRun), (word, ran));
            let is_vain = matches!(code, Code::Unsupported | Code::Forbidden);
            assert_eq!(error.retryable(), !ran && !is_vain);
        }
        let asked = link.ask(ask(CallKind(200), "h")).await.expect("sent");
        let error = asked.answer().await.map(|_| ()).expect_err("no such call");
        assert_eq!((error.code(), error.retryable()), ("call_unsupported", false));
    });
}

#[test]
fn a_handler_that_panics_or_forgets_ends_its_call_and_no_other() {
    with_node(|link, _| async move {
        let other = link.ask(ask(HANG, "h")).await.expect("sent");
        for kind in [DROPPED, PANICS] {
            let asked = link.ask(ask(kind, "h")).await.expect("sent");
            let error = asked.answer().await.map(|_| ()).expect_err("no answer");
            assert_eq!((error.code(), error.fate), ("call_failed", Fate::MayHaveRun));
        }
        call(&link, ECHO, "h", body(10)).await.expect("an answer");
        drop(other);
    });
}

#[test]
fn what_breaks_off_never_looks_whole() {
    with_node(|link, seen| async move {
        let (asked, mut writer) = link.ask_with_body(ask(LENGTH, "h")).await.expect("sent");
        writer.write(body(100_000)).await.expect("the server reads");
        until(|| get(&seen.begun) == 1).await;
        writer.abort("the client left");
        let error = asked.answer().await.map(|_| ()).expect_err("it was given up");
        assert_eq!(error.cause, Cause::Closed);
        until(|| get(&seen.gone) == 1).await;

        let (asked, writer) = link.ask_with_body(ask(BREAKS, "h")).await.expect("sent");
        writer.finish();
        let mut answer = asked.answer().await.expect("an answer");
        assert_eq!(answer.body.next().await, Ok(Some("first".into())));
        let error = answer.body.next().await.expect_err("it broke");
        assert!(error.to_string().contains("the disk is on fire"), "{error}");
        assert_eq!((error.code(), error.retryable()), ("call_failed", false));
    });
}

#[test]
fn an_answer_may_come_before_the_end_of_its_question() {
    with_node(|link, _| async move {
        let (asked, mut writer) = link.ask_with_body(ask(HASTY, "h")).await.expect("sent");
        assert_eq!(asked.answer().await.expect("an answer").head, "h");
        let error = loop {
            if let Err(error) = writer.write(body(10_000)).await {
                break error;
            }
        };
        assert_eq!(error, WriteError::Stopped);
    });
}

#[test]
fn a_websocket_keeps_its_order_and_closes_once() {
    with_node(|link, seen| async move {
        let open = async |link: &Link| {
            let (asked, writer) = link.ask_with_body(ask(SOCKET, "h")).await.expect("sent");
            let answer = asked.answer().await.expect("an answer");
            (SocketReader::new(answer.body), SocketWriter::new(writer))
        };
        let (mut reader, mut writer) = open(&link).await;
        let message = |n: usize| match n % 3 {
            0 => Message::Text(format!("number {n}").into()),
            1 => Message::Binary(body(n)),
            _ => Message::Binary(body(n * 300)),
        };
        let writing = rt::spawn_joined(async move {
            for n in 0..1_000 {
                writer.send(&message(n)).await.expect("the server reads");
            }
            let close = Close { code: Some(4_001), reason: "done".into() };
            writer.close(close).await.expect("the server reads");
        });
        for n in 0..1_000 {
            assert!(reader.next().await == Some(Received::Message(message(n))), "{n}");
        }
        let close = Close { code: Some(4_001), reason: "done".into() };
        assert_eq!(reader.next().await, Some(Received::Closed(close)));
        assert_eq!(reader.next().await, None);
        writing.join().await.expect("no panic");

        let (mut reader, writer) = open(&link).await;
        writer.break_off("a client fell off the net");
        let Some(Received::Broken(error)) = reader.next().await else { panic!("it broke") };
        assert_eq!(error.cause, Cause::Closed);
        assert_eq!(reader.next().await, None);
        until(|| get(&seen.gone) == 1).await;

        let (_reader, mut writer) = open(&link).await;
        let long = Message::Binary(Bytes::from(vec![0; (32 << 20) + 1]));
        let error = writer.send(&long).await.expect_err("too long");
        assert!(matches!(error, SendError::Message(_)), "{error}");
    });
}

#[test]
fn a_server_that_drains_finishes_what_it_has_and_takes_no_more() {
    let mut node = Node::start();
    let at = node.at;
    rt::block_on(async {
        let link = node.link();
        let (asked, mut writer) = link.ask_with_body(ask(ECHO, "h")).await.expect("sent");
        let mut answer = asked.answer().await.expect("an answer");
        node.tell(Stop::Drain);
        // It lets go of the port, and says farewell on the connection, in its own time.
        let error = loop {
            match call(&link, HASTY, "h", Bytes::new()).await {
                Ok(_) => rt::sleep(Duration::from_millis(1)).await,
                Err(error) => break error,
            }
        };
        assert_eq!((error.fate, error.retryable()), (Fate::NotSent, true), "{error}");
        assert!(["peer_draining", "peer_unreachable"].contains(&error.code()), "{error}");
        writer.write(body(1_000)).await.expect("what is here goes on");
        let piece = answer.body.next().await.expect("a piece");
        assert_eq!(piece, Some(body(1_000)));
        writer.finish();
        assert_eq!(answer.body.next().await, Ok(None));
        drop(answer);
        let ended = node.ended();
        assert_eq!(ended.connections, 0);
        assert!(!link.is_up());
        // Another one at its place is found by itself.
        let node = Node::start_at(at, 1, Patience::NORMAL);
        loop {
            match call(&link, ECHO, "h", body(9)).await {
                Ok((_, back)) => break assert_eq!(back, body(9)),
                Err(error) => assert!(error.retryable(), "{error}"),
            }
            rt::sleep(Duration::from_millis(5)).await;
        }
        drop(link);
        node.stop(Stop::Drain);
    });
}

#[test]
fn calls_on_a_connection_that_is_cut_may_have_run() {
    let mut node = Node::start();
    rt::block_on(async {
        let link = node.link();
        let asked = link.ask(ask(HANG, "h")).await.expect("sent");
        until(|| get(&node.seen.begun) == 1).await;
        node.tell(Stop::Cut);
        let error = asked.answer().await.map(|_| ()).expect_err("it was cut");
        assert_eq!((error.code(), error.fate), ("peer_lost", Fate::MayHaveRun));
        assert!(!error.retryable());
        node.ended();
    });
}

#[test]
fn a_link_that_is_cut_here_ends_its_calls_and_opens_again() {
    with_node(|link, _| async move {
        let asked = link.ask(ask(HANG, "h")).await.expect("sent");
        link.cut();
        let error = asked.answer().await.map(|_| ()).expect_err("it was cut");
        assert_eq!((error.code(), error.fate), ("link_closed", Fate::NotSent), "never sent");
        call(&link, ECHO, "h", body(9)).await.expect("a new connection");
        let asked = link.ask(ask(HANG, "h")).await.expect("sent");
        call(&link, ECHO, "h", body(9)).await.expect("so the other one was sent, too");
        link.cut();
        let error = asked.answer().await.map(|_| ()).expect_err("it was cut");
        assert_eq!((error.code(), error.fate), ("link_closed", Fate::MayHaveRun));
    });
}

#[test]
fn a_link_that_is_cut_while_it_opens_ends_what_waits_and_opens_again() {
    rt::block_on(async {
        // Like a process that stands still: its kernel takes connections, and nobody speaks.
        let silent = rt::net::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let at = silent.local_addr().expect("an address");
        let link = Link::new(identity(&fleet(1), "client"), address(at));
        let asks = |n: usize| {
            let asked = |_| {
                let link = link.clone();
                rt::spawn_joined(async move { link.ask(ask(ECHO, "h")).await.map(drop) })
            };
            (0..n).map(asked).collect::<Vec<_>>()
        };
        for _ in 0..3 {
            assert!(!link.is_in_use());
            let waiting = asks(5);
            // The greeting is on its way, for which the link would wait for long.
            let mut theirs = rt::net::accept(&silent).await;
            assert!(link.is_in_use() && !link.is_up());
            link.cut();
            assert!(!link.is_in_use());
            // One that comes before those have heard of it begins anew.
            let later = asks(1);
            let _second = rt::net::accept(&silent).await;
            for waiting in waiting {
                let error = waiting.join().await.expect("no panic").expect_err("nobody is there");
                assert_eq!((error.fate, &error.cause), (Fate::NotSent, &Cause::Closed), "{error}");
            }
            // Nothing goes on.
            theirs.read_to_end(&mut Vec::new()).await.expect("the end of the connection");
            link.cut();
            for later in later {
                assert!(later.join().await.expect("no panic").is_err());
            }
        }
        drop(silent);
        // A node takes its place.
        let node = Node::start_at(at, 1, Patience::NORMAL);
        assert!(call(&link, ECHO, "h", body(10)).await.is_ok());
        drop(link);
        node.stop(Stop::Drain);
    });
}

#[test]
fn a_link_that_rests_is_closed_and_opened_again() {
    let node = Node::start();
    rt::block_on(async {
        let patience = Patience { idle: Micros::from_millis(100), ..Patience::NORMAL };
        let link = Link::with_patience(identity(&fleet(1), "client"), node.address(), patience);
        call(&link, ECHO, "h", body(9)).await.expect("an answer");
        assert!(link.is_up());
        until(|| !link.is_up()).await;
        call(&link, ECHO, "h", body(9)).await.expect("an answer");
    });
    node.stop(Stop::Drain);
}

#[test]
fn a_link_to_a_shard_is_served_by_that_one() {
    let answer = |name: &'static str| {
        move |call: Call| async move {
            call.reply.send(Bytes::from_static(name.as_bytes())).expect("a short head");
        }
    };
    let (mut sender, mut passed) = rt::mpsc::channel(4);
    let other = move || async move {
        let server = Server::new(identity(&fleet(1), "server"));
        let mut many = 0;
        while let Some(passed) = passed.next().await {
            server.adopt(passed, answer("one"));
            many += 1;
        }
        server.drain().await;
        many
    };
    let floating = rt::Placement::Floating;
    let other = rt::spawn_thread("other", floating, other).expect("a thread");
    rt::block_on(async {
        let server = Server::new(identity(&fleet(1), "server"));
        let way = RefCell::new(sender.clone());
        server.place(0, move |shard, passed| match shard {
            1 => way.borrow_mut().try_send(passed).err().map(|error| error.into_inner()),
            _ => Some(passed),
        });
        let listener = rt::net::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let at = listener.local_addr().expect("an address");
        let serving = server.clone();
        rt::spawn(async move { serving.serve(listener, answer("zero")).await });
        let client = identity(&fleet(1), "client");
        // There is no shard 2.
        let to = |shard| Link::to_shard(client.clone(), address(at), shard);
        let links = [to(0), to(1), to(2), Link::new(client.clone(), address(at))];
        for (link, name) in links.iter().zip(["zero", "one", "zero", "zero"]) {
            for _ in 0..3 {
                let answer = link.ask(ask(ECHO, "h")).await.expect("sent").answer().await;
                assert_eq!(answer.expect("an answer").head, name);
            }
        }
        assert_eq!(server.connections(), 3);
        sender.close_channel();
        // Both have said farewell, and every call has its answer.
        drop(links);
        server.drain().await;
    });
    assert_eq!(other.join().expect("no panic"), Some(1));
}

#[test]
fn links_that_open_at_once_are_all_let_in() {
    let node = Node::start();
    rt::block_on(async {
        let identity = identity(&fleet(1), "client");
        let asked = (0..200).map(|_| {
            let link = Link::new(identity.clone(), node.address());
            rt::spawn_joined(async move { link.ask(ask(HASTY, "h")).await?.answer().await })
        });
        for asked in asked.collect::<Vec<_>>() {
            asked.join().await.expect("no panic").map(|_| ()).expect("an answer");
        }
    });
    let ended = node.stop(Stop::Drain);
    assert_eq!(ended.refused, 0, "{ended:?}");
}

#[test]
fn a_short_body_is_there_when_its_call_is() {
    rt::block_on(async {
        let server = Server::new(identity(&fleet(1), "server"));
        let listener = rt::net::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let at = listener.local_addr().expect("an address");
        let serving = server.clone();
        let answer = |call: Call| {
            // Before anything is waited for, so that the next call cannot come before this one.
            let head = if call.body.has_come() { "all of it" } else { "a part" };
            async move { call.reply.send(head.into()).expect("a short head") }
        };
        rt::spawn(async move { serving.serve(listener, answer).await });
        let link = Link::new(identity(&fleet(1), "client"), address(at));
        for (len, head) in
            [(0, "all of it"), (1, "all of it"), (10_000, "all of it"), (100_000, "a part")]
        {
            let answered = call(&link, ECHO, "h", body(len)).await.expect("an answer");
            assert_eq!(answered.0, head, "{len} bytes");
        }
        drop(link);
        server.drain().await;
    });
}

#[test]
fn calls_that_come_while_a_connection_opens_stay_in_order() {
    rt::block_on(async {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let server = Server::new(identity(&fleet(1), "server"));
        let listener = rt::net::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let at = listener.local_addr().expect("an address");
        let (serving, there) = (server.clone(), seen.clone());
        let answer = move |call: Call| {
            there.borrow_mut().push(call.head.clone());
            async move { call.reply.send(Bytes::new()).expect("a short head") }
        };
        rt::spawn(async move { serving.serve(listener, answer).await });
        let link = Link::new(identity(&fleet(1), "client"), address(at));
        let send = |n: u8| {
            let link = link.clone();
            let ask = Ask { kind: ECHO, head: Bytes::from(vec![n]), wait: None };
            rt::spawn_joined(async move { link.ask(ask).await.expect("sent").answer().await })
        };
        // Some wait for the connection, and some come as soon as it is there.
        let mut sent: Vec<_> = (0..50).map(send).collect();
        until_next(|| link.is_up()).await;
        sent.extend((50..60).map(send));
        rt::yield_now().await;
        sent.extend((60..70).map(send));
        for sent in sent {
            sent.join().await.expect("no panic").map(|_| ()).expect("an answer");
        }
        let heads: Vec<u8> = seen.borrow().iter().flat_map(|head| head.to_vec()).collect();
        assert_eq!(heads, (0..70).collect::<Vec<_>>());
        drop(link);
        server.drain().await;
    });
}

/// Until it is so, and no task later than that.
async fn until_next(is_so: impl Fn() -> bool) {
    while !is_so() {
        rt::yield_now().await;
    }
}
