//! Format strings of `console`: `%s %d %i %f %j %o %O %c`. Publishes `rt.format`.
//!
//! Invariant: no value makes this throw. `%j` runs `toJSON`, `%s` a `toString` that a script wrote.
//! Source: Console Standard, section 2.2; Node for what each directive shows.

const { isInterface, isObject } = rt.webidl;
const { inspect } = rt;
const { formatPrimitive, isProxy, probe } = rt.inspection;
const P = primordials;
const {
  JSONStringify, ReflectGetOwnPropertyDescriptor: descriptorOf, ReflectGetPrototypeOf: prototypeOf,
  StringPrototypeIncludes: includes, StringPrototypeSlice: slice,
} = P;

function formatNumber(value, convert) {
  if (typeof value === 'bigint') return `${value}n`;
  if (typeof value === 'symbol') return 'NaN';
  const number = probe(convert, value);
  return number === undefined ? 'NaN' : formatPrimitive(null, number);
}

/** Whether `String(value)` would run a `toString` that a script wrote. */
function hasOwnToString(value) {
  if (isProxy(value)) return false;
  for (let object = value; object !== null; object = prototypeOf(object)) {
    if (isProxy(object)) return false;
    const descriptor = descriptorOf(object, 'toString');
    if (descriptor !== undefined) {
      const { value: method } = descriptor;
      return typeof method === 'function' && !isInterface(object) && object !== P.DatePrototype
        && object !== P.ArrayPrototype && object !== P.ObjectPrototype && object !== P.ErrorPrototype;
    }
  }
  return false;
}

function formatPlain(value) {
  if (typeof value === 'number' || typeof value === 'bigint') return formatPrimitive(null, value);
  if (isObject(value) && typeof value !== 'function' && !hasOwnToString(value)) return inspect(value, { depth: 0 });
  return probe(String, value) ?? inspect(value, { depth: 0 });
}

function formatJson(value) {
  try {
    return `${JSONStringify(value)}`;
  } catch (error) {
    if (isObject(error) && includes(probe((e) => e.message, error) ?? '', 'circular structure')) return '[Circular]';
    return `<Formatting threw (${inspect(error)})>`;
  }
}

const DIRECTIVES = {
  __proto__: null,
  s: formatPlain,
  d: (value) => formatNumber(value, (v) => +v),
  i: (value) => formatNumber(value, (v) => P.NumberParseInt(v)),
  f: (value) => (typeof value === 'symbol' ? 'NaN' : formatNumber(probe(P.NumberParseFloat, value), (v) => +v)),
  j: formatJson,
  o: (value) => inspect(value, { showHidden: true, depth: 4 }),
  O: (value) => inspect(value),
  // Styles mean nothing here.
  c: () => '',
};

/** The text of a console call: `%` directives of the first string, then the rest with blanks. */
function format(args) {
  let text = '';
  let next = 0;
  if (typeof args[0] === 'string') {
    next = 1;
    const first = args[0];
    let from = 0;
    for (let i = 0; args.length > 1 && i < first.length - 1; i++) {
      if (first[i] !== '%') continue;
      const directive = first[i + 1];
      if (directive === '%') {
        text += `${slice(first, from, i)}%`;
      } else if (DIRECTIVES[directive] !== undefined && next < args.length) {
        text += slice(first, from, i) + DIRECTIVES[directive](args[next++]);
      } else {
        continue;
      }
      from = i + 2;
      i++;
    }
    text += slice(first, from);
  }
  for (let i = next; i < args.length; i++) {
    if (i > 0) text += ' ';
    text += typeof args[i] === 'string' ? args[i] : inspect(args[i]);
  }
  return text;
}

rt.format = format;
