//! A way between two processes on loopback that can be cut, where hosts of their own are not
//! permitted, and that knows which connections there were.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How soon a stream notices that its way is cut, healed or over.
const LOOK: Duration = Duration::from_millis(10);

/// The kernel gives up a connection to a host that has been silent for so long.
const SILENCE: Duration = Duration::from_secs(8);

/// Takes connections and hands their bytes on, until it is dropped.
pub struct Relay {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_cut: AtomicBool,
    /// What comes back passes also while it is cut.
    is_cut_there_only: AtomicBool,
    /// For so long what comes back is on its way.
    late_ms: AtomicU64,
    is_over: AtomicBool,
    /// What each connection began with, in their order.
    begun: Mutex<Vec<Begun>>,
}

/// What has come on a connection first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Nothing so far.
    Nothing,
    /// A line; of a long one, what came at once.
    With(String),
}

/// In which direction bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

impl State {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn is_cut(&self, way: Way) -> bool {
        let passes = way == Way::Back && self.is_cut_there_only.load(Ordering::Relaxed);
        self.is_cut.load(Ordering::Relaxed) && !passes
    }

    fn begun(&self) -> MutexGuard<'_, Vec<Begun>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands still while the way is cut, but not for ever. Whether it is open again.
    fn pass(&self, way: Way) -> bool {
        let begin = Instant::now();
        while self.is_cut(way) {
            if self.is_over() || begin.elapsed() > SILENCE {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

impl Relay {
    /// A way to where `find` says, asked for each connection. While it says nothing, connections
    /// are closed.
    pub fn start(find: impl Fn() -> Option<SocketAddr> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::new(State::default());
        let (ways, find) = (state.clone(), Arc::new(find));
        std::thread::spawn(move || {
            for taken in listener.incoming() {
                if ways.is_over() {
                    return;
                }
                let (state, find) = (ways.clone(), find.clone());
                let number = state.begun().len();
                state.begun().push(Begun::Nothing);
                std::thread::spawn(move || {
                    // Either side may end at any time; the other one is told.
                    let _ended = taken.and_then(|near| join(near, number, &state, &*find));
                });
            }
        });
        Self { address, state }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All connections so far, those that have ended too.
    pub fn connections(&self) -> Vec<Begun> {
        self.state.begun().clone()
    }

    /// From now on no byte passes, and nobody is told before the kernel would notice.
    pub fn cut(&self) {
        self.state.is_cut.store(true, Ordering::Relaxed);
    }

    /// From now on what comes back is on its way for so long.
    pub fn delay_answers(&self, delay: Duration) {
        let ms = u64::try_from(delay.as_millis()).expect("not for ever");
        self.state.late_ms.store(ms, Ordering::Relaxed);
    }

    /// As [`Self::cut`], but what comes back passes.
    pub fn cut_questions(&self) {
        self.state.is_cut_there_only.store(true, Ordering::Relaxed);
        self.cut();
    }

    /// They do again, those that wait first.
    pub fn heal(&self) {
        self.state.is_cut.store(false, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread that takes connections.
        let _woken = TcpStream::connect(self.address);
    }
}

fn join(
    near: TcpStream,
    number: usize,
    state: &Arc<State>,
    find: &(impl Fn() -> Option<SocketAddr> + ?Sized),
) -> io::Result<()> {
    if !state.pass(Way::There) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let far = TcpStream::connect(find().ok_or(io::ErrorKind::NotFound)?)?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
    }
    let (back_from, back_to) = (far.try_clone()?, near.try_clone()?);
    let back = state.clone();
    std::thread::spawn(move || copy(back_from, back_to, Way::Back, &back, |_| {}));
    let mut is_first = true;
    copy(near, far, Way::There, state, |piece| {
        if std::mem::take(&mut is_first) {
            let line = String::from_utf8_lossy(piece).lines().next().unwrap_or_default().to_owned();
            state.begun()[number] = Begun::With(line);
        }
    });
    Ok(())
}

/// Until one side ends, each piece that has come after a look at it. Ends both then.
fn copy(
    mut from: TcpStream,
    mut to: TcpStream,
    way: Way,
    state: &State,
    mut look: impl FnMut(&[u8]),
) {
    let mut piece = vec![0; 64 << 10];
    while !state.is_over() && state.pass(way) {
        let got = match from.read(&mut piece) {
            Ok(0) => break,
            Ok(got) => got,
            Err(error) if is_late(&error) => continue,
            Err(_) => break,
        };
        look(&piece[..got]);
        if way == Way::Back {
            std::thread::sleep(Duration::from_millis(state.late_ms.load(Ordering::Relaxed)));
        }
        // What was on its way when it was cut is on its way.
        if !state.pass(way) || to.write_all(&piece[..got]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        // It may have ended by itself.
        let _ended = stream.shutdown(Shutdown::Both);
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

#[test]
fn a_relay_hands_on_what_waited_while_it_was_cut() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = server.local_addr().expect("it is bound");
    let relay = Relay::start(move || Some(address));
    let mut near = TcpStream::connect(relay.address()).expect("a connection");
    let (mut far, _) = server.accept().expect("a connection");
    let mut byte = [0];
    near.write_all(b"a").expect("it is written");
    far.read_exact(&mut byte).expect("it passes");
    relay.cut();
    near.write_all(b"b").expect("it is written");
    far.set_read_timeout(Some(LOOK * 10)).expect("a limit");
    assert!(far.read(&mut byte).is_err_and(|error| is_late(&error)));
    relay.heal();
    far.set_read_timeout(None).expect("no limit");
    far.read_exact(&mut byte).expect("it passes");
    assert_eq!(&byte, b"b");
    drop(near);
    assert_eq!(far.read(&mut byte).expect("the end"), 0);
}
