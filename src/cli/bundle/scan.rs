//! Finds what a JavaScript module imports, without parsing it whole.
//!
//! One pass over the text that knows comments, strings, templates and regular expressions, so that
//! the word `import` counts only where it is one. Whether a slash divides or opens a regular
//! expression follows from the token before it; after `)` and `}` from what the bracket closed.
//! Source: ECMA-262, sections 12 (lexical grammar) and 16.2.2 (imports).

/// One place where a module names another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Import {
    /// `import … from "x"`, `import "x"`, `export … from "x"`.
    Static(Found),
    /// `import("x")`
    Dynamic(Found),
    /// `import(expression)`: only the program knows.
    Computed { line: usize },
}

/// A specifier and its line, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) specifier: String,
    pub(crate) line: usize,
}

/// All imports of a module in the order of its text.
pub(crate) fn imports(source: &str) -> Vec<Import> {
    let mut scanner = Scanner {
        bytes: source.as_bytes(),
        at: 0,
        line: 1,
        before: Before::Operator,
        brackets: Vec::new(),
        found: Vec::new(),
    };
    if source.starts_with("#!") {
        scanner.skip_line();
    }
    scanner.run();
    scanner.found
}

/// What stood before: decides what a slash means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// An operand has ended: a slash divides.
    Operand,
    /// An operand is due: a slash opens a regular expression.
    Operator,
    /// A dot: the next word is the name of a member, whatever it says.
    Dot,
    /// A word after which `(…)` is a head: `if (…) /x/` holds a regular expression.
    Head,
}

/// An open bracket, and what a slash would mean behind its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bracket {
    Group {
        head: bool,
    },
    Square,
    /// Braces of a block: an operand is due after them.
    Block,
    /// Braces of an object: an operand has ended with them.
    Object,
    /// `${` of a template: its end leads back into the text.
    Template,
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    line: usize,
    before: Before,
    brackets: Vec<Bracket>,
    found: Vec<Import>,
}

impl Scanner<'_> {
    fn run(&mut self) {
        while let Some(byte) = self.peek(0) {
            match byte {
                b'/' if self.peek(1) == Some(b'/') => self.skip_line(),
                b'/' if self.peek(1) == Some(b'*') => self.skip_comment(),
                b'/' if self.before == Before::Operand => self.step(Before::Operator),
                b'/' => self.skip_regex(),
                b'"' | b'\'' => {
                    self.string();
                    self.before = Before::Operand;
                }
                b'`' => {
                    self.at += 1;
                    self.template();
                }
                b'(' => {
                    self.brackets.push(Bracket::Group { head: self.before == Before::Head });
                    self.step(Before::Operator);
                }
                b'[' => {
                    self.brackets.push(Bracket::Square);
                    self.step(Before::Operator);
                }
                b'{' => self.open_brace(),
                b')' | b']' | b'}' => self.close(),
                b'.' if self.peek(1).is_some_and(|b| b.is_ascii_digit()) => self.number(),
                b'.' if self.peek(1) == Some(b'.') && self.peek(2) == Some(b'.') => {
                    self.at += 2;
                    self.step(Before::Operator);
                }
                b'.' => self.step(Before::Dot),
                // `a++ / b`: the operand before it has ended; `++/x/.y` is no JavaScript.
                b'+' | b'-' if self.peek(1) == Some(byte) => self.at += 2,
                b'0'..=b'9' => self.number(),
                _ if is_word(byte) => self.word(),
                b'#' | b'@' => self.at += 1,
                _ if byte.is_ascii_whitespace() => self.advance(),
                _ => self.step(Before::Operator),
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    fn advance(&mut self) {
        if self.peek(0) == Some(b'\n') {
            self.line += 1;
        }
        self.at += 1;
    }

    fn step(&mut self, before: Before) {
        self.at += 1;
        self.before = before;
    }

    fn skip_line(&mut self) {
        while self.peek(0).is_some_and(|b| b != b'\n') {
            self.at += 1;
        }
    }

    fn skip_comment(&mut self) {
        self.at += 2;
        while self.peek(0).is_some() {
            if self.peek(0) == Some(b'*') && self.peek(1) == Some(b'/') {
                self.at += 2;
                return;
            }
            self.advance();
        }
    }

    /// White space and comments.
    fn skip_blank(&mut self) {
        while let Some(byte) = self.peek(0) {
            match byte {
                _ if byte.is_ascii_whitespace() => self.advance(),
                b'/' if self.peek(1) == Some(b'/') => self.skip_line(),
                b'/' if self.peek(1) == Some(b'*') => self.skip_comment(),
                _ => return,
            }
        }
    }

    fn skip_regex(&mut self) {
        self.at += 1;
        let mut class = false;
        while let Some(byte) = self.peek(0) {
            match byte {
                b'\\' => self.at += 1,
                b'[' => class = true,
                b']' => class = false,
                b'/' if !class => {
                    self.at += 1;
                    break;
                }
                // No regular expression holds a line break: this was a division after all.
                b'\n' => break,
                _ => {}
            }
            self.at += 1;
        }
        while self.peek(0).is_some_and(is_word) {
            self.at += 1;
        }
        self.before = Before::Operand;
    }

    /// The string that starts here, with its escapes resolved. `None` when it has no end.
    fn string(&mut self) -> Option<String> {
        let quote = self.peek(0)?;
        self.at += 1;
        let mut text = Vec::new();
        while let Some(byte) = self.peek(0) {
            match byte {
                _ if byte == quote => {
                    self.at += 1;
                    return String::from_utf8(text).ok();
                }
                b'\\' => self.escape(&mut text),
                b'\n' => return None,
                _ => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
        None
    }

    fn escape(&mut self, text: &mut Vec<u8>) {
        self.at += 1;
        let Some(byte) = self.peek(0) else { return };
        self.advance();
        match byte {
            b'n' => text.push(b'\n'),
            b't' => text.push(b'\t'),
            b'r' => text.push(b'\r'),
            b'\n' => {}
            b'x' => self.code_point(2, text),
            b'u' if self.peek(0) == Some(b'{') => {
                let length = self.bytes[self.at..].iter().position(|&b| b == b'}').unwrap_or(0);
                self.at += 1;
                self.code_point(length.saturating_sub(1), text);
                self.at += 1;
            }
            b'u' => self.code_point(4, text),
            other => text.push(other),
        }
    }

    fn code_point(&mut self, digits: usize, text: &mut Vec<u8>) {
        let end = (self.at + digits).min(self.bytes.len());
        let hex = std::str::from_utf8(&self.bytes[self.at..end]).ok();
        let point = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        text.extend(point.unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut [0; 4]).bytes());
        self.at = end;
    }

    /// The rest of a template, up to its end or the next `${`.
    fn template(&mut self) {
        while let Some(byte) = self.peek(0) {
            match byte {
                b'\\' => {
                    self.at += 1;
                    self.advance();
                }
                b'`' => return self.step(Before::Operand),
                b'$' if self.peek(1) == Some(b'{') => {
                    self.at += 1;
                    self.brackets.push(Bracket::Template);
                    return self.step(Before::Operator);
                }
                _ => self.advance(),
            }
        }
    }

    /// A brace after an operator or an opening bracket is an object, any other one a block. After
    /// `)`, `=>`, a statement's end or a word like `else` it is a block; `return {` is an object.
    fn open_brace(&mut self) {
        let last = self.bytes[..self.at].iter().rev().copied().find(|b| !b.is_ascii_whitespace());
        let arrow = self.bytes[..self.at].trim_ascii_end().ends_with(b"=>");
        let object = match last {
            Some(
                b'=' | b'(' | b'[' | b',' | b'?' | b'&' | b'|' | b'+' | b'-' | b'*' | b'!' | b'~',
            ) => !arrow,
            Some(b':') => !matches!(self.brackets.last(), None | Some(Bracket::Block)),
            Some(byte) if is_word(byte) => self.ends_with_word(&[
                b"return", b"typeof", b"await", b"yield", b"in", b"of", b"new", b"case", b"void",
                b"delete", b"default", b"throw",
            ]),
            _ => false,
        };
        self.brackets.push(if object { Bracket::Object } else { Bracket::Block });
        self.step(Before::Operator);
    }

    fn ends_with_word(&self, words: &[&[u8]]) -> bool {
        let before = self.bytes[..self.at].trim_ascii_end();
        words.iter().any(|word| {
            before.ends_with(word)
                && !before[..before.len() - word.len()]
                    .last()
                    .is_some_and(|&b| is_word(b) || b == b'.')
        })
    }

    fn close(&mut self) {
        match self.brackets.pop() {
            Some(Bracket::Template) => {
                self.at += 1;
                self.template();
            }
            Some(Bracket::Block | Bracket::Group { head: true }) => self.step(Before::Operator),
            Some(Bracket::Object | Bracket::Square | Bracket::Group { head: false }) | None => {
                self.step(Before::Operand)
            }
        }
    }

    fn number(&mut self) {
        while self.peek(0).is_some_and(|b| is_word(b) || b == b'.') {
            self.at += 1;
        }
        self.before = Before::Operand;
    }

    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.at += 1;
        }
        let word = &self.bytes[start..self.at];
        let member = self.before == Before::Dot;
        self.before = Before::Operand;
        if member {
            return;
        }
        match word {
            b"import" => self.import(),
            b"export" => self.export(),
            b"if" | b"while" | b"for" | b"with" => self.before = Before::Head,
            b"return" | b"typeof" | b"instanceof" | b"in" | b"of" | b"new" | b"delete"
            | b"void" | b"throw" | b"case" | b"do" | b"else" | b"await" | b"yield" | b"default"
            | b"extends" => self.before = Before::Operator,
            _ => {}
        }
    }

    /// Behind `import`: a call, `import.meta`, or a declaration.
    fn import(&mut self) {
        let line = self.line;
        self.skip_blank();
        match self.peek(0) {
            Some(b'.') => {}
            Some(b'(') => self.call(line),
            Some(b'"' | b'\'') => self.take_specifier(line),
            Some(b':' | b'=' | b',' | b';' | b'}' | b')') => {}
            _ => self.clause(line),
        }
    }

    /// `import(…)`: literal when the first argument is one string and nothing else.
    fn call(&mut self, line: usize) {
        let (at, line_here) = (self.at, self.line);
        self.at += 1;
        self.skip_blank();
        let literal = match self.peek(0) {
            Some(b'"' | b'\'') => self.string(),
            Some(b'`') => self.plain_template(),
            _ => None,
        };
        self.skip_blank();
        let whole = matches!(self.peek(0), Some(b')' | b','));
        match literal.filter(|_| whole) {
            Some(specifier) => self.found.push(Import::Dynamic(Found { specifier, line })),
            None => self.found.push(Import::Computed { line }),
        }
        // The arguments are scanned as well: they may import in their turn.
        (self.at, self.line) = (at, line_here);
    }

    fn plain_template(&mut self) -> Option<String> {
        let rest = &self.bytes[self.at + 1..];
        let end = rest.iter().position(|&b| matches!(b, b'`' | b'$' | b'\\'))?;
        let text = String::from_utf8(rest[..end].to_vec()).ok()?;
        (rest[end] == b'`').then(|| {
            self.at += end + 2;
            text
        })
    }

    /// Behind `export`: only `export * from` and `export {…} from` name a module.
    fn export(&mut self) {
        let line = self.line;
        self.before = Before::Operator;
        self.skip_blank();
        if matches!(self.peek(0), Some(b'*' | b'{')) {
            self.clause(line);
        }
    }

    /// The names between `import` or `export` and `from "x"`. Without `from` it was no import.
    fn clause(&mut self, line: usize) {
        while let Some(byte) = self.peek(0) {
            match byte {
                b'{' | b'}' | b',' | b'*' => self.at += 1,
                // A name of a module's namespace may be a string: `import { "a b" as c } from`.
                b'"' | b'\'' => _ = self.string(),
                _ if is_word(byte) => {
                    let start = self.at;
                    while self.peek(0).is_some_and(is_word) {
                        self.at += 1;
                    }
                    let from = &self.bytes[start..self.at] == b"from";
                    self.skip_blank();
                    if from && matches!(self.peek(0), Some(b'"' | b'\'')) {
                        return self.take_specifier(line);
                    }
                }
                _ => break,
            }
            self.skip_blank();
        }
        self.before = Before::Operator;
    }

    fn take_specifier(&mut self, line: usize) {
        if let Some(specifier) = self.string() {
            self.found.push(Import::Static(Found { specifier, line }));
        }
        self.before = Before::Operand;
    }
}

/// Bytes of names: ASCII ones, and all of a character beyond ASCII.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(source: &str) -> Vec<String> {
        let name = |import: Import| match import {
            Import::Static(found) => found.specifier,
            Import::Dynamic(found) => format!("({})", found.specifier),
            Import::Computed { line } => format!("? line {line}"),
        };
        imports(source).into_iter().map(name).collect()
    }

    #[test]
    fn each_form_of_an_import_is_found() {
        for (source, expected) in [
            ("import a from './a.js'", "./a.js"),
            ("import './a.js';", "./a.js"),
            ("import{a as b,c}from\"./a.js\"", "./a.js"),
            ("import a, * as b from './a.js'", "./a.js"),
            ("import { default as from } from './a.js'", "./a.js"),
            ("import from from './a.js'", "./a.js"),
            ("import { 'x y' as b } from './a.js'", "./a.js"),
            ("import d from './d.json' with { type: 'json' };", "./d.json"),
            ("import /* c */ a /* 'x' */ from // y\n './a.js'", "./a.js"),
            ("export * from './a.js'", "./a.js"),
            ("export * as ns from './a.js'", "./a.js"),
            ("export { a, b as default } from './a.js'", "./a.js"),
            ("const x = await import('./a.js')", "(./a.js)"),
            ("import(/* @vite */ './a.js', { with: {} })", "(./a.js)"),
            ("import(`./a.js`)", "(./a.js)"),
            ("import '\\x2e/\\u0061.js'", "./a.js"),
            ("#!/usr/bin/env node\nimport './a.js'", "./a.js"),
            ("x = `${await import('./a.js')}`", "(./a.js)"),
        ] {
            assert_eq!(names(source), [expected], "{source}");
        }
        assert_eq!(names("import('./a' + x)\nimport(x)"), ["? line 1", "? line 2"]);
        assert_eq!(names("import(`./${x}.js`)"), ["? line 1"]);
    }

    #[test]
    fn what_only_looks_like_one_is_not() {
        for source in [
            "// import './a.js'",
            "/* import './a.js' */",
            "'import \"./a.js\"'",
            "`import './a.js'`",
            "/import '.\\/a.js'/",
            "x = a / b; y = /import '[/]a'/g",
            "if (a) /import 'x'/.test(b)",
            "x = { import: './a.js' }",
            "x.import('./a.js')",
            "x?.import('./a.js')",
            "import.meta.url",
            "export const from = './a.js'",
            "export default 'from \"./a.js\"'",
            "export { a, b }; 'x'",
            "const importer = './a.js'; $import('./a.js')",
            "`${ `import './a.js'` }`",
            "`${ { a: '}' } } import './a.js'`",
            "while (x) /import 'a'/.exec(y)",
            "() => { } /import 'a'/",
        ] {
            assert_eq!(names(source), [""; 0], "{source}");
        }
    }

    #[test]
    fn a_slash_divides_where_an_operand_has_ended() {
        for source in [
            "a / 1; import './a.js'; b / 1",
            "x = (a + b) / 2; import './a.js' // /",
            "x = a[0] / 2; import './a.js'; y / 2",
            "x = { a: 1 } / 2; import './a.js'; y / 2",
            "a++ / 2; import './a.js'; b / 2",
            "x = 4 / 2; import './a.js'; y = 4. / 2",
            "x = `a` / 2; import './a.js'; y / 2",
            "x = this / 2; import './a.js'; y / 2",
            "function f() {} /a'/.test(x); import './a.js'; /'/",
        ] {
            assert_eq!(names(source), ["./a.js"], "{source}");
        }
    }

    #[test]
    fn lines_are_counted_through_all_kinds_of_text() {
        let source = "/*\n*/\n`\n${\n1}`\n'a\\\nb'\nimport './a.js'";
        assert_eq!(
            imports(source),
            [Import::Static(Found { specifier: "./a.js".to_owned(), line: 8 })]
        );
    }

    #[test]
    fn broken_text_ends_without_a_panic() {
        for source in [
            "'", "`", "`${", "/", "/*", "import", "import(", "import {", "import '", "export {",
            "'\\", "'\\u{", "'\\x", "}}})", "import(`", "\\",
        ] {
            names(source);
        }
        // Each cut of a text with everything in it.
        let whole = "import a from './ä.js'; x = `${import('b')}` / /[/]'/ ; '\\u{61}\\x61'";
        for end in (0..whole.len()).filter(|&end| whole.is_char_boundary(end)) {
            names(&whole[..end]);
        }
    }
}
