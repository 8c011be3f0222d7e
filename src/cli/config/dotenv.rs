//! Secrets of development: `.dev.vars`, or `.env` and its relatives where there is none.
//!
//! Source: dotenv 16 for the syntax, wrangler 4 for which file counts. A line that dotenv would
//! skip in silence is an error here: a lost secret is hard to find.

use std::io;
use std::path::{Path, PathBuf};

use super::{ConfigError, Problem, tree::Position};

/// Variables in the order of the files; a later one of the same name wins.
pub(crate) type Secrets = Vec<(String, String)>;

/// Reads the secrets of the project in `dir`. Also returns which files they came from.
///
/// # Errors
/// A file that exists cannot be read or holds a line that is no variable.
pub(crate) fn load(
    dir: &Path,
    environment: Option<&str>,
) -> Result<(Secrets, Vec<PathBuf>), ConfigError> {
    let dev_vars = environment
        .map(|name| format!(".dev.vars.{name}"))
        .into_iter()
        .chain([".dev.vars".to_owned()]);
    for name in dev_vars {
        let path = dir.join(name);
        if let Some(found) = read(&path)? {
            return Ok((found, vec![path]));
        }
    }
    let mut names = vec![".env".to_owned(), ".env.local".to_owned()];
    names.extend(
        environment.iter().flat_map(|name| [format!(".env.{name}"), format!(".env.{name}.local")]),
    );
    let mut secrets = Vec::new();
    let mut files = Vec::new();
    for path in names.iter().map(|name| dir.join(name)) {
        if let Some(found) = read(&path)? {
            secrets.extend(found);
            files.push(path);
        }
    }
    Ok((secrets, files))
}

fn read(path: &Path) -> Result<Option<Secrets>, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text).map(Some).map_err(|problem| ConfigError::new(path, vec![problem])),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(ConfigError::new(path, vec![Problem::new(format!("cannot be read: {error}"))]))
        }
    }
}

/// Reads the text of one file.
fn parse(text: &str) -> Result<Secrets, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Ok(found);
        }
        if rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
            continue;
        }
        let at = Position::of(text, text.len() - rest.len());
        let body = rest.strip_prefix("export ").map_or(rest, str::trim_start);
        let end = body
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')))
            .unwrap_or(body.len());
        let (key, after) = body.split_at(end);
        let after = after.trim_start_matches([' ', '\t']);
        let value = after.strip_prefix('=').or_else(|| after.strip_prefix(':'));
        let (Some(value), false) = (value, key.is_empty()) else {
            return Err(Problem::at(at, "this line is not NAME=value".to_owned()));
        };
        let (value, after) = self::value(value.trim_start_matches([' ', '\t']), at)?;
        found.push((key.to_owned(), value));
        rest = after;
    }
}

/// The value that `text` begins with, and what follows its line.
fn value(text: &str, at: Position) -> Result<(String, &str), Problem> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\'' | '`'));
    let Some(quote) = quote else {
        let (line, after) = text.split_once('\n').unwrap_or((text, ""));
        let line = line.split_once('#').map_or(line, |(value, _)| value);
        return Ok((line.trim().to_owned(), after));
    };
    let body = &text[1..];
    let mut escaped = false;
    let end = body.char_indices().find(|&(_, c)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    let Some((end, _)) = end else {
        return Err(Problem::at(at, format!("the quote {quote} is not closed")));
    };
    let inner = &body[..end];
    let (trail, after) = body[end + 1..].split_once('\n').unwrap_or((&body[end + 1..], ""));
    let trail = trail.trim();
    if !trail.is_empty() && !trail.starts_with('#') {
        return Err(Problem::at(at, format!("{trail:?} follows the closing quote")));
    }
    let value = if quote == '"' {
        inner.replace("\\n", "\n").replace("\\r", "\r")
    } else {
        inner.to_owned()
    };
    Ok((value, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).expect(text)
    }

    #[test]
    fn each_form_of_a_value_is_read() {
        let text = "# first\nA=1\nexport B = two words # note\nC=\"x\\ny # no note\"\nD='a\\nb'\nE=`tick`\n\nF=\nG: yes\nH=\"two\nlines\"\n";
        let expected = [
            ("A", "1"),
            ("B", "two words"),
            ("C", "x\ny # no note"),
            ("D", "a\\nb"),
            ("E", "tick"),
            ("F", ""),
            ("G", "yes"),
            ("H", "two\nlines"),
        ];
        let expected: Vec<_> =
            expected.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        assert_eq!(pairs(text), expected);
    }

    #[test]
    fn a_line_that_is_no_variable_is_named() {
        assert_eq!(
            parse("A=1\njunk\n").expect_err("junk").to_string(),
            "2:1: this line is not NAME=value"
        );
        assert!(parse("A=\"open\n").expect_err("open").to_string().contains("not closed"));
        assert!(parse("A='x' y\n").expect_err("trail").to_string().contains("\"y\""));
    }

    #[test]
    fn dev_vars_hide_env() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join(".env"), "A=env\nB=env\n").expect("write");
        std::fs::write(dir.path().join(".env.local"), "A=local\n").expect("write");
        let (secrets, files) = load(dir.path(), None).expect("good");
        assert_eq!((secrets.len(), files.len()), (3, 2));
        std::fs::write(dir.path().join(".dev.vars"), "A=dev\n").expect("write");
        let (secrets, files) = load(dir.path(), Some("staging")).expect("good");
        assert_eq!((secrets, files.len()), (vec![("A".to_owned(), "dev".to_owned())], 1));
    }
}
