//! What a node says of a cell in its memory: one JSON document a line.

use std::fmt::Write as _;

use bytes::Bytes;
use celld_core::cell::CellId;
use celld_core::time::Wall;
use serde::{Deserialize, Serialize};

/// One cell. What is not known is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentCell {
    /// `<namespace>/<id>`.
    pub cell: String,
    /// What it does.
    pub state: CellState,
    /// `ctx.id.name`, if somebody has told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its class in the script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Of its ownership.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Its last commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txid: Option<u64>,
    /// Its last commit that is proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven_txid: Option<u64>,
    /// Size of its database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database_bytes: Option<u64>,
    /// Memory of its database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Events that JavaScript works on.
    #[serde(default)]
    pub events: u64,
    /// Requests that wait.
    #[serde(default)]
    pub waiting: u64,
    /// WebSockets that it keeps while it is out of memory, too.
    #[serde(default)]
    pub sockets: u64,
    /// When its alarm is due, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alarm_ms: Option<u64>,
}

/// What a cell does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CellState {
    /// It is not in memory.
    Absent,
    /// It is claimed and restored.
    Activating,
    /// It is in memory, and nothing runs in it.
    Idle,
    /// Something runs in it, or waits for a proof.
    Busy,
    /// It is on its way out of memory.
    Leaving,
}

impl CellState {
    /// As in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Activating => "activating",
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Leaving => "leaving",
        }
    }
}

impl ResidentCell {
    /// Of which nothing more is known than this.
    pub(crate) fn of(cell: &CellId, state: CellState) -> Self {
        Self {
            cell: cell.to_string(),
            state,
            name: None,
            class: None,
            epoch: None,
            txid: None,
            proven_txid: None,
            database_bytes: None,
            memory_bytes: None,
            events: 0,
            waiting: 0,
            sockets: 0,
            alarm_ms: None,
        }
    }

    /// Namespace and id: in their order.
    pub(crate) fn parts(&self) -> Option<(&str, &str)> {
        self.cell.split_once('/')
    }

    /// It is not in memory. `due`: the alarm for which this node will wake it.
    pub(crate) fn absent(cell: &CellId, due: Option<Wall>) -> Self {
        Self { alarm_ms: due.map(Wall::as_millis), ..Self::of(cell, CellState::Absent) }
    }
}

/// One line for each.
pub(crate) fn lines(cells: &[ResidentCell]) -> Bytes {
    let mut text = String::new();
    for cell in cells {
        let line = serde_json::to_string(cell).expect("plain fields become JSON");
        let _infallible = writeln!(text, "{line}");
    }
    text.into()
}

/// The lines of an answer.
///
/// # Errors
/// A line is not one of [`lines`].
pub fn parse(body: &[u8]) -> Result<Vec<ResidentCell>, serde_json::Error> {
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(serde_json::from_slice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back_what_they_say() {
        let id = CellId::new("app.Room", &"0f".repeat(32)).expect("a good name");
        let full = ResidentCell {
            name: Some("line\nfeed".into()),
            epoch: Some(7),
            txid: Some(9),
            events: 2,
            ..ResidentCell::of(&id, CellState::Busy)
        };
        let cells = [full, ResidentCell::absent(&id, Some(Wall::from_millis(5)))];
        let text = lines(&cells);
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 2);
        assert_eq!(parse(&text).expect("lines"), cells);
        parse(b"{\"cell\":\"x\"}\n").expect_err("no state");
        assert_eq!(parse(b"").expect("nothing"), []);
    }

    #[test]
    fn each_state_has_one_word() {
        for state in [
            CellState::Absent,
            CellState::Activating,
            CellState::Idle,
            CellState::Busy,
            CellState::Leaving,
        ] {
            let json = serde_json::to_string(&state).expect("JSON");
            assert_eq!(json, format!("\"{}\"", state.word()));
        }
    }
}
