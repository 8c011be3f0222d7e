//! `console`: text goes to the log of the Worker (`HostCall::Log`), one call a line of the log.
//!
//! Source: Console Standard; Node for the layout of `table`, `time` and groups.

const { append, isObject, uncurry } = rt.webidl;
const { inspect, format } = rt;
const P = primordials;
const { ArrayPrototypeSlice, StringPrototypeRepeat: repeat, StringPrototypeReplaceAll: replaceAll } = P;
const { captureStackTrace } = Error;
const SafeMap = Map;
const mapGet = uncurry(Map.prototype.get);
const mapSet = uncurry(Map.prototype.set);
const mapHas = uncurry(Map.prototype.has);
const mapRemove = uncurry(Map.prototype.delete);
const mapClear = uncurry(Map.prototype.clear);
const mapSize = rt.webidl.getter(Map.prototype, 'size');

// Levels of the host.
const DEBUG = 0;
const LOG = 1;
const INFO = 2;
const WARN = 3;
const ERROR = 4;

/** A longer text is cut: it is what one request may log in all on Cloudflare. */
const TEXT_MAX = 262_144;
const INDENT = 2;
/** So many events may have a group open; beyond, all are closed. */
const GROUPS_MAX = 1_000;

const counts = new SafeMap();
const timers = new SafeMap();
/** Depth of the groups of an event: what a request leaves open indents no other one. */
const groups = new SafeMap();

const owner = () => rt.frame()?.event ?? -1;

function write(level, text) {
  if (mapSize(groups) > 0) {
    const depth = mapGet(groups, owner()) ?? 0;
    if (depth > 0) {
      const indent = repeat(' ', depth * INDENT);
      text = indent + replaceAll(text, '\n', `\n${indent}`);
    }
  }
  if (text.length > TEXT_MAX) {
    text = `${P.StringPrototypeSlice(text, 0, TEXT_MAX)}... ${text.length - TEXT_MAX} more characters`;
  }
  ops.log(level, text);
}

const labelOf = (label) => (label === undefined ? 'default' : `${label}`);

function elapsed(ms) {
  if (ms < 1000) return `${+P.NumberPrototypeToFixed(ms, 3)}ms`;
  if (ms < 60_000) return `${P.NumberPrototypeToFixed(ms / 1000, 3)}s`;
  const seconds = P.MathFloor(ms / 1000);
  const two = (n) => P.StringPrototypePadStart(`${n}`, 2, '0');
  if (seconds < 3600) return `${P.MathFloor(seconds / 60)}:${two(seconds % 60)} (m:ss)`;
  return `${P.MathFloor(seconds / 3600)}:${two(P.MathFloor(seconds / 60) % 60)}:${two(seconds % 60)} (h:mm:ss)`;
}

function tellTime(label, args) {
  const start = mapGet(timers, label);
  if (start === undefined) {
    write(WARN, `Timer '${label}' does not exist`);
    return false;
  }
  const rest = args.length > 0 ? format(['', ...args]) : '';
  write(LOG, `${label}: ${elapsed(rt.now() - start)}${rest}`);
  return true;
}

// --- Tables.

const cellText = (value) => inspect(value, { depth: isObject(value) ? 0 : 1 });

function drawTable(head, rows) {
  const widths = [];
  for (let c = 0; c < head.length; c++) {
    let width = head[c].length;
    for (let r = 0; r < rows.length; r++) width = P.MathMax(width, rows[r][c].length);
    append(widths, width + 2);
  }
  const rule = (left, middle, right) => {
    let line = left;
    for (let c = 0; c < widths.length; c++) line += repeat('─', widths[c]) + (c < widths.length - 1 ? middle : right);
    return line;
  };
  const row = (cells) => {
    let line = '│';
    for (let c = 0; c < widths.length; c++) line += ` ${P.StringPrototypePadEnd(cells[c], widths[c] - 1, ' ')}│`;
    return line;
  };
  let text = `${rule('┌', '┬', '┐')}\n${row(head)}\n${rule('├', '┼', '┤')}\n`;
  for (let r = 0; r < rows.length; r++) text += `${row(rows[r])}\n`;
  return text + rule('└', '┴', '┘');
}

/** Rows of a table: `[index, value, key]`. Items of maps and sets are shown `whole`, without columns. */
function tableRows(data) {
  const rows = [];
  if (data instanceof SafeMap) {
    P.MapPrototypeForEach(data, (value, key) => append(rows, [`${rows.length}`, value, key]));
    return { index: '(iteration index)', rows, keyed: true, whole: true };
  }
  if (data instanceof P.Set) {
    P.SetPrototypeForEach(data, (value) => append(rows, [`${rows.length}`, value]));
    return { index: '(iteration index)', rows, keyed: false, whole: true };
  }
  const keys = P.ObjectKeys(data);
  for (let i = 0; i < keys.length; i++) append(rows, [keys[i], data[keys[i]]]);
  return { index: '(index)', rows, keyed: false, whole: false };
}

function table(data, wanted) {
  const { index, rows, keyed, whole } = tableRows(data);
  const columns = [];
  let plain = false;
  for (let r = 0; r < rows.length; r++) {
    const value = rows[r][1];
    if (whole || !isObject(value) || typeof value === 'function') {
      plain = true;
      continue;
    }
    const keys = wanted ?? P.ObjectKeys(value);
    for (let i = 0; i < keys.length; i++) {
      if (P.ArrayPrototypeIndexOf(columns, keys[i]) < 0) append(columns, keys[i]);
    }
  }
  const head = [index];
  if (keyed) append(head, 'Key');
  for (let c = 0; c < columns.length; c++) append(head, columns[c]);
  if (plain) append(head, 'Values');
  const body = [];
  for (let r = 0; r < rows.length; r++) {
    const { 0: name, 1: value, 2: key } = rows[r];
    const cells = [name];
    if (keyed) append(cells, cellText(key));
    const object = !whole && isObject(value) && typeof value !== 'function';
    for (let c = 0; c < columns.length; c++) {
      append(cells, object && P.ObjectHasOwn(value, columns[c]) ? cellText(value[columns[c]]) : '');
    }
    if (plain) append(cells, object ? '' : cellText(value));
    append(body, cells);
  }
  return drawTable(head, body);
}

// --- Members. They are own properties and need no `this`, so that they can be passed around.

const console = {
  log(...args) {
    write(LOG, format(args));
  },
  debug(...args) {
    write(DEBUG, format(args));
  },
  info(...args) {
    write(INFO, format(args));
  },
  warn(...args) {
    write(WARN, format(args));
  },
  error(...args) {
    write(ERROR, format(args));
  },
  trace(...args) {
    const holder = { name: 'Trace', message: format(args) };
    captureStackTrace(holder, console.trace);
    // The stack begins with the text of a plain object, which says nothing.
    const { stack } = holder;
    const frames = P.StringPrototypeIndexOf(stack, '\n    at ');
    const head = holder.message === '' ? 'Trace' : `Trace: ${holder.message}`;
    write(LOG, head + (frames < 0 ? '' : P.StringPrototypeSlice(stack, frames)));
  },
  assert(condition = false, ...args) {
    if (condition) return;
    if (args.length === 0) write(ERROR, 'Assertion failed');
    else if (typeof args[0] === 'string') {
      write(ERROR, format([`Assertion failed: ${args[0]}`, ...ArrayPrototypeSlice(args, 1)]));
    } else write(ERROR, format(['Assertion failed:', ...args]));
  },
  clear() {
    mapRemove(groups, owner());
  },
  count(label = 'default') {
    label = labelOf(label);
    const count = (mapGet(counts, label) ?? 0) + 1;
    mapSet(counts, label, count);
    write(LOG, `${label}: ${count}`);
  },
  countReset(label = 'default') {
    label = labelOf(label);
    if (!mapRemove(counts, label)) write(WARN, `Count for '${label}' does not exist`);
  },
  dir(value, options = undefined) {
    write(LOG, inspect(value, options));
  },
  dirxml(...args) {
    write(LOG, format(args));
  },
  table(data, columns = undefined) {
    if (!isObject(data)) write(LOG, format([data]));
    else write(LOG, table(data, columns === undefined ? null : P.ArrayFrom(columns, (column) => `${column}`)));
  },
  group(...args) {
    if (args.length > 0) write(LOG, format(args));
    if (mapSize(groups) >= GROUPS_MAX) mapClear(groups);
    const key = owner();
    mapSet(groups, key, (mapGet(groups, key) ?? 0) + 1);
  },
  groupCollapsed(...args) {
    P.ReflectApply(group, undefined, args);
  },
  groupEnd() {
    const key = owner();
    const depth = mapGet(groups, key) ?? 0;
    if (depth <= 1) mapRemove(groups, key);
    else mapSet(groups, key, depth - 1);
  },
  time(label = 'default') {
    label = labelOf(label);
    if (mapHas(timers, label)) write(WARN, `Timer '${label}' already exists`);
    else mapSet(timers, label, rt.now());
  },
  timeLog(label = 'default', ...args) {
    tellTime(labelOf(label), args);
  },
  timeEnd(label = 'default') {
    label = labelOf(label);
    if (tellTime(label, [])) mapRemove(timers, label);
  },
};
const { group } = console;

P.ObjectDefineProperty(console, Symbol.toStringTag, { __proto__: null, value: 'console', configurable: true });
rt.expose('console', console);
