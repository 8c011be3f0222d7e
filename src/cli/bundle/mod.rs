//! From a project to the modules that a node runs.
//!
//! A project of plain ES modules is collected as it is. TypeScript, packages, `define` and `alias`
//! are esbuild's work. Both ways end in one [`Bundle`].

mod additional;
mod esbuild;
mod plain;
mod rules;
mod scan;
#[cfg(test)]
mod tests;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use celld_shard::deployment::ModuleKind;

use self::plain::Collected;
use self::rules::Rules;
use super::config::{Project, Purpose};

/// Modules of one bundle. More would make a cold start of seconds.
const MODULES_MAX: usize = 10_000;
/// Bytes of one module, and of all of them together: what Workers takes on its largest plan.
const BYTES_MAX: u64 = 64 << 20;

/// A script: its entry and all modules.
#[derive(Debug)]
pub(crate) struct Bundle {
    /// Name of the entry.
    pub(crate) main: String,
    pub(crate) modules: Vec<Module>,
    /// The bundler that made it, if one was needed.
    pub(crate) bundler: Option<String>,
    /// Files it was made from.
    pub(crate) inputs: Vec<PathBuf>,
    /// What the person should know, one line each.
    pub(crate) notes: Vec<String>,
}

/// One module.
#[derive(Debug)]
pub(crate) struct Module {
    /// What imports resolve to: a path with slashes, relative to the root of the modules.
    pub(crate) name: String,
    pub(crate) kind: ModuleKind,
    pub(crate) bytes: Vec<u8>,
    pub(crate) source_map: Option<Vec<u8>>,
}

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    #[error("{importer}: imports {specifier:?}, which does not exist")]
    Missing { importer: String, specifier: String },
    #[error("{importer}: {specifier:?} leads out of the project")]
    Outside { importer: String, specifier: String },
    #[error("{importer}: {specifier:?} cannot be imported: {why}")]
    Import { importer: String, specifier: String, why: &'static str },
    #[error(
        "{0}: no rule says what kind of module this is; add one to \"rules\" in the wrangler file"
    )]
    NoRule(String),
    #[error(
        "{name}: the rule for {rule} would say what kind of module this is, but one of \"rules\" with \
         the same type ({kind}) stands before it without \"fallthrough\": true; add that, or a rule \
         for this file"
    )]
    Shadowed { name: String, rule: String, kind: &'static str },
    #[error("{0} is not UTF-8")]
    NotText(String),
    #[error("{0}, and \"no_bundle\" keeps esbuild from dealing with it")]
    Unbundled(String),
    #[error("the project has more than {MODULES_MAX} modules")]
    TooMany,
    #[error("the modules hold more than {} MiB", BYTES_MAX >> 20)]
    TooLarge,
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error("{why}, so the project needs esbuild, and there is none; {}", esbuild::ADVICE)]
    NoBundler { why: String },
    #[error("cannot run {}: {error}", program.display())]
    Run { program: PathBuf, error: std::io::Error },
    #[error("the build failed:\n{0}")]
    Build(String),
    #[error(
        "the rule with the glob {0:?} cannot be bundled: with esbuild a glob of Text, Data or CompiledWasm is a file ending, as \"**/*.txt\""
    )]
    Glob(String),
    #[error("a rule cannot be read: {0}")]
    Rules(#[from] globset::Error),
}

/// Makes the bundle of a project.
///
/// # Errors
/// The project's code is not as it must be, or the bundler says so.
pub(crate) fn build(project: &Project, purpose: Purpose) -> Result<Bundle, BundleError> {
    let rules = Rules::new(&project.rules)?;
    let mut bundle = match plain::collect(project, &rules)? {
        Collected::Whole(bundle) => bundle,
        Collected::NeedsBundler(why) if project.no_bundle => {
            return Err(BundleError::Unbundled(why));
        }
        Collected::NeedsBundler(why) => esbuild::build(project, &rules, purpose, why)?,
    };
    if project.find_additional_modules {
        additional::add(project, &rules, &mut bundle)?;
    }
    if bundle.modules.len() > MODULES_MAX {
        return Err(BundleError::TooMany);
    }
    let size: usize = bundle.modules.iter().map(|module| module.bytes.len()).sum();
    if size as u64 > BYTES_MAX {
        return Err(BundleError::TooLarge);
    }
    for globs in &rules.shadowed {
        bundle.notes.push(format!(
            "the rule for {globs} never counts: an earlier one of its type has no \"fallthrough\""
        ));
    }
    bundle.modules.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(bundle)
}

/// Reads one file, and no more of it than a module may have.
fn read_module(path: &Path) -> Result<Vec<u8>, BundleError> {
    let fault = |error| BundleError::Read { path: path.to_owned(), error };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(fault)?;
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fault)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(BundleError::TooLarge);
    }
    Ok(bytes)
}
