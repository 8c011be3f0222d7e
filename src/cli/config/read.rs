//! One level of a wrangler file, the top or an `env.<name>`, as typed values.
//!
//! Faults are collected, not returned at the first: a person wants to see all of them.

use std::collections::BTreeMap;

use super::keys::{self, Form, KEYS, Level, Meaning, Shape};
use super::migrations::Migration;
use super::tree::{Entry, Item, Position, Table, Value};
use super::{Limits, ModuleType, Problem, Rule};
use crate::cli::spelling::nearest;

/// What a level says. `None`: the level does not say it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) name: Option<(Position, String)>,
    pub(crate) main: Option<(Position, String)>,
    pub(crate) compatibility_date: Option<(Position, String)>,
    pub(crate) compatibility_flags: Option<Vec<(Position, String)>>,
    pub(crate) vars: Option<serde_json::Map<String, serde_json::Value>>,
    pub(crate) durable_objects: Option<Vec<Bound>>,
    pub(crate) migrations: Option<Vec<Migration>>,
    pub(crate) rules: Option<Vec<Rule>>,
    pub(crate) define: Option<BTreeMap<String, String>>,
    pub(crate) alias: Option<BTreeMap<String, String>>,
    pub(crate) crons: Option<(Position, Vec<String>)>,
    pub(crate) limits: Option<Limits>,
    pub(crate) no_bundle: Option<bool>,
    pub(crate) base_dir: Option<(Position, String)>,
    pub(crate) find_additional_modules: Option<bool>,
    pub(crate) minify: Option<bool>,
    pub(crate) keep_names: Option<bool>,
    pub(crate) tsconfig: Option<String>,
    pub(crate) jsx_factory: Option<String>,
    pub(crate) jsx_fragment: Option<String>,
    /// Bindings that are not served, by the key that names them.
    pub(crate) missing: BTreeMap<&'static str, Vec<Problem>>,
}

/// A Durable Object binding as written.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) at: Position,
    pub(crate) name: String,
    pub(crate) class_name: String,
}

/// Where a level stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope<'a> {
    Top,
    Environment(&'a str),
}

/// Collects faults and notes while a file is read.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) problems: Vec<Problem>,
    pub(crate) notes: Vec<String>,
}

impl Reader {
    /// Reads one level.
    pub(crate) fn level(&mut self, table: &Table, scope: Scope<'_>) -> Said {
        let mut said = Said::default();
        for entry in &table.entries {
            let Some((level, meaning)) = keys::lookup(&entry.key) else {
                self.unknown(entry, scope);
                continue;
            };
            if level == Level::Top && scope != Scope::Top {
                self.problem(
                    entry.at,
                    format!("{:?} belongs to the top level, not to an environment", entry.key),
                );
                continue;
            }
            match meaning {
                Meaning::Used => self.key(entry, &mut said),
                Meaning::Silent => {}
                Meaning::NoEffect(why) => {
                    let note = format!("{:?} has no effect: {why}", entry.key);
                    if !self.notes.contains(&note) {
                        self.notes.push(note);
                    }
                }
                Meaning::Missing(shape) => {
                    let found = self.missing(entry, shape);
                    let name = KEYS.iter().map(|key| key.0).find(|name| *name == entry.key);
                    said.missing.extend(name.map(|name| (name, found)));
                }
                Meaning::Removed(instead) => {
                    self.problem(entry.at, format!("{:?} is no longer a key: {instead}", entry.key))
                }
            }
        }
        said
    }

    fn unknown(&mut self, entry: &Entry, scope: Scope<'_>) {
        let fits = |level: Level| scope == Scope::Top || level != Level::Top;
        let known: Vec<&str> = KEYS.iter().filter(|key| fits(key.1)).map(|key| key.0).collect();
        self.unknown_key(entry, "", &known);
    }

    fn key(&mut self, entry: &Entry, said: &mut Said) {
        let item = &entry.item;
        let key = entry.key.as_str();
        match key {
            "name" => said.name = self.placed(item, key),
            "main" => said.main = self.placed(item, key),
            "compatibility_date" => said.compatibility_date = self.placed(item, key),
            "compatibility_flags" => said.compatibility_flags = self.placed_strings(item, key),
            "vars" => said.vars = self.vars(item),
            "durable_objects" => said.durable_objects = self.durable_objects(item),
            "migrations" => said.migrations = self.migrations(item),
            "rules" => said.rules = self.rules(item),
            "define" => said.define = self.string_map(item, key),
            "alias" => said.alias = self.string_map(item, key),
            "triggers" => said.crons = self.triggers(item),
            "limits" => said.limits = self.limits(item),
            "no_bundle" => said.no_bundle = self.boolean(item, key),
            "base_dir" => said.base_dir = self.placed(item, key),
            "find_additional_modules" => said.find_additional_modules = self.boolean(item, key),
            "minify" => said.minify = self.boolean(item, key),
            "keep_names" => said.keep_names = self.boolean(item, key),
            "tsconfig" => said.tsconfig = self.string(item, key),
            "jsx_factory" => said.jsx_factory = self.string(item, key),
            "jsx_fragment" => said.jsx_fragment = self.string(item, key),
            // Read by the caller, once the top level is known.
            "env" => {}
            other => unreachable!("{other} is in KEYS as used, and nobody reads it"),
        }
    }

    fn vars(&mut self, item: &Item) -> Option<serde_json::Map<String, serde_json::Value>> {
        let table = self.table(item, "vars")?;
        Some(
            table
                .entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.item.value.to_json()))
                .collect(),
        )
    }

    fn durable_objects(&mut self, item: &Item) -> Option<Vec<Bound>> {
        let table = self.table(item, "durable_objects")?;
        self.only(table, "durable_objects", &["bindings"]);
        let Some(bindings) = table.get("bindings") else {
            self.problem(item.at, "durable_objects needs \"bindings\"".to_owned());
            return None;
        };
        let mut found: Vec<Bound> = Vec::new();
        for item in self.list(&bindings.item, "durable_objects.bindings")? {
            let what = "a Durable Object binding";
            let Some(table) = self.table(item, what) else { continue };
            self.only(table, what, &["name", "class_name", "script_name", "environment"]);
            let name = self.required(table, what, "name");
            let class_name = self.required(table, what, "class_name");
            for key in ["script_name", "environment"] {
                if let (Some(entry), Some(name)) = (table.get(key), &name) {
                    let text = format!(
                        "the Durable Object binding {name:?} with {key:?} is not supported: its class must be in this Worker"
                    );
                    self.problem(entry.at, text);
                }
            }
            if let (Some(name), Some(class_name)) = (name, class_name) {
                if found.iter().any(|other| other.name == name) {
                    self.problem(item.at, format!("the binding {name:?} is given twice"));
                }
                found.push(Bound { at: item.at, name, class_name });
            }
        }
        Some(found)
    }

    fn migrations(&mut self, item: &Item) -> Option<Vec<Migration>> {
        let mut found = Vec::new();
        for item in self.list(item, "migrations")? {
            let what = "a migration";
            let Some(table) = self.table(item, what) else { continue };
            let known = [
                "tag",
                "new_classes",
                "new_sqlite_classes",
                "renamed_classes",
                "deleted_classes",
                "transferred_classes",
            ];
            self.only(table, what, &known);
            if let Some(entry) = table.get("transferred_classes") {
                self.problem(
                    entry.at,
                    "transferred_classes is not supported: a class cannot change its script"
                        .to_owned(),
                );
            }
            let Some(tag) = self.required(table, what, "tag") else { continue };
            let mut names = |key: &str| {
                table.get(key).and_then(|entry| self.strings(&entry.item, key)).unwrap_or_default()
            };
            let new_classes = names("new_classes");
            let new_sqlite_classes = names("new_sqlite_classes");
            let deleted_classes = names("deleted_classes");
            let renamed_classes = table
                .get("renamed_classes")
                .map_or_else(Vec::new, |entry| self.renames(&entry.item));
            found.push(Migration {
                at: item.at,
                tag,
                new_classes,
                new_sqlite_classes,
                renamed_classes,
                deleted_classes,
            });
        }
        Some(found)
    }

    fn renames(&mut self, item: &Item) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for item in self.list(item, "renamed_classes").unwrap_or_default() {
            let what = "a renamed class";
            let Some(table) = self.table(item, what) else { continue };
            self.only(table, what, &["from", "to"]);
            if let (Some(from), Some(to)) =
                (self.required(table, what, "from"), self.required(table, what, "to"))
            {
                found.push((from, to));
            }
        }
        found
    }

    fn rules(&mut self, item: &Item) -> Option<Vec<Rule>> {
        let mut found = Vec::new();
        for item in self.list(item, "rules")? {
            let what = "a rule";
            let Some(table) = self.table(item, what) else { continue };
            self.only(table, what, &["type", "globs", "fallthrough"]);
            let kind = self.required(table, what, "type");
            let kind = kind.and_then(|name| match ModuleType::from_name(&name) {
                Some(kind) => Some(kind),
                None => {
                    self.problem(
                        item.at,
                        format!(
                            "the rule type {name:?} is not supported; it may be {}",
                            ModuleType::NAMES
                        ),
                    );
                    None
                }
            });
            let globs = table.get("globs").and_then(|entry| self.globs(&entry.item));
            if table.get("globs").is_none() {
                self.problem(item.at, "a rule needs \"globs\"".to_owned());
            }
            let fallthrough =
                table.get("fallthrough").and_then(|entry| self.boolean(&entry.item, "fallthrough"));
            if let (Some(kind), Some(globs)) = (kind, globs) {
                found.push(Rule { kind, globs, fallthrough: fallthrough.unwrap_or(false) });
            }
        }
        Some(found)
    }

    fn globs(&mut self, item: &Item) -> Option<Vec<String>> {
        let globs = self.strings(item, "globs")?;
        for glob in &globs {
            if let Err(error) = globset::Glob::new(glob) {
                self.problem(
                    item.at,
                    format!("the glob {glob:?} cannot be used: {}", error.kind()),
                );
            }
        }
        Some(globs)
    }

    fn triggers(&mut self, item: &Item) -> Option<(Position, Vec<String>)> {
        let table = self.table(item, "triggers")?;
        self.only(table, "triggers", &["crons"]);
        let entry = table.get("crons")?;
        let crons = self.strings(&entry.item, "triggers.crons")?;
        for cron in &crons {
            let fields = cron.split_whitespace().count();
            if fields != 5 {
                self.problem(
                    entry.item.at,
                    format!("the cron expression {cron:?} has {fields} fields; it needs 5"),
                );
            }
        }
        Some((entry.at, crons))
    }

    fn limits(&mut self, item: &Item) -> Option<Limits> {
        let table = self.table(item, "limits")?;
        self.only(table, "limits", &["cpu_ms", "subrequests"]);
        // The bounds are those of Workers: five minutes, and what one event may ask for.
        let cpu_ms = table
            .get("cpu_ms")
            .and_then(|entry| self.integer(&entry.item, "limits.cpu_ms", 1, 300_000));
        let subrequests = table
            .get("subrequests")
            .and_then(|entry| self.integer(&entry.item, "limits.subrequests", 1, 10_000_000));
        Some(Limits { cpu_ms, subrequests })
    }

    /// Names each entry of a binding that is not served.
    fn missing(&mut self, entry: &Entry, shape: Shape) -> Vec<Problem> {
        let key = entry.key.as_str();
        let refuse = |at, name: Option<String>| {
            let name = name.map_or_else(String::new, |name| format!(" {name:?}"));
            Problem::at(
                at,
                format!(
                    "{key}: the {}{name} is not supported by this version of celld",
                    shape.what
                ),
            )
        };
        let item = &entry.item;
        match shape.form {
            Form::List => {
                let Some(items) = self.list(item, key) else { return Vec::new() };
                items
                    .iter()
                    .map(|item| refuse(item.at, self.entry_name(item, key, shape.keys)))
                    .collect()
            }
            Form::One => vec![refuse(entry.at, self.entry_name(item, key, shape.keys))],
            Form::Queues => {
                let Some(table) = self.table(item, key) else { return Vec::new() };
                self.only(table, key, &["producers", "consumers"]);
                let mut found = Vec::new();
                for (part, first) in [("producers", "binding"), ("consumers", "queue")] {
                    let Some(part) = table.get(part) else { continue };
                    for item in self.list(&part.item, &part.key).unwrap_or_default() {
                        found.push(refuse(item.at, name_in(item, first)));
                    }
                }
                found
            }
            Form::Any => match &item.value {
                Value::List(items) => items
                    .iter()
                    .map(|item| {
                        refuse(item.at, name_in(item, "binding").or_else(|| name_in(item, "name")))
                    })
                    .collect(),
                Value::Table(table) if table.entries.is_empty() => Vec::new(),
                Value::Null | Value::Bool(false) => Vec::new(),
                Value::Bool(true) | Value::Number(_) | Value::String(_) | Value::Table(_) => {
                    vec![refuse(
                        entry.at,
                        name_in(item, "binding").or_else(|| name_in(item, "name")),
                    )]
                }
            },
        }
    }

    fn entry_name(&mut self, item: &Item, key: &str, keys: &[&str]) -> Option<String> {
        let table = self.table(item, key)?;
        self.only(table, key, keys);
        keys.first().and_then(|first| name_in(item, first))
    }

    /// Complains about keys of a table that nobody knows.
    fn only(&mut self, table: &Table, what: &str, known: &[&str]) {
        for entry in table.entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            self.unknown_key(entry, what, known);
        }
    }

    fn unknown_key(&mut self, entry: &Entry, what: &str, known: &[&str]) {
        let place = if what.is_empty() { String::new() } else { format!(" in {what}") };
        let hint = match nearest(&entry.key, known) {
            Some(near) => format!("; did you mean {near:?}?"),
            None if known.len() <= 8 => format!("; known are {}", known.join(", ")),
            None => String::new(),
        };
        self.problem(entry.at, format!("the key {:?} is not known{place}{hint}", entry.key));
    }

    pub(crate) fn problem(&mut self, at: Position, text: String) {
        self.problems.push(Problem::at(at, text));
    }

    fn wrong(&mut self, item: &Item, what: &str, wanted: &str) {
        self.problem(item.at, format!("{what} must be {wanted}, not {}", item.value.kind()));
    }

    fn required(&mut self, table: &Table, what: &str, key: &str) -> Option<String> {
        let Some(entry) = table.get(key) else {
            self.problem(table.at, format!("{what} needs {key:?}"));
            return None;
        };
        let text = self.string(&entry.item, key)?;
        if text.is_empty() {
            self.problem(entry.item.at, format!("{key:?} of {what} must not be empty"));
            return None;
        }
        Some(text)
    }

    pub(crate) fn table<'a>(&mut self, item: &'a Item, what: &str) -> Option<&'a Table> {
        match &item.value {
            Value::Table(table) => Some(table),
            _ => {
                self.wrong(item, what, "a table");
                None
            }
        }
    }

    fn list<'a>(&mut self, item: &'a Item, what: &str) -> Option<&'a [Item]> {
        match &item.value {
            Value::List(items) => Some(items),
            _ => {
                self.wrong(item, what, "a list");
                None
            }
        }
    }

    fn string(&mut self, item: &Item, what: &str) -> Option<String> {
        match &item.value {
            Value::String(text) => Some(text.clone()),
            _ => {
                self.wrong(item, what, "a string");
                None
            }
        }
    }

    fn placed(&mut self, item: &Item, what: &str) -> Option<(Position, String)> {
        self.string(item, what).map(|text| (item.at, text))
    }

    fn boolean(&mut self, item: &Item, what: &str) -> Option<bool> {
        match &item.value {
            Value::Bool(value) => Some(*value),
            _ => {
                self.wrong(item, what, "true or false");
                None
            }
        }
    }

    fn integer(&mut self, item: &Item, what: &str, min: u32, max: u32) -> Option<u32> {
        let value = match &item.value {
            Value::Number(number) => number.as_u64().and_then(|n| u32::try_from(n).ok()),
            _ => None,
        };
        let fits = value.filter(|n| (min..=max).contains(n));
        if fits.is_none() {
            self.problem(item.at, format!("{what} must be a whole number from {min} to {max}"));
        }
        fits
    }

    fn strings(&mut self, item: &Item, what: &str) -> Option<Vec<String>> {
        let placed = self.placed_strings(item, what)?;
        Some(placed.into_iter().map(|(_, text)| text).collect())
    }

    fn placed_strings(&mut self, item: &Item, what: &str) -> Option<Vec<(Position, String)>> {
        let items = self.list(item, what)?;
        Some(
            items
                .iter()
                .filter_map(|item| self.placed(item, &format!("each entry of {what}")))
                .collect(),
        )
    }

    fn string_map(&mut self, item: &Item, what: &str) -> Option<BTreeMap<String, String>> {
        let table = self.table(item, what)?;
        let entries = table.entries.iter();
        Some(
            entries
                .filter_map(|entry| {
                    Some((
                        entry.key.clone(),
                        self.string(&entry.item, &format!("{what}.{}", entry.key))?,
                    ))
                })
                .collect(),
        )
    }
}

fn name_in(item: &Item, key: &str) -> Option<String> {
    match &item.value {
        Value::Table(table) => match &table.get(key)?.item.value {
            Value::String(name) => Some(name.clone()),
            _ => None,
        },
        _ => None,
    }
}
