//! A configuration file as a tree in which each value knows its line and column, whichever of
//! JSON with comments and TOML it was written in.
//!
//! Units: lines and columns count from 1; a column counts characters.

use std::fmt;

use jsonc_parser::ast;
use toml::de::{DeTable, DeValue};

use super::Problem;

/// A place in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    line: usize,
    column: usize,
}

impl Position {
    /// The place of a byte of `text`.
    pub(crate) fn of(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self { line: before.matches('\n').count() + 1, column: before[start..].chars().count() + 1 }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) at: Position,
    pub(crate) value: Value,
}

/// A value of either notation.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    String(String),
    List(Vec<Item>),
    Table(Table),
}

/// Named values in the order of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) at: Position,
    pub(crate) entries: Vec<Entry>,
}

/// One named value. `at` is the place of the name.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) at: Position,
    pub(crate) key: String,
    pub(crate) item: Item,
}

impl Table {
    /// The value of that name.
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }
}

impl Value {
    /// What a message calls it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }

    /// The same value without its places.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Number(value) => value.clone().into(),
            Self::String(value) => value.clone().into(),
            Self::List(items) => items.iter().map(|item| item.value.to_json()).collect(),
            Self::Table(table) => table
                .entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.item.value.to_json()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }
}

/// Reads JSON with comments and trailing commas, as wrangler does.
///
/// # Errors
/// The text is not such JSON, names a key twice, or is no table.
pub(crate) fn parse_jsonc(text: &str) -> Result<Table, Problem> {
    let options = jsonc_parser::ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    // A byte order mark is what some editors put first.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parsed =
        jsonc_parser::parse_to_ast(text, &jsonc_parser::CollectOptions::default(), &options)
            .map_err(|error| {
                Problem::at(Position::of(text, error.range().start), error.kind().to_string())
            })?;
    let root = parsed.value.ok_or_else(|| {
        Problem::at(Position::of(text, 0), "the file is empty; it must hold one JSON object")
    })?;
    let item = from_jsonc(text, root)?;
    match item.value {
        Value::Table(table) => Ok(table),
        other => Err(Problem::at(
            item.at,
            format!("the file must hold one JSON object, not {}", other.kind()),
        )),
    }
}

fn from_jsonc(text: &str, value: ast::Value<'_>) -> Result<Item, Problem> {
    use jsonc_parser::common::Ranged as _;
    let at = Position::of(text, value.start());
    let value = match value {
        ast::Value::NullKeyword(_) => Value::Null,
        ast::Value::BooleanLit(lit) => Value::Bool(lit.value),
        ast::Value::StringLit(lit) => Value::String(lit.value.into_owned()),
        ast::Value::NumberLit(lit) => {
            let number = lit.value.parse().map_err(|_| {
                Problem::at(at, format!("{} is not a number that can be used", lit.value))
            })?;
            Value::Number(number)
        }
        ast::Value::Array(array) => Value::List(
            array
                .elements
                .into_iter()
                .map(|element| from_jsonc(text, element))
                .collect::<Result<_, _>>()?,
        ),
        ast::Value::Object(object) => {
            let mut table = Table { at, entries: Vec::with_capacity(object.properties.len()) };
            for property in object.properties {
                let at = Position::of(text, property.start());
                let key = property.name.into_string();
                if table.get(&key).is_some() {
                    return Err(Problem::at(at, format!("the key {key:?} is given twice")));
                }
                table.entries.push(Entry { at, key, item: from_jsonc(text, property.value)? });
            }
            Value::Table(table)
        }
    };
    Ok(Item { at, value })
}

/// Reads TOML.
///
/// # Errors
/// The text is not TOML, or holds a date: JSON has none, so no key means one.
pub(crate) fn parse_toml(text: &str) -> Result<Table, Problem> {
    let table = DeTable::parse(text).map_err(|error| {
        let at = Position::of(text, error.span().map_or(0, |span| span.start));
        Problem::at(at, error.message().to_owned())
    })?;
    from_toml_table(text, table.span().start, table.into_inner())
}

fn from_toml_table(text: &str, start: usize, table: DeTable<'_>) -> Result<Table, Problem> {
    let mut entries = Vec::new();
    for (key, value) in table {
        let at = Position::of(text, key.span().start);
        let start = value.span().start;
        entries.push(Entry {
            at,
            key: key.into_inner().into_owned(),
            item: from_toml(text, start, value.into_inner())?,
        });
    }
    // The parser sorts by name; a reader of messages expects the order of the file.
    entries.sort_by_key(|entry| entry.at);
    Ok(Table { at: Position::of(text, start), entries })
}

fn from_toml(text: &str, start: usize, value: DeValue<'_>) -> Result<Item, Problem> {
    let at = Position::of(text, start);
    let bad = |what: &str| Problem::at(at, format!("{what} is not a number that can be used"));
    let value = match value {
        DeValue::String(value) => Value::String(value.into_owned()),
        DeValue::Boolean(value) => Value::Bool(value),
        DeValue::Integer(value) => {
            let number = i64::from_str_radix(value.as_str(), value.radix())
                .map_err(|_| bad(value.as_str()))?;
            Value::Number(number.into())
        }
        DeValue::Float(value) => {
            let number = value.as_str().parse().ok().and_then(serde_json::Number::from_f64);
            Value::Number(number.ok_or_else(|| bad(value.as_str()))?)
        }
        DeValue::Datetime(value) => {
            return Err(Problem::at(
                at,
                format!("{value} is a date; write it as a string, \"{value}\""),
            ));
        }
        DeValue::Array(array) => {
            let mut items = Vec::with_capacity(array.len());
            for value in array {
                let start = value.span().start;
                items.push(from_toml(text, start, value.into_inner())?);
            }
            Value::List(items)
        }
        DeValue::Table(table) => Value::Table(from_toml_table(text, start, table)?),
    };
    Ok(Item { at, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSONC: &str = "{\n  // a comment\n  \"name\": \"a\",\n  \"vars\": { \"N\": 1.5, \"L\": [true, null,], },\n}\n";
    const TOML: &str = "name = \"a\"\n[vars]\nN = 1.5\nL = [true, false]\n";

    #[test]
    fn both_notations_give_the_same_tree() {
        let jsonc = parse_jsonc(JSONC).expect("good JSON");
        let toml = parse_toml(TOML).expect("good TOML");
        assert_eq!(jsonc.get("vars").expect("vars").at.to_string(), "4:3");
        assert_eq!(toml.get("vars").expect("vars").item.value.to_json()["N"], 1.5);
        assert_eq!(jsonc.get("vars").expect("vars").item.value.to_json()["N"], 1.5);
        assert_eq!(toml.get("name").expect("name").at.to_string(), "1:1");
    }

    #[test]
    fn a_fault_is_found_where_it_is() {
        let place = |problem: Problem| problem.to_string();
        assert!(
            place(parse_jsonc("{\n  \"a\": 1,\n  \"a\": 2\n}").expect_err("twice"))
                .starts_with("3:3: the key \"a\"")
        );
        assert!(place(parse_jsonc("{\n  \"a\": tru\n}").expect_err("word")).starts_with("2:8: "));
        assert!(
            place(parse_jsonc("[]").expect_err("list")).contains("one JSON object, not a list")
        );
        assert!(place(parse_jsonc(" // nothing\n").expect_err("empty")).contains("empty"));
        assert!(place(parse_toml("a = 1\nb = = 2\n").expect_err("toml")).starts_with("2:5: "));
        assert!(
            place(parse_toml("d = 2024-01-01\n").expect_err("date")).contains("\"2024-01-01\"")
        );
    }

    #[test]
    fn a_column_counts_characters() {
        assert_eq!(Position::of("ä\nöö x", 8).to_string(), "2:4");
    }
}
