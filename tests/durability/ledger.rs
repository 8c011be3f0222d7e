//! What clients know of one cell, and whether what it shows later agrees.
//!
//! A row of a cell has a number, and the numbers have no gaps. What was acknowledged to a writer
//! and what a reader saw must be there for ever, under the same number; what was sent may be there;
//! nothing else may.

use std::collections::{BTreeMap, BTreeSet};

use super::support::http::Client;

/// A row's content: which writer, which of its writes.
pub type Row = (u64, u64);

/// One cell's.
#[derive(Default)]
pub struct Ledger {
    sent: BTreeSet<Row>,
    /// Acknowledged or seen, by number.
    known: BTreeMap<u64, Row>,
    /// How many rows were acknowledged, and how many were seen by readers.
    pub acknowledged: u64,
    pub seen: u64,
    /// Disagreements between answers.
    wrong: Vec<String>,
}

impl Ledger {
    /// Before a write leaves.
    pub fn sends(&mut self, row: Row) {
        self.sent.insert(row);
    }

    /// A write was acknowledged.
    pub fn acknowledges(&mut self, number: u64, row: Row) {
        self.acknowledged += 1;
        self.learn(number, row, "acknowledged");
    }

    /// A reader saw rows.
    pub fn sees(&mut self, rows: &[(u64, Row)]) {
        for (number, row) in rows {
            self.seen += 1;
            if !self.sent.contains(row) {
                self.wrong.push(format!("row {number}: {row:?} was seen and never sent"));
            }
            self.learn(*number, *row, "seen");
        }
    }

    /// The same. `last`: the last row that was known when the reader asked.
    pub fn sees_at_least(&mut self, last: u64, rows: &[(u64, Row)]) {
        let shown = rows.last().map_or(0, |(number, _)| *number);
        if shown < last {
            self.wrong.push(format!("row {last} was known, and a reader saw rows up to {shown}"));
        }
        self.sees(rows);
    }

    fn learn(&mut self, number: u64, row: Row, how: &str) {
        if let Some(other) = self.known.insert(number, row)
            && other != row
        {
            self.wrong.push(format!("row {number}: {row:?} was {how}, but {other:?} before"));
        }
    }

    /// The last number that is known.
    pub fn last(&self) -> u64 {
        self.known.keys().next_back().copied().unwrap_or(0)
    }

    /// What a cell that is asked from now on must show.
    pub fn known(&self) -> BTreeMap<u64, Row> {
        self.known.clone()
    }

    /// What is wrong with a cell that shows these rows, while nobody writes.
    pub fn check(&self, rows: &[(u64, Row)]) -> Vec<String> {
        self.check_shows(&self.known, rows)
    }

    /// The same. `known`: before it was asked, as it may not show what came later.
    pub fn check_shows(&self, known: &BTreeMap<u64, Row>, rows: &[(u64, Row)]) -> Vec<String> {
        let mut wrong = self.wrong.clone();
        let mut contents = BTreeSet::new();
        for (at, (number, row)) in (1..).zip(rows) {
            if *number != at {
                wrong.push(format!("row {number} stands at place {at}"));
                break;
            }
            if !self.sent.contains(row) {
                wrong.push(format!("row {number}: {row:?} was never sent"));
            }
            if !contents.insert(*row) {
                wrong.push(format!("row {number}: {row:?} is there twice"));
            }
        }
        let shown: BTreeMap<u64, Row> = rows.iter().copied().collect();
        for (number, row) in known {
            match shown.get(number) {
                Some(found) if found == row => {}
                Some(found) => wrong.push(format!("row {number}: {found:?} instead of {row:?}")),
                None => wrong.push(format!("row {number}: {row:?} is lost")),
            }
        }
        wrong
    }
}

/// The rows of a cell behind number `after`.
///
/// # Errors
/// There is no good answer.
pub fn rows(client: &mut Client, cell: &str, after: u64) -> Result<Vec<(u64, Row)>, String> {
    let answer = client.ask("GET", &format!("/{cell}/rows?after={after}"));
    let answer = answer.map_err(|error| error.to_string())?;
    let text = answer.text();
    if answer.status != 200 {
        return Err(format!("{}: {text}", answer.status));
    }
    parse(&text)
}

/// The rows in an answer.
///
/// # Errors
/// It is none.
pub fn parse(text: &str) -> Result<Vec<(u64, Row)>, String> {
    let row = |line: &str| {
        let mut numbers = line.split(' ').map(str::parse);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(n)), Some(Ok(writer)), Some(Ok(seq))) => Ok((n, (writer, seq))),
            _ => Err(format!("not a row: {line:?}")),
        }
    };
    text.lines().map(row).collect()
}

/// Writes a row.
///
/// # Errors
/// It was not acknowledged. `None` instead of a status: the connection broke.
pub fn append(client: &mut Client, cell: &str, row: Row) -> Result<u64, (Option<u16>, String)> {
    let path = format!("/{cell}/append?writer={}&seq={}", row.0, row.1);
    match client.ask("POST", &path) {
        Ok(answer) if answer.status == 200 => {
            let text = answer.text();
            text.parse().map_err(|_| (Some(200), format!("not a number: {text:?}")))
        }
        Ok(answer) => Err((Some(answer.status), answer.text())),
        Err(error) => Err((None, error.to_string())),
    }
}

#[test]
fn the_ledger_notices_what_is_lost_changed_doubled_or_invented() {
    let mut ledger = Ledger::default();
    for seq in 0..3 {
        ledger.sends((1, seq));
    }
    ledger.acknowledges(1, (1, 0));
    ledger.sees(&[(2, (1, 1))]);
    let good = [(1, (1, 0)), (2, (1, 1)), (3, (1, 2))];
    assert_eq!(ledger.check(&good), [""; 0]);
    assert_eq!(ledger.check(&good[..2]), [""; 0], "an unproven write may vanish");
    for (rows, word) in [
        (&good[..1], "row 2: (1, 1) is lost"),
        (&[(1, (1, 1)), (2, (1, 0))], "row 1: (1, 1) instead of (1, 0)"),
        (&[(1, (1, 0)), (2, (1, 1)), (3, (1, 0))], "row 3: (1, 0) is there twice"),
        (&[(1, (1, 0)), (2, (1, 1)), (3, (1, 7))], "row 3: (1, 7) was never sent"),
        (&[(1, (1, 0)), (3, (1, 1))], "row 3 stands at place 2"),
    ] {
        let wrong = ledger.check(rows);
        assert!(wrong.iter().any(|line| line == word), "{word} is not in {wrong:?}");
    }
    let known = ledger.known();
    ledger.acknowledges(3, (1, 2));
    assert_eq!(ledger.check_shows(&known, &good[..2]), [""; 0], "it came after the question");
    assert_eq!(ledger.check(&good[..2]), ["row 3: (1, 2) is lost"]);
    ledger.sees_at_least(3, &good[1..]);
    assert_eq!(ledger.check(&good), [""; 0]);
    ledger.sees_at_least(3, &good[1..2]);
    assert_eq!(ledger.check(&good), ["row 3 was known, and a reader saw rows up to 2"]);
    ledger.acknowledges(2, (1, 2));
    assert!(ledger.check(&good).len() > 1, "two contents of one row");
}
