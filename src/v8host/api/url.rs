//! `URL` and `URLSearchParams`: parsing, the setters' state machine, and form encoding.
//!
//! Invariant: a serialised URL is ASCII, so that byte offsets into it are offsets into the string
//! that JavaScript has; `js/url.js` cuts the parts out of that one string.
//! Source: URL Standard; the crate `url` implements its parser and, in `quirks`, its setters.
//! Known to differ from the standard, as the crate does: `file:///C|/` keeps the bar, `file:////x`
//! loses empty segments, labels such as `xn--` alone are refused, and blanks at the end of an opaque
//! path stay.

use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use url::{Url, form_urlencoded, quirks};
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

/// The arguments `(input, base?)` as a URL; the inner `None` is no URL.
fn parse(scope: &mut PinScope, args: &v8::FunctionCallbackArguments) -> Option<Option<Url>> {
    let input = convert::to_string(scope, args.get(0))?;
    let base = args.get(1);
    let base = if base.is_undefined() { None } else { Some(convert::to_string(scope, base)?) };
    Some(guarded(|| match base {
        None => Url::parse(&input).ok(),
        Some(base) => Url::parse(&base).and_then(|base| base.join(&input)).ok(),
    }))
}

/// Anybody can send a URL, and the crate has panicked on rare ones: such a one counts as invalid. A
/// panic may not cross V8's frames, and would end the node.
fn guarded(run: impl FnOnce() -> Option<Url>) -> Option<Url> {
    catch_unwind(AssertUnwindSafe(run)).ok().flatten()
}

/// Where the parts of a serialised URL begin and end, in the order of `js/url.js`: end of the scheme,
/// user name (begin, end), password, host, port, path, end of the query.
fn offsets(href: &[u8]) -> [usize; 12] {
    let find = |from: usize, to: usize, set: &[u8]| {
        href[from..to].iter().position(|byte| set.contains(byte)).map_or(to, |at| from + at)
    };
    let end = href.len();
    let scheme = find(0, end, b":");
    let after_scheme = (scheme + 1).min(end);
    let query_end = find(after_scheme, end, b"#");
    let path_end = find(after_scheme, query_end, b"?");
    let rest = &href[after_scheme..path_end];
    if !rest.starts_with(b"//") {
        // A path that begins with an empty segment is written behind "/." when there is no host.
        let path = if rest.starts_with(b"/.//") { after_scheme + 2 } else { after_scheme };
        let none = after_scheme;
        return [scheme, none, none, none, none, none, none, none, none, path, path_end, query_end];
    }
    let authority = after_scheme + 2;
    let authority_end = find(authority, path_end, b"/");
    // The user name and the password have no "@" left, and no host has one.
    let at = find(authority, authority_end, b"@");
    let has_user = at < authority_end;
    let host = if has_user { at + 1 } else { authority };
    let user_end = if has_user { find(authority, at, b":") } else { authority };
    let (password, password_end) = if user_end < host && has_user {
        ((user_end + 1).min(at), at)
    } else {
        (user_end, user_end)
    };
    let bracket = if href[host..authority_end].starts_with(b"[") {
        find(host, authority_end, b"]")
    } else {
        host
    };
    let host_end = find(bracket, authority_end, b":");
    let port = (host_end + 1).min(authority_end);
    [
        scheme,
        authority,
        user_end,
        password,
        password_end,
        host,
        host_end,
        port,
        authority_end,
        authority_end,
        path_end,
        query_end,
    ]
}

/// Whether the parser would give just this text back: an `http` or `https` URL in its serialised form,
/// as servers have it of nearly every request. `false` promises nothing: it may be one all the same.
pub fn is_serialised(text: &[u8]) -> bool {
    let (rest, default_port) = if let Some(rest) = text.strip_prefix(b"http://") {
        (rest, 80)
    } else if let Some(rest) = text.strip_prefix(b"https://") {
        (rest, 443)
    } else {
        return false;
    };
    let Some(slash) = rest.iter().position(|&byte| byte == b'/') else { return false };
    let (authority, path) = rest.split_at(slash);
    let (host, port) = match authority.iter().position(|&byte| byte == b':') {
        Some(colon) => (&authority[..colon], Some(&authority[colon + 1..])),
        None => (authority, None),
    };
    is_plain_host(host)
        && port.is_none_or(|port| is_plain_port(port, default_port))
        && is_plain_path(path)
}

/// Labels of lower-case ASCII of which the last one begins with a letter and none is Punycode, or an IPv4
/// address in the form that the parser gives it.
fn is_plain_host(host: &[u8]) -> bool {
    if host.last().is_some_and(u8::is_ascii_digit)
        && std::str::from_utf8(host).is_ok_and(|text| text.parse::<Ipv4Addr>().is_ok())
    {
        return true;
    }
    let mut last = None;
    for label in host.split(|&byte| byte == b'.') {
        let plain = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        if label.is_empty() || label.get(2..4) == Some(b"--") || !label.iter().all(plain) {
            return false;
        }
        last = label.first();
    }
    host.len() < 254 && last.is_some_and(u8::is_ascii_lowercase)
}

fn is_plain_port(port: &[u8], default: u32) -> bool {
    if port.is_empty() || port.len() > 5 || port[0] == b'0' || !port.iter().all(u8::is_ascii_digit)
    {
        return false;
    }
    let number = port.iter().fold(0, |number, &digit| number * 10 + u32::from(digit - b'0'));
    number <= 0xffff && number != default
}

/// A path and a query of characters that are never escaped, without a segment that begins with a dot.
/// A fragment, an escaped dot or a quote is left to the parser.
fn is_plain_path(path: &[u8]) -> bool {
    let mut before = b' ';
    for &byte in path {
        let plain = match byte {
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'/'
            | b'-'
            | b'_'
            | b'~'
            | b'!'
            | b'$'
            | b'&'
            | b'('
            | b')'
            | b'*'
            | b'+'
            | b','
            | b';'
            | b'='
            | b':'
            | b'@'
            | b'?' => true,
            b'.' => before != b'/',
            _ => false,
        };
        if !plain {
            return false;
        }
        before = byte;
    }
    true
}

/// `[href, offsets…]`
fn pack<'s>(scope: &mut PinScope<'s, '_>, url: &Url) -> Local<'s, v8::Value> {
    let href = convert::string(scope, url.as_str());
    pack_as(scope, href, url.as_str())
}

/// `text` is that of `href`.
fn pack_as<'s>(
    scope: &mut PinScope<'s, '_>,
    href: Local<v8::String>,
    text: &str,
) -> Local<'s, v8::Value> {
    let href = Local::new(scope, href);
    let mut parts: [Local<v8::Value>; 13] = [href.into(); 13];
    for (part, offset) in parts[1..].iter_mut().zip(offsets(text.as_bytes())) {
        // The crate keeps URLs below 4 GiB: its own offsets are u32.
        *part = v8::Integer::new_from_unsigned(scope, offset as u32).into();
    }
    v8::Array::new_with_elements(scope, &parts).into()
}

/// `url_parse(input, base?)`: the packed URL, or `null` when it is none.
fn url_parse(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    if args.get(1).is_undefined()
        && let Ok(input) = Local::<v8::String>::try_from(args.get(0))
        && input.is_onebyte()
    {
        let text = convert::text_of(scope, input);
        if is_serialised(text.as_bytes()) {
            return rv.set(pack_as(scope, input, &text));
        }
    }
    match parse(scope, &args) {
        Some(Some(url)) => rv.set(pack(scope, &url)),
        Some(None) => rv.set_null(),
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
        rv.set_bool(parsed.is_some());
    }
}

/// `url_set(href, part, value)`: the packed URL after the setter of `part`, or `null` when the
/// setter leaves the URL as it is.
fn url_set(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    let Some(href) = convert::to_string(scope, args.get(0)) else { return };
    let Some(part) = convert::to_string(scope, args.get(1)) else { return };
    let Some(value) = convert::to_string(scope, args.get(2)) else { return };
    let changed = guarded(|| {
        let mut url = Url::parse(&href).ok()?;
        set_part(&mut url, &part, &value).ok().map(|()| url)
    });
    match changed {
        Some(url) => rv.set(pack(scope, &url)),
        None => rv.set_null(),
    }
}

/// An error is a refusal: the URL stays as it was, and the standard wants no more.
fn set_part(url: &mut Url, part: &str, value: &str) -> Result<(), ()> {
    match part {
        "protocol" => quirks::set_protocol(url, value),
        "username" => quirks::set_username(url, value),
        "password" => quirks::set_password(url, value),
        "host" => quirks::set_host(url, value),
        "hostname" => quirks::set_hostname(url, value),
        "port" => quirks::set_port(url, value),
        "pathname" => {
            let had_authority = url.has_authority();
            quirks::set_pathname(url, value);
            // The crate writes such a path where a host would stand.
            if !had_authority && url.has_authority() {
                let text = url.as_str().replacen("://", ":/.//", 1);
                *url = Url::parse(&text).map_err(drop)?;
            }
            Ok(())
        }
        "search" => {
            quirks::set_search(url, value);
            Ok(())
        }
        "hash" => {
            quirks::set_hash(url, value);
            Ok(())
        }
        _ => Err(()),
    }
}

/// `url_origin(href)`: for schemes whose origin is not simply scheme, host and port.
fn url_origin(scope: &mut PinScope, args: v8::FunctionCallbackArguments, mut rv: v8::ReturnValue) {
    let Some(href) = convert::to_string(scope, args.get(0)) else { return };
    let url = guarded(|| Url::parse(&href).ok());
    let origin = url.map_or_else(|| "null".to_owned(), |url| url.origin().ascii_serialization());
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

#[cfg(test)]
mod tests {
    use url::Url;

    use super::{is_serialised, offsets};

    #[test]
    fn what_is_taken_for_serialised_parses_to_itself() {
        for text in [
            "http://localhost:8787/counter/a-b_c~d?x=1&y=(2)",
            "https://a.example-1.com/",
            "http://127.0.0.1:8787/counter/a",
            "http://a.b/x//y/z.txt?a=..//b?c:@!$*+,;=",
            "http://h/a./b../?.",
            "https://h:80/%",
        ] {
            let serialised = is_serialised(text.as_bytes());
            assert_eq!(serialised, !text.contains('%'), "{text}");
            assert_eq!(Url::parse(text).expect("a URL").as_str(), text);
        }
        for text in [
            "http://h:80/",
            "https://h:443/",
            "http://h:08/",
            "http://h:/",
            "http://h:65536/",
            "http://1.2/",
            "http://127.0.0.01/",
            "http://1.2.3.256/",
            "http://0x7f.0.0.1/",
            "http://h.0x1/",
            "http://h.1/",
            "http://H/",
            "http://xn--a/",
            "http://h./",
            "http://h/./a",
            "http://h/..",
            "http://h/a/.",
            "http://h/%2e",
            "http://h/a b",
            "http://h/?'",
            "http://h/#",
            "http://h",
            "http://u@h/",
            "http://u:p@h/",
            "http:///h/",
            "http://h\\/",
            "HTTP://h/",
            "ftp://h/",
            "http://h/\u{e9}",
            "http://h/a\tb",
        ] {
            assert!(!is_serialised(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn the_parts_of_a_url_are_found() {
        let parts = |href: &str| {
            let o = offsets(href.as_bytes());
            let pairs = [
                (0, o[0]),
                (o[1], o[2]),
                (o[3], o[4]),
                (o[5], o[6]),
                (o[7], o[8]),
                (o[9], o[10]),
                (o[10], o[11]),
            ];
            pairs.map(|(from, to)| href[from..to].to_owned()).join(" ")
        };
        for (href, expected) in [
            ("http://u:p@h:80/a/b?q#f", "http u p h 80 /a/b ?q"),
            ("http://u@h/", "http u  h  / "),
            ("http://:p@h/", "http  p h  / "),
            ("http://h/@:x", "http   h  /@:x "),
            ("http://[::1]:8/?a:b@c", "http   [::1] 8 / ?a:b@c"),
            ("foo://", "foo      "),
            ("foo://h", "foo   h   "),
            ("foo://h?q", "foo   h   ?q"),
            ("foo:/.//p#f", "foo     //p "),
            ("mailto:a@b:c", "mailto     a@b:c "),
            ("file:///C:/x", "file     /C:/x "),
            ("foo:", "foo      "),
        ] {
            assert_eq!(parts(href), expected, "{href}");
        }
    }
}
