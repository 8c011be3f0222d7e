//! `URL` and `URLSearchParams`: parsing, the setters' state machine, and form encoding.
//!
//! Invariant: a serialised URL is ASCII, so that byte offsets into it are offsets into the string
//! that JavaScript has; `js/url.js` cuts the parts out of that one string.
//! Source: URL Standard; the crate `url` implements its parser and, in `quirks`, its setters.

use url::{Position, Url, form_urlencoded, quirks};
use v8::{Local, PinScope};

use crate::convert;
use crate::op;
use crate::ops::Op;

/// Native functions of this file.
pub const OPS: &[Op] = &[
    op!("url_parse", url_parse),
    op!("url_can_parse", url_can_parse),
    op!("url_set", url_set),
    op!("url_origin", url_origin),
    op!("form_parse", form_parse),
    op!("form_serialize", form_serialize),
];

/// Where the parts of a URL begin and end, in the order of `js/url.js`.
const POSITIONS: [Position; 11] = [
    Position::AfterScheme,
    Position::BeforeUsername,
    Position::AfterUsername,
    Position::BeforePassword,
    Position::AfterPassword,
    Position::BeforeHost,
    Position::AfterHost,
    Position::BeforePort,
    Position::AfterPort,
    Position::BeforePath,
    Position::AfterPath,
];

fn parse(
    scope: &mut PinScope,
    args: &v8::FunctionCallbackArguments,
) -> Option<Result<Url, url::ParseError>> {
    let input = convert::to_string(scope, args.get(0))?;
    let base = args.get(1);
    if base.is_undefined() {
        return Some(Url::parse(&input));
    }
    let base = convert::to_string(scope, base)?;
    Some(Url::parse(&base).and_then(|base| Url::options().base_url(Some(&base)).parse(&input)))
}

/// `[href, offsets…, end of the query]`
fn pack<'s>(scope: &mut PinScope<'s, '_>, url: &Url) -> Local<'s, v8::Value> {
    let mut parts: Vec<Local<v8::Value>> = Vec::with_capacity(POSITIONS.len() + 2);
    parts.push(convert::string(scope, url.as_str()).into());
    for position in POSITIONS {
        parts.push(offset(scope, url, position));
    }
    parts.push(offset(scope, url, Position::AfterQuery));
    v8::Array::new_with_elements(scope, &parts).into()
}

fn offset<'s>(scope: &mut PinScope<'s, '_>, url: &Url, position: Position) -> Local<'s, v8::Value> {
    // The crate keeps URLs below 4 GiB: its own offsets are u32.
    let offset = url[..position].len() as u32;
    v8::Integer::new_from_unsigned(scope, offset).into()
}

/// `url_parse(input, base?)`: the packed URL, or `null` when it is none.
fn url_parse(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    match parse(scope, &args) {
        Some(Ok(url)) => rv.set(pack(scope, &url)),
        Some(Err(_)) => rv.set_null(),
        None => {}
    }
}

/// `url_can_parse(input, base?)`: a boolean.
fn url_can_parse(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    if let Some(parsed) = parse(scope, &args) {
        rv.set_bool(parsed.is_ok());
    }
}

/// `url_set(href, part, value)`: the packed URL after the setter of `part`, or `null` when the
/// setter leaves the URL as it is.
fn url_set(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    let Some(href) = convert::to_string(scope, args.get(0)) else { return };
    let Some(part) = convert::to_string(scope, args.get(1)) else { return };
    let Some(value) = convert::to_string(scope, args.get(2)) else { return };
    let Ok(mut url) = Url::parse(&href) else {
        rv.set_null();
        return;
    };
    // A refusal leaves the URL unchanged, and the standard wants no more.
    let done = match part.as_str() {
        "protocol" => quirks::set_protocol(&mut url, &value),
        "username" => quirks::set_username(&mut url, &value),
        "password" => quirks::set_password(&mut url, &value),
        "host" => quirks::set_host(&mut url, &value),
        "hostname" => quirks::set_hostname(&mut url, &value),
        "port" => quirks::set_port(&mut url, &value),
        "pathname" => {
            quirks::set_pathname(&mut url, &value);
            Ok(())
        }
        "search" => {
            quirks::set_search(&mut url, &value);
            Ok(())
        }
        "hash" => {
            quirks::set_hash(&mut url, &value);
            Ok(())
        }
        _ => Err(()),
    };
    match done {
        Ok(()) => rv.set(pack(scope, &url)),
        Err(()) => rv.set_null(),
    }
}

/// `url_origin(href)`: for schemes whose origin is not simply scheme, host and port.
fn url_origin(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    let Some(href) = convert::to_string(scope, args.get(0)) else { return };
    let origin = Url::parse(&href)
        .map_or_else(|_| "null".to_owned(), |url| url.origin().ascii_serialization());
    rv.set(convert::string(scope, &origin).into());
}

/// `form_parse(text)`: `[name, value, name, value, …]`
fn form_parse(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    let Some(text) = convert::to_string(scope, args.get(0)) else { return };
    let mut flat: Vec<Local<v8::Value>> = Vec::new();
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        flat.push(convert::string(scope, &name).into());
        flat.push(convert::string(scope, &value).into());
    }
    rv.set(v8::Array::new_with_elements(scope, &flat).into());
}

/// `form_serialize(flat)`: the text of `[name, value, name, value, …]`.
fn form_serialize(
    scope: &mut PinScope,
    args: v8::FunctionCallbackArguments,
    mut rv: v8::ReturnValue,
) {
    let Ok(flat) = Local::<v8::Array>::try_from(args.get(0)) else {
        convert::throw_type_error(scope, "form_serialize: a flat array is expected");
        return;
    };
    let mut text = String::new();
    for at in 0..flat.length() {
        let Some(part) = flat.get_index(scope, at) else { return };
        let Some(part) = convert::to_string(scope, part) else { return };
        if at > 0 {
            text.push(if at % 2 == 0 { '&' } else { '=' });
        }
        text.extend(form_urlencoded::byte_serialize(part.as_bytes()));
    }
    rv.set(convert::string(scope, &text).into());
}
