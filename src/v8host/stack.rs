//! Stacks of errors as a person should read them: positions of the sources, not of the bundle.
//!
//! Invariant: a stack is turned back once, when it is made, so that code which looks at `error.stack`
//! and the log read the same.

use v8::{Local, PinScope};

use crate::convert;
use crate::script::Script;
use crate::state::RealmState;

/// Makes the `stack` of an error when somebody first asks for it, for scripts with source maps. A
/// script's own `Error.prepareStackTrace` comes first, as with V8 alone.
pub(crate) fn prepare<'s>(
    scope: &mut PinScope<'s, '_>,
    error: Local<'s, v8::Value>,
    sites: Local<'s, v8::Array>,
) -> Local<'s, v8::Value> {
    // What goes wrong in code of the script does not leave here: a stack has no way to fail.
    v8::tc_scope!(let scope, scope);
    let made = match by_script(scope, error, sites) {
        Some(made) => made,
        None => {
            let text = by_us(scope, error, sites);
            convert::string(scope, &text).into()
        }
    };
    scope.reset();
    made
}

/// What the script's own `Error.prepareStackTrace` makes of it, if there is one and it does not throw.
fn by_script<'s>(
    scope: &mut PinScope<'s, '_>,
    error: Local<'s, v8::Value>,
    sites: Local<'s, v8::Array>,
) -> Option<Local<'s, v8::Value>> {
    let context = scope.get_current_context();
    let (class, hook) =
        (convert::intern(scope, "Error"), convert::intern(scope, "prepareStackTrace"));
    let class = context.global(scope).get(scope, class.into())?;
    let class = Local::<v8::Object>::try_from(class).ok()?;
    let hook = Local::<v8::Function>::try_from(class.get(scope, hook.into())?).ok()?;
    hook.call(scope, class.into(), &[error, sites.into()])
}

fn by_us(scope: &mut PinScope, error: Local<v8::Value>, sites: Local<v8::Array>) -> String {
    let mut frames = String::new();
    for index in 0..sites.length() {
        let site = sites.get_index(scope, index);
        if let Some(text) = site.and_then(|site| convert::to_string(scope, site)) {
            frames.push_str(&format!("    at {text}\n"));
        }
    }
    let frames = mapped(&RealmState::get(scope).script, &frames_only(&frames));
    let title = title(scope, error);
    if frames.is_empty() { title } else { format!("{title}\n{frames}") }
}

/// `name: message`, as `Error.prototype.toString` puts them together.
fn title(scope: &mut PinScope, error: Local<v8::Value>) -> String {
    let Ok(object) = Local::<v8::Object>::try_from(error) else { return "Error".to_owned() };
    let mut text = |name: &str| {
        let key = convert::intern(scope, name);
        let value = object.get(scope, key.into()).filter(|value| !value.is_undefined())?;
        convert::to_string(scope, value)
    };
    let name = text("name").unwrap_or_else(|| "Error".to_owned());
    let message = text("message").unwrap_or_default();
    match (name.is_empty(), message.is_empty()) {
        (true, _) => message,
        (false, true) => name,
        (false, false) => format!("{name}: {message}"),
    }
}

/// The lines `    at …` of a stack, without those of the runtime itself.
pub(crate) fn frames_only(stack: &str) -> String {
    let frames: Vec<&str> = stack
        .lines()
        .filter(|line| {
            line.trim_start().starts_with("at ") && !line.contains(crate::snapshot::RUNTIME_PREFIX)
        })
        .collect();
    frames.join("\n")
}

/// The stack with every position that a source map of the script covers turned back.
pub(crate) fn mapped(script: &Script, stack: &str) -> String {
    if !script.has_source_maps() {
        return stack.to_owned();
    }
    let lines: Vec<String> = stack.lines().map(|line| mapped_line(script, line)).collect();
    lines.join("\n")
}

/// `    at name (file:line:column)` or `    at file:line:column`.
fn mapped_line(script: &Script, line: &str) -> String {
    let (head, location, tail) = match line.rfind('(') {
        Some(open) if line.ends_with(')') => (&line[..=open], &line[open + 1..line.len() - 1], ")"),
        _ => match line.find("at ") {
            Some(at) => (&line[..at + 3], &line[at + 3..], ""),
            None => return line.to_owned(),
        },
    };
    let mapped = split_position(location)
        .and_then(|(file, row, column)| script.original_position(file, row, column));
    match mapped {
        Some((file, row, column)) => format!("{head}{file}:{row}:{column}{tail}"),
        None => line.to_owned(),
    }
}

fn split_position(location: &str) -> Option<(&str, u32, u32)> {
    let (rest, column) = location.rsplit_once(':')?;
    let (file, row) = rest.rsplit_once(':')?;
    Some((file, row.parse().ok()?, column.parse().ok()?))
}
