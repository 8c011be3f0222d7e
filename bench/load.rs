//! The load generator: one thread, many connections, one request on each at a time.
//!
//! Invariant: in an open loop the latency of a request counts from the time at which it was meant
//! to be sent, whether or not a connection was free: a server that stalls is charged for all that
//! it kept waiting. What never got an answer counts with the time until the end of the run.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use hdrhistogram::Histogram;

use crate::{histogram, http, record};

/// After the end of the offered load, answers are awaited this long.
const DRAIN: Duration = Duration::from_secs(5);

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Each connection sends the next one when the last is answered: finds the maximum.
    Closed,
    /// So many in a second, whatever the server does.
    Open(f64),
}

/// What to send, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server.
    pub addr: SocketAddr,
    /// How many connections; all are kept alive.
    pub connections: usize,
    /// Sent in turn, again and again.
    pub requests: Vec<Vec<u8>>,
    /// When.
    pub pace: Pace,
    /// Sent and not counted.
    pub warm_up: Duration,
    /// What is counted.
    pub time: Duration,
}

/// How it went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Latencies in µs of the answers with status 200.
    pub latency: Histogram<u64>,
    /// Answers with status 200 in a second.
    pub per_second: f64,
    /// Other answers.
    pub errors: u64,
    /// Requests that were due and never answered. Their waiting is part of `latency`.
    pub unanswered: u64,
}

struct Connection {
    stream: TcpStream,
    unsent: Vec<u8>,
    received: Vec<u8>,
    /// When the request on it was meant to be sent.
    busy: Option<Instant>,
}

struct Run<'a> {
    plan: &'a Plan,
    connections: Vec<Connection>,
    idle: Vec<usize>,
    /// Due and without a connection.
    waiting: VecDeque<Instant>,
    sent: usize,
    counted_from: Instant,
    answered: u64,
    outcome: Outcome,
}

/// Loads a server.
///
/// # Errors
/// It refuses or closes connections, or answers something else than HTTP.
pub fn run(plan: &Plan) -> Result<Outcome> {
    ensure!(plan.connections > 0 && !plan.requests.is_empty(), "nothing to send");
    sleep_exactly();
    let connections = (0..plan.connections).map(|_| connect(plan.addr));
    let connections = connections.collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let counted_from = start + plan.warm_up;
    let end = counted_from + plan.time;
    let mut run = Run {
        plan,
        idle: (0..connections.len()).collect(),
        connections,
        waiting: VecDeque::new(),
        sent: 0,
        counted_from,
        answered: 0,
        outcome: Outcome { latency: histogram(), per_second: 0.0, errors: 0, unanswered: 0 },
    };
    let mut offered = 0_u64;
    loop {
        let now = Instant::now();
        if now >= end {
            break;
        }
        let mut wake = end;
        match plan.pace {
            Pace::Closed => {
                while let Some(connection) = run.idle.pop() {
                    run.send(connection, Instant::now())?;
                }
            }
            Pace::Open(per_second) => {
                let due_at = |n: u64| start + Duration::from_secs_f64(n as f64 / per_second);
                while due_at(offered) <= now {
                    run.waiting.push_back(due_at(offered));
                    offered += 1;
                }
                wake = wake.min(due_at(offered));
                run.send_waiting()?;
            }
        }
        run.receive(wake)?;
    }
    run.outcome.per_second = run.answered as f64 / plan.time.as_secs_f64();
    run.drain(end + DRAIN)?;
    Ok(run.outcome)
}

impl Run<'_> {
    fn send_waiting(&mut self) -> Result<()> {
        while !self.waiting.is_empty() {
            let Some(connection) = self.idle.pop() else { break };
            if let Some(intended) = self.waiting.pop_front() {
                self.send(connection, intended)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, index: usize, intended: Instant) -> Result<()> {
        let connection = &mut self.connections[index];
        connection
            .unsent
            .extend_from_slice(&self.plan.requests[self.sent % self.plan.requests.len()]);
        connection.busy = Some(intended);
        self.sent += 1;
        connection.flush()
    }

    /// Takes what has arrived, waiting until `wake` for the first of it.
    fn receive(&mut self, wake: Instant) -> Result<()> {
        let mut polled: Vec<_> = (0..self.connections.len())
            .filter(|&index| self.connections[index].busy.is_some())
            .collect();
        let fds = polled.iter().map(|&index| {
            let connection = &self.connections[index];
            let out = if connection.unsent.is_empty() { 0 } else { libc::POLLOUT };
            libc::pollfd {
                fd: connection.stream.as_raw_fd(),
                events: libc::POLLIN | out,
                revents: 0,
            }
        });
        let mut fds: Vec<_> = fds.collect();
        poll(&mut fds, wake.saturating_duration_since(Instant::now()))?;
        let mut ready = fds.iter().map(|fd| fd.revents != 0);
        polled.retain(|_| ready.next() == Some(true));
        for index in polled {
            self.connections[index].flush()?;
            if let Some(response) = self.connections[index].receive()? {
                self.answered(index, response.status);
            }
        }
        Ok(())
    }

    fn answered(&mut self, index: usize, status: u16) {
        let now = Instant::now();
        let intended = self.connections[index].busy.take();
        self.idle.push(index);
        let Some(intended) = intended.filter(|&intended| intended >= self.counted_from) else {
            return;
        };
        if status == 200 {
            self.answered += 1;
            record(&mut self.outcome.latency, now - intended);
        } else {
            self.outcome.errors += 1;
        }
    }

    /// The load has ended. An open loop still owes the requests that were due.
    fn drain(&mut self, patience: Instant) -> Result<()> {
        loop {
            self.send_waiting()?;
            let now = Instant::now();
            let busy = self.connections.iter().filter_map(|connection| connection.busy);
            if busy.clone().next().is_none() || now >= patience {
                for intended in busy.chain(self.waiting.iter().copied()) {
                    if intended >= self.counted_from {
                        self.outcome.unanswered += 1;
                        record(&mut self.outcome.latency, now - intended);
                    }
                }
                return Ok(());
            }
            self.receive(patience)?;
        }
    }
}

impl Connection {
    fn flush(&mut self) -> Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => bail!("the server takes no more bytes"),
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("send"),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<http::Response>> {
        let mut piece = [0; 16 << 10];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => bail!("the server closed a connection that should be kept alive"),
                Ok(got) => self.received.extend_from_slice(&piece[..got]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error).context("receive"),
            }
            if let Some((response, length)) = http::parse(&self.received)? {
                ensure!(length == self.received.len(), "an answer that nobody asked for");
                self.received.clear();
                return Ok(Some(response));
            }
        }
    }
}

fn connect(addr: SocketAddr) -> Result<Connection> {
    let stream = TcpStream::connect(addr).with_context(|| format!("connect to {addr}"))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(Connection { stream, unsent: Vec::new(), received: Vec::new(), busy: None })
}

/// Waits for one of `fds`; a signal only ends the wait early.
fn poll(fds: &mut [libc::pollfd], wait: Duration) -> Result<()> {
    let wait = libc::timespec {
        tv_sec: i64::try_from(wait.as_secs())?,
        tv_nsec: i64::from(wait.subsec_nanos()),
    };
    let count = fds.len() as libc::nfds_t;
    // SAFETY: `fds` has `count` elements, and both live through the call.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), count, &raw const wait, std::ptr::null()) };
    let error = std::io::Error::last_os_error();
    ensure!(ready >= 0 || error.kind() == ErrorKind::Interrupted, "poll: {error}");
    Ok(())
}

/// Linux delays a sleeping thread by up to 50 µs to save wake-ups, which an open loop would count.
fn sleep_exactly() {
    // SAFETY: the call takes numbers only; a refusal leaves the delay as it was.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

#[cfg(test)]
mod tests;
