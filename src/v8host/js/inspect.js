//! How `console` shows values: nested objects, collections, errors, classes, in the manner of Node's
//! `util.inspect`. Publishes `rt.inspect`.
//!
//! Invariant: no value makes this throw; no getter or method of a script
//! runs, but for `Symbol.for('nodejs.util.inspect.custom')`.
//! The layout (what shares a line) follows Node's, as workerd's does: 80 columns, three levels on a
//! line, arrays of more than six short items in columns.

const { append, getter, isInterface, isObject, pairsOf, uncurry } = rt.webidl;
const P = primordials;
const {
  ArrayIsArray, ArrayPrototypeJoin: join, ErrorPrototypeToString, FunctionPrototypeToString, MapPrototypeForEach,
  MapPrototypeGetSize, MathFloor, MathMax, MathMin, MathRound, MathSqrt, NumberPrototypeValueOf, ObjectIs,
  ObjectPrototypeIsPrototypeOf: isPrototypeOf, ReflectGetOwnPropertyDescriptor: descriptorOf, ReflectOwnKeys: ownKeys,
  ReflectGetPrototypeOf: prototypeOf, RegExpPrototypeToString, SetPrototypeForEach, SetPrototypeGetSize,
  StringPrototypeCharCodeAt: charCode,
  StringPrototypeIncludes: includes, StringPrototypePadEnd: padEnd, StringPrototypePadStart: padStart,
  StringPrototypeRepeat: repeat, StringPrototypeSlice: slice, StringPrototypeSplit: split, StringPrototypeStartsWith: startsWith,
  BooleanPrototypeValueOf, StringPrototypeValueOf, SymbolPrototypeValueOf, SymbolPrototypeToString, BigIntPrototypeValueOf,
  DatePrototypeGetTime, DatePrototypeToISOString, ReflectApply: apply,
} = P;
const test = uncurry(RegExp.prototype.test);
const bufferLength = getter(ArrayBuffer.prototype, 'byteLength');
const viewTag = getter(prototypeOf(Uint8Array.prototype), Symbol.toStringTag);
const viewLength = getter(prototypeOf(Uint8Array.prototype), 'length');

const CUSTOM = Symbol.for('nodejs.util.inspect.custom');
const WIDTH = 80;
/** How many nested levels may share a line. */
const COMPACT = 3;
const ITEMS_MAX = 100;
const STRING_MAX = 10_000;
const IDENTIFIER = /^[a-zA-Z_$][a-zA-Z_$0-9]*$/;
const SPECIAL = /[\x00-\x1f\x27\x5c\x7f-\x9f\ud800-\udfff]/;
const ESCAPES = { __proto__: null, 8: '\\b', 9: '\\t', 10: '\\n', 12: '\\f', 13: '\\r', 92: '\\\\' };

/** Runs an internal method of a kind of object; undefined when the value is of another kind. */
function probe(read, value) {
  try {
    return read(value);
  } catch {
    return undefined;
  }
}

const isProxy = (value) => ops.proxy_target(value) !== undefined;

// --- Primitive values.

function quote(text) {
  if (!test(SPECIAL, text)) return `'${text}'`;
  let mark = "'";
  if (includes(text, "'")) {
    if (!includes(text, '"')) mark = '"';
    else if (!includes(text, '`') && !includes(text, '${')) mark = '`';
  }
  const markCode = charCode(mark, 0);
  let out = mark;
  for (let i = 0; i < text.length; i++) {
    const code = charCode(text, i);
    const next = i + 1 < text.length ? charCode(text, i + 1) : 0;
    if (ESCAPES[code] !== undefined) out += ESCAPES[code];
    else if (code === markCode) out += `\\${mark}`;
    else if (code < 0x20 || (code >= 0x7f && code <= 0x9f)) out += `\\x${padStart(hex(code), 2, '0')}`;
    else if (code >= 0xd800 && code <= 0xdbff && next >= 0xdc00 && next <= 0xdfff) out += text[i] + text[++i];
    else if (code >= 0xd800 && code <= 0xdfff) out += `\\u${hex(code)}`;
    else out += text[i];
  }
  return out + mark;
}

const toStringRadix = uncurry(Number.prototype.toString);
const hex = (code) => P.StringPrototypeToUpperCase(toStringRadix(code, 16));

function formatString(ctx, text) {
  let rest = '';
  if (text.length > STRING_MAX) {
    const more = text.length - STRING_MAX;
    rest = `... ${more} more character${more > 1 ? 's' : ''}`;
    text = slice(text, 0, STRING_MAX);
  }
  // A long text with several lines is shown line by line.
  if (text.length > 16 && text.length > WIDTH - ctx.indent - 4 && includes(text, '\n')) {
    const lines = split(text, '\n');
    const quoted = [];
    for (let i = 0; i < lines.length; i++) {
      const last = i === lines.length - 1;
      if (!last || lines[i] !== '') append(quoted, quote(last ? lines[i] : `${lines[i]}\n`));
    }
    return join(quoted, ` +\n${repeat(' ', ctx.indent + 2)}`) + rest;
  }
  return quote(text) + rest;
}

function formatPrimitive(ctx, value) {
  switch (typeof value) {
    case 'string':
      return formatString(ctx, value);
    case 'number':
      return ObjectIs(value, -0) ? '-0' : `${value}`;
    case 'bigint':
      return `${value}n`;
    case 'symbol':
      return SymbolPrototypeToString(value);
    default:
      return `${value}`;
  }
}

// --- Names.

/** Name of the class, from the first prototype with a constructor of its own; null without one. */
function className(value) {
  for (let object = value; object !== null; object = prototypeOf(object)) {
    if (isProxy(object)) return 'Object';
    const descriptor = descriptorOf(object, 'constructor');
    if (descriptor !== undefined && typeof descriptor.value === 'function' && !isProxy(descriptor.value)) {
      const name = descriptorOf(descriptor.value, 'name')?.value;
      const prototype = descriptorOf(descriptor.value, 'prototype')?.value;
      if (typeof name === 'string' && name !== '' && isObject(prototype) && isPrototypeOf(prototype, value)) return name;
    }
  }
  return null;
}

/** `Symbol.toStringTag` as data, or of a class of the runtime; scripts' getters do not run. */
function tagOf(value) {
  for (let object = value; object !== null; object = prototypeOf(object)) {
    if (isProxy(object)) return '';
    const descriptor = descriptorOf(object, Symbol.toStringTag);
    if (descriptor !== undefined) return typeof descriptor.value === 'string' ? descriptor.value : '';
  }
  return '';
}

/** What stands before the brace: `Foo`, `Foo(2)`, `Foo(2) [Map]`, `[Foo: null prototype]`. */
function prefix(value, name, fallback, size = -1) {
  const count = size < 0 ? '' : `(${size})`;
  let text;
  if (name === null) text = `[${fallback}${count}: null prototype] `;
  else text = `${name}${count} `;
  const tag = tagOf(value);
  if (tag !== '' && tag !== name && tag !== fallback) text += `[${tag}] `;
  return text;
}

function functionBase(value, name) {
  const source = probe(FunctionPrototypeToString, value) ?? '';
  const own = descriptorOf(value, 'name')?.value;
  const label = typeof own === 'string' && own !== '' ? own : '';
  if (startsWith(source, 'class') && source[source.length - 1] === '}') {
    const parent = prototypeOf(value);
    const parentName = typeof parent === 'function' ? descriptorOf(parent, 'name')?.value : '';
    const heir = typeof parentName === 'string' && parentName !== '' ? ` extends ${parentName}` : '';
    return `[class ${label === '' ? '(anonymous)' : label}${heir}${name === null ? ' extends null' : ''}]`;
  }
  const tag = tagOf(value);
  const kind = tag === 'AsyncFunction' || tag === 'GeneratorFunction' || tag === 'AsyncGeneratorFunction' ? tag : 'Function';
  return `[${kind}${label === '' ? ' (anonymous)' : `: ${label}`}]`;
}

// --- Properties.

function keysOf(ctx, value, skipIndices) {
  const all = skipIndices ? ops.non_index_keys(value) : ownKeys(value);
  const keys = [];
  for (let i = 0; i < all.length; i++) {
    if (ctx.showHidden || descriptorOf(value, all[i])?.enumerable) append(keys, all[i]);
  }
  return keys;
}

function formatKey(key, hidden) {
  if (typeof key === 'symbol') return hidden ? `[${SymbolPrototypeToString(key)}]` : SymbolPrototypeToString(key);
  if (hidden) return `[${key}]`;
  return test(IDENTIFIER, key) ? key : quote(key);
}

function formatProperty(ctx, object, key, depth) {
  const descriptor = descriptorOf(object, key);
  if (descriptor === undefined) return '';
  const name = formatKey(key, !descriptor.enumerable);
  if (descriptor.get !== undefined) {
    return `${name}: ${descriptor.set === undefined ? '[Getter]' : '[Getter/Setter]'}`;
  }
  if (descriptor.set !== undefined) return `${name}: [Setter]`;
  ctx.indent += 2;
  const text = formatValue(ctx, descriptor.value, depth);
  ctx.indent -= 2;
  return `${name}: ${text}`;
}

/** Attributes of a class of the runtime: its getters show state and change nothing. */
function formatAttributes(ctx, value, depth, output) {
  const seen = { __proto__: null };
  for (let object = prototypeOf(value); object !== null && object !== P.ObjectPrototype; object = prototypeOf(object)) {
    if (!isInterface(object)) continue;
    const keys = ownKeys(object);
    for (let i = 0; i < keys.length; i++) {
      const key = keys[i];
      if (typeof key !== 'string' || seen[key]) continue;
      const { get } = descriptorOf(object, key);
      if (get === undefined) continue;
      seen[key] = true;
      let attribute;
      try {
        attribute = apply(get, value, []);
      } catch {
        continue;
      }
      ctx.indent += 2;
      append(output, `${formatKey(key, false)}: ${formatValue(ctx, attribute, depth)}`);
      ctx.indent -= 2;
    }
  }
}

// --- Kinds of object. Each gives {base, open, close, output, columns} or null.

function formatList(ctx, value, length, depth, output) {
  const shown = MathMin(ITEMS_MAX, length);
  let index = 0;
  for (let count = 0; count < shown && index < length; count++) {
    let holes = 0;
    while (index < length && descriptorOf(value, `${index}`) === undefined) {
      holes++;
      index++;
    }
    if (holes > 0) {
      append(output, `<${holes} empty item${holes > 1 ? 's' : ''}>`);
      continue;
    }
    const descriptor = descriptorOf(value, `${index}`);
    ctx.indent += 2;
    append(output, 'value' in descriptor ? formatValue(ctx, descriptor.value, depth) : '[Getter]');
    ctx.indent -= 2;
    index++;
  }
  if (index < length) append(output, `... ${length - index} more item${length - index > 1 ? 's' : ''}`);
}

function formatEntries(ctx, size, each, depth, output) {
  let count = 0;
  ctx.indent += 2;
  each((value, key, pair) => {
    if (count++ >= ITEMS_MAX) return;
    const text = formatValue(ctx, value, depth);
    append(output, pair ? `${formatValue(ctx, key, depth)} => ${text}` : text);
  });
  ctx.indent -= 2;
  if (size > ITEMS_MAX) append(output, `... ${size - ITEMS_MAX} more item${size - ITEMS_MAX > 1 ? 's' : ''}`);
}

function formatBuffer(ctx, value, length, output) {
  const bytes = new Uint8Array(value);
  const shown = MathMin(50, length);
  const parts = [];
  for (let i = 0; i < shown; i++) append(parts, padStart(toStringRadix(bytes[i], 16), 2, '0'));
  const more = length - shown;
  const rest = more > 0 ? ` ... ${more} more byte${more > 1 ? 's' : ''}` : '';
  append(output, `[Uint8Contents]: <${join(parts, ' ')}${rest}>`);
  append(output, `byteLength: ${length}`);
}

const nativeStack = descriptorOf(new Error(), 'stack').get;
const readStack = nativeStack === undefined ? undefined : uncurry(nativeStack);

/** The stack of an error: data, or V8's own accessor. */
function stackOf(error) {
  const descriptor = descriptorOf(error, 'stack');
  if (descriptor === undefined) return undefined;
  if (readStack !== undefined && descriptor.get === nativeStack) return probe(readStack, error);
  return descriptor.value;
}

function errorBase(ctx, value) {
  const stack = stackOf(value);
  let text = typeof stack === 'string' && stack !== '' ? stack : probe(ErrorPrototypeToString, value) ?? 'Error';
  if (!includes(text, '\n')) text = `[${text}]`;
  if (ctx.indent === 0) return text;
  return join(split(text, '\n'), `\n${repeat(' ', ctx.indent)}`);
}

/** Properties of an error that its stack does not show already. */
function errorKeys(ctx, value) {
  const keys = keysOf(ctx, value, false);
  const rest = [];
  const isException = rt.isDOMException(value);
  for (let i = 0; i < keys.length; i++) {
    const key = keys[i];
    if (key === 'stack' || key === 'message' || (key === 'code' && isException)) continue;
    if (key === 'name' && includes(`${stackOf(value) ?? ''}`, `${descriptorOf(value, key).value}`)) continue;
    append(rest, key);
  }
  if (!ctx.showHidden) {
    for (const key of ['cause', 'errors']) {
      const descriptor = descriptorOf(value, key);
      if (descriptor !== undefined && !descriptor.enumerable) append(rest, key);
    }
  }
  return rest;
}

const shape = (base, open, close, keys) => ({ __proto__: null, base, open, close, keys, output: [], columns: false });

function primitiveObject(ctx, value, name) {
  const kinds = [
    ['Number', NumberPrototypeValueOf], ['String', StringPrototypeValueOf], ['Boolean', BooleanPrototypeValueOf],
    ['BigInt', BigIntPrototypeValueOf], ['Symbol', SymbolPrototypeValueOf],
  ];
  for (let i = 0; i < kinds.length; i++) {
    const { 0: kind, 1: read } = kinds[i];
    const inner = probe(read, value);
    if (inner === undefined) continue;
    const label = name === null || name === kind ? kind : `${kind} (${name})`;
    return shape(`[${label}: ${formatPrimitive({ indent: 0 }, inner)}]`, '{', '}', keysOf(ctx, value, kind === 'String'));
  }
  return null;
}

function exotic(ctx, value, name, depth) {
  const tag = probe(viewTag, value);
  if (tag !== undefined) {
    const length = viewLength(value);
    const out = shape('', `${prefix(value, name, tag, length)}[`, ']', keysOf(ctx, value, true));
    for (let i = 0; i < MathMin(length, ITEMS_MAX); i++) append(out.output, formatPrimitive(ctx, value[i]));
    if (length > ITEMS_MAX) append(out.output, `... ${length - ITEMS_MAX} more item${length > ITEMS_MAX + 1 ? 's' : ''}`);
    out.columns = true;
    return out;
  }
  const mapSize = probe(MapPrototypeGetSize, value);
  if (mapSize !== undefined) {
    const out = shape('', `${prefix(value, name, 'Map', mapSize)}{`, '}', keysOf(ctx, value, false));
    formatEntries(ctx, mapSize, (each) => MapPrototypeForEach(value, (item, key) => each(item, key, true)), depth, out.output);
    return out;
  }
  const setSize = probe(SetPrototypeGetSize, value);
  if (setSize !== undefined) {
    const out = shape('', `${prefix(value, name, 'Set', setSize)}{`, '}', keysOf(ctx, value, false));
    formatEntries(ctx, setSize, (each) => SetPrototypeForEach(value, (item) => each(item, item, false)), depth, out.output);
    return out;
  }
  const length = probe(bufferLength, value);
  if (length !== undefined) {
    const out = shape('', `${prefix(value, name, 'ArrayBuffer')}{`, '}', keysOf(ctx, value, false));
    formatBuffer(ctx, value, length, out.output);
    return out;
  }
  const time = probe(DatePrototypeGetTime, value);
  if (time !== undefined) {
    const text = time === time ? DatePrototypeToISOString(value) : 'Invalid Date';
    return shape(name === 'Date' ? text : `${prefix(value, name, 'Date')}${text}`, '{', '}', keysOf(ctx, value, false));
  }
  const promise = ops.promise_details(value);
  if (promise !== undefined) {
    const out = shape('', `${prefix(value, name, 'Promise')}{`, '}', keysOf(ctx, value, false));
    ctx.indent += 2;
    if (promise[0] === 0) append(out.output, '<pending>');
    else append(out.output, `${promise[0] === 2 ? '<rejected> ' : ''}${formatValue(ctx, promise[1], depth)}`);
    ctx.indent -= 2;
    return out;
  }
  return null;
}

/** The entries of another iterable class of the runtime, such as Headers; null for the rest. */
function entriesOf(value) {
  for (let object = prototypeOf(value); object !== null; object = prototypeOf(object)) {
    if (!isInterface(object)) continue;
    const entries = descriptorOf(object, 'entries')?.value;
    if (typeof entries !== 'function') continue;
    const list = [];
    try {
      const iterator = apply(entries, value, []);
      for (let step = iterator.next(); !step.done; step = iterator.next()) append(list, step.value);
    } catch {
      return null;
    }
    return list;
  }
  return null;
}

function shapeOf(ctx, value, name, depth) {
  if (ArrayIsArray(value)) {
    const open = name === 'Array' && tagOf(value) === '' ? '[' : `${prefix(value, name, 'Array', value.length)}[`;
    const out = shape('', open, ']', keysOf(ctx, value, true));
    formatList(ctx, value, value.length, depth, out.output);
    out.columns = true;
    return out;
  }
  if (typeof value === 'function') return shape(functionBase(value, name), '{', '}', keysOf(ctx, value, false));
  const kind = ops.kind_of(value);
  if (kind === 'error' || rt.isDOMException(value)) return shape(errorBase(ctx, value), '{', '}', errorKeys(ctx, value));
  if (kind === 'regexp') return shape(RegExpPrototypeToString(value), '{', '}', keysOf(ctx, value, false));
  if (kind === 'arguments') {
    const out = shape('', '[Arguments] [', ']', []);
    const length = descriptorOf(value, 'length')?.value;
    formatList(ctx, value, typeof length === 'number' ? length : 0, depth, out.output);
    out.columns = true;
    return out;
  }
  if (kind === 'weak') {
    const out = shape('', `${prefix(value, name, tagOf(value))}{`, '}', keysOf(ctx, value, false));
    append(out.output, '<items unknown>');
    return out;
  }
  if (kind === 'module') return shape('', '[Module: null prototype] {', '}', keysOf(ctx, value, false));
  if (kind !== 'plain') {
    const found = exotic(ctx, value, name, depth) ?? primitiveObject(ctx, value, name);
    if (found !== null) return found;
  }
  const pairs = pairsOf(value) ?? entriesOf(value);
  if (pairs !== null) {
    const out = shape('', `${prefix(value, name, 'Object', pairs.length)}{`, '}', keysOf(ctx, value, false));
    formatEntries(ctx, pairs.length, (each) => {
      for (let i = 0; i < pairs.length; i++) each(pairs[i][1], pairs[i][0], true);
    }, depth, out.output);
    return out;
  }
  const open = name === 'Object' && tagOf(value) === '' ? '{' : `${prefix(value, name, 'Object')}{`;
  const out = shape('', open, '}', keysOf(ctx, value, false));
  formatAttributes(ctx, value, depth, out.output);
  return out;
}

// --- Layout.

/** Puts many short items into columns. */
function intoColumns(ctx, output, value) {
  const hasRest = output.length > 0 && startsWith(output[output.length - 1], '... ') && output.length > ITEMS_MAX;
  const count = hasRest ? output.length - 1 : output.length;
  let total = 0;
  let longest = 0;
  for (let i = 0; i < count; i++) {
    if (includes(output[i], '\n')) return output;
    total += output[i].length + 2;
    longest = MathMax(longest, output[i].length);
  }
  const cell = longest + 2;
  if (cell * 3 + ctx.indent >= WIDTH || (total / cell <= 5 && longest > 6)) return output;
  const biased = MathMax(cell - 3 - MathSqrt(cell - total / output.length), 1);
  const columns = MathMin(
    MathRound(MathSqrt(2.5 * biased * count) / biased), MathFloor((WIDTH - ctx.indent) / cell), COMPACT * 4, 15,
  );
  if (columns <= 1) return output;
  const widths = [];
  for (let column = 0; column < columns; column++) {
    let width = 0;
    for (let i = column; i < count; i += columns) width = MathMax(width, output[i].length);
    append(widths, width + 2);
  }
  // Numbers stand to the right.
  let pad = padStart;
  for (let i = 0; i < count && pad === padStart; i++) {
    const type = typeof value[i];
    if (type !== 'number' && type !== 'bigint') pad = padEnd;
  }
  const rows = [];
  for (let i = 0; i < count; i += columns) {
    const end = MathMin(i + columns, count);
    let row = '';
    for (let j = i; j < end - 1; j++) row += pad(`${output[j]}, `, widths[j - i], ' ');
    row += pad === padStart ? padStart(output[end - 1], widths[end - 1 - i] - 2, ' ') : output[end - 1];
    append(rows, row);
  }
  if (hasRest) append(rows, output[count]);
  return rows;
}

function layout(ctx, out, depth, value) {
  const { base, open, close } = out;
  let { output } = out;
  const lead = base === '' ? '' : `${base} `;
  const entries = output.length;
  if (out.columns && entries > 6) output = intoColumns(ctx, output, value);
  if (ctx.deepest - depth < COMPACT && entries === output.length) {
    let width = output.length + output.length + ctx.indent + open.length + base.length + 10;
    let lines = includes(base, '\n');
    for (let i = 0; i < output.length && width <= WIDTH; i++) {
      width += output[i].length;
      lines ||= includes(output[i], '\n');
    }
    if (width <= WIDTH && !lines) return `${lead}${open} ${join(output, ', ')} ${close}`;
  }
  const indent = `\n${repeat(' ', ctx.indent)}`;
  return `${lead}${open}${indent}  ${join(output, `,${indent}  `)}${indent}${close}`;
}

function custom(ctx, value, depth) {
  let method;
  try {
    method = value[CUSTOM];
    if (typeof method !== 'function') return undefined;
    const left = ctx.depth - depth;
    const result = apply(method, value, [left, { depth: left, showHidden: ctx.showHidden }, inspect]);
    if (result === value) return undefined;
    return typeof result === 'string' ? result : formatValue(ctx, result, depth);
  } catch {
    return undefined;
  }
}

function formatValue(ctx, value, depth) {
  if (!isObject(value)) return formatPrimitive(ctx, value);
  const target = ops.proxy_target(value);
  if (target !== undefined) {
    const ours = rt.rpc.classOf(target);
    if (ours !== undefined) return `${ours} {}`;
    return target === null ? '<Revoked Proxy>' : `Proxy(${formatValue(ctx, target, depth)})`;
  }
  const shown = custom(ctx, value, depth);
  if (shown !== undefined) return shown;
  for (let i = 0; i < ctx.seen.length; i++) {
    if (ctx.seen[i] !== value) continue;
    let index = P.ArrayPrototypeIndexOf(ctx.circular, value);
    if (index < 0) {
      append(ctx.circular, value);
      index = ctx.circular.length - 1;
    }
    return `[Circular *${index + 1}]`;
  }
  return formatObject(ctx, value, depth);
}

function formatObject(ctx, value, depth) {
  const name = className(value);
  if (depth > ctx.depth) {
    if (ArrayIsArray(value)) return '[Array]';
    if (typeof value !== 'function' && ops.kind_of(value) !== 'error') {
      const tag = tagOf(value);
      const label = name === null ? `${tag === '' ? 'Object' : tag}: null prototype` : name;
      return `[${label}${name !== null && tag !== '' && tag !== name ? ` [${tag}]` : ''}]`;
    }
  }
  append(ctx.seen, value);
  ctx.deepest = depth;
  let text;
  try {
    const out = shapeOf(ctx, value, name, depth + 1);
    for (let i = 0; i < out.keys.length; i++) {
      const property = formatProperty(ctx, value, out.keys[i], depth + 1);
      if (property !== '') append(out.output, property);
    }
    if (out.output.length > 0) text = layout(ctx, out, depth, value);
    else text = out.base === '' ? `${out.open}${out.close}` : out.base;
  } finally {
    ctx.seen.length--;
  }
  const index = P.ArrayPrototypeIndexOf(ctx.circular, value);
  return index < 0 ? text : `<ref *${index + 1}> ${text}`;
}

/** The text of any value. Options: `depth` (2; null or Infinity for all) and `showHidden`. */
function inspect(value, options = undefined) {
  const given = options?.depth;
  const depth = given === undefined ? 2 : given === null ? Infinity : +given;
  const ctx = { __proto__: null, depth, showHidden: !!options?.showHidden, indent: 0, deepest: 0, seen: [], circular: [] };
  try {
    return formatValue(ctx, value, 0);
  } catch (error) {
    // Too deep for the stack, or a hostile proxy in the prototype chain.
    return `<inspection failed: ${isObject(error) ? probe(ErrorPrototypeToString, error) ?? 'exception' : 'exception'}>`;
  }
}

rt.inspect = inspect;
rt.inspection = { formatPrimitive, isProxy, probe };
