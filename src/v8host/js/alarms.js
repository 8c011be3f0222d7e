//! Alarms: what `getAlarm`, `setAlarm` and `deleteAlarm` do, and the call of `alarm()`.
//! Publishes `rt.alarms`.
//!
//! An alarm is a row of the cell's database, so a turn's alarm is durable with its other writes and
//! rolls back with them. Times are whole milliseconds since 1970, up to the last one of a `Date`.
//! Messages are workerd's; it refuses dates after 2189, which are accepted here.

const { isObject, method, mismatch } = rt.webidl;
const { resolvedWith, then } = rt.promises;
const { newFrame, setFrame } = rt;
const {
  DatePrototypeGetTime, MathTrunc, NumberIsFinite, ObjectDefineProperty, ReflectApply, TypeError,
} = primordials;
const { EventState, release } = rt.dispatch;

const LATEST = 8.64e15;
const NO_HANDLER = 'Attempted to run a scheduled alarm without a handler, did you remember to export an alarm() function?';
const WARN = 3;

/** Milliseconds of a number or a `Date`. */
function timeOf(value, where) {
  let time = value;
  if (isObject(value)) {
    try {
      time = DatePrototypeGetTime(value);
    } catch {
      mismatch(where, 0, 'date');
    }
  } else if (typeof value !== 'number') mismatch(where, 0, 'date');
  if (!NumberIsFinite(time) || time > LATEST || time < -LATEST) {
    throw new TypeError('The value cannot be converted because it is not a valid Date.');
  }
  return MathTrunc(time);
}

function checkOptions(options, where, index, name) {
  if (options !== undefined && options !== null && !isObject(options)) mismatch(where, index, name);
}

/** What `alarm()` is given. */
class AlarmInvocationInfo {
  constructor(scheduledTime, retryCount) {
    const put = (name, value) => ObjectDefineProperty(this, name, { __proto__: null, value, enumerable: true });
    put('scheduledTime', scheduledTime);
    put('retryCount', retryCount);
    put('isRetry', retryCount > 0);
  }
}

function failed(event, error) {
  ops.alarm_failed(event.id, event.cell, error);
  release(event);
}

function ended(event) {
  ops.alarm_ended(event.id, event.cell);
  release(event);
}

rt.entry.alarm = (id, slot, scheduledTime, retryCount) => {
  const event = new EventState(id, slot);
  setFrame(newFrame(id, slot, undefined, undefined, event));
  let result;
  try {
    const { instance } = rt.cellState.cellOf(slot);
    const handler = instance.alarm;
    if (typeof handler !== 'function') {
      ops.log(WARN, NO_HANDLER);
      ended(event);
      return;
    }
    result = ReflectApply(handler, instance, [new AlarmInvocationInfo(scheduledTime, retryCount)]);
  } catch (error) {
    failed(event, error);
    return;
  }
  then(resolvedWith(result), () => ended(event), (error) => failed(event, error));
};

rt.alarms = {
  get: (slot, options, iface) => {
    checkOptions(options, method(iface, 'getAlarm'), 0, 'GetAlarmOptions');
    return ops.alarm_get(slot);
  },
  set: (slot, value, options, iface) => {
    const where = method(iface, 'setAlarm');
    const time = timeOf(value, where);
    checkOptions(options, where, 1, 'SetAlarmOptions');
    if (time <= 0) throw new TypeError('setAlarm() cannot be called with an alarm time <= 0');
    const cell = rt.cellState.cellOf(slot);
    // In the constructor nobody knows yet whether there will be a handler.
    if (cell.instance !== undefined && typeof cell.instance.alarm !== 'function') {
      throw new TypeError('Your Durable Object class must have an alarm() handler in order to call setAlarm()');
    }
    const now = MathTrunc(rt.now());
    ops.alarm_set(slot, time < now ? now : time, rt.cellState.nameOf(cell));
  },
  remove: (slot, options, iface) => {
    checkOptions(options, method(iface, 'deleteAlarm'), 0, 'SetAlarmOptions');
    ops.alarm_delete(slot);
  },
};
