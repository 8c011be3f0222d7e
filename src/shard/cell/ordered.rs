//! What an operator is told of a cell.

use super::{Arrival, Cell, Phase, State};
use crate::operator::resident::{CellState, ResidentCell};

impl Cell {
    /// The cell as it is in memory.
    pub fn resident(&self) -> ResidentCell {
        let is_idle = self.is_idle();
        let State { phase, arrivals, .. } = &*self.state.borrow();
        let is_fetch = |arrival: &&Arrival| matches!(arrival, Arrival::Fetch(_));
        let known = |state| ResidentCell {
            name: self.name.borrow().clone(),
            class: Some(self.class.clone()),
            waiting: arrivals.iter().filter(is_fetch).count() as u64,
            ..ResidentCell::of(&self.id, state)
        };
        let live = match phase {
            Phase::Cold => return known(CellState::Absent),
            Phase::Activating => return known(CellState::Activating),
            Phase::Leaving => return known(CellState::Leaving),
            Phase::Live(live) => live,
        };
        let restored = live.restored.flatten();
        ResidentCell {
            epoch: Some(live.token.epoch.get()),
            txid: Some(live.store.txid().get()),
            proven_txid: Some(live.proof.proven().get()),
            database_bytes: Some(live.store.database_bytes()),
            memory_bytes: Some(live.store.memory_bytes() as u64),
            events: u64::from(live.busy),
            alarm_ms: live.alarm.stored().or(restored).map(|alarm| alarm.due.as_millis()),
            ..known(if is_idle { CellState::Idle } else { CellState::Busy })
        }
    }
}
