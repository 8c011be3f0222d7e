//! The module graph of a script: names, compilation with V8's code cache, static and dynamic import.
//!
//! Invariant: a module name is compiled once in a realm. Names are paths of the bundle or names of
//! built-in modules (`cloudflare:workers`), which live in `rt.modules`.
//! Source: ECMA-262, 16.2.1; resolution as in workerd: a path relative to its importer.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::num::NonZeroI32;

use v8::{Global, Local, PinScope};

use crate::convert;
use crate::script::{Module, ModuleKind};
use crate::snapshot::RUNTIME_PREFIX;
use crate::state::RealmState;

/// What a realm has loaded so far.
#[derive(Default)]
pub(crate) struct ModuleMap {
    by_name: RefCell<HashMap<String, Global<v8::Module>>>,
    /// V8 names a module by its hash in callbacks; two modules may share one.
    by_hash: RefCell<HashMap<NonZeroI32, Vec<Loaded>>>,
    /// Set only while a `.wasm` file of the bundle is compiled: user code may not compile bytes.
    pub wasm_allowed: Cell<bool>,
}

#[derive(Clone)]
struct Loaded {
    module: Global<v8::Module>,
    name: String,
    /// What a module that is not JavaScript exports.
    exports: Vec<(Global<v8::String>, Global<v8::Value>)>,
}

impl ModuleMap {
    fn loaded(&self, scope: &PinScope, module: Local<v8::Module>) -> Option<Loaded> {
        let by_hash = self.by_hash.borrow();
        let same_hash = by_hash.get(&module.get_identity_hash())?;
        same_hash.iter().find(|loaded| Local::new(scope, &loaded.module) == module).cloned()
    }

    fn name_of(&self, scope: &PinScope, module: Local<v8::Module>) -> String {
        self.loaded(scope, module).map(|loaded| loaded.name).unwrap_or_default()
    }

    fn add(&self, scope: &PinScope, name: &str, module: Local<v8::Module>, exports: Exports) {
        let handle = Global::new(scope, module);
        self.by_name.borrow_mut().insert(name.to_owned(), handle.clone());
        let loaded = Loaded { module: handle, name: name.to_owned(), exports };
        self.by_hash.borrow_mut().entry(module.get_identity_hash()).or_default().push(loaded);
    }

    /// Drops every handle: they must not outlive the isolate.
    pub fn clear(&self) {
        self.by_name.borrow_mut().clear();
        self.by_hash.borrow_mut().clear();
    }
}

type Exports = Vec<(Global<v8::String>, Global<v8::Value>)>;

/// Compiles and links the module `name` and all that it imports.
pub(crate) fn link<'s>(scope: &mut PinScope<'s, '_>, name: &str) -> Option<Local<'s, v8::Module>> {
    let module = load(scope, name, None)?;
    if module.get_status() == v8::ModuleStatus::Uninstantiated {
        module.instantiate_module(scope, resolve_callback)?;
    }
    Some(module)
}

/// The full name of `specifier` in a module `referrer`.
fn full_name(specifier: &str, referrer: &str) -> String {
    if specifier
        .split_once(':')
        .is_some_and(|(scheme, _)| matches!(scheme, "cloudflare" | "node" | "workerd"))
    {
        return specifier.to_owned();
    }
    let specifier = specifier.strip_prefix("file://").unwrap_or(specifier);
    let mut parts: Vec<&str> = Vec::new();
    if !specifier.starts_with('/') {
        parts.extend(referrer.split('/'));
        parts.pop();
    }
    for part in specifier.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn resolve_callback<'s>(
    context: Local<'s, v8::Context>,
    specifier: Local<'s, v8::String>,
    _attributes: Local<'s, v8::FixedArray>,
    referrer: Local<'s, v8::Module>,
) -> Option<Local<'s, v8::Module>> {
    v8::callback_scope!(unsafe scope, context);
    let state = RealmState::get(scope);
    let referrer = state.modules.name_of(scope, referrer);
    let specifier = convert::text_of(scope, specifier);
    resolve(scope, &specifier, &referrer)
}

fn resolve<'s>(
    scope: &mut PinScope<'s, '_>,
    specifier: &str,
    referrer: &str,
) -> Option<Local<'s, v8::Module>> {
    let name = full_name(specifier, referrer);
    let state = RealmState::get(scope);
    // A bare specifier may also name a module at the root of the bundle.
    let at_root = full_name(specifier, "");
    let name = if state.script.module(&name).is_none() && state.script.module(&at_root).is_some() {
        at_root
    } else {
        name
    };
    load(scope, &name, Some((specifier, referrer)))
}

/// The module of this full name, compiled on first use. `import`: who asks, for the error.
fn load<'s>(
    scope: &mut PinScope<'s, '_>,
    name: &str,
    import: Option<(&str, &str)>,
) -> Option<Local<'s, v8::Module>> {
    let state = RealmState::get(scope);
    if let Some(module) = state.modules.by_name.borrow().get(name) {
        return Some(Local::new(scope, module));
    }
    if let Some((_, file)) = state.script.module(name) {
        return compile(scope, &state, file);
    }
    if let Some(exports) = builtin(scope, &state, name) {
        return synthetic(scope, &state, name, exports);
    }
    let mut message = format!("No such module \"{name}\".");
    if let Some((specifier, referrer)) = import {
        message.push_str(&format!("\n  imported from \"{referrer}\""));
        if specifier != name {
            message.push_str(&format!(" as \"{specifier}\""));
        }
    }
    convert::throw_error(scope, &message);
    None
}

/// The exports of a built-in module: all own properties of its object in `rt.modules`.
fn builtin(scope: &mut PinScope, state: &RealmState, name: &str) -> Option<Exports> {
    let rt = Local::new(scope, &state.names.rt);
    let modules = property(scope, rt, "modules")?;
    let key = convert::intern(scope, name);
    let exports = Local::<v8::Object>::try_from(modules.get(scope, key.into())?).ok()?;
    let keys = exports.get_own_property_names(scope, v8::GetPropertyNamesArgs::default())?;
    let mut found = Exports::new();
    for index in 0..keys.length() {
        let key = Local::<v8::String>::try_from(keys.get_index(scope, index)?).ok()?;
        let value = exports.get(scope, key.into())?;
        found.push((Global::new(scope, key), Global::new(scope, value)));
    }
    Some(found)
}

fn property<'s>(
    scope: &mut PinScope<'s, '_>,
    object: Local<v8::Object>,
    name: &str,
) -> Option<Local<'s, v8::Object>> {
    let key = convert::intern(scope, name);
    Local::<v8::Object>::try_from(object.get(scope, key.into())?).ok()
}

fn compile<'s>(
    scope: &mut PinScope<'s, '_>,
    state: &RealmState,
    file: &Module,
) -> Option<Local<'s, v8::Module>> {
    let value: Local<v8::Value> = match file.kind {
        ModuleKind::EsModule => return compile_es(scope, state, file),
        ModuleKind::CommonJs => {
            convert::throw_error(
                scope,
                &format!("module \"{}\": CommonJS modules are not supported", file.name),
            );
            return None;
        }
        ModuleKind::Text => source_text(scope, file)?.into(),
        ModuleKind::Data => convert::array_buffer(scope, file.content.to_vec()).into(),
        ModuleKind::Json => {
            let text = source_text(scope, file)?;
            v8::json::parse(scope, text)?
        }
        ModuleKind::Wasm => {
            state.modules.wasm_allowed.set(true);
            let module = v8::WasmModuleObject::compile(scope, &file.content);
            state.modules.wasm_allowed.set(false);
            module?.into()
        }
    };
    let key = convert::intern(scope, "default");
    let exports = vec![(Global::new(scope, key), Global::new(scope, value))];
    synthetic(scope, state, &file.name, exports)
}

fn source_text<'s>(scope: &mut PinScope<'s, '_>, file: &Module) -> Option<Local<'s, v8::String>> {
    let Ok(text) = std::str::from_utf8(&file.content) else {
        convert::throw_type_error(scope, &format!("module \"{}\" is not UTF-8", file.name));
        return None;
    };
    Some(convert::string(scope, text))
}

fn compile_es<'s>(
    scope: &mut PinScope<'s, '_>,
    state: &RealmState,
    file: &Module,
) -> Option<Local<'s, v8::Module>> {
    use v8::script_compiler::{CachedData, CompileOptions, NoCacheReason, Source, compile_module2};
    let text = source_text(scope, file)?;
    let resource = convert::string(scope, &file.name);
    let origin = v8::ScriptOrigin::new(
        scope,
        resource.into(),
        0,
        0,
        false,
        -1,
        None,
        false,
        false,
        true,
        None,
    );
    let (mut source, options) = match file.code_cache() {
        Some(cache) => (
            Source::new_with_cached_data(text, Some(&origin), CachedData::new(cache)),
            CompileOptions::ConsumeCodeCache,
        ),
        None => (Source::new(text, Some(&origin)), CompileOptions::NoCompileOptions),
    };
    let module = compile_module2(scope, &mut source, options, NoCacheReason::NoReason)?;
    state.modules.add(scope, &file.name, module, Exports::new());
    Some(module)
}

fn synthetic<'s>(
    scope: &mut PinScope<'s, '_>,
    state: &RealmState,
    name: &str,
    exports: Exports,
) -> Option<Local<'s, v8::Module>> {
    let specifier = convert::string(scope, name);
    let keys: Vec<Local<v8::String>> =
        exports.iter().map(|(key, _)| Local::new(scope, key)).collect();
    let module = v8::Module::create_synthetic_module(scope, specifier, &keys, evaluate_synthetic);
    state.modules.add(scope, name, module, exports);
    Some(module)
}

fn evaluate_synthetic<'s>(
    context: Local<'s, v8::Context>,
    module: Local<'s, v8::Module>,
) -> Option<Local<'s, v8::Value>> {
    v8::callback_scope!(unsafe scope, context);
    let state = RealmState::get(scope);
    let loaded = state.modules.loaded(scope, module)?;
    for (key, value) in &loaded.exports {
        let (key, value) = (Local::new(scope, key), Local::new(scope, value));
        module.set_synthetic_module_export(scope, key, value)?;
    }
    let resolver = v8::PromiseResolver::new(scope)?;
    let undefined = v8::undefined(scope);
    resolver.resolve(scope, undefined.into())?;
    Some(resolver.get_promise(scope).into())
}

/// `import(specifier)` of user code.
pub(crate) fn import_callback<'s>(
    scope: &mut PinScope<'s, '_>,
    _options: Local<'s, v8::Data>,
    referrer: Local<'s, v8::Value>,
    specifier: Local<'s, v8::String>,
    _attributes: Local<'s, v8::FixedArray>,
) -> Option<Local<'s, v8::Promise>> {
    let resolver = v8::PromiseResolver::new(scope)?;
    let referrer = convert::to_string(scope, referrer)?;
    let specifier = convert::text_of(scope, specifier);
    v8::tc_scope!(let scope, scope);
    match import(scope, &specifier, &referrer) {
        Some(settled) => resolver.resolve(scope, settled)?,
        None => {
            let error = scope.exception()?;
            scope.reset();
            resolver.reject(scope, error)?
        }
    };
    Some(resolver.get_promise(scope))
}

/// A promise of the namespace of a module.
fn import<'s>(
    scope: &mut PinScope<'s, '_>,
    specifier: &str,
    referrer: &str,
) -> Option<Local<'s, v8::Value>> {
    if referrer.starts_with(RUNTIME_PREFIX) {
        convert::throw_error(scope, "import() is for modules of the application");
        return None;
    }
    let module = resolve(scope, specifier, referrer)?;
    if module.get_status() == v8::ModuleStatus::Uninstantiated {
        module.instantiate_module(scope, resolve_callback)?;
    }
    let evaluated = module.evaluate(scope)?;
    let state = RealmState::get(scope);
    let then = Local::new(scope, &state.names.import_then);
    let undefined = v8::undefined(scope);
    then.call(scope, undefined.into(), &[evaluated, module.get_module_namespace()])
}

/// Keeps the code cache of every JavaScript module that has none yet: called once the graph has
/// been evaluated, so that functions compiled on the way are in it.
pub(crate) fn keep_code_caches(scope: &PinScope, state: &RealmState) {
    for (name, module) in &*state.modules.by_name.borrow() {
        let Some((_, file)) = state.script.module(name) else { continue };
        if file.kind != ModuleKind::EsModule || file.code_cache().is_some() {
            continue;
        }
        let module = Local::new(scope, module);
        if let Some(cache) = module.get_unbound_module_script(scope).create_code_cache() {
            file.keep_code_cache(&cache);
        }
    }
}
