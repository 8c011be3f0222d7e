//! `celld deploy`: a project becomes the current deployment of a bucket.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use celld_shard::deployment::Manifest;
use celld_shard::trial;
use serde_json::json;

use super::config::{self, Project, Purpose};
use super::progress::Progress;
use super::publish::{self, Published};
use super::settings::Access;
use super::{CommandError, args, bundle, settings};

/// Runs the command.
///
/// # Errors
/// Nothing was deployed, unless the message says that it is not known.
pub(crate) fn run(
    typed: args::Deploy,
    environment: settings::Environment<'_>,
) -> Result<ExitCode, CommandError> {
    let result = deploy(&typed, environment);
    if let (true, Err(error)) = (typed.json, &result) {
        print(&json!({ "ok": false, "error": error.to_string() }));
    }
    result.map(|()| ExitCode::SUCCESS)
}

fn deploy(
    typed: &args::Deploy,
    environment: settings::Environment<'_>,
) -> Result<(), CommandError> {
    let place = match settings::bucket(typed.bucket_args(), environment) {
        Ok(place) => Some(place),
        // Whether the project could be deployed does not depend on where.
        Err(settings::SettingError::NoBucket) if typed.dry_run => None,
        Err(error) => return Err(error.into()),
    };
    let dir = typed.dir.as_deref().unwrap_or(Path::new("."));
    let project = config::load(dir, typed.env.as_deref(), Purpose::Deploy)?;
    super::notes(&project.notes);
    let bundle = bundle::build(&project, Purpose::Deploy)?;
    super::notes(&bundle.notes);
    let manifest = publish::manifest(&project, &bundle)?;
    manifest.encode()?;
    trial::load(publish::deployment(&manifest, &bundle)).map_err(CommandError::Load)?;
    let published = match place {
        Some(place) if !typed.dry_run => {
            super::notes(&place.notes);
            celld_rt::preflight()?;
            let bucket = place.open(Access::Write)?;
            let progress = Progress::new();
            let bar = progress.bar(manifest.modules.len() as u64, "modules");
            let publishing = publish::publish(
                &bucket,
                &manifest,
                bundle,
                Purpose::Deploy,
                |done, total, name| {
                    bar.set_position(done as u64);
                    progress.line(&format!("module {done}/{total} {name}"));
                },
            );
            let published = celld_rt::block_on(publishing);
            bar.finish_and_clear();
            Some((bucket.to_string(), published?))
        }
        Some(_) | None => None,
    };
    if typed.json {
        print(&document(&project, &manifest, published.as_ref()));
    } else {
        let mut out = std::io::stdout().lock();
        // Who closes the pipe early has seen enough.
        let _ = out.write_all(summary(&manifest, published.as_ref()).as_bytes());
    }
    Ok(())
}

fn print(document: &serde_json::Value) {
    let _ = writeln!(std::io::stdout(), "{document:#}");
}

fn document(
    project: &Project,
    manifest: &Manifest,
    published: Option<&(String, Published)>,
) -> serde_json::Value {
    let modules: Vec<_> = manifest
        .modules
        .iter()
        .map(|module| {
            let uploaded = published.is_some_and(|(_, published)| published.uploaded.contains(&module.content.sha256));
            json!({ "name": module.name, "kind": module.kind, "size": module.content.size, "sha256": module.content.sha256, "uploaded": uploaded })
        })
        .collect();
    json!({
        "ok": true,
        "dry_run": published.is_none(),
        "name": manifest.name,
        "bucket": published.map(|(bucket, _)| bucket),
        "version": published.map(|(_, published)| &published.version),
        "previous": published.and_then(|(_, published)| published.previous.as_ref()),
        "unchanged": published.is_some_and(|(_, published)| published.is_unchanged),
        "main": manifest.main,
        "modules": modules,
        "vars": project.vars.keys().collect::<Vec<_>>(),
        "durable_objects": manifest.durable_objects,
        "compatibility_date": manifest.compatibility_date,
        "compatibility_flags": manifest.compatibility_flags,
    })
}

fn summary(manifest: &Manifest, published: Option<&(String, Published)>) -> String {
    let size: u64 = manifest.modules.iter().map(|module| module.content.size).sum();
    let mut text = format!("{}: {} modules, {size} bytes\n", manifest.name, manifest.modules.len());
    for object in &manifest.durable_objects {
        text += &format!(
            "  env.{}: Durable Object {} ({})\n",
            object.binding, object.class_name, object.namespace
        );
    }
    text += &match published {
        None => "dry run: it can be deployed; nothing was written\n".to_owned(),
        Some((bucket, published)) if published.is_unchanged => {
            format!("unchanged: {bucket} serves it as version {}\n", published.version)
        }
        Some((bucket, published)) => {
            format!("deployed: {bucket} serves version {}\n", published.version)
        }
    };
    text
}
