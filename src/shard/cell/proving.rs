//! From a commit of a cell to its proof, and what waits for it.

use std::rc::Rc;

use bytes::Bytes;
use celld_core::gate;
use celld_core::ownership::Record;
use celld_core::plan::LtxFile;
use celld_core::proof;
use celld_core::time::{Mono, Wall};
use celld_core::txid::Txid;
use celld_core::wake::cover;
use celld_rt as rt;
use celld_v8host::{Failure, HostCall};

use super::{Cell, Phase, Upload, perform_gate, reset_failure};
use crate::body::failure;
use crate::host::Host;
use crate::shard::now;

impl Cell {
    /// A turn of this cell has written: its transaction ends, its commit goes its way.
    pub fn end_turn(self: &Rc<Self>, host: &Rc<Host>) {
        let mut effects = Vec::new();
        let mut covered = Vec::new();
        let ended = {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            debug_assert!(Rc::ptr_eq(&live.host, host));
            live.database.end_turn().map(|_| {
                let alarm = live.database.take_alarm_change();
                if let Some(txid) = live.store.commit_boundary() {
                    if let Some(error) = live.store.take_spill_error() {
                        rt::log!(
                            "celld: cell {}: its database stays in memory, as it cannot be moved \
                             into a file of the state directory: {error}",
                            self.id
                        );
                    }
                    if let Some(alarm) = alarm {
                        let due = alarm.map(|alarm| Wall::from_millis(alarm.due_ms));
                        let event = cover::Event::Changed(txid, due);
                        live.cover.on_event(now(), event, &mut covered);
                    }
                    let event = proof::Event::Committed(txid);
                    live.proof.on_event(now(), event, &mut effects);
                }
                alarm
            })
        };
        match ended {
            Ok(alarm) => {
                self.perform_cover(covered);
                self.perform_proof(effects);
                if let Some(alarm) = alarm {
                    self.alarm_changed(alarm);
                }
            }
            Err(error) => {
                let text = format!("the transaction could not be committed: {error}");
                self.reset(&Failure { durable_object_reset: true, ..failure("Error", text) });
            }
        }
    }

    /// Holds a call until all that this cell has committed so far is proven.
    pub fn hold(self: &Rc<Self>, host: &Rc<Host>, call: HostCall) {
        // One at most: an empty one would grow to four, of some hundred bytes each.
        let mut effects = Vec::with_capacity(1);
        {
            let mut state = self.state.borrow_mut();
            if let Phase::Live(live) = &mut state.phase {
                let at = live.store.txid();
                live.gate.hold(at, call, &mut effects);
            } else {
                effects.push(gate::Effect::Drop(call));
            }
        }
        perform_gate(host, effects);
    }

    /// Tells the proof something, unless it concerns an earlier life of the cell.
    fn proof_event(self: &Rc<Self>, life: u64, event: proof::Event) {
        let mut effects = Vec::new();
        {
            let mut state = self.state.borrow_mut();
            if state.life != life {
                return;
            }
            let Phase::Live(live) = &mut state.phase else { return };
            if matches!(event, proof::Event::Uploaded { .. }) {
                live.upload = None;
            }
            live.proof.on_event(now(), event, &mut effects);
        }
        self.perform_proof(effects);
    }

    pub(super) fn perform_proof(self: &Rc<Self>, effects: Vec<proof::Effect>) {
        for effect in effects {
            match effect {
                proof::Effect::Upload { .. } => self.upload(),
                proof::Effect::ReadOwner { number } => self.read_owner(number),
                proof::Effect::Proven(txid) => self.proven(txid),
                proof::Effect::SetTimer(at) => self.set_proof_timer(at),
                proof::Effect::Lost(loss) => {
                    rt::log!("celld: cell {}: reset, {loss}", self.id);
                    self.reset(&reset_failure());
                }
            }
        }
    }

    fn upload(self: &Rc<Self>) {
        let Some(shard) = self.shard.upgrade() else { return };
        let (life, upload) = {
            let mut state = self.state.borrow_mut();
            let life = state.life;
            let Phase::Live(live) = &mut state.phase else { return };
            let upload = match &live.upload {
                Some(again) => again.clone(),
                None => {
                    let mut bytes = Vec::new();
                    let wall = Wall::from_millis(rt::wall_ms());
                    match live.store.encode_pending(wall, &mut bytes) {
                        Ok(segment) => {
                            let (min, max) = (segment.min, segment.max);
                            let key = self.id.ltx_key(live.token.epoch, 0, min, max);
                            live.compactor.on_segment(LtxFile {
                                epoch: live.token.epoch,
                                level: 0,
                                min,
                                max,
                                bytes: segment.bytes_len,
                            });
                            let upload = Upload { key, bytes: Bytes::from(bytes), max };
                            live.upload = Some(upload.clone());
                            upload
                        }
                        Err(error) => {
                            drop(state);
                            rt::log!("celld: cell {}: reset, {error}", self.id);
                            return self.reset(&reset_failure());
                        }
                    }
                }
            };
            (life, upload)
        };
        self.compact_if_due();
        let cell = self.clone();
        self.spawn(async move {
            let _counted = cell.uploads();
            let event = match shard.bucket.put(&upload.key, upload.bytes).await {
                Ok(_) => proof::Event::Uploaded { max: upload.max },
                Err(error) => {
                    rt::log!("celld: cell {}: upload failed: {error}", cell.id);
                    proof::Event::UploadFailed
                }
            };
            cell.proof_event(life, event);
        });
    }

    fn read_owner(self: &Rc<Self>, number: u64) {
        let Some(shard) = self.shard.upgrade() else { return };
        let (life, token) = {
            let state = self.state.borrow();
            let Phase::Live(live) = &state.phase else { return };
            (state.life, live.token.clone())
        };
        let cell = self.clone();
        self.spawn(async move {
            let event = match shard.bucket.get(&cell.id.own_key()).await {
                Ok(read) => {
                    let record = read.and_then(|object| Record::parse(&object.body, &cell.id).ok());
                    let still_ours = record.is_some_and(|record| record.is_of(&token));
                    proof::Event::OwnerRead { asked: number, still_ours }
                }
                Err(_) => proof::Event::ReadFailed { asked: number },
            };
            cell.proof_event(life, event);
        });
    }

    /// The proof is there; the gate opens when the alarm is covered too.
    fn proven(self: &Rc<Self>, txid: Txid) {
        let life = self.state.borrow().life;
        self.cover_event(life, cover::Event::Proven(txid));
        self.rest_if_idle();
    }

    fn set_proof_timer(self: &Rc<Self>, at: Mono) {
        let life = self.state.borrow().life;
        let cell = Rc::downgrade(self);
        self.spawn(async move {
            let wait = at.since(now()).as_micros();
            rt::sleep(std::time::Duration::from_micros(wait)).await;
            if let Some(cell) = cell.upgrade() {
                cell.proof_event(life, proof::Event::TimerFired);
            }
        });
    }
}
