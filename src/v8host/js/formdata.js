//! `FormData`, and the two forms it takes on the wire.
//!
//! An entry is `[name, value]`; the value is a string or a `File`.
//! Publishes `rt.formdata`. Source: XMLHttpRequest Standard, section 4 (FormData); RFC 7578 and HTML
//! Standard, section 4.10.21.8 (multipart/form-data); messages are workerd's.

const { convert, decorate, getter, illegalInvocation, isObject, method, pairIterable, required, uncurry } = rt.webidl;
const { Object, RegExp, String, TypeError, Uint8Array } = globalThis;
const exec = uncurry(RegExp.prototype.exec);
const replaceAll = uncurry(String.prototype.replaceAll);
const toLowerCase = uncurry(String.prototype.toLowerCase);
const trim = uncurry(String.prototype.trim);
const sliceString = uncurry(String.prototype.slice);
const indexOfString = uncurry(String.prototype.indexOf);
const TypedArray = Object.getPrototypeOf(Uint8Array);
const indexOf = uncurry(TypedArray.prototype.indexOf);
const subarray = uncurry(TypedArray.prototype.subarray);
const setBytes = uncurry(TypedArray.prototype.set);
const lengthOf = getter(TypedArray.prototype, 'byteLength');
const { USVString } = convert;
const nameOf = getter(rt.blob.File.prototype, 'name');

const CR = 13;
const LF = 10;
const DASH = 45;

let isFormData;
let entriesOf;

/** The value of an entry: text, or a File with a name; that of a Blob is the entry's, as on Cloudflare. */
function valueOf(name, value, filename) {
  if (!rt.blob.isBlob(value)) return USVString(value);
  if (rt.blob.isFile(value) && filename === undefined) return value;
  const bytes = rt.blob.bytes(value);
  return rt.blob.makeFile(bytes, rt.blob.type(value), filename === undefined ? name : USVString(filename));
}

class FormData {
  #entries = [];

  constructor(form = undefined) {
    if (form !== undefined) throw new TypeError('Failed to construct \'FormData\': there are no forms here; give no argument.');
  }

  static {
    isFormData = (value) => isObject(value) && #entries in value;
    entriesOf = (form) => form.#entries;
  }

  append(name, value, filename = undefined) {
    if (!isFormData(this)) illegalInvocation();
    required(arguments.length, method('FormData', 'append'), 'string', 'File or Blob or string');
    const key = USVString(name);
    const entries = this.#entries;
    entries[entries.length] = [key, valueOf(key, value, filename)];
  }

  delete(name) {
    if (!isFormData(this)) illegalInvocation();
    required(arguments.length, method('FormData', 'delete'), 'string');
    const key = USVString(name);
    const entries = this.#entries;
    let kept = 0;
    for (let i = 0; i < entries.length; i++) if (entries[i][0] !== key) entries[kept++] = entries[i];
    entries.length = kept;
  }

  get(name) {
    if (!isFormData(this)) illegalInvocation();
    required(arguments.length, method('FormData', 'get'), 'string');
    const key = USVString(name);
    const entries = this.#entries;
    for (let i = 0; i < entries.length; i++) if (entries[i][0] === key) return entries[i][1];
    return null;
  }

  getAll(name) {
    if (!isFormData(this)) illegalInvocation();
    required(arguments.length, method('FormData', 'getAll'), 'string');
    const key = USVString(name);
    const entries = this.#entries;
    const found = [];
    for (let i = 0; i < entries.length; i++) if (entries[i][0] === key) found[found.length] = entries[i][1];
    return found;
  }

  has(name) {
    if (!isFormData(this)) illegalInvocation();
    required(arguments.length, method('FormData', 'has'), 'string');
    const key = USVString(name);
    const entries = this.#entries;
    for (let i = 0; i < entries.length; i++) if (entries[i][0] === key) return true;
    return false;
  }

  set(name, value, filename = undefined) {
    if (!isFormData(this)) illegalInvocation();
    required(arguments.length, method('FormData', 'set'), 'string', 'File or Blob or string');
    const key = USVString(name);
    const entry = [key, valueOf(key, value, filename)];
    const entries = this.#entries;
    let kept = 0;
    let placed = false;
    for (let i = 0; i < entries.length; i++) {
      if (entries[i][0] !== key) entries[kept++] = entries[i];
      else if (!placed) {
        placed = true;
        entries[kept++] = entry;
      }
    }
    entries.length = kept;
    if (!placed) entries[kept] = entry;
  }

  static {
    pairIterable(FormData, 'FormData', (form) => {
      if (!isFormData(form)) illegalInvocation();
      return form.#entries;
    });
  }
}
decorate(FormData);
rt.expose('FormData', FormData);

// --- Serialising.

/** The three characters that would end a quoted name, as browsers write them. */
function escapeName(name) {
  return replaceAll(replaceAll(replaceAll(name, '"', '%22'), '\r', '%0D'), '\n', '%0A');
}

/** A body of a form: multipart, with a boundary that nobody can guess. */
function extract(form) {
  const boundary = replaceAll(ops.random_uuid(), '-', '');
  const parts = [];
  let total = 0;
  const add = (bytes) => {
    parts[parts.length] = bytes;
    total += lengthOf(bytes);
  };
  const entries = entriesOf(form);
  for (let i = 0; i < entries.length; i++) {
    const { 0: name, 1: value } = entries[i];
    const head = `--${boundary}\r\nContent-Disposition: form-data; name="${escapeName(name)}"`;
    if (typeof value === 'string') add(rt.encoding.encode(`${head}\r\n\r\n${value}\r\n`));
    else {
      const type = rt.blob.type(value) || 'application/octet-stream';
      add(rt.encoding.encode(`${head}; filename="${escapeName(nameOf(value))}"\r\nContent-Type: ${type}\r\n\r\n`));
      add(rt.blob.bytes(value));
      add(rt.encoding.encode('\r\n'));
    }
  }
  add(rt.encoding.encode(`--${boundary}--`));
  const all = new Uint8Array(total);
  let at = 0;
  for (let i = 0; i < parts.length; i++) {
    setBytes(all, parts[i], at);
    at += lengthOf(parts[i]);
  }
  return { kind: 1, value: all, type: `multipart/form-data; boundary=${boundary}` };
}

// --- Parsing.

const MULTIPART = 'multipart/form-data';
const URLENCODED = 'application/x-www-form-urlencoded';
const BOUNDARY = /;[\t ]*boundary[\t ]*=[\t ]*(?:"((?:[^"\\]|\\.)*)"|([^;"\t ]+))/i;

function essenceOf(type) {
  const end = indexOfString(type, ';');
  return toLowerCase(trim(end < 0 ? type : sliceString(type, 0, end)));
}

/** Throws unless a body with this Content-Type can be read as a form. */
function checkType(type) {
  if (type === null) throw new TypeError('Parsing a Body as FormData requires a Content-Type header.');
  const essence = essenceOf(type);
  if (essence === URLENCODED) return;
  if (essence !== MULTIPART) {
    throw new TypeError('Unrecognized Content-Type header value. FormData can only parse the following MIME types: '
      + 'multipart/form-data, application/x-www-form-urlencoded');
  }
  if (boundaryOf(type) === '') {
    throw new TypeError('No boundary string in Content-Type header. The multipart/form-data MIME type requires a boundary parameter, '
      + 'e.g. \'Content-Type: multipart/form-data; boundary="abcd"\'. See RFC 7578, section 4.');
  }
}

function boundaryOf(type) {
  const match = exec(BOUNDARY, type);
  if (match === null) return '';
  return match[1] === undefined ? match[2] : replaceAll(match[1], '\\', '');
}

function parse(type, bytes) {
  const form = new FormData();
  if (essenceOf(type) === URLENCODED) {
    const flat = ops.form_parse(rt.encoding.decode(bytes));
    const entries = entriesOf(form);
    for (let i = 0; i < flat.length; i += 2) entries[entries.length] = [flat[i], flat[i + 1]];
  } else parseMultipart(entriesOf(form), bytes, rt.encoding.encode(`--${boundaryOf(type)}`));
  return form;
}

/** Where `needle` begins in `bytes` at or after `from`; -1 when it does not. */
function find(bytes, needle, from) {
  const last = lengthOf(bytes) - lengthOf(needle);
  for (let at = indexOf(bytes, needle[0], from); at >= 0 && at <= last; at = indexOf(bytes, needle[0], at + 1)) {
    if (startsAt(bytes, needle, at)) return at;
  }
  return -1;
}

function startsAt(bytes, needle, at) {
  const length = lengthOf(needle);
  if (at + length > lengthOf(bytes)) return false;
  for (let i = 0; i < length; i++) if (bytes[at + i] !== needle[i]) return false;
  return true;
}

/** Where the boundary begins that is at the start of a line; -1 when there is none. */
function findBoundary(bytes, boundary, from) {
  for (let at = find(bytes, boundary, from); at >= 0; at = find(bytes, boundary, at + 1)) {
    if (at === 0 || bytes[at - 1] === LF) return at;
  }
  return -1;
}

function parseMultipart(entries, bytes, boundary) {
  let at = findBoundary(bytes, boundary, 0);
  if (at < 0) throw new TypeError('No initial boundary string (or you have a truncated message).');
  for (;;) {
    at += lengthOf(boundary);
    if (bytes[at] === DASH && bytes[at + 1] === DASH) return;
    if (bytes[at] !== LF && (bytes[at] !== CR || bytes[at + 1] !== LF)) {
      throw new TypeError('Boundary string was not succeeded by CRLF, LF, or \'--\'.');
    }
    // The blank line that ends the headers may follow at once: then they are empty.
    const line = indexOf(bytes, LF, at);
    const head = line < 0 ? -1 : endOfHead(bytes, line + 1);
    if (head < 0) throw new TypeError('No multipart message header termination found.');
    // A line break is before it, which is not that of the head.
    const end = findBoundary(bytes, boundary, head + 1);
    if (end < 0) throw new TypeError('No subsequent boundary string after multipart message.');
    const stop = bytes[end - 2] === CR && end - 2 >= head ? end - 2 : end - 1;
    addPart(entries, rt.encoding.decode(subarray(bytes, line + 1, head)), subarray(bytes, head, stop < head ? head : stop));
    at = end;
  }
}

/** Where the body of a part begins whose headers begin at `from`. */
function endOfHead(bytes, from) {
  for (let start = from; ;) {
    const line = indexOf(bytes, LF, start);
    if (line < 0) return -1;
    if (line === start || (line === start + 1 && bytes[start] === CR)) return line + 1;
    start = line + 1;
  }
}

const HEADER = /^([^\r\n:]+):[\t ]*([^\r\n]*)\r?\n/;
const PARAMETER = /^[\t ]*;[\t ]*([^=;\s]+)[\t ]*=[\t ]*(?:"((?:[^"\\]|\\["\\]|\\)*)"|([^;\s]*))/;

/** What stands in quotes: a backslash goes before a quote or another one. */
function unquote(text) {
  let plain = '';
  let from = 0;
  for (let at = indexOfString(text, '\\'); at >= 0; at = indexOfString(text, '\\', at + 2)) {
    const next = text[at + 1];
    if (next !== '"' && next !== '\\') continue;
    plain += sliceString(text, from, at);
    from = at + 1;
  }
  return plain + sliceString(text, from);
}

/** Adds a part to a form. `head` is its header lines. */
function addPart(entries, head, body) {
  let disposition = null;
  let type = null;
  for (let rest = head; ;) {
    const match = exec(HEADER, rest);
    if (match === null) break;
    rest = sliceString(rest, match[0].length);
    const name = toLowerCase(trim(match[1]));
    if (name === 'content-disposition') disposition = match[2];
    else if (name === 'content-type') type = trim(match[2]);
  }
  if (disposition === null) throw new TypeError('No Content-Disposition header in FormData part.');
  const semicolon = indexOfString(disposition, ';');
  const kind = trim(semicolon < 0 ? disposition : sliceString(disposition, 0, semicolon));
  if (kind !== 'form-data') {
    throw new TypeError('Content-Disposition header for FormData part must have the value "form-data", possibly followed by parameters. '
      + `Got: "${kind}"`);
  }
  // As in workerd: only what is in quotes counts, and an empty text as none.
  let name = '';
  let filename = '';
  for (let rest = semicolon < 0 ? '' : sliceString(disposition, semicolon); ;) {
    const match = exec(PARAMETER, rest);
    if (match === null) break;
    rest = sliceString(rest, match[0].length);
    if (match[2] === undefined) continue;
    const value = unquote(match[2]);
    if (match[1] === 'name') name = value;
    else if (match[1] === 'filename') filename = value;
  }
  if (name === '') throw new TypeError('Content-Disposition header in FormData part is missing a name.');
  if (filename === '') entries[entries.length] = [name, rt.encoding.decode(body)];
  else entries[entries.length] = [name, rt.blob.makeFile(new Uint8Array(body), type ?? '', filename)];
}

rt.formdata = { checkType, entries: entriesOf, extract, isFormData, parse };
