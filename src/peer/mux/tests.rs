//! What the machine promises, one promise at a time. [`super::sim`] plays whole lives.

use super::*;
use crate::frame::{CREDIT_MAX, decode};

const KIND: CallKind = CallKind(1);

fn mux(side: Side) -> Mux {
    Mux::new(side, Patience::NORMAL, Mono::default())
}

fn head(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// Both ends, and a wire without delay.
struct Pair {
    caller: Mux,
    answerer: Mux,
    events: VecDeque<Event>,
}

impl Pair {
    fn new() -> Self {
        let (caller, answerer) = (mux(Side::Caller), mux(Side::Answerer));
        Self { caller, answerer, events: VecDeque::new() }
    }

    /// Carries all that is to be sent, and returns what happened.
    fn carry(&mut self) -> Vec<Event> {
        let now = Mono::default();
        loop {
            let (mut there, mut back) = (Vec::new(), Vec::new());
            self.caller.fill(&mut there, usize::MAX, &mut self.events);
            self.answerer.receive(&there, now, &mut self.events).expect("our own frames");
            self.answerer.fill(&mut back, usize::MAX, &mut self.events);
            self.caller.receive(&back, now, &mut self.events).expect("our own frames");
            if there.is_empty() && back.is_empty() {
                return self.events.drain(..).collect();
            }
        }
    }

    fn open(&mut self, more: More) -> CallId {
        self.caller.open(KIND, 0, head("q"), more).expect("an idle connection")
    }
}

fn sent(mux: &mut Mux) -> Vec<u8> {
    let mut out = Vec::new();
    mux.fill(&mut out, usize::MAX, &mut VecDeque::new());
    out
}

fn fed(mux: &mut Mux, frames: &[Frame<'_>]) -> Result<VecDeque<Event>, FrameError> {
    let mut events = VecDeque::new();
    for frame in frames {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).expect("a frame that fits");
        mux.receive(&bytes, Mono::default(), &mut events)?;
    }
    Ok(events)
}

fn opening(call: u64, more: More) -> Frame<'static> {
    Frame::Open { call: CallId(call), kind: KIND, more, wait_ms: 0, head: b"q" }
}

fn body(len: usize) -> Bytes {
    Bytes::from(vec![7; len])
}

#[test]
fn a_small_call_is_two_frames_and_leaves_nothing() {
    let mut pair = Pair::new();
    let call = pair.caller.open(KIND, 30, head("q"), More::End).expect("idle");
    let opened = Event::Opened { call, kind: KIND, more: More::End, wait_ms: 30, head: head("q") };
    assert_eq!(pair.carry(), [opened]);
    pair.answerer.reply(call, head("a"), More::End).expect("short");
    assert_eq!(pair.carry(), [Event::Replied { call, more: More::End, head: head("a") }]);
    assert!(pair.caller.is_idle() && pair.answerer.is_idle());
}

#[test]
fn a_body_that_nobody_reads_stops_at_its_window() {
    let mut pair = Pair::new();
    let call = pair.open(More::Follows);
    pair.caller.send(call, body(1 << 20)).expect("open");
    let come = |events: Vec<Event>| -> usize {
        let len = |event: &Event| match event {
            Event::Data { bytes, .. } => bytes.len(),
            _ => 0,
        };
        events.iter().map(len).sum()
    };
    assert_eq!(come(pair.carry()), WINDOW_FIRST as usize);
    assert_eq!(come(pair.carry()), 0);
    // What is read is replaced, and a body that uses its window up gets a wider one.
    let mut window = WINDOW_FIRST as usize;
    while window < WINDOW_WIDE as usize {
        pair.answerer.consumed(call, window);
        window *= 2;
        assert_eq!(come(pair.carry()), window);
    }
    pair.answerer.consumed(call, window);
    assert_eq!(come(pair.carry()), window, "and no wider");
    pair.answerer.consumed(call, 10);
    assert_eq!(come(pair.carry()), 0, "not worth a frame");
    pair.answerer.consumed(call, WINDOW_WIDE as usize / 2);
    assert_eq!(come(pair.carry()), WINDOW_WIDE as usize / 2 + 10);
}

#[test]
fn one_reader_that_stalls_does_not_hold_up_another() {
    let mut pair = Pair::new();
    let (stalled, read) = (pair.open(More::Follows), pair.open(More::Follows));
    pair.caller.send(stalled, body(1 << 20)).expect("open");
    pair.caller.send(read, body(1 << 20)).expect("open");
    pair.caller.end(read);
    let mut got = 0;
    loop {
        let mut ended = false;
        for event in pair.carry() {
            if let Event::Data { call, bytes, more } = event
                && call == read
            {
                got += bytes.len();
                pair.answerer.consumed(read, bytes.len());
                ended |= more == More::End;
            }
        }
        if ended {
            break;
        }
    }
    assert_eq!(got, 1 << 20);
}

#[test]
fn wide_windows_have_a_common_bound() {
    let mut pair = Pair::new();
    let calls: Vec<_> = (0..100).map(|_| pair.open(More::Follows)).collect();
    for &call in &calls {
        pair.caller.send(call, body(1 << 20)).expect("open");
    }
    let mut unread = 0_usize;
    for round in 0..6 {
        for event in pair.carry() {
            if let Event::Data { call, bytes, .. } = event {
                if round < 5 {
                    pair.answerer.consumed(call, bytes.len());
                } else {
                    unread += bytes.len();
                }
            }
        }
    }
    let bound = calls.len() * WINDOW_FIRST as usize + WIDE_MAX as usize;
    assert!(unread <= bound && unread > bound / 2, "{unread} of {bound}");
}

#[test]
fn calls_take_turns() {
    let mut pair = Pair::new();
    let large = pair.open(More::Follows);
    pair.caller.send(large, body(1 << 20)).expect("open");
    let small = pair.open(More::End);
    let bytes = sent(&mut pair.caller);
    let (mut at, mut order) = (0, Vec::new());
    while let Some((frame, len)) = decode(&bytes[at..]).expect("our own") {
        order.push(match frame {
            Frame::Open { call, .. } | Frame::Chunk { call, .. } => call,
            other => panic!("{other:?}"),
        });
        at += len;
    }
    assert_eq!(order, [large, large, small, large]);
}

#[test]
fn what_was_never_sent_surely_did_not_run() {
    let mut pair = Pair::new();
    let sent_one = pair.open(More::End);
    pair.carry();
    let waiting = pair.open(More::End);
    let given_up = pair.open(More::End);
    assert_eq!(pair.caller.reset(given_up, Refusal::new(Code::Gone, "")), Fate::NotSent);
    let fates: Vec<_> = pair.caller.close().collect();
    assert_eq!(fates, [(sent_one, Fate::MayHaveRun), (waiting, Fate::NotSent)]);
}

#[test]
fn a_call_given_up_before_it_was_sent_is_never_sent() {
    let mut pair = Pair::new();
    let call = pair.open(More::End);
    pair.caller.reset(call, Refusal::new(Code::Gone, ""));
    assert_eq!(pair.carry(), []);
    assert_eq!(pair.caller.heads, 0);
}

#[test]
fn either_side_ends_a_call_at_once() {
    let gone = Refusal::new(Code::Gone, "the client left");
    let failed = Refusal::new(Code::Failed, "it broke");
    let mut pair = Pair::new();
    let (one, two) = (pair.open(More::Follows), pair.open(More::Follows));
    pair.carry();
    assert_eq!(pair.caller.reset(one, gone.clone()), Fate::MayHaveRun);
    pair.answerer.reset(two, failed.clone());
    let mut events = pair.carry();
    events.sort_by_key(|event| match event {
        Event::Over { call, .. } => call.0,
        other => panic!("{other:?}"),
    });
    let over = |call, refusal| Event::Over { call, refusal };
    assert_eq!(events, [over(one, gone), over(two, failed)]);
    assert!(pair.caller.is_idle() && pair.answerer.is_idle());
    // Nothing is sent of what is over, and nothing breaks.
    assert_eq!(pair.caller.send(one, body(1)), Err(NotWanted));
    pair.answerer.reply(two, head("late"), More::End).expect("short");
    pair.answerer.consumed(one, 1);
    assert_eq!(pair.carry(), []);
}

#[test]
fn a_body_that_fails_ends_its_call_after_what_was_sent() {
    let broken = Refusal::new(Code::Broken, "how");
    let over = |call| Event::Over { call, refusal: broken.clone() };
    for len in [0, 10, WINDOW_FIRST as usize + 10] {
        let mut pair = Pair::new();
        let call = pair.open(More::Follows);
        pair.carry();
        pair.answerer.reply(call, head("a"), More::Follows).expect("short");
        if len > 0 {
            pair.answerer.send(call, body(len)).expect("open");
        }
        pair.answerer.fail(call, broken.clone());
        let mut events = pair.carry();
        if len > WINDOW_FIRST as usize {
            assert!(!events.contains(&over(call)), "{events:?}");
            pair.caller.consumed(call, WINDOW_FIRST as usize);
            events.extend(pair.carry());
        }
        let come = events.iter().map(|event| match event {
            Event::Data { more: More::Follows, bytes, .. } => bytes.len(),
            _ => 0,
        });
        assert_eq!(come.sum::<usize>(), len);
        assert!(events.contains(&Event::Replied { call, more: More::Follows, head: head("a") }));
        // Here and there; nothing comes after it there.
        assert_eq!(events.iter().filter(|event| **event == over(call)).count(), 2, "{events:?}");
        assert_eq!(events.last(), Some(&over(call)));
        assert!(pair.caller.is_idle() && pair.answerer.is_idle());
        pair.answerer.fail(call, broken.clone());
        assert_eq!(pair.carry(), []);
    }
}

#[test]
fn an_answer_may_end_before_its_question() {
    let mut pair = Pair::new();
    let call = pair.open(More::Follows);
    pair.carry();
    pair.answerer.reply(call, head("no"), More::End).expect("short");
    pair.answerer.drop_reader(call);
    let events = pair.carry();
    assert!(events.contains(&Event::Stopped(call)), "{events:?}");
    assert_eq!(pair.caller.send(call, body(1)), Err(NotWanted));
    assert!(pair.caller.is_idle() && pair.answerer.is_idle());
}

#[test]
fn too_many_calls_are_refused_on_both_sides() {
    let mut caller = mux(Side::Caller);
    for _ in 0..CALLS_MAX {
        caller.open(KIND, 0, head("q"), More::End).expect("room");
    }
    let full = caller.open(KIND, 0, head("q"), More::End);
    assert_eq!(full, Err(OpenError::Busy("too many calls are under way")));

    let mut answerer = mux(Side::Answerer);
    for call in 1..=CALLS_MAX as u64 {
        fed(&mut answerer, &[opening(call, More::End)]).expect("room");
    }
    let call = CallId(CALLS_MAX as u64 + 1);
    assert_eq!(fed(&mut answerer, &[opening(call.0, More::End)]).expect("a refusal").len(), 0);
    let mut refused = Vec::new();
    let refusal = Refusal::new(Code::Busy, "too many calls are under way");
    Frame::Reset { call, refusal }.encode(&mut refused).expect("short");
    assert_eq!(sent(&mut answerer), refused);
}

#[test]
fn heads_that_wait_are_bounded() {
    let mut caller = mux(Side::Caller);
    let long = Bytes::from(vec![0; HEAD_MAX]);
    let fit = HEADS_MAX / HEAD_MAX;
    for _ in 0..fit {
        caller.open(KIND, 0, long.clone(), More::End).expect("room");
    }
    let full = caller.open(KIND, 0, long.clone(), More::End);
    assert_eq!(full, Err(OpenError::Busy("too many calls wait to be sent")));
    sent(&mut caller);
    caller.open(KIND, 0, long, More::End).expect("room again");
    let longer = Bytes::from(vec![0; HEAD_MAX + 1]);
    assert!(matches!(caller.open(KIND, 0, longer, More::End), Err(OpenError::Head(_))));
}

#[test]
fn calls_that_are_given_up_leave_no_trace() {
    let mut caller = mux(Side::Caller);
    for _ in 0..100_000 {
        let call = caller.open(KIND, 0, head("q"), More::End).expect("room");
        caller.reset(call, Refusal::new(Code::Gone, ""));
    }
    assert!(caller.ready.len() < 200 && caller.notes.is_empty() && caller.heads == 0);
}

#[test]
fn a_side_that_does_not_read_answers_is_not_read() {
    let mut answerer = mux(Side::Answerer);
    let mut call = 0;
    while answerer.wants_bytes() {
        call += 1;
        fed(&mut answerer, &[opening(call, More::End)]).expect("a call");
        answerer.reset(CallId(call), Refusal::new(Code::Busy, "full"));
        assert!(call < 10_000);
    }
    sent(&mut answerer);
    assert!(answerer.wants_bytes());
}

#[test]
fn a_farewell_tells_which_calls_did_not_run() {
    let mut pair = Pair::new();
    let served = pair.open(More::End);
    pair.carry();
    pair.answerer.go_away();
    let refused = pair.open(More::End);
    // Both cross on the wire.
    let there = sent(&mut pair.caller);
    let mut events = VecDeque::new();
    pair.answerer.receive(&there, Mono::default(), &mut events).expect("our own");
    assert!(events.is_empty(), "it does not run: {events:?}");
    let told = pair.carry();
    let refusal = Refusal::new(Code::Draining, "the node is stopping");
    assert_eq!(told, [Event::Over { call: refused, refusal }, Event::GoneAway]);
    assert_eq!(pair.caller.open(KIND, 0, head("q"), More::End), Err(OpenError::Draining));
    pair.answerer.reply(served, head("a"), More::End).expect("short");
    assert_eq!(pair.carry().len(), 1);
    assert!(pair.caller.is_idle() && pair.answerer.is_idle());
}

#[test]
fn silence_is_asked_about_and_then_ends_the_connection() {
    let mut caller = mux(Side::Caller);
    let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
    assert_eq!(caller.tick(at(4)), Ok(()));
    assert!(sent(&mut caller).is_empty());
    assert_eq!(caller.tick(at(5)), Ok(()));
    assert_eq!(caller.tick(at(6)), Ok(()));
    let ping = sent(&mut caller);
    assert_eq!(ping.len(), HEADER_LEN, "one ping");
    let mut answerer = mux(Side::Answerer);
    answerer.receive(&ping, at(50), &mut VecDeque::new()).expect("a ping");
    let pong = sent(&mut answerer);
    assert_eq!(caller.tick(at(59)), Ok(()));
    caller.receive(&pong, at(59), &mut VecDeque::new()).expect("a pong");
    assert_eq!(caller.tick(at(60)), Ok(()));
    assert_eq!(caller.tick(at(119)), Err(Silent));
}

#[test]
fn a_flood_of_pings_is_answered_once() {
    let mut answerer = mux(Side::Answerer);
    let pings: Vec<_> = (0..1_000).map(Frame::Ping).collect();
    fed(&mut answerer, &pings).expect("pings");
    assert_eq!(sent(&mut answerer).len(), HEADER_LEN);
}

#[test]
fn what_breaks_the_order_of_a_call_ends_the_connection() {
    let call = CallId(1);
    let ours = || Frame::Open { call, kind: KIND, more: More::Follows, wait_ms: 0, head: b"q" };
    let chunk =
        |len: usize| Frame::Chunk { call, more: More::Follows, bytes: &[7; CHUNK_MAX][..len] };
    let end = || Frame::Chunk { call, more: More::End, bytes: b"" };
    let reply = || Frame::Reply { call, more: More::Follows, head: b"a" };
    let reset = |code| Frame::Reset { call, refusal: Refusal::new(code, "") };
    let credit = |bytes| Frame::Credit { call, bytes };
    let to_answerer = [
        (vec![opening(0, More::End)], "opened twice, or out of turn"),
        (vec![ours(), ours()], "opened twice, or out of turn"),
        (vec![chunk(1)], "never opened"),
        (vec![ours(), end(), chunk(1)], "after its end"),
        (vec![ours(), end(), end()], "after its end"),
        (vec![ours(), chunk(CHUNK_MAX), chunk(CHUNK_MAX)], "more of a body than"),
        (vec![ours(), reply()], "only the other side"),
        (vec![ours(), Frame::Stop { call }], "only the other side"),
        (vec![Frame::GoAway { last: 0 }], "only the other side"),
        (vec![ours(), credit(CREDIT_MAX)], "more credit"),
        (vec![ours(), reset(Code::Failed)], "as only answerers do"),
    ];
    for (frames, told) in to_answerer {
        let error = fed(&mut mux(Side::Answerer), &frames).expect_err(told).to_string();
        assert!(error.contains(told), "{error}: not {told}");
    }
    let to_caller = [
        (vec![ours()], "only the other side"),
        (vec![chunk(1)], "before its head"),
        (vec![reply(), reply()], "answered twice"),
        (vec![Frame::Reply { call: CallId(3), more: More::End, head: b"" }], "never opened"),
        (vec![Frame::Reply { call: CallId(2), more: More::End, head: b"" }], "never opened"),
        (vec![Frame::Stop { call }, Frame::Stop { call }], "stopped twice"),
        (vec![reply(), reset(Code::Busy)], "said not to have run"),
        (vec![Frame::GoAway { last: 1 }, Frame::GoAway { last: 1 }], "second farewell"),
    ];
    for (frames, told) in to_caller {
        let mut caller = mux(Side::Caller);
        caller.open(KIND, 0, head("q"), More::Follows).expect("idle");
        sent(&mut caller);
        // Opened here, and never sent.
        caller.open(KIND, 0, head("q"), More::Follows).expect("idle");
        let error = fed(&mut caller, &frames).expect_err(told).to_string();
        assert!(error.contains(told), "{error}: not {told}");
    }
}
