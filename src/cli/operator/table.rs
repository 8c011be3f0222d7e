//! Columns of text, each as wide as its widest word.

/// The lines of a table; columns that are numbers are set to the right.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let is_number = |column: usize| {
        let mut words = rows.iter().map(|row| row[column].as_str()).filter(|word| *word != NONE);
        words.clone().next().is_some()
            && words.all(|word| word.starts_with(|c: char| c.is_ascii_digit()))
    };
    let width = |column: usize| {
        let words = rows.iter().map(|row| row[column].chars().count());
        words.chain([head[column].len()]).max().unwrap_or(0)
    };
    let columns: Vec<_> = (0..head.len()).map(|n| (width(n), is_number(n))).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&columns).map(|(word, (width, is_number))| {
            if *is_number { format!("{word:>width$}") } else { format!("{word:<width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    let head: Vec<String> = head.iter().map(|word| (*word).to_owned()).collect();
    std::iter::once(line(&head)).chain(rows.iter().map(|row| line(row))).collect()
}

/// What stands where nothing is known.
pub(super) const NONE: &str = "-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_word_and_numbers_end_in_line() {
        let row = |words: [&str; 3]| words.map(str::to_owned).to_vec();
        let rows = [row(["a", "1", "x"]), row(["long", "200", NONE]), row(["b", NONE, ""])];
        assert_eq!(
            table(&["NAME", "N", "WHY"], &rows),
            "NAME    N  WHY\na       1  x\nlong  200  -\nb       -\n"
        );
        assert_eq!(table(&["A", "B"], &[]), "A  B\n");
    }
}
