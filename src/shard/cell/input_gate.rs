//! The input gate of a cell: `blockConcurrencyWhile` closes it, and what is bound for the cell is kept
//! meanwhile.

use std::rc::Rc;

use celld_v8host::{Failure, SectionId};

use super::{Cell, Phase};
use crate::activation;
use crate::body::failure;
use crate::deadline::Deadline;
use crate::host::{Host, Queued};

impl Cell {
    /// Whether the input gate lets this in. `section`: it answers a question of that section.
    pub fn passes(&self, section: Option<SectionId>) -> bool {
        match &self.state.borrow().phase {
            Phase::Live(live) => {
                live.sections.is_empty() || section.is_some_and(|section| live.has(section))
            }
            Phase::Cold | Phase::Activating | Phase::Leaving => true,
        }
    }

    /// Keeps an input until the gate opens.
    pub fn park(&self, queued: Queued) {
        if let Phase::Live(live) = &mut self.state.borrow_mut().phase {
            live.parked.push_back(queued);
        }
    }

    /// `blockConcurrencyWhile` begins. Its time is limited, as on Cloudflare.
    pub fn block(self: &Rc<Self>, section: SectionId) {
        let weak = Rc::downgrade(self);
        let deadline = Deadline::after(activation::SECTION_LIMIT, move || {
            if let Some(cell) = weak.upgrade() {
                cell.section_takes_too_long(section);
            }
        });
        if let Phase::Live(live) = &mut self.state.borrow_mut().phase {
            live.sections.push((section, deadline));
        }
    }

    fn section_takes_too_long(self: &Rc<Self>, section: SectionId) {
        let still_runs = match &self.state.borrow().phase {
            Phase::Live(live) => live.has(section),
            Phase::Cold | Phase::Activating | Phase::Leaving => false,
        };
        if still_runs {
            let text = "A call to blockConcurrencyWhile() in a Durable Object waited for too \
                        long. The call was canceled and the Durable Object was reset.";
            self.fail_life(&Failure { durable_object_reset: true, ..failure("Error", text) });
        }
    }

    /// `blockConcurrencyWhile` has ended.
    pub fn unblock(self: &Rc<Self>, host: &Rc<Host>, section: SectionId, why: Option<Failure>) {
        if let Some(why) = why {
            let why = Failure { remote: true, durable_object_reset: true, ..why };
            return self.fail_life(&why);
        }
        let parked = {
            let mut state = self.state.borrow_mut();
            let Phase::Live(live) = &mut state.phase else { return };
            live.sections.retain(|(open, _)| *open != section);
            std::mem::take(&mut live.parked)
        };
        host.requeue(parked);
        self.rest_if_idle();
    }
}
