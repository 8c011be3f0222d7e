//! The rounds in which many write at once: one wins, all others are told that they lost.
//!
//! A store that checks first and writes then passes each test with one writer, and lets several
//! of these win.

use std::time::Duration;

use bytes::Bytes;
use celld_core::cas::{CasOutcome, Etag, Guard};

use super::trial::{Trial, Trouble, broken};
use crate::error::StoreError;
use crate::{Limits, Object};

/// Enough to meet in any window, and few enough for stores that let the contenders wait in line.
const WRITERS: usize = 16;
/// Some stores let a contender wait for seconds.
const RACE_LIMIT: Duration = Duration::from_secs(30);

/// What one of the writers was told.
#[derive(Debug)]
enum Told {
    Won(Etag),
    Lost,
    Nothing,
    /// An error says that nothing was written.
    Failed(StoreError),
}

/// What a read finds after the round.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Left {
    /// What was there before it.
    Before,
    /// What this writer sent.
    By(usize, Etag),
    /// Anything else.
    Other,
}

impl Trial<'_> {
    pub(super) async fn create_race(&mut self) -> Result<(), Trouble> {
        let key = self.key("object");
        let told = self.all_write(&key, &Guard::Absent).await?;
        let left = self.get(&key).await?;
        let left = left.map_or(Left::Before, |seen| by(&seen));
        judge(format!("{WRITERS} creates of {key} at once"), told, &left)
    }

    pub(super) async fn update_race(&mut self) -> Result<(), Trouble> {
        const BEFORE: &str = "before the race";
        let key = self.key("object");
        let etag = self.put(&key, BEFORE).await?;
        let told = self.all_write(&key, &Guard::Match(etag.clone())).await?;
        let left = match self.get(&key).await? {
            Some(seen) if seen.body == BEFORE && seen.etag == etag => Left::Before,
            Some(seen) => by(&seen),
            None => Left::Other,
        };
        judge(format!("{WRITERS} conditional writes of {key} on {etag} at once"), told, &left)
    }

    async fn all_write(&self, key: &str, guard: &Guard) -> Result<Vec<Told>, Trouble> {
        let limits = Limits { deadline: RACE_LIMIT, ..Limits::default() };
        let bucket = self.bucket.with_limits(limits);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (bucket, key, guard) = (bucket.clone(), key.to_owned(), guard.clone());
                celld_rt::spawn_joined(async move {
                    let written = bucket.put_if(&key, guard, Bytes::from(body(writer)));
                    match celld_rt::timeout(RACE_LIMIT, written).await {
                        Ok(Ok(CasOutcome::Applied(etag))) => Told::Won(etag),
                        Ok(Ok(CasOutcome::Refused)) => Told::Lost,
                        Ok(Ok(CasOutcome::Unknown)) | Err(celld_rt::TimedOut) => Told::Nothing,
                        Ok(Err(error)) => Told::Failed(error),
                    }
                })
            })
            .collect();
        let mut told = Vec::with_capacity(WRITERS);
        for writer in writers {
            // A panic has been reported; what it wrote is not known.
            told.push(writer.join().await.unwrap_or(Told::Nothing));
        }
        Ok(told)
    }
}

/// No two writers send the same bytes: equal bytes would have equal versions.
fn body(writer: usize) -> String {
    format!("writer {writer:02}")
}

fn by(seen: &Object) -> Left {
    match (0..WRITERS).find(|&writer| seen.body == body(writer)) {
        Some(writer) => Left::By(writer, seen.etag.clone()),
        None => Left::Other,
    }
}

/// Whether what the writers were told and what is there now leave one winner.
fn judge(sent: String, told: Vec<Told>, left: &Left) -> Result<(), Trouble> {
    let winners = told.iter().filter(|told| matches!(told, Told::Won(_))).count();
    if winners > 1 {
        return Err(broken(sent, format!("{winners} of them were told that they had won")));
    }
    match left {
        Left::Other => Err(broken(sent, "a read sees what none of them has sent")),
        Left::By(writer, etag) => match &told[*writer] {
            Told::Won(told) if told == etag => Ok(()),
            Told::Won(told) => {
                Err(broken(sent, format!("the winner was told {told}, and a read says {etag}")))
            }
            Told::Nothing if winners == 0 => Ok(()),
            Told::Nothing => Err(broken(sent, "one was told that it had won, and another did")),
            Told::Lost | Told::Failed(_) => {
                Err(broken(sent, "a read sees what one sent who was told that it had lost"))
            }
        },
        Left::Before if winners == 1 => {
            Err(broken(sent, "one was told that it had won, and a read does not see it"))
        }
        Left::Before => nobody_won(sent, told),
    }
}

/// A fault of the store only if it answered them all.
fn nobody_won(sent: String, told: Vec<Told>) -> Result<(), Trouble> {
    let mut unanswered = false;
    for told in told {
        match told {
            Told::Failed(error) => return Err(Trouble::Failed(error)),
            Told::Nothing => unanswered = true,
            Told::Won(_) | Told::Lost => {}
        }
    }
    if unanswered {
        Err(Trouble::Unknown { sent })
    } else {
        Err(broken(sent, "all of them were told that they had lost"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etag(n: usize) -> Etag {
        Etag::new(n.to_string())
    }

    /// One letter for each writer: won, lost, nothing, failed.
    fn told(letters: &str) -> Vec<Told> {
        let one = |(writer, letter)| match letter {
            'w' => Told::Won(etag(writer)),
            'l' => Told::Lost,
            'n' => Told::Nothing,
            'f' => {
                let source = std::io::Error::other("planted");
                Told::Failed(StoreError::Unreachable { key: "k".into(), source })
            }
            other => panic!("{other}"),
        };
        letters.chars().enumerate().map(one).collect()
    }

    fn by(writer: usize) -> Left {
        Left::By(writer, etag(writer))
    }

    #[test]
    fn one_winner_who_is_there_is_what_a_race_must_leave() {
        for (letters, left) in
            [("lwll", by(1)), ("lwfn", by(1)), ("nnnn", by(2)), ("llnl", by(2)), ("fnfl", by(1))]
        {
            let verdict = judge("race".into(), told(letters), &left);
            assert!(verdict.is_ok(), "{letters} {left:?}: {verdict:?}");
        }
    }

    #[test]
    fn each_other_end_of_an_answered_race_breaks_the_rule() {
        for (letters, left, came) in [
            ("wlwl", by(0), "2 of them"),
            ("wwww", Left::Before, "4 of them"),
            ("wlll", by(1), "told that it had lost"),
            ("llll", by(1), "told that it had lost"),
            ("nflf", by(1), "told that it had lost"),
            ("wnll", by(1), "and another did"),
            ("wlll", Left::Before, "does not see it"),
            ("wlll", Left::By(0, etag(7)), "a read says 7"),
            ("llll", Left::Before, "all of them"),
            ("lnll", Left::Other, "none of them has sent"),
        ] {
            match judge("race".into(), told(letters), &left) {
                Err(Trouble::Broken { came: said, .. }) => {
                    assert!(said.contains(came), "{letters}: {said}");
                }
                other => panic!("{letters} {left:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_race_that_was_not_answered_decides_nothing() {
        let verdict = judge("race".into(), told("lnll"), &Left::Before);
        assert!(matches!(verdict, Err(Trouble::Unknown { .. })), "{verdict:?}");
        let verdict = judge("race".into(), told("lnfl"), &Left::Before);
        assert!(matches!(verdict, Err(Trouble::Failed(_))), "{verdict:?}");
    }
}
