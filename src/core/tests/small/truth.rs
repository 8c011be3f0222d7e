//! What no node knows: what was acknowledged, and who served the cell last.

use celld_core::epoch::Epoch;

use super::bucket::History;

#[derive(Clone, Hash, Default)]
pub struct Truth {
    /// The longest history that was acknowledged.
    pub seen: History,
    /// The latest activation, and what it began with.
    served: Option<(Epoch, History)>,
}

impl Truth {
    /// An activation begins. An error is a broken promise.
    pub fn serves(&mut self, epoch: Epoch, history: &History) -> Result<(), String> {
        let number = epoch.get();
        if let Some((last, _)) = self.served.as_ref().filter(|(last, _)| *last >= epoch) {
            return Err(format!("epoch {number} is served after epoch {}", last.get()));
        }
        if !history.starts_with(&self.seen) {
            let seen = &self.seen;
            return Err(format!(
                "epoch {number} begins with {history:?}, but {seen:?} was acknowledged"
            ));
        }
        self.served = Some((epoch, history.clone()));
        Ok(())
    }
    /// Somebody outside sees this history.
    pub fn acks(&mut self, epoch: Epoch, history: &History) -> Result<(), String> {
        let Self { seen, served } = self;
        let (last, begin) = served.as_ref().expect("somebody serves");
        if *last > epoch && !begin.starts_with(history) {
            let (epoch, last) = (epoch.get(), last.get());
            return Err(format!(
                "epoch {epoch} acknowledges {history:?}, but epoch {last} began with {begin:?}"
            ));
        }
        let both = seen.len().min(history.len());
        if seen[..both] != history[..both] {
            return Err(format!("{history:?} is acknowledged after {seen:?}"));
        }
        if history.len() > seen.len() {
            seen.clone_from(history);
        }
        Ok(())
    }
}
