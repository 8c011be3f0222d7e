//! Whether a version would be served: its code is loaded as a node would load it.

use std::sync::Arc;
use std::time::Duration;

use celld_v8host::{DurableObjectBinding, Limits, LoadError, Module, ModuleKind, Realm, Script};

use crate::deployment::{self, Deployment};

/// Runs the top level of the modules, and looks for what the bindings name. Nothing else runs.
///
/// # Errors
/// Every node would refuse the version, in these words.
pub fn load(deployment: Deployment) -> Result<(), LoadError> {
    Realm::new(&Arc::new(script_of(deployment)), Limits::default()).map(drop)
}

/// A deployment as a realm runs it.
pub(crate) fn script_of(deployment: Deployment) -> Script {
    let Deployment { manifest, modules } = deployment;
    let binding = |object: deployment::DurableObject| DurableObjectBinding {
        name: object.binding,
        class: object.class_name,
        namespace: object.namespace,
    };
    let module = |module: deployment::Module| {
        let kind = match module.kind {
            deployment::ModuleKind::EsModule => ModuleKind::EsModule,
            deployment::ModuleKind::Text => ModuleKind::Text,
            deployment::ModuleKind::Data => ModuleKind::Data,
            deployment::ModuleKind::Wasm => ModuleKind::Wasm,
            deployment::ModuleKind::Json => ModuleKind::Json,
        };
        let made = Module::new(module.name, kind, module.bytes);
        match module.source_map {
            Some(map) => made.with_source_map(map),
            None => made,
        }
    };
    Script {
        name: manifest.name,
        main: manifest.main,
        modules: modules.into_iter().map(module).collect(),
        compatibility_date: manifest.compatibility_date,
        compatibility_flags: manifest.compatibility_flags,
        turn_cpu_max: manifest.limits.cpu_ms.map(|ms| Duration::from_millis(ms.into())),
        subrequests_max: manifest.limits.subrequests,
        vars: manifest.vars,
        secrets: Vec::new(),
        durable_objects: manifest.durable_objects.into_iter().map(binding).collect(),
    }
}
