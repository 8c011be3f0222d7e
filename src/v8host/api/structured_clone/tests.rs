//! What the serialisation keeps, refuses, and makes of damaged bytes.

use std::sync::Arc;

use super::*;
use crate::realm::{Realm, enter};
use crate::{Limits, Module, ModuleKind, Script};

/// A value of every kind that the format knows.
const RICH: &str = "({ n: [0, -0, 1.5, NaN, 2 ** 40, 123n, -(2n ** 90n)], s: ['', 'a', 'ü😀', '\\ud800'], d: new Date(5), \
    r: /a+/giu, m: new Map([[{ a: 1 }, new Set([1, 'x'])]]), b: new Uint8Array([1, 2, 3]), v: new DataView(new ArrayBuffer(9), 1, 4), \
    e: new RangeError('m', { cause: [1] }), o: [Object(1), Object('s'), Object(true), Object(5n)], h: [1, , 3], \
    x: new DOMException('m', 'AbortError'), f: new Float64Array(2), g: new ArrayBuffer(3, { maxByteLength: 8 }), u: undefined })";

fn in_realm(run: impl FnOnce(&mut PinScope)) {
    let script = Script {
        modules: vec![Module::new("m.js", ModuleKind::EsModule, "export default {};")],
        main: "m.js".to_owned(),
        ..Script::default()
    };
    let mut realm = Realm::new(&Arc::new(script), Limits::default()).expect("the script loads");
    enter(&realm.isolate, &realm.state);
    v8::scope!(let scope, &mut **realm.isolate);
    let context = Local::new(scope, &realm.inside.context);
    let scope = &mut v8::ContextScope::new(scope, context);
    run(scope);
}

fn evaluate<'s>(scope: &mut PinScope<'s, '_>, source: &str) -> Local<'s, v8::Value> {
    let source = convert::string(scope, source);
    let script = v8::Script::compile(scope, source, None).expect("it compiles");
    script.run(scope).expect("it runs")
}

/// The exception's text; `None` when there was none.
fn attempt(scope: &mut PinScope, run: impl FnOnce(&mut PinScope) -> bool) -> Option<String> {
    v8::tc_scope!(let scope, scope);
    if run(scope) {
        return None;
    }
    let exception = scope.exception().expect("a failure leaves an exception");
    scope.reset();
    convert::to_string(scope, exception)
}

#[test]
fn a_copy_of_a_copy_serialises_to_the_same_bytes() {
    in_realm(|scope| {
        let value = evaluate(scope, RICH);
        let bytes = serialize(scope, value).expect("it is serialised");
        assert_eq!(bytes[..2], [0xff, 16], "what stored values begin with");
        // Not the first copy: V8 writes the arrays that it has read in its form for holes.
        let copy = deserialize(scope, &bytes).expect("it is read");
        let second = serialize(scope, copy).expect("a copy is serialised");
        let copy = deserialize(scope, &second).expect("a copy is read");
        assert_eq!(serialize(scope, copy), Some(second));
    });
}

#[test]
fn plain_values_have_the_bytes_that_v8_gives_them() {
    in_realm(|scope| {
        for source in [
            "0",
            "1",
            "-1",
            "63",
            "64",
            "-64",
            "-65",
            "2147483647",
            "-2147483648",
            "2147483648",
            "-0",
            "1.5",
            "NaN",
            "-Infinity",
            "true",
            "false",
            "''",
            "'text'",
            "'\u{e9}\u{ff}'",
            "'a'.repeat(300)",
        ] {
            let value = evaluate(scope, source);
            let plain = write_plain(scope, value).expect("it is plain");
            assert_eq!(Some(&plain), write(scope, value, &[], Use::Value).as_ref(), "{source}");
            let by_v8 = read(scope, &plain, &[]).expect("V8 reads it");
            // Four bytes of a number are for us, the fifth is for V8.
            if let Some(ours) = read_plain(scope, &plain) {
                assert!(ours.same_value(by_v8) && ours.same_value(value), "{source}");
            } else {
                assert!(source.starts_with("-2147") || source.starts_with("2147"), "{source}");
            }
        }
        for source in
            ["null", "undefined", "({})", "1n", "'\u{20ac}'", "'a'.repeat(2000)", "new String('a')"]
        {
            let value = evaluate(scope, source);
            assert_eq!(write_plain(scope, value), None, "{source}");
        }
    });
}

#[test]
fn functions_and_classes_of_ours_are_refused_with_their_name() {
    in_realm(|scope| {
        for (source, message) in [
            ("({ f() {} })", "DataCloneError: f() {} could not be cloned."),
            (
                "[new URL('http://a')]",
                "DataCloneError: Could not serialize object of type \"URL\". This type does not support serialization.",
            ),
            (
                "new SharedArrayBuffer(1)",
                "DataCloneError: #<SharedArrayBuffer> could not be cloned.",
            ),
            ("({ get a() { throw new TypeError('mine') } })", "TypeError: mine"),
        ] {
            let value = evaluate(scope, source);
            let thrown = attempt(scope, |scope| serialize(scope, value).is_some());
            assert_eq!(thrown.as_deref(), Some(message));
        }
    });
}

#[test]
fn truncated_bytes_are_an_error() {
    in_realm(|scope| {
        let value = evaluate(scope, RICH);
        let bytes = serialize(scope, value).expect("it is serialised");
        for length in 0..bytes.len() {
            let thrown = attempt(scope, |scope| deserialize(scope, &bytes[..length]).is_some());
            assert!(
                thrown.is_some_and(|text| text.contains("Unable to deserialize cloned data")),
                "{length} bytes"
            );
        }
    });
}

#[test]
fn damaged_bytes_give_a_value_or_an_error() {
    in_realm(|scope| {
        let value = evaluate(scope, RICH);
        let bytes = serialize(scope, value).expect("it is serialised");
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as usize
        };
        let mut failed = 0;
        for _ in 0..20_000 {
            v8::scope!(let scope, scope);
            let mut damaged = bytes.clone();
            for _ in 0..=random() % 3 {
                let at = random() % damaged.len();
                damaged[at] = random() as u8;
            }
            let read = |scope: &mut PinScope| deserialize(scope, &damaged).is_some();
            failed += usize::from(attempt(scope, read).is_some());
        }
        assert!(failed > 1_000, "{failed} were refused");
    });
}
