//! The wrangler file of a project: found, read, checked, and reduced to one environment.
//!
//! Invariant: a [`Project`] asks for nothing that celld does not serve. What it cannot serve, and
//! what it does not know, stops the start with the place of each fault.
//! Source: wrangler 4's configuration reference and inheritance rules.

mod dotenv;
mod flags;
mod keys;
mod migrations;
mod read;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use self::read::{Bound, Reader, Said, Scope};
use self::tree::{Position, Table};
use super::clock;
use super::spelling::nearest;

/// What the configuration is read for: they differ in what they forgive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Dev,
    Deploy,
}

/// A fault and its place, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    at: Option<Position>,
    text: String,
}

impl Problem {
    fn new(text: String) -> Self {
        Self { at: None, text }
    }
    fn at(at: Position, text: impl Into<String>) -> Self {
        Self { at: Some(at), text: text.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "{at}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// All faults of one file.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.lines())]
pub(crate) struct ConfigError {
    file: PathBuf,
    problems: Vec<Problem>,
}

impl ConfigError {
    fn new(file: &Path, problems: Vec<Problem>) -> Self {
        Self { file: file.to_owned(), problems }
    }

    fn lines(&self) -> String {
        let line = |problem: &Problem| match problem.at {
            Some(_) => format!("{}:{problem}", self.file.display()),
            None => format!("{}: {problem}", self.file.display()),
        };
        self.problems.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// How a file that is imported becomes a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ModuleType {
    EsModule,
    CommonJs,
    Text,
    Data,
    CompiledWasm,
}

impl ModuleType {
    const NAMES: &str = "ESModule, CommonJS, Text, Data or CompiledWasm";

    /// As a configuration writes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::EsModule => "ESModule",
            Self::CommonJs => "CommonJS",
            Self::Text => "Text",
            Self::Data => "Data",
            Self::CompiledWasm => "CompiledWasm",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "ESModule" => Self::EsModule,
            "CommonJS" => Self::CommonJs,
            "Text" => Self::Text,
            "Data" => Self::Data,
            "CompiledWasm" => Self::CompiledWasm,
            _ => return None,
        })
    }
}

/// One entry of `rules`: files that match are modules of that type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) kind: ModuleType,
    pub(crate) globs: Vec<String>,
    /// Later rules of the same type count too.
    pub(crate) fallthrough: bool,
}

/// `limits`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) cpu_ms: Option<u32>,
    pub(crate) subrequests: Option<u32>,
}

/// A Durable Object binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DurableObject {
    pub(crate) binding: String,
    pub(crate) class_name: String,
    /// Key of the class in the bucket.
    pub(crate) namespace: String,
}

/// What esbuild is told beyond the entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BuildOptions {
    pub(crate) define: BTreeMap<String, String>,
    pub(crate) alias: BTreeMap<String, String>,
    pub(crate) minify: bool,
    pub(crate) keep_names: bool,
    pub(crate) tsconfig: Option<String>,
    pub(crate) jsx_factory: Option<String>,
    pub(crate) jsx_fragment: Option<String>,
}

/// A project as one environment of its wrangler file describes it.
#[derive(Clone, Debug)]
pub(crate) struct Project {
    /// Directory of the wrangler file, without symbolic links.
    pub(crate) dir: PathBuf,
    /// The wrangler file.
    pub(crate) file: PathBuf,
    /// Name of the script; in a named environment with its suffix.
    pub(crate) name: String,
    /// The entry, relative to `dir`.
    pub(crate) main: PathBuf,
    pub(crate) compatibility_date: String,
    pub(crate) compatibility_flags: Vec<String>,
    pub(crate) vars: serde_json::Map<String, serde_json::Value>,
    pub(crate) durable_objects: Vec<DurableObject>,
    /// Namespace key of each class that exists.
    pub(crate) classes: BTreeMap<String, String>,
    /// Namespace keys of the classes that a migration deleted.
    pub(crate) deleted: Vec<String>,
    pub(crate) migration_tag: Option<String>,
    pub(crate) crons: Vec<String>,
    pub(crate) limits: Limits,
    pub(crate) rules: Vec<Rule>,
    pub(crate) build: BuildOptions,
    pub(crate) no_bundle: bool,
    pub(crate) base_dir: Option<PathBuf>,
    pub(crate) find_additional_modules: bool,
    /// Names of `vars` that came from a secrets file.
    pub(crate) secrets: Vec<String>,
    /// Files whose change means that the project must be read again.
    pub(crate) files: Vec<PathBuf>,
    /// What the person should know, one line each.
    pub(crate) notes: Vec<String>,
}

/// In the order in which wrangler looks for them.
const FILES: [&str; 3] = ["wrangler.json", "wrangler.jsonc", "wrangler.toml"];

/// Reads the wrangler file in `dir`.
///
/// # Errors
/// There is none, or it has faults: all of them are in the error.
pub(crate) fn load(
    dir: &Path,
    environment: Option<&str>,
    purpose: Purpose,
) -> Result<Project, ConfigError> {
    let refuse = |text: String| ConfigError::new(dir, vec![Problem::new(text)]);
    let canonical =
        dir.canonicalize().map_err(|error| refuse(format!("cannot be opened: {error}")))?;
    let present: Vec<&str> =
        FILES.into_iter().filter(|name| canonical.join(name).is_file()).collect();
    let Some(&name) = present.first() else {
        return Err(refuse(format!(
            "no wrangler file here; a project needs one of {}",
            FILES.join(", ")
        )));
    };
    let file = dir.join(name);
    let text = std::fs::read_to_string(&file).map_err(|error| {
        ConfigError::new(&file, vec![Problem::new(format!("cannot be read: {error}"))])
    })?;
    let mut project = parse(&text, name, &canonical, environment, purpose)
        .map_err(|problems| ConfigError::new(&file, problems))?;
    if present.len() > 1 {
        project.notes.push(format!("{name} is used; {} is not", present[1..].join(" and ")));
    }
    project.file = canonical.join(name);
    project.files.push(project.file.clone());
    if purpose == Purpose::Dev {
        let (secrets, files) = dotenv::load(&canonical, environment)?;
        for (key, value) in secrets {
            project.secrets.push(key.clone());
            project.vars.insert(key, value.into());
        }
        project.files.extend(files);
    }
    Ok(project)
}

/// Reads the text of a wrangler file called `name`.
fn parse(
    text: &str,
    name: &str,
    dir: &Path,
    environment: Option<&str>,
    purpose: Purpose,
) -> Result<Project, Vec<Problem>> {
    let table =
        if name.ends_with(".toml") { tree::parse_toml(text) } else { tree::parse_jsonc(text) };
    let table = table.map_err(|problem| vec![problem])?;
    let mut reader = Reader::default();
    let top = reader.level(&table, Scope::Top);
    let mut said = levels(&mut reader, &table, environment);
    let said = match (said.remove(environment.unwrap_or_default()), environment) {
        (Some(own), Some(name)) => inherit(top, own, name, &mut reader.notes),
        (_, None) => top,
        (None, Some(name)) => {
            let names: Vec<&str> = said.keys().map(String::as_str).collect();
            let hint = match (nearest(name, &names), names.is_empty()) {
                (Some(near), _) => format!("; did you mean {near:?}?"),
                (None, true) => "; the file has none".to_owned(),
                (None, false) => format!("; it has {}", names.join(", ")),
            };
            reader.problems.push(Problem::new(format!("there is no environment {name:?}{hint}")));
            top
        }
    };
    let project = finish(said, dir, environment.is_some(), purpose, &mut reader);
    match project {
        Some(project) if reader.problems.is_empty() => Ok(project),
        _ => {
            reader.problems.sort_by_key(|problem| problem.at);
            Err(reader.problems)
        }
    }
}

/// Reads all environments, so that a fault in one is found before its day comes. Only the chosen
/// one is kept with its notes.
fn levels(reader: &mut Reader, table: &Table, chosen: Option<&str>) -> BTreeMap<String, Said> {
    let mut found = BTreeMap::new();
    let Some(entry) = table.get("env") else { return found };
    let Some(table) = reader.table(&entry.item, "env") else { return found };
    for entry in &table.entries {
        let Some(level) = reader.table(&entry.item, &format!("env.{}", entry.key)) else {
            continue;
        };
        let notes = reader.notes.len();
        let said = reader.level(level, Scope::Environment(&entry.key));
        if chosen != Some(entry.key.as_str()) {
            reader.notes.truncate(notes);
        }
        found.insert(entry.key.clone(), said);
    }
    found
}

/// What an environment comes to: its own words first, then those of the top level that it inherits.
fn inherit(top: Said, own: Said, environment: &str, notes: &mut Vec<String>) -> Said {
    let mut lost = Vec::new();
    if top.vars.is_some() && own.vars.is_none() {
        lost.push("vars");
    }
    if top.durable_objects.is_some() && own.durable_objects.is_none() {
        lost.push("durable_objects");
    }
    if top.define.is_some() && own.define.is_none() {
        lost.push("define");
    }
    for key in lost {
        notes.push(format!("{key:?} of the top level is not inherited; give it in env.{environment} too if it is meant there"));
    }
    let mut missing = own.missing;
    for (key, problems) in top.missing {
        if keys::lookup(key).is_some_and(|(level, _)| level != keys::Level::Own) {
            missing.entry(key).or_insert(problems);
        }
    }
    let suffixed = || top.name.map(|(at, name)| (at, format!("{name}-{environment}")));
    Said {
        name: own.name.or_else(suffixed),
        main: own.main.or(top.main),
        compatibility_date: own.compatibility_date.or(top.compatibility_date),
        compatibility_flags: own.compatibility_flags.or(top.compatibility_flags),
        vars: own.vars,
        durable_objects: own.durable_objects,
        migrations: own.migrations.or(top.migrations),
        rules: own.rules.or(top.rules),
        define: own.define,
        alias: own.alias.or(top.alias),
        crons: own.crons.or(top.crons),
        limits: own.limits.or(top.limits),
        no_bundle: own.no_bundle.or(top.no_bundle),
        base_dir: own.base_dir.or(top.base_dir),
        find_additional_modules: own.find_additional_modules.or(top.find_additional_modules),
        minify: own.minify.or(top.minify),
        keep_names: own.keep_names.or(top.keep_names),
        tsconfig: own.tsconfig.or(top.tsconfig),
        jsx_factory: own.jsx_factory.or(top.jsx_factory),
        jsx_fragment: own.jsx_fragment.or(top.jsx_fragment),
        missing,
    }
}

/// Checks what needs more than one key, and fills in what nobody said.
fn finish(
    said: Said,
    dir: &Path,
    named: bool,
    purpose: Purpose,
    reader: &mut Reader,
) -> Option<Project> {
    reader.problems.extend(said.missing.into_values().flatten());
    let name = name(said.name, named, reader);
    let date = date(said.compatibility_date, purpose, reader);
    let flags = flags::check(said.compatibility_flags.unwrap_or_default(), reader);
    if said.main.is_none() {
        reader.problems.push(Problem::new(
            "\"main\" is missing: it names the entry of the Worker, as in \"src/index.js\""
                .to_owned(),
        ));
    }
    let base_dir = said.base_dir.and_then(|(at, path)| inside(at, "base_dir", path, reader));
    let main = said.main.and_then(|(at, path)| inside(at, "main", path, reader));
    if let Some((at, crons)) = &said.crons
        && purpose == Purpose::Deploy
        && !crons.is_empty()
    {
        let text = "triggers.crons is not supported by nodes of this version; `celld dev` runs the handler on request".to_owned();
        reader.problem(*at, text);
    }
    let name = name?;
    let bound = said.durable_objects.unwrap_or_default();
    let classes = match migrations::play(&name, &said.migrations.unwrap_or_default()) {
        Ok(classes) => classes,
        Err(problems) => {
            reader.problems.extend(problems);
            return None;
        }
    };
    for class in &classes.key_value {
        reader.notes.push(format!("{class}: new_classes asks for the key-value backend; celld keeps it in SQLite, which does all of that"));
    }
    let mut namespaces = classes.namespaces;
    let durable_objects = bound
        .iter()
        .filter_map(|bound| bind(bound, &name, &mut namespaces, purpose, reader))
        .collect();
    let no_bundle = said.no_bundle.unwrap_or(false);
    Some(Project {
        dir: dir.to_owned(),
        file: PathBuf::new(),
        name,
        main: main?,
        compatibility_date: date?,
        compatibility_flags: flags,
        vars: said.vars.unwrap_or_default(),
        durable_objects,
        classes: namespaces,
        deleted: classes.deleted,
        migration_tag: classes.tag,
        crons: said.crons.map(|(_, crons)| crons).unwrap_or_default(),
        limits: said.limits.unwrap_or_default(),
        rules: said.rules.unwrap_or_default(),
        build: BuildOptions {
            define: said.define.unwrap_or_default(),
            alias: said.alias.unwrap_or_default(),
            minify: said.minify.unwrap_or(false),
            keep_names: said.keep_names.unwrap_or(true),
            tsconfig: said.tsconfig,
            jsx_factory: said.jsx_factory,
            jsx_fragment: said.jsx_fragment,
        },
        no_bundle,
        base_dir,
        find_additional_modules: said.find_additional_modules.unwrap_or(no_bundle),
        secrets: Vec::new(),
        files: Vec::new(),
        notes: std::mem::take(&mut reader.notes),
    })
}

/// A name as wrangler takes it: it is part of keys in the bucket.
fn name(name: Option<(Position, String)>, named: bool, reader: &mut Reader) -> Option<String> {
    let Some((at, name)) = name else {
        reader.problems.push(Problem::new(
            "\"name\" is missing: it names the script in the bucket".to_owned(),
        ));
        return None;
    };
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    // 63 is the limit of one DNS label, which is where wrangler's rule comes from.
    if (1..=63).contains(&name.len()) && name.bytes().all(good) && !name.starts_with('-') {
        return Some(name);
    }
    let whose = if named { " (with the environment's suffix)" } else { "" };
    reader.problem(
        at,
        format!(
            "the name {name:?}{whose} must be 1 to 63 of a-z, 0-9, _ and -, and not start with -"
        ),
    );
    None
}

fn date(date: Option<(Position, String)>, purpose: Purpose, reader: &mut Reader) -> Option<String> {
    match date {
        // Dates are written so that they compare as text.
        Some((at, date)) if clock::is_date(&date) && date > clock::latest() => {
            reader.problem(
                at,
                format!(
                    "compatibility_date {date:?} is in the future; today is {}",
                    clock::today()
                ),
            );
            None
        }
        Some((_, date)) if clock::is_date(&date) => Some(date),
        Some((at, date)) => {
            reader.problem(
                at,
                format!("compatibility_date {date:?} must be a day, as in \"2026-01-31\""),
            );
            None
        }
        None if purpose == Purpose::Dev => {
            let today = clock::today();
            reader.notes.push(format!(
                "compatibility_date is not set; {today} is used. A deployment needs one"
            ));
            Some(today)
        }
        None => {
            reader.problems.push(Problem::new(
                "\"compatibility_date\" is missing, as in \"2026-01-31\"".to_owned(),
            ));
            None
        }
    }
}

/// A path of the project: relative, and without steps out of it. Symbolic links are checked where
/// the file is opened.
fn inside(at: Position, key: &str, path: String, reader: &mut Reader) -> Option<PathBuf> {
    use std::path::Component;
    let mut clean = PathBuf::new();
    for component in Path::new(&path).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(part) => clean.push(part),
            Component::ParentDir if clean.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                reader.problem(at, format!("{key} {path:?} leads out of the project"));
                return None;
            }
        }
    }
    Some(clean)
}

/// The namespace of a binding. A class that no migration creates may serve in development only.
fn bind(
    bound: &Bound,
    script: &str,
    namespaces: &mut BTreeMap<String, String>,
    purpose: Purpose,
    reader: &mut Reader,
) -> Option<DurableObject> {
    let Bound { at, name, class_name } = bound;
    if !namespaces.contains_key(class_name) {
        let names: Vec<&str> = namespaces.keys().map(String::as_str).collect();
        let hint = nearest(class_name, &names)
            .map_or_else(String::new, |near| format!("; did you mean the class {near:?}?"));
        let add = format!("{{ \"tag\": \"v1\", \"new_sqlite_classes\": [{class_name:?}] }}");
        if purpose == Purpose::Deploy {
            reader.problem(*at, format!("the binding {name:?}: no migration creates the class {class_name:?}{hint}; add to migrations: {add}"));
            return None;
        }
        reader.notes.push(format!(
            "no migration creates the class {class_name:?}{hint}; a deployment needs one: {add}"
        ));
        let Some(namespace) = migrations::namespace(script, class_name, 1) else {
            reader.problem(*at, format!("the name of the class {class_name:?} is too long"));
            return None;
        };
        namespaces.insert(class_name.clone(), namespace);
    }
    let namespace = namespaces.get(class_name)?.clone();
    Some(DurableObject { binding: name.clone(), class_name: class_name.clone(), namespace })
}
