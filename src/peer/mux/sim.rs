//! Whole lives of a connection: both ends, any order of wishes and of arrival, any cut of the
//! bytes; and peers with a planted fault, which the checks must see.

use std::collections::VecDeque;

use bytes::Bytes;
use celld_core::time::Mono;
use proptest::prelude::*;

use super::*;
use crate::frame::decode;

const KIND: CallKind = CallKind(9);
/// Rounds in which everything must come to its end, once both sides want it to.
const ROUNDS_MAX: usize = 20_000;

/// What happens next. Numbers pick one of what there is.
#[derive(Clone, Debug)]
enum Op {
    Open { len: usize, more: bool },
    Reply { pick: usize, len: usize, more: bool },
    Send { side: Side, pick: usize, len: usize },
    End { side: Side, pick: usize },
    Read { side: Side, pick: usize, len: usize },
    DropReader { side: Side, pick: usize },
    DropWriter { side: Side, pick: usize },
    Reset { side: Side, pick: usize },
    Fill { side: Side, len: usize },
    Arrive { side: Side, len: usize },
    GoAway,
}

/// What one side knows of one call.
#[derive(Debug, Default)]
struct View {
    is_open: bool,
    head_came: bool,
    head_sent: bool,
    sent: usize,
    can_send: bool,
    ended: bool,
    got: usize,
    unread: usize,
    got_end: bool,
    reads: bool,
}

struct World {
    caller: Mux,
    answerer: Mux,
    /// Bytes on their way to the answerer, and to the caller.
    there: VecDeque<u8>,
    back: VecDeque<u8>,
    /// By the number of the call, from 1.
    calls: Vec<[View; 2]>,
    fault: Fault,
    harmed: usize,
}

/// What a faulty peer or wire does to the frames of the answerer. Each is one that only a check
/// of the whole sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    LosesCredits,
    LosesPieces,
    RepeatsPieces,
    LosesEnds,
    LosesResets,
    LosesStops,
    CreditsTwice,
    SwapsCalls,
}

fn index(side: Side) -> usize {
    match side {
        Side::Caller => 0,
        Side::Answerer => 1,
    }
}

fn other(side: Side) -> Side {
    match side {
        Side::Caller => Side::Answerer,
        Side::Answerer => Side::Caller,
    }
}

/// The byte at `at` of the body that `side` sends in `call`: shows what is lost, moved or foreign.
fn byte(call: usize, side: Side, at: usize) -> u8 {
    ((at * 31 + at / 251 + call * 17 + index(side) * 7) % 251) as u8
}

fn head_of(call: usize, side: Side, len: usize) -> Bytes {
    (0..len + 2).map(|at| byte(call, side, at)).collect()
}

impl World {
    fn new(fault: Fault) -> Self {
        let mux = |side| Mux::new(side, Patience::NORMAL, Mono::default());
        Self {
            caller: mux(Side::Caller),
            answerer: mux(Side::Answerer),
            there: VecDeque::new(),
            back: VecDeque::new(),
            calls: Vec::new(),
            fault,
            harmed: 0,
        }
    }

    fn mux(&mut self, side: Side) -> &mut Mux {
        match side {
            Side::Caller => &mut self.caller,
            Side::Answerer => &mut self.answerer,
        }
    }

    /// One of the calls that `side` has open.
    fn pick(&self, side: Side, pick: usize) -> Option<usize> {
        let open = self.open_calls(side);
        (!open.is_empty()).then(|| open[pick % open.len()])
    }

    /// Neither given up nor all done: what is done is not undone by a reset.
    fn open_calls(&self, side: Side) -> Vec<usize> {
        let mux = match side {
            Side::Caller => &self.caller,
            Side::Answerer => &self.answerer,
        };
        let is_open = |&n: &usize| {
            self.calls[n][index(side)].is_open && mux.calls.contains_key(&(n as u64 + 1))
        };
        (0..self.calls.len()).filter(is_open).collect()
    }

    fn act(&mut self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Open { len, more } => self.open(len, more),
            Op::Reply { pick, len, more } => self.reply(pick, len, more),
            Op::Send { side, pick, len } => self.send(side, pick, len),
            Op::End { side, pick } => self.end(side, pick),
            Op::Read { side, pick, len } => self.read(side, pick, len),
            Op::DropReader { side, pick } => self.drop_reader(side, pick),
            Op::DropWriter { side, pick } => self.drop_writer(side, pick),
            Op::Reset { side, pick } => self.reset(side, pick),
            Op::Fill { side, len } => self.fill(side, len)?,
            Op::Arrive { side, len } => self.arrive(side, len)?,
            Op::GoAway => self.answerer.go_away(),
        }
        self.check_bounds()
    }

    fn open(&mut self, len: usize, more: bool) {
        let number = self.calls.len();
        let head = head_of(number, Side::Caller, len);
        let more = More::end_if(!more);
        let Ok(call) = self.caller.open(KIND, 0, head, more) else { return };
        assert_eq!(call.0, number as u64 + 1);
        let view = View {
            is_open: true,
            head_sent: true,
            can_send: more == More::Follows,
            ended: more == More::End,
            reads: true,
            ..View::default()
        };
        self.calls.push([view, View::default()]);
    }

    fn reply(&mut self, pick: usize, len: usize, more: bool) {
        let Some(n) = self.pick(Side::Answerer, pick) else { return };
        let view = &mut self.calls[n][1];
        if view.head_sent {
            return;
        }
        view.head_sent = true;
        view.can_send = more;
        view.ended = !more;
        let head = head_of(n, Side::Answerer, len);
        let more = More::end_if(!more);
        self.answerer.reply(CallId(n as u64 + 1), head, more).expect("a short head");
    }

    fn send(&mut self, side: Side, pick: usize, len: usize) {
        let Some(n) = self.pick(side, pick) else { return };
        let view = &mut self.calls[n][index(side)];
        if !view.can_send || view.ended {
            return;
        }
        let piece: Bytes = (view.sent..view.sent + len).map(|at| byte(n, side, at)).collect();
        view.sent += len;
        view.can_send = false;
        let sent = self.mux(side).send(CallId(n as u64 + 1), piece);
        assert_eq!(sent, Ok(()), "the call is open");
    }

    fn end(&mut self, side: Side, pick: usize) {
        let Some(n) = self.pick(side, pick) else { return };
        let view = &mut self.calls[n][index(side)];
        if view.head_sent && !view.ended {
            view.ended = true;
            self.mux(side).end(CallId(n as u64 + 1));
        }
    }

    /// Readers outlive the call: what has come whole may be read when it is over.
    fn read(&mut self, side: Side, pick: usize, len: usize) {
        if self.calls.is_empty() {
            return;
        }
        let n = pick % self.calls.len();
        let view = &mut self.calls[n][index(side)];
        let len = len.min(view.unread);
        view.unread -= len;
        if len > 0 {
            self.mux(side).consumed(CallId(n as u64 + 1), len);
        }
    }

    fn drop_reader(&mut self, side: Side, pick: usize) {
        let Some(n) = self.pick(side, pick) else { return };
        let view = &mut self.calls[n][index(side)];
        view.reads = false;
        view.unread = 0;
        if side == Side::Caller && !view.got_end {
            view.is_open = false;
        }
        self.mux(side).drop_reader(CallId(n as u64 + 1));
    }

    fn drop_writer(&mut self, side: Side, pick: usize) {
        let Some(n) = self.pick(side, pick) else { return };
        let view = &mut self.calls[n][index(side)];
        if !view.ended {
            view.is_open = false;
            view.unread = 0;
        }
        self.mux(side).drop_writer(CallId(n as u64 + 1), "dropped");
    }

    fn reset(&mut self, side: Side, pick: usize) {
        let Some(n) = self.pick(side, pick) else { return };
        let view = &mut self.calls[n][index(side)];
        view.is_open = false;
        view.unread = 0;
        let code = match side {
            Side::Caller => Code::Gone,
            Side::Answerer => Code::Failed,
        };
        self.mux(side).reset(CallId(n as u64 + 1), Refusal::new(code, "reset"));
    }

    fn fill(&mut self, side: Side, len: usize) -> Result<(), String> {
        let (mut out, mut events) = (Vec::new(), VecDeque::new());
        self.mux(side).fill(&mut out, len, &mut events);
        if side == Side::Answerer {
            out = self.harm(&out);
        }
        match side {
            Side::Caller => self.there.extend(out),
            Side::Answerer => self.back.extend(out),
        }
        self.happen(side, events)
    }

    /// Bytes reach `side`.
    fn arrive(&mut self, side: Side, len: usize) -> Result<(), String> {
        if !self.mux(side).wants_bytes() {
            return Ok(());
        }
        let wire = match side {
            Side::Answerer => &mut self.there,
            Side::Caller => &mut self.back,
        };
        let bytes: Vec<u8> = wire.drain(..len.min(wire.len())).collect();
        let mut events = VecDeque::new();
        let result = self.mux(side).receive(&bytes, Mono::default(), &mut events);
        result.map_err(|error| error.to_string())?;
        self.happen(side, events)
    }

    fn happen(&mut self, side: Side, events: VecDeque<Event>) -> Result<(), String> {
        for event in events {
            self.happen_once(side, event)?;
        }
        Ok(())
    }

    fn happen_once(&mut self, side: Side, event: Event) -> Result<(), String> {
        let (calls, me) = (&mut self.calls, index(side));
        match event {
            Event::Opened { call, more, head, .. } => {
                let view = view(calls, me, call).ok_or("a call out of nothing")?;
                if view.is_open || view.head_came {
                    return Err("opened twice".into());
                }
                *view = View {
                    is_open: true,
                    head_came: true,
                    got_end: more == More::End,
                    reads: true,
                    ..View::default()
                };
                check_head_bytes(&head, call, Side::Caller)
            }
            Event::Replied { call, more, head } => {
                let view = view(calls, me, call)
                    .filter(|view| view.is_open)
                    .ok_or("an answer to nobody")?;
                if view.head_came {
                    return Err("answered twice".into());
                }
                view.head_came = true;
                view.got_end = more == More::End;
                check_head_bytes(&head, call, Side::Answerer)
            }
            Event::Data { call, more, bytes } => {
                let view =
                    view(calls, me, call).filter(|view| view.is_open).ok_or("a body for nobody")?;
                if view.got_end || !view.reads || !view.head_came {
                    return Err("a piece that nobody waits for".into());
                }
                for &found in &bytes {
                    if found != byte(call.0 as usize - 1, other(side), view.got) {
                        return Err(format!("byte {} of {call:?} is another one", view.got));
                    }
                    view.got += 1;
                }
                view.unread += bytes.len();
                view.got_end = more == More::End;
                Ok(())
            }
            Event::Writable(call) => {
                let view = view(calls, me, call)
                    .filter(|view| view.is_open)
                    .ok_or("writable for nobody")?;
                view.can_send = true;
                Ok(())
            }
            Event::Stopped(call) => {
                let view = view(calls, me, call)
                    .filter(|view| view.is_open)
                    .ok_or("stopped for nobody")?;
                (view.can_send, view.ended) = (false, true);
                Ok(())
            }
            Event::Over { call, .. } => {
                let view = view(calls, me, call).filter(|view| view.is_open).ok_or("over twice")?;
                view.is_open = false;
                view.unread = 0;
                Ok(())
            }
            Event::GoneAway => Ok(()),
        }
    }

    fn check_bounds(&self) -> Result<(), String> {
        for (side, mux) in [(Side::Caller, &self.caller), (Side::Answerer, &self.answerer)] {
            let unread = self.calls.iter().map(|views| views[index(side)].unread);
            if unread.clone().any(|unread| unread > WINDOW_WIDE as usize) {
                return Err("more unread than a window".into());
            }
            let bound = mux.calls() * WINDOW_FIRST as usize + WIDE_MAX as usize;
            if unread.sum::<usize>() > bound {
                return Err("more unread than the connection may hold".into());
            }
        }
        Ok(())
    }

    /// Both sides now want everything to end well, and it must.
    fn finish(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            for pick in 0..self.open_calls(Side::Answerer).len() {
                self.reply(pick, 3, true);
            }
            for side in [Side::Caller, Side::Answerer] {
                for n in 0..self.calls.len() {
                    let view = &self.calls[n][index(side)];
                    if view.is_open && view.head_sent && !view.ended {
                        self.calls[n][index(side)].ended = true;
                        self.mux(side).end(CallId(n as u64 + 1));
                    }
                    self.read(side, n, usize::MAX);
                }
                self.fill(side, usize::MAX)?;
                self.arrive(other(side), usize::MAX)?;
                self.check_bounds()?;
            }
            if self.caller.is_idle() && self.answerer.is_idle() && self.there.is_empty() {
                return self.check_end();
            }
        }
        Err(format!("{} and {} calls never end", self.caller.calls(), self.answerer.calls()))
    }

    fn check_end(&self) -> Result<(), String> {
        for (n, [caller, answerer]) in self.calls.iter().enumerate() {
            // Neither side has given it up: all that was sent has come.
            let whole = caller.is_open && answerer.is_open;
            if whole && answerer.reads && (answerer.got, answerer.got_end) != (caller.sent, true) {
                return Err(format!("call {n}: {} of {} came", answerer.got, caller.sent));
            }
            if whole && (caller.got, caller.got_end) != (answerer.sent, true) {
                return Err(format!("call {n}: {} of {} came back", caller.got, answerer.sent));
            }
            // Who has all of it does not need to hear that the other side changed its mind.
            let has_all = caller.ended && caller.got_end && caller.got == answerer.sent;
            if caller.is_open && !answerer.is_open && !has_all {
                return Err(format!("call {n}: the caller was not told of its end"));
            }
        }
        for mux in [&self.caller, &self.answerer] {
            if (mux.wide, mux.heads, mux.partial.len()) != (0, 0, 0) {
                return Err("something is kept for calls that are over".into());
            }
        }
        Ok(())
    }

    /// What a faulty peer makes of its frames.
    fn harm(&mut self, bytes: &[u8]) -> Vec<u8> {
        let (mut out, mut at) = (Vec::new(), 0);
        while let Some((frame, len)) = decode(&bytes[at..]).expect("our own frames") {
            at += len;
            let mut frames = match (self.fault, frame) {
                (Fault::LosesCredits, Frame::Credit { .. })
                | (Fault::LosesPieces, Frame::Chunk { more: More::Follows, .. })
                | (Fault::LosesResets, Frame::Reset { .. })
                | (Fault::LosesEnds, Frame::Chunk { more: More::End, .. })
                | (Fault::LosesStops, Frame::Stop { .. }) => vec![],
                (Fault::RepeatsPieces, Frame::Chunk { call, more: More::Follows, bytes }) => {
                    let frame = Frame::Chunk { call, more: More::Follows, bytes };
                    vec![frame.clone(), frame]
                }
                (Fault::CreditsTwice, Frame::Credit { call, bytes }) => {
                    vec![Frame::Credit { call, bytes: bytes * 2 }]
                }
                (Fault::SwapsCalls, Frame::Chunk { call, more, bytes }) => {
                    vec![Frame::Chunk { call: CallId(((call.0 - 1) ^ 1) + 1), more, bytes }]
                }
                (_, frame) => {
                    frame.encode(&mut out).expect("it was one");
                    continue;
                }
            };
            self.harmed += 1;
            for frame in frames.drain(..) {
                frame.encode(&mut out).expect("it was one");
            }
        }
        out
    }
}

fn view(calls: &mut [[View; 2]], me: usize, call: CallId) -> Option<&mut View> {
    calls.get_mut(call.0 as usize - 1).map(|views| &mut views[me])
}

fn check_head_bytes(head: &Bytes, call: CallId, side: Side) -> Result<(), String> {
    let n = call.0 as usize - 1;
    let sound = *head == head_of(n, side, head.len().saturating_sub(2));
    sound.then_some(()).ok_or_else(|| format!("the head of {call:?} is another one"))
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Caller), Just(Side::Answerer)]
}

/// Mostly small; sometimes several windows.
fn len() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 1..200_usize, 4 => 1..40_000_usize, 1 => 1..600_000_usize]
}

fn op() -> impl Strategy<Value = Op> {
    let pick = || any::<usize>();
    prop_oneof![
        6 => (0..300_usize, any::<bool>()).prop_map(|(len, more)| Op::Open { len, more }),
        5 => (pick(), 0..300_usize, any::<bool>())
            .prop_map(|(pick, len, more)| Op::Reply { pick, len, more }),
        8 => (side(), pick(), len()).prop_map(|(side, pick, len)| Op::Send { side, pick, len }),
        2 => (side(), pick()).prop_map(|(side, pick)| Op::End { side, pick }),
        6 => (side(), pick(), len()).prop_map(|(side, pick, len)| Op::Read { side, pick, len }),
        1 => (side(), pick()).prop_map(|(side, pick)| Op::DropReader { side, pick }),
        1 => (side(), pick()).prop_map(|(side, pick)| Op::DropWriter { side, pick }),
        1 => (side(), pick()).prop_map(|(side, pick)| Op::Reset { side, pick }),
        12 => (side(), len()).prop_map(|(side, len)| Op::Fill { side, len }),
        14 => (side(), len()).prop_map(|(side, len)| Op::Arrive { side, len }),
    ]
}

/// A life: wishes and arrivals, perhaps with a farewell somewhere.
fn life() -> impl Strategy<Value = Vec<Op>> {
    let farewell = prop::option::weighted(0.2, any::<prop::sample::Index>());
    (prop::collection::vec(op(), 1..200), farewell).prop_map(|(mut ops, farewell)| {
        if let Some(at) = farewell {
            let at = at.index(ops.len());
            ops.insert(at, Op::GoAway);
        }
        ops
    })
}

fn play(ops: &[Op], fault: Fault) -> (Result<(), String>, usize) {
    let mut world = World::new(fault);
    let result = ops.iter().try_for_each(|op| world.act(op)).and_then(|()| world.finish());
    (result, world.harmed)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn every_life_ends_well(ops in life()) {
        prop_assert_eq!(play(&ops, Fault::None).0, Ok(()));
    }

    /// Bytes that are no frames of ours, or not in this order: an error, and never a panic.
    #[test]
    fn a_connection_that_is_harmed_ends(ops in life(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        for to in [Side::Caller, Side::Answerer] {
            let mut world = World::new(Fault::None);
            for (n, op) in ops.iter().enumerate() {
                if world.act(op).is_err() {
                    break; // the checks see it, as they must
                }
                let wire = match to {
                    Side::Answerer => &mut world.there,
                    Side::Caller => &mut world.back,
                };
                if n >= at.index(ops.len()) && !wire.is_empty() {
                    let at = at.index(wire.len());
                    wire[at] ^= 1 << bit;
                }
            }
        }
    }
}

#[test]
fn each_planted_fault_is_seen() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    for fault in [
        Fault::LosesCredits,
        Fault::LosesPieces,
        Fault::RepeatsPieces,
        Fault::LosesEnds,
        Fault::LosesResets,
        Fault::LosesStops,
        Fault::CreditsTwice,
        Fault::SwapsCalls,
    ] {
        let mut runner = TestRunner::deterministic();
        let seen = (0..1_000).find(|_| {
            let ops = life().new_tree(&mut runner).expect("a life").current();
            let (result, harmed) = play(&ops, fault);
            assert!(result.is_ok() || harmed > 0, "{fault:?}: {result:?} without a fault");
            result.is_err()
        });
        assert!(seen.is_some(), "{fault:?} is not seen in 1,000 lives");
    }
}
