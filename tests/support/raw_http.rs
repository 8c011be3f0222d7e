//! A development server as a real process, and a client that sends bytes as they are given: also
//! those that no client should send.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything that works takes, also on a machine that is busy with other tests.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// `celld dev` on a project. It is killed when it is dropped.
pub struct Dev {
    child: Child,
    address: SocketAddr,
    dir: tempfile::TempDir,
}

/// The program, with nothing of the environment that would change what it does.
pub fn celld() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_celld"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CELLD_") || text.starts_with("AWS_") || text == "S3_ENDPOINT" {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null());
    command
}

impl Dev {
    /// The Worker `tests/workers/NAME`.
    pub fn start(name: &str, shards: usize) -> Self {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workers").join(name);
        Self::start_project(&project, shards, &[])
    }

    /// A project anywhere, with variables of the environment.
    ///
    /// # Panics
    /// It does not serve within [`PATIENCE`].
    pub fn start_project(project: &Path, shards: usize, variables: &[(&str, &Path)]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let log = |name: &str| std::fs::File::create(dir.path().join(name)).expect("a log");
        let child = celld()
            .arg("dev")
            .arg(project)
            .args(["--port", "0", "--no-watch", "--shards", &shards.to_string(), "--state"])
            .arg(dir.path().join("state"))
            .envs(variables.iter().copied())
            .stdout(log("stdout"))
            .stderr(log("stderr"))
            .spawn()
            .expect("the program starts");
        let mut dev = Self { child, address: ([127, 0, 0, 1], 0).into(), dir };
        dev.address = wait_for("a server", || {
            let ended = dev.child.try_wait().expect("our child");
            assert!(ended.is_none(), "the server ended:\n{}", dev.log());
            let out = dev.file("stdout");
            let (_, rest) = out.split_once("http://")?;
            let (address, _) = rest.split_once('\n')?;
            address.trim().parse().ok()
        });
        dev
    }

    fn file(&self, name: &str) -> String {
        let bytes = std::fs::read(self.dir.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What it has written to stderr.
    pub fn log(&self) -> String {
        self.file("stderr")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A new connection.
    pub fn open(&self) -> Raw {
        Raw::connect(self.address)
    }

    /// One GET on a connection of its own.
    pub fn get(&self, path: &str) -> Reply {
        self.open().get(path)
    }

    /// One GET whose answer must be good, as text.
    ///
    /// # Panics
    /// It is not.
    pub fn text(&self, path: &str) -> String {
        let reply = self.get(path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        reply.text()
    }

    /// One GET whose answer is JSON.
    pub fn json(&self, path: &str) -> serde_json::Value {
        serde_json::from_str(&self.text(path)).expect("JSON")
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        let pid = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: the process is ours and has not been waited for.
        let result = unsafe { libc::kill(pid, libc::SIGTERM) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    /// Bytes of memory that it uses now.
    pub fn memory(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.child.id());
        let text = std::fs::read_to_string(path).expect("the process runs");
        let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        pages.expect("a number") * 4096
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ended_before = self.child.kill();
        let _status = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let shown: Vec<&str> = log.lines().rev().take(60).collect();
            eprintln!("the end of the server's log:");
            shown.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// Asks again and again until there is an answer.
///
/// # Panics
/// There is none within [`PATIENCE`].
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What came back.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim_end().to_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }
}

/// One connection.
pub struct Raw {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Raw {
    /// # Panics
    /// Nobody listens.
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        stream.set_write_timeout(Some(PATIENCE)).expect("an option");
        Self { stream, buffer: Vec::new() }
    }

    /// Sends bytes; a server that has closed already shows when the answer is read.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let _closed = self.stream.write_all(bytes.as_ref());
        self
    }

    /// No more bytes will come from here.
    pub fn half_close(&mut self) -> &mut Self {
        let _closed = self.stream.shutdown(Shutdown::Write);
        self
    }

    /// Ends the connection at once, with a reset.
    pub fn reset(self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let size = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: the call reads one struct of this size.
        let result = unsafe {
            let option = (&raw const linger).cast();
            libc::setsockopt(
                self.stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                option,
                size,
            )
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    pub fn get(&mut self, path: &str) -> Reply {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n")).reply("an answer")
    }

    /// Reads one answer.
    ///
    /// # Panics
    /// There is none.
    pub fn reply(&mut self, what: &str) -> Reply {
        self.try_reply(true).unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// Reads the head of an answer, and its body if it `has_body`.
    ///
    /// # Errors
    /// The connection ended or broke, or nothing came in time.
    pub fn try_reply(&mut self, has_body: bool) -> io::Result<Reply> {
        let mut reply = self.head()?;
        if !has_body || reply.status == 204 || reply.status == 304 || reply.status < 200 {
            return Ok(reply);
        }
        if reply.header("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
            while let Some(chunk) = self.chunk()? {
                reply.body.extend(chunk);
            }
        } else if let Some(length) = reply.header("content-length") {
            let length = length.parse().map_err(io::Error::other)?;
            reply.body = self.exactly(length)?;
        } else {
            while self.fill()? {}
            reply.body = std::mem::take(&mut self.buffer);
        }
        Ok(reply)
    }

    /// The head of an answer.
    ///
    /// # Errors
    /// As [`Raw::try_reply`].
    pub fn head(&mut self) -> io::Result<Reply> {
        let first = self.line()?;
        let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status: {first:?}")))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Reply { status, headers, body: Vec::new() })
    }

    /// The next chunk; `None` is the last one.
    ///
    /// # Errors
    /// As [`Raw::try_reply`].
    pub fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        let size = usize::from_str_radix(&line, 16).map_err(io::Error::other)?;
        let chunk = self.exactly(size)?;
        self.line()?;
        Ok((size > 0).then_some(chunk))
    }

    /// What has come and was not looked at.
    pub fn buffered(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// Whether the server has closed the connection, once all that it sent is read.
    pub fn is_closed(&mut self) -> bool {
        loop {
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return true,
                Err(error) => {
                    let open = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
                    return !open.contains(&error.kind());
                }
            }
        }
    }

    fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < length {
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let rest = self.buffer.split_off(length);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line = self.exactly(at + 1)?;
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn fill(&mut self) -> io::Result<bool> {
        let mut room = [0; 64 << 10];
        let read = self.stream.read(&mut room)?;
        self.buffer.extend_from_slice(&room[..read]);
        Ok(read > 0)
    }
}
