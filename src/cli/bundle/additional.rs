//! `find_additional_modules`: every file below the root that a rule calls a module, for imports
//! that are computed when they run.

use std::path::{Path, PathBuf};

use celld_shard::deployment::ModuleKind;

use super::rules::Rules;
use super::{Bundle, BundleError, MODULES_MAX, Module, read_module};
use crate::cli::config::{ModuleType, Project};

/// Adds what `bundle` does not have yet.
///
/// # Errors
/// A directory or file that cannot be read, or too many of them.
pub(crate) fn add(
    project: &Project,
    rules: &Rules,
    bundle: &mut Bundle,
) -> Result<(), BundleError> {
    let main_dir = project.main.parent().unwrap_or(Path::new(""));
    // As wrangler: beside the entry, unless `base_dir` says where. Plain modules are named from
    // `base_dir` or the project, a bundled entry lies at the root.
    let from = project.dir.join(project.base_dir.as_deref().unwrap_or(main_dir));
    let root = match (&project.base_dir, &bundle.bundler) {
        (Some(base), _) => project.dir.join(base),
        (None, None) => project.dir.clone(),
        (None, Some(_)) => from.clone(),
    };
    for path in files(&from)? {
        let Some(name) = path.strip_prefix(&root).ok().and_then(Path::to_str).map(str::to_owned)
        else {
            continue;
        };
        if bundle.modules.iter().any(|module| module.name == name) || bundle.inputs.contains(&path)
        {
            continue;
        }
        let kind = match rules.kind(&name) {
            Some(ModuleType::EsModule) => ModuleKind::EsModule,
            Some(ModuleType::Text) => ModuleKind::Text,
            Some(ModuleType::Data) => ModuleKind::Data,
            Some(ModuleType::CompiledWasm) => ModuleKind::Wasm,
            Some(ModuleType::CommonJs) => {
                bundle
                    .notes
                    .push(format!("{name} is left out: a CommonJS module can only be bundled"));
                continue;
            }
            None => continue,
        };
        let bytes = read_module(&path)?;
        if matches!(kind, ModuleKind::EsModule | ModuleKind::Text)
            && std::str::from_utf8(&bytes).is_err()
        {
            return Err(BundleError::NotText(name));
        }
        bundle.inputs.push(path);
        bundle.modules.push(Module { name, kind, bytes, source_map: None });
    }
    Ok(())
}

/// All files below `dir` in the order of their names. Hidden directories and packages are not the
/// project's own; symbolic links are not followed, so that nothing from outside comes in.
fn files(dir: &Path) -> Result<Vec<PathBuf>, BundleError> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        let fault = |error| BundleError::Read { path: dir.clone(), error };
        for entry in std::fs::read_dir(&dir).map_err(fault)? {
            let entry = entry.map_err(fault)?;
            let name = entry.file_name();
            let kind = entry.file_type().map_err(fault)?;
            if kind.is_dir() && name != "node_modules" && !name.as_encoded_bytes().starts_with(b".")
            {
                open.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
            if found.len() > 10 * MODULES_MAX {
                return Err(BundleError::TooMany);
            }
        }
    }
    found.sort();
    Ok(found)
}
