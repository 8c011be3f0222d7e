//! A bucket's directory, looked at (and damaged) behind the back of the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::http::Client;
use super::wait_for;

/// The objects of one cell.
#[derive(Clone)]
pub struct CellFiles(PathBuf);

impl CellFiles {
    /// Of the cell with this name. Asks the node for its id, so the cell wakes.
    pub fn of(bucket: &Path, client: &mut Client, cell: &str) -> Self {
        let answer = client.ask("GET", &format!("/{cell}/id")).expect("an answer");
        let id = String::from_utf8(answer.good()).expect("an id");
        Self(bucket.join("cells@").join("ledger.Cell@").join(format!("{id}@")))
    }

    /// 64 hexadecimal digits.
    pub fn id(&self) -> String {
        let name = self.0.file_name().expect("a name").to_string_lossy();
        name.trim_end_matches('@').to_owned()
    }

    /// The ownership record.
    pub fn record(&self) -> PathBuf {
        self.0.join("own.json")
    }

    /// What the ownership record says.
    pub fn read_record(&self) -> serde_json::Value {
        let bytes = fs::read(self.record()).expect("an ownership record");
        serde_json::from_slice(&bytes).expect("JSON")
    }

    /// Waits until no node has the cell in memory.
    pub fn wait_until_released(&self) {
        wait_for("the release of a cell", Duration::from_secs(20), || {
            let record = self.read_record();
            (record["node"] == "" || record["node"].is_null()).then_some(())
        });
    }

    /// All LTX files, in the order of their last commits.
    pub fn ltx(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut open = vec![self.0.join("ltx@")];
        while let Some(dir) = open.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    open.push(path);
                } else {
                    found.push(path);
                }
            }
        }
        found.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
        found
    }
}
