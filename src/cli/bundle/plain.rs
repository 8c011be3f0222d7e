//! Collects a project of plain ES modules: the entry, and what it imports, file by file.
//!
//! Invariant: each module lies inside the project, also behind symbolic links; its name is its path
//! below the root of the modules, so that relative imports mean the same as on disk.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Component, Path, PathBuf};

use celld_shard::deployment::ModuleKind;

use super::rules::Rules;
use super::scan::{self, Found, Import};
use super::{Bundle, BundleError, MODULES_MAX, Module, read_module};
use crate::cli::config::{ModuleType, Project};

/// What came of it.
#[derive(Debug)]
pub(crate) enum Collected {
    Whole(Bundle),
    /// The project is more than plain modules, and why.
    NeedsBundler(String),
}

/// Collects the modules of `project`.
///
/// # Errors
/// A module that is missing, outside, or of a type that cannot be loaded.
pub(crate) fn collect(project: &Project, rules: &Rules) -> Result<Collected, BundleError> {
    let root = match &project.base_dir {
        Some(base) => project.dir.join(base),
        None => project.dir.clone(),
    };
    if !project.no_bundle && (!project.build.define.is_empty() || !project.build.alias.is_empty()) {
        return Ok(Collected::NeedsBundler("`define` and `alias` are a bundler's work".to_owned()));
    }
    let mut collector = Collector {
        project,
        rules,
        root,
        modules: BTreeMap::new(),
        queue: VecDeque::new(),
        notes: Vec::new(),
        inputs: Vec::new(),
    };
    let path = project.dir.join(&project.main);
    let main = collector.name_of(&path).ok_or_else(|| BundleError::Outside {
        importer: "main".to_owned(),
        specifier: project.main.display().to_string(),
    })?;
    match collector.add(&main, "main") {
        Ok(()) => {}
        Err(Fault::NeedsBundler(why)) => return Ok(Collected::NeedsBundler(why)),
        Err(Fault::Failed(error)) => return Err(error),
    }
    while let Some((name, imports)) = collector.queue.pop_front() {
        for import in imports {
            match collector.follow(&name, import) {
                Ok(()) => {}
                Err(Fault::NeedsBundler(why)) if project.no_bundle => {
                    return Err(BundleError::Unbundled(why));
                }
                Err(Fault::NeedsBundler(why)) => return Ok(Collected::NeedsBundler(why)),
                Err(Fault::Failed(error)) => return Err(error),
            }
        }
    }
    let Collector { modules, notes, inputs, .. } = collector;
    if modules[&main].kind != ModuleKind::EsModule {
        return Err(BundleError::Unbundled(format!("{main}: the entry must be an ES module")));
    }
    Ok(Collected::Whole(Bundle {
        main,
        modules: modules.into_values().collect(),
        bundler: None,
        inputs,
        notes,
    }))
}

enum Fault {
    NeedsBundler(String),
    Failed(BundleError),
}

impl From<BundleError> for Fault {
    fn from(error: BundleError) -> Self {
        Self::Failed(error)
    }
}

struct Collector<'a> {
    project: &'a Project,
    rules: &'a Rules,
    root: PathBuf,
    modules: BTreeMap<String, Module>,
    queue: VecDeque<(String, Vec<Import>)>,
    notes: Vec<String>,
    inputs: Vec<PathBuf>,
}

impl Collector<'_> {
    /// Path below the root with slashes, without `.` and `..`.
    fn name_of(&self, path: &Path) -> Option<String> {
        let mut clean = PathBuf::new();
        for component in path.components() {
            match component {
                Component::CurDir => {}
                Component::ParentDir => _ = clean.pop(),
                other => clean.push(other),
            }
        }
        Some(clean.strip_prefix(&self.root).ok()?.to_str()?.to_owned())
    }

    fn follow(&mut self, importer: &str, import: Import) -> Result<(), Fault> {
        let Found { specifier, line } = match import {
            Import::Static(found) | Import::Dynamic(found) => found,
            Import::Computed { line } => {
                if !self.project.find_additional_modules {
                    let note = "this import is computed when it runs; it finds only modules that are imported by name elsewhere, or set find_additional_modules";
                    self.notes.push(format!("{importer}:{line}: {note}"));
                }
                return Ok(());
            }
        };
        let place = format!("{importer}:{line}");
        if ["cloudflare:", "node:", "workerd:"].iter().any(|scheme| specifier.starts_with(scheme)) {
            return Ok(());
        }
        if !(specifier.starts_with("./") || specifier.starts_with("../")) {
            if specifier.starts_with('/') {
                return Err(BundleError::Outside { importer: place, specifier }.into());
            }
            if specifier.contains("://") {
                return Err(BundleError::Import {
                    importer: place,
                    specifier,
                    why: "modules cannot be loaded from a URL",
                }
                .into());
            }
            return Err(Fault::NeedsBundler(format!("{place}: {specifier:?} is a package")));
        }
        let directory = self.root.join(importer);
        let target = directory.parent().unwrap_or(&self.root).join(&specifier);
        let Some(name) = self.name_of(&target) else {
            return Err(BundleError::Outside { importer: place, specifier }.into());
        };
        self.add(&name, &place).map_err(|fault| match fault {
            Fault::Failed(BundleError::Missing { importer, .. }) => {
                BundleError::Missing { importer, specifier }.into()
            }
            other => other,
        })
    }

    /// Adds the module called `name`, and queues what it imports.
    fn add(&mut self, name: &str, importer: &str) -> Result<(), Fault> {
        if self.modules.contains_key(name) {
            return Ok(());
        }
        if self.modules.len() >= MODULES_MAX {
            return Err(BundleError::TooMany.into());
        }
        let path = self.root.join(name.split('?').next().unwrap_or(name));
        let Ok(real) = path.canonicalize() else {
            return Err(match guess(&path) {
                Some(near) => Fault::NeedsBundler(format!(
                    "{importer}: {name:?} means {:?}",
                    near.file_name().unwrap_or_default()
                )),
                None => BundleError::Missing {
                    importer: importer.to_owned(),
                    specifier: name.to_owned(),
                }
                .into(),
            });
        };
        if !real.starts_with(&self.project.dir) {
            return Err(BundleError::Outside {
                importer: importer.to_owned(),
                specifier: name.to_owned(),
            }
            .into());
        }
        if real.is_dir() {
            return Err(Fault::NeedsBundler(format!("{importer}: {name:?} is a directory")));
        }
        let kind = self.kind(name)?;
        let bytes = read_module(&real)?;
        self.inputs.push(real);
        if kind == ModuleKind::EsModule {
            let text =
                std::str::from_utf8(&bytes).map_err(|_| BundleError::NotText(name.to_owned()))?;
            self.queue.push_back((name.to_owned(), scan::imports(text)));
        }
        if kind == ModuleKind::Text && std::str::from_utf8(&bytes).is_err() {
            return Err(BundleError::NotText(name.to_owned()).into());
        }
        self.modules.insert(
            name.to_owned(),
            Module { name: name.to_owned(), kind, bytes, source_map: None },
        );
        Ok(())
    }

    fn kind(&self, name: &str) -> Result<ModuleKind, Fault> {
        let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
        match self.rules.kind(name) {
            Some(ModuleType::EsModule) if matches!(ending, "ts" | "tsx" | "jsx" | "mts") => {
                Err(Fault::NeedsBundler(format!("{name} is not plain JavaScript")))
            }
            Some(ModuleType::EsModule) => Ok(ModuleKind::EsModule),
            Some(ModuleType::Text) => Ok(ModuleKind::Text),
            Some(ModuleType::Data) => Ok(ModuleKind::Data),
            Some(ModuleType::CompiledWasm) => Ok(ModuleKind::Wasm),
            Some(ModuleType::CommonJs) => {
                Err(Fault::NeedsBundler(format!("{name} is a CommonJS module")))
            }
            None => match ending {
                "json" => Ok(ModuleKind::Json),
                "ts" | "tsx" | "jsx" | "mts" | "cts" | "cjs" => {
                    Err(Fault::NeedsBundler(format!("{name} is not plain JavaScript")))
                }
                _ => Err(self.rules.no_rule(name).into()),
            },
        }
    }
}

/// The file that a bundler would take for a path that is none.
fn guess(path: &Path) -> Option<PathBuf> {
    const ENDINGS: [&str; 8] = ["ts", "tsx", "jsx", "js", "mjs", "cjs", "mts", "json"];
    let text = path.to_str()?;
    let with_ending = ENDINGS.iter().map(|ending| PathBuf::from(format!("{text}.{ending}")));
    // TypeScript's own habit: `./a.js` is written for what is `./a.ts` on disk.
    let replaced =
        ENDINGS.iter().filter(|_| text.ends_with(".js")).map(|ending| path.with_extension(ending));
    with_ending.chain(replaced).find(|candidate| candidate.is_file())
}
