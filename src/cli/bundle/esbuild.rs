//! Runs esbuild the way wrangler does, and reads back what it wrote.
//!
//! Files of `Text`, `Data` and `CompiledWasm` rules are copied by its `copy` loader: they stay
//! imports, and become modules of their own.
//! Source: wrangler 4 (`deployment-bundle/bundle`), esbuild's reference.

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use celld_shard::deployment::ModuleKind;
use serde::Deserialize;

use super::rules::Rules;
use super::scan::{self, Import};
use super::{Bundle, BundleError, MODULES_MAX, Module, read_module};
use crate::cli::config::{ModuleType, Project, Purpose};

/// How to get it.
pub(super) const ADVICE: &str =
    "run scripts/setup, or `npm install --save-dev esbuild` in the project";

/// The part of esbuild's report that says what was read.
#[derive(Deserialize)]
struct Report {
    inputs: std::collections::BTreeMap<String, serde::de::IgnoredAny>,
}

/// Bundles `project`; `why` says what made it necessary.
///
/// # Errors
/// There is no esbuild, or it does not like the project.
pub(super) fn build(
    project: &Project,
    rules: &Rules,
    purpose: Purpose,
    why: String,
) -> Result<Bundle, BundleError> {
    let Some(program) = find(&project.dir) else { return Err(BundleError::NoBundler { why }) };
    let endings = rules.copied_endings().map_err(BundleError::Glob)?;
    let fault = |error| BundleError::Run { program: program.clone(), error };
    let out = tempfile::Builder::new().prefix("celld-build-").tempdir().map_err(fault)?;
    let output = Command::new(&program)
        .current_dir(&project.dir)
        .args(arguments(project, &endings, out.path(), purpose))
        .stdin(Stdio::null())
        .output()
        .map_err(fault)?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if !output.status.success() {
        let text = if said.is_empty() {
            format!("{} ended with {}", program.display(), output.status)
        } else {
            said
        };
        return Err(BundleError::Build(explained(text, rules)));
    }
    let mut modules = modules(out.path(), rules)?;
    for module in &mut modules {
        if let Some(map) = module.source_map.take() {
            module.source_map = Some(rebase(&map, out.path(), &project.dir));
        }
    }
    let report = read_module(&out.path().join("report.json"))?;
    let report: Report = serde_json::from_slice(&report)
        .map_err(|error| BundleError::Build(format!("esbuild's report cannot be read: {error}")))?;
    // An input may carry a query, as in `m.wasm?module`.
    let path = |input: String| project.dir.join(input.split('?').next().unwrap_or(&input));
    let inputs = report.inputs.into_keys().map(path).filter(|input| input.is_file()).collect();
    let notes = if said.is_empty() { Vec::new() } else { vec![said] };
    Ok(Bundle {
        main: "index.js".to_owned(),
        modules,
        bundler: Some(program.display().to_string()),
        inputs,
        notes,
    })
}

/// The map with sources that are named from the project instead of from where esbuild wrote, so
/// that a stack says `src/index.ts`. What lies outside the project keeps its absolute path; a map
/// that is not understood stays as it is, since stacks are all that it is for.
fn rebase(map: &[u8], out: &Path, project: &Path) -> Vec<u8> {
    let (Ok(out), Ok(project)) = (out.canonicalize(), project.canonicalize()) else {
        return map.to_vec();
    };
    let Ok(mut value) = serde_json::from_slice::<serde_json::Value>(map) else {
        return map.to_vec();
    };
    for source in value["sources"].as_array_mut().into_iter().flatten() {
        let Some(found) = source.as_str().and_then(|text| out.join(text).canonicalize().ok())
        else {
            continue;
        };
        let name = found.strip_prefix(&project).unwrap_or(&found);
        *source = name.to_string_lossy().into();
    }
    serde_json::to_vec(&value).unwrap_or_else(|_| map.to_vec())
}

/// What esbuild says, and where a rule that does not count is the reason.
fn explained(mut text: String, rules: &Rules) -> String {
    let endings: BTreeSet<String> = text
        .split("No loader is configured for \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next().map(str::to_owned))
        .collect();
    for ending in endings {
        let why = rules.no_rule(&format!("*{ending}"));
        if matches!(why, BundleError::Shadowed { .. }) {
            text = format!("{text}\n{why}");
        }
    }
    text
}

/// What esbuild wrote, as modules. A copied file is called what the entry calls it: with a query,
/// if the import has one.
fn modules(out: &Path, rules: &Rules) -> Result<Vec<Module>, BundleError> {
    let entry = read_module(&out.join("index.js"))?;
    let entry =
        String::from_utf8(entry).map_err(|_| BundleError::NotText("index.js".to_owned()))?;
    let mut imported: Vec<String> = scan::imports(&entry)
        .into_iter()
        .filter_map(|import| match import {
            Import::Static(found) | Import::Dynamic(found) => {
                found.specifier.strip_prefix("./").map(str::to_owned)
            }
            Import::Computed { .. } => None,
        })
        .collect();
    imported.sort();
    imported.dedup();
    let map = out.join("index.js.map");
    let source_map = if map.is_file() { Some(read_module(&map)?) } else { None };
    let main = Module {
        name: "index.js".to_owned(),
        kind: ModuleKind::EsModule,
        bytes: entry.into_bytes(),
        source_map,
    };
    let mut modules = vec![main];
    for path in written(out)? {
        let Some(file) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if matches!(file, "index.js" | "index.js.map" | "report.json") {
            continue;
        }
        let kind = match rules.kind(file) {
            Some(ModuleType::Text) => ModuleKind::Text,
            Some(ModuleType::Data) => ModuleKind::Data,
            Some(ModuleType::CompiledWasm) => ModuleKind::Wasm,
            // A style sheet, or what else esbuild makes beside the entry: nothing imports it.
            Some(ModuleType::EsModule | ModuleType::CommonJs) | None => continue,
        };
        let bytes = read_module(&path)?;
        for name in imported.iter().filter(|name| name.split('?').next() == Some(file)) {
            modules.push(Module {
                name: name.clone(),
                kind,
                bytes: bytes.clone(),
                source_map: None,
            });
        }
    }
    Ok(modules)
}

/// The files that esbuild wrote; with our options it makes no directories.
fn written(dir: &Path) -> Result<Vec<PathBuf>, BundleError> {
    let fault = |error| BundleError::Read { path: dir.to_owned(), error };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fault)?.take(2 * MODULES_MAX) {
        paths.push(entry.map_err(fault)?.path());
    }
    Ok(paths)
}

fn arguments(project: &Project, endings: &[String], out: &Path, purpose: Purpose) -> Vec<String> {
    let build = &project.build;
    let mode = match purpose {
        Purpose::Dev => "development",
        Purpose::Deploy => "production",
    };
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let mut arguments: Vec<String> = [
        "--bundle",
        "--format=esm",
        // V8 15 runs more; what it does not run yet (decorators, `using` in old tools) is lowered.
        "--target=es2022",
        "--conditions=workerd,worker,browser",
        "--sourcemap",
        "--loader:.js=jsx",
        "--loader:.mjs=jsx",
        "--loader:.cjs=jsx",
        "--entry-names=index",
        "--asset-names=[name]-[hash]",
        "--external:cloudflare:*",
        "--external:node:*",
        "--external:workerd:*",
        "--define:navigator.userAgent=\"Cloudflare-Workers\"",
        "--log-level=warning",
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.push(format!("--color={colour}"));
    arguments.push(format!("--outdir={}", out.display()));
    arguments.push(format!("--metafile={}", out.join("report.json").display()));
    if !build.define.contains_key("process.env.NODE_ENV") {
        arguments.push(format!("--define:process.env.NODE_ENV=\"{mode}\""));
    }
    if build.keep_names {
        arguments.push("--keep-names".to_owned());
    }
    if build.minify {
        arguments.push("--minify".to_owned());
    }
    for (flag, value) in [
        ("--tsconfig", &build.tsconfig),
        ("--jsx-factory", &build.jsx_factory),
        ("--jsx-fragment", &build.jsx_fragment),
    ] {
        arguments.extend(value.iter().map(|value| format!("{flag}={value}")));
    }
    arguments.extend(build.define.iter().map(|(from, to)| format!("--define:{from}={to}")));
    arguments.extend(build.alias.iter().map(|(from, to)| format!("--alias:{from}={to}")));
    arguments.extend(endings.iter().map(|ending| format!("--loader:{ending}=copy")));
    arguments.push(format!("./{}", project.main.display()));
    arguments
}

/// The project's own esbuild, or that of a directory above it, or that of PATH, or the one which
/// scripts/setup put into the user's cache.
fn find(dir: &Path) -> Option<PathBuf> {
    let own = dir.ancestors().map(|dir| dir.join("node_modules/.bin/esbuild"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join("esbuild"))
        .collect::<Vec<_>>();
    own.chain(on_path).chain(cached()).find(|candidate| candidate.is_file())
}

/// Where scripts/setup installs it.
fn cached() -> Option<PathBuf> {
    let directory =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = directory("XDG_CACHE_HOME").or_else(|| Some(directory("HOME")?.join(".cache")))?;
    Some(cache.join("celld/esbuild/node_modules/.bin/esbuild"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_named_from_the_project() {
        let dir = tempfile::tempdir().expect("a directory");
        let (out, project) = (dir.path().join("out"), dir.path().join("project"));
        for made in [&out, &project.join("src")] {
            std::fs::create_dir_all(made).expect("make");
        }
        for file in [project.join("src/index.ts"), dir.path().join("shared.ts")] {
            std::fs::write(file, "").expect("write");
        }
        let map =
            br#"{"version":3,"sources":["../project/src/index.ts","../shared.ts","gone.ts"]}"#;
        let map: serde_json::Value =
            serde_json::from_slice(&rebase(map, &out, &project)).expect("JSON");
        let outside = dir.path().canonicalize().expect("a path").join("shared.ts");
        assert_eq!(
            map["sources"],
            serde_json::json!(["src/index.ts", outside.to_str().expect("UTF-8"), "gone.ts"])
        );
        assert_eq!(rebase(b"no map", &out, &project), b"no map");
    }
}
