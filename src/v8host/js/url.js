//! `URL` and `URLSearchParams`. Publishes `rt.url`.
//!
//! Invariant: a URL is its serialised form and the offsets of its parts (`api/url.rs`); parts are
//! cut out when asked for. Its `searchParams` and its query never differ: each writes to the other.
//! Source: URL Standard, sections 6.1 and 6.2; messages are workerd's.

const {
  append, arity, constructor, convert, decorate, illegalInvocation, isObject, method, pairIterable, record,
  required, sequence, uncurry,
} = rt.webidl;
const { USVString } = convert;
const slice = uncurry(String.prototype.slice);
const charCode = uncurry(String.prototype.charCodeAt);
const compare = (a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0);
const sort = uncurry(Array.prototype.sort);

// Indexes of the packed URL.
const HREF = 0;
const SCHEME_END = 1;
const USER = 2;
const USER_END = 3;
const PASSWORD = 4;
const PASSWORD_END = 5;
const HOST = 6;
const HOST_END = 7;
const PORT = 8;
const PORT_END = 9;
const PATH = 10;
const PATH_END = 11;
const QUERY_END = 12;

const PLAIN_ORIGINS = { __proto__: null, 'http:': true, 'https:': true, 'ws:': true, 'wss:': true, 'ftp:': true };

let isURL;
let isSearchParams;
let listOf;
let linked;
let reload;
let packedOf;
let setPart;
let setQuery;

function parseForm(text) {
  const flat = ops.form_parse(text);
  const list = [];
  for (let i = 0; i < flat.length; i += 2) append(list, [flat[i], flat[i + 1]]);
  return list;
}

function serializeForm(list) {
  if (list.length === 0) return '';
  const flat = [];
  for (let i = 0; i < list.length; i++) {
    append(flat, list[i][0]);
    append(flat, list[i][1]);
  }
  return ops.form_serialize(flat);
}

function pairOf(item) {
  const pair = sequence(item, USVString);
  if (pair === null) throw new TypeError("Incorrect type: the provided value is not of type 'Sequence'.");
  if (pair.length !== 2) throw new TypeError('Invalid URL search params sequence.');
  return pair;
}

class URLSearchParams {
  #list;
  /** The URL whose query this is, or null. */
  #url = null;

  constructor(init = '') {
    if (init !== null && isObject(init)) {
      this.#list = sequence(init, pairOf) ?? record(init, USVString, USVString);
    } else {
      const text = USVString(init);
      this.#list = parseForm(charCode(text, 0) === 63 ? slice(text, 1) : text);
    }
  }

  get size() {
    return listOf(this).length;
  }

  append(name, value) {
    const list = listOf(this);
    required(arguments.length, method('URLSearchParams', 'append'), 'USVString', 'USVString');
    append(list, [USVString(name), USVString(value)]);
    this.#update();
  }

  delete(name, value = undefined) {
    listOf(this);
    required(arguments.length, method('URLSearchParams', 'delete'), 'USVString');
    name = USVString(name);
    if (value !== undefined) value = USVString(value);
    const list = this.#list;
    const rest = [];
    for (let i = 0; i < list.length; i++) {
      if (list[i][0] !== name || (value !== undefined && list[i][1] !== value)) append(rest, list[i]);
    }
    this.#list = rest;
    this.#update();
  }

  get(name) {
    listOf(this);
    required(arguments.length, method('URLSearchParams', 'get'), 'USVString');
    name = USVString(name);
    const list = this.#list;
    for (let i = 0; i < list.length; i++) if (list[i][0] === name) return list[i][1];
    return null;
  }

  getAll(name) {
    listOf(this);
    required(arguments.length, method('URLSearchParams', 'getAll'), 'USVString');
    name = USVString(name);
    const list = this.#list;
    const values = [];
    for (let i = 0; i < list.length; i++) if (list[i][0] === name) append(values, list[i][1]);
    return values;
  }

  has(name, value = undefined) {
    listOf(this);
    required(arguments.length, method('URLSearchParams', 'has'), 'USVString');
    name = USVString(name);
    if (value !== undefined) value = USVString(value);
    const list = this.#list;
    for (let i = 0; i < list.length; i++) {
      if (list[i][0] === name && (value === undefined || list[i][1] === value)) return true;
    }
    return false;
  }

  set(name, value) {
    listOf(this);
    required(arguments.length, method('URLSearchParams', 'set'), 'USVString', 'USVString');
    name = USVString(name);
    value = USVString(value);
    const list = this.#list;
    const rest = [];
    let found = false;
    for (let i = 0; i < list.length; i++) {
      if (list[i][0] !== name) append(rest, list[i]);
      else if (!found) append(rest, [name, value]);
      found ||= list[i][0] === name;
    }
    if (!found) append(rest, [name, value]);
    this.#list = rest;
    this.#update();
  }

  /** By UTF-16 code units of the names; equal names keep their order. */
  sort() {
    sort(listOf(this), compare);
    this.#update();
  }

  toString() {
    return serializeForm(listOf(this));
  }

  #update() {
    if (this.#url !== null) setQuery(this.#url, serializeForm(this.#list));
  }

  static {
    isSearchParams = (value) => isObject(value) && #list in value;
    listOf = (self) => {
      if (!isSearchParams(self)) illegalInvocation();
      return self.#list;
    };
    linked = (url, query) => {
      const params = new URLSearchParams();
      params.#list = parseForm(query);
      params.#url = url;
      return params;
    };
    reload = (params, query) => {
      params.#list = parseForm(query);
    };
  }
}
arity(URLSearchParams.prototype.delete, 1);
pairIterable(URLSearchParams, 'URLSearchParams', (self) => listOf(self));
decorate(URLSearchParams);

class URL {
  #packed;
  #params = null;

  constructor(url, base = undefined) {
    if (arguments.length === 0) required(0, constructor('URL'), 'USVString');
    url = USVString(url);
    const packed = ops.url_parse(url, base === undefined ? undefined : USVString(base));
    if (packed === null) throw new TypeError('Invalid URL string.');
    this.#packed = packed;
  }

  static canParse(url, base = undefined) {
    required(arguments.length, method('URL', 'canParse'), 'USVString');
    return ops.url_can_parse(USVString(url), base === undefined ? undefined : USVString(base));
  }

  static parse(url, base = undefined) {
    required(arguments.length, method('URL', 'parse'), 'USVString');
    url = USVString(url);
    base = base === undefined ? undefined : USVString(base);
    return ops.url_can_parse(url, base) ? new URL(url, base) : null;
  }

  static createObjectURL() {
    throw new Error('URL.createObjectURL() is not implemented');
  }

  static revokeObjectURL() {
    throw new Error('URL.revokeObjectURL() is not implemented');
  }

  get href() {
    return packedOf(this)[HREF];
  }

  set href(value) {
    packedOf(this);
    const packed = ops.url_parse(USVString(value));
    if (packed === null) {
      throw new TypeError("Failed to set the 'href' property on 'URL': the provided value is not of type 'valid URL "
        + "string'.");
    }
    this.#replace(packed);
  }

  get origin() {
    const p = packedOf(this);
    const protocol = slice(p[HREF], 0, p[SCHEME_END] + 1);
    if (PLAIN_ORIGINS[protocol]) return `${protocol}//${slice(p[HREF], p[HOST], p[PORT_END])}`;
    return ops.url_origin(p[HREF]);
  }

  get protocol() {
    const p = packedOf(this);
    return slice(p[HREF], 0, p[SCHEME_END] + 1);
  }

  set protocol(value) {
    setPart(this, 'protocol', value);
  }

  get username() {
    const p = packedOf(this);
    return slice(p[HREF], p[USER], p[USER_END]);
  }

  set username(value) {
    setPart(this, 'username', value);
  }

  get password() {
    const p = packedOf(this);
    return slice(p[HREF], p[PASSWORD], p[PASSWORD_END]);
  }

  set password(value) {
    setPart(this, 'password', value);
  }

  get host() {
    const p = packedOf(this);
    return slice(p[HREF], p[HOST], p[PORT_END]);
  }

  set host(value) {
    setPart(this, 'host', value);
  }

  get hostname() {
    const p = packedOf(this);
    return slice(p[HREF], p[HOST], p[HOST_END]);
  }

  set hostname(value) {
    setPart(this, 'hostname', value);
  }

  get port() {
    const p = packedOf(this);
    return slice(p[HREF], p[PORT], p[PORT_END]);
  }

  set port(value) {
    setPart(this, 'port', value);
  }

  get pathname() {
    const p = packedOf(this);
    return slice(p[HREF], p[PATH], p[PATH_END]);
  }

  set pathname(value) {
    setPart(this, 'pathname', value);
  }

  get search() {
    const p = packedOf(this);
    return p[QUERY_END] - p[PATH_END] > 1 ? slice(p[HREF], p[PATH_END], p[QUERY_END]) : '';
  }

  set search(value) {
    setPart(this, 'search', value);
    if (this.#params !== null) reload(this.#params, this.#query());
  }

  get searchParams() {
    packedOf(this);
    this.#params ??= linked(this, this.#query());
    return this.#params;
  }

  get hash() {
    const p = packedOf(this);
    return p[HREF].length - p[QUERY_END] > 1 ? slice(p[HREF], p[QUERY_END]) : '';
  }

  set hash(value) {
    setPart(this, 'hash', value);
  }

  toString() {
    return packedOf(this)[HREF];
  }

  toJSON() {
    return packedOf(this)[HREF];
  }

  #query() {
    const p = this.#packed;
    return slice(p[HREF], p[PATH_END] + 1, p[QUERY_END]);
  }

  #replace(packed) {
    this.#packed = packed;
    if (this.#params !== null) reload(this.#params, this.#query());
  }

  static {
    isURL = (value) => isObject(value) && #packed in value;
    packedOf = (self) => {
      if (!isURL(self)) illegalInvocation();
      return self.#packed;
    };
    setPart = (url, part, value) => {
      const packed = ops.url_set(packedOf(url)[HREF], part, USVString(value));
      if (packed !== null) url.#packed = packed;
    };
    // A form-encoded text needs no escaping in a query: it is put in as it is.
    setQuery = (url, text) => {
      const p = url.#packed;
      const start = p[PATH_END];
      const query = text === '' ? '' : `?${text}`;
      p[HREF] = slice(p[HREF], 0, start) + query + slice(p[HREF], p[QUERY_END]);
      p[QUERY_END] = start + query.length;
    };
  }
}
decorate(URL);

rt.url = {
  /** The serialised form of any value as `new URL(value).href`; throws workerd's TypeError. */
  normalize: (value) => {
    const packed = ops.url_parse(USVString(value));
    if (packed === null) throw new TypeError('Invalid URL string.');
    return packed[HREF];
  },
  /** Where a `Location` that came from `base` leads, without its fragment; `null`: to no host. */
  locate: (location, base) => {
    const packed = ops.url_parse(location, base);
    if (packed === null || packed[HOST] === packed[HOST_END]) return null;
    return slice(packed[HREF], 0, packed[QUERY_END]);
  },
  /** Of two serialised URLs. */
  isSameOrigin: (a, b) => {
    const origin = ops.url_origin(a);
    return origin !== 'null' && origin === ops.url_origin(b);
  },
  isURL,
  isSearchParams,
  serializeSearchParams: (params) => serializeForm(listOf(params)),
  URL,
  URLSearchParams,
};
rt.expose('URL', URL);
rt.expose('URLSearchParams', URLSearchParams);
