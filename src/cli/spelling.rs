//! The nearest known word for a misspelt one.

/// The word of `known` that `word` is most likely meant to be, if any is near enough: one wrong
/// letter in three, swapped neighbours counting as one.
pub(crate) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|&candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|&(distance, candidate)| distance * 3 <= word.len().max(candidate.len()))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_found_and_another_word_is_not() {
        let known = ["compatibility_date", "main", "vars"];
        assert_eq!(nearest("compatability_date", &known), Some("compatibility_date"));
        assert_eq!(nearest("mian", &known), Some("main"));
        assert_eq!(nearest("maim", &known), Some("main"));
        assert_eq!(nearest("triggers", &known), None);
    }
}
