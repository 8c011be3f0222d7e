//! Writers and readers that work on cells at once and tell the ledgers what they learn.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::ledger::{Ledger, append, rows};
use super::support::http::Client;
use super::support::node::Door;
use super::support::rng::Rng;

/// Rows that a reader asks for beyond what is known.
const TAIL: u64 = 20;

/// A cell and what clients know of it.
pub struct Cell {
    /// Its name.
    pub name: String,
    ledger: Mutex<Ledger>,
}

impl Cell {
    /// Of which nothing is known.
    pub fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, ledger: Mutex::default() })
    }

    /// Its ledger.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asserts that the cell shows what it must. Returns how many rows it has.
    pub fn verify(&self, client: &mut Client) -> usize {
        let known = self.ledger().known();
        let shown =
            rows(client, &self.name, 0).unwrap_or_else(|why| panic!("{}: {why}", self.name));
        let wrong = self.ledger().check_shows(&known, &shown);
        assert!(wrong.is_empty(), "cell {}: {wrong:#?}", self.name);
        // What is shown now must stay, too.
        self.ledger().sees(&shown);
        shown.len()
    }
}

/// Threads that write and read until the node is gone or they are told to stop.
pub struct Load {
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    /// Answers that were neither an acknowledgement nor a broken connection.
    pub refusals: Arc<Mutex<Vec<String>>>,
}

/// Numbers of writes, so that none is sent twice.
pub static NEXT: AtomicU64 = AtomicU64::new(0);

impl Load {
    /// Writers and readers, each on a connection of its own, each at cells that it draws.
    pub fn start(door: Door, cells: &[Arc<Cell>], writers: u64, readers: u64, rng: &Rng) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let refusals = Arc::new(Mutex::new(Vec::new()));
        let mut threads = Vec::new();
        for index in 0..writers + readers {
            let (stop, refusals, cells) = (stop.clone(), refusals.clone(), cells.to_vec());
            let door = door.clone();
            let mut rng = rng.fork(index);
            threads.push(std::thread::spawn(move || {
                let Ok(mut client) = door.connect() else { return };
                while !stop.load(Ordering::Relaxed) {
                    let cell = &cells[rng.below(cells.len() as u64) as usize];
                    let ended = if index < writers {
                        write(&mut client, cell, index)
                    } else {
                        read(&mut client, cell)
                    };
                    match ended {
                        Ok(()) => {}
                        Err(None) => return,
                        Err(Some(refusal)) => {
                            refusals.lock().unwrap_or_else(PoisonError::into_inner).push(refusal);
                        }
                    }
                }
            }));
        }
        Self { threads, stop, refusals }
    }

    /// Waits for the threads. Returns what was refused.
    pub fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a client does not panic");
        }
        std::mem::take(&mut *self.refusals.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// `Err(None)`: the node is gone.
fn write(client: &mut Client, cell: &Cell, writer: u64) -> Result<(), Option<String>> {
    let row = (writer, NEXT.fetch_add(1, Ordering::Relaxed));
    cell.ledger().sends(row);
    match append(client, &cell.name, row) {
        Ok(number) => {
            cell.ledger().acknowledges(number, row);
            Ok(())
        }
        Err((None, _)) => Err(None),
        Err((Some(status), text)) => Err(Some(format!("{status} {text}"))),
    }
}

/// Reads the last rows of a cell. `Err(None)`: the node is gone.
pub fn read(client: &mut Client, cell: &Cell) -> Result<(), Option<String>> {
    let known = cell.ledger().last();
    let after = known.saturating_sub(TAIL);
    match client.ask("GET", &format!("/{}/rows?after={after}", cell.name)) {
        Ok(answer) if answer.status == 200 => {
            let shown = super::ledger::parse(&answer.text()).map_err(Some)?;
            cell.ledger().sees_at_least(known, &shown);
            Ok(())
        }
        Ok(answer) => Err(Some(format!("{} {}", answer.status, answer.text()))),
        Err(_) => Err(None),
    }
}
