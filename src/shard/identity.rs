//! What a node knows of its own earlier lives, from its state directory: which sessions ran on it,
//! and the name of the directory itself.
//!
//! Invariant: the directory is locked, so a session that is listed has ended. Losing the list costs
//! the wait for an earlier lease to end, and nothing else.

use std::fs;
use std::io;
use std::path::Path;

use celld_core::node::{DiskId, SessionId};

/// Sessions that are remembered: a process may end before its lease is written, again and again.
const SESSIONS_MAX: usize = 8;

/// What the state directory tells.
#[derive(Debug)]
pub(crate) struct Identity {
    /// The name of the directory.
    pub disk: DiskId,
    /// Sessions that ran on it and have ended, the latest last.
    pub ended: Vec<SessionId>,
}

impl Identity {
    /// Reads the locked directory `state`, gives it a name if it has none, and notes that `session`
    /// runs on it from now on. `fresh`: a name for it.
    ///
    /// # Errors
    /// A file cannot be read or written, or the name is damaged; the error says what to do.
    pub(crate) fn load(state: &Path, session: &SessionId, fresh: &DiskId) -> io::Result<Self> {
        let path = state.join("disk");
        let disk = match read(&path)? {
            None => {
                replace(&path, fresh.as_str())?;
                fresh.clone()
            }
            Some(text) => DiskId::parse(text.trim()).ok_or_else(|| {
                let path = path.display();
                let text = format!(
                    "{path} is damaged: it should hold 32 hexadecimal digits. Give the node a new \
                     state directory; nothing durable is in this one"
                );
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?,
        };
        let path = state.join("sessions");
        let text = read(&path)?.unwrap_or_default();
        let mut ended: Vec<_> = text.lines().filter_map(SessionId::parse).collect();
        ended.drain(..ended.len().saturating_sub(SESSIONS_MAX - 1));
        let lines = ended.iter().chain([session]).map(|session| format!("{session}\n"));
        replace(&path, &lines.collect::<String>())?;
        Ok(Self { disk, ended })
    }
}

/// `None`: there is no such file.
fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The whole file or the one before, whatever happens.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::File::open(&new)?.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(n: usize) -> SessionId {
        SessionId::parse(&format!("{n:032x}")).expect("32 digits")
    }
    fn disk(n: usize) -> DiskId {
        DiskId::parse(&format!("{n:032x}")).expect("32 digits")
    }

    #[test]
    fn a_directory_keeps_its_name_and_the_sessions_that_ran_on_it() {
        let state = tempfile::tempdir().expect("a directory");
        let first = Identity::load(state.path(), &session(1), &disk(1)).expect("a fresh directory");
        assert_eq!((first.disk, first.ended), (disk(1), vec![]));
        for n in 2..20 {
            let now = Identity::load(state.path(), &session(n), &disk(n)).expect("a known one");
            assert_eq!((now.disk, now.ended.last()), (disk(1), Some(&session(n - 1))));
            assert!(now.ended.len() < SESSIONS_MAX);
        }
    }

    #[test]
    fn a_damaged_name_is_an_error_that_says_what_to_do_and_a_damaged_list_is_none() {
        let state = tempfile::tempdir().expect("a directory");
        fs::write(state.path().join("sessions"), b"\xff\nrubbish\n").expect("written");
        let now = Identity::load(state.path(), &session(1), &disk(1)).expect("no list");
        assert_eq!(now.ended, vec![]);
        fs::write(state.path().join("disk"), "rubbish").expect("written");
        let error = Identity::load(state.path(), &session(1), &disk(1)).expect_err("damaged");
        assert!(error.to_string().contains("Give the node a new state directory"), "{error}");
    }
}
