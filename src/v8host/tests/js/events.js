// Event, CustomEvent, ErrorEvent, EventTarget, and the global scope as a target.
import { assert, assertEquals, assertThrows, test } from 'test';

const uncaught = async () => (await fetch('http://harness.test/uncaught')).text();

test('an event has what its init says', () => {
  const plain = new Event('a');
  assertEquals([plain.type, plain.bubbles, plain.cancelable, plain.composed], ['a', false, false, false]);
  assertEquals([plain.target, plain.currentTarget, plain.srcElement, plain.eventPhase], [undefined, undefined, undefined, 0]);
  assertEquals([plain.isTrusted, plain.defaultPrevented, plain.returnValue, plain.cancelBubble], [false, false, true, false]);
  assertEquals(plain.composedPath(), []);
  const full = new Event(5, { bubbles: 1, cancelable: 'x', composed: {} });
  assertEquals([full.type, full.bubbles, full.cancelable, full.composed], ['5', true, true, true]);
  assertEquals(new Event('a', null).bubbles, false);
});

test('arguments of Event are checked', () => {
  assertThrows(() => new Event(), TypeError, "Failed to construct 'Event': constructor parameter 1 is not of type 'string'.");
  assertThrows(() => new Event('a', 5), TypeError);
  assertThrows(() => Event('a'), TypeError);
  assertThrows(() => new Event(Symbol()), TypeError);
  assertEquals(Event.length, 1);
  assertEquals([Event.NONE, Event.CAPTURING_PHASE, Event.AT_TARGET, Event.BUBBLING_PHASE], [0, 1, 2, 3]);
  assertEquals(new Event('a').BUBBLING_PHASE, 3);
});

test('listeners run in order, with this and currentTarget', () => {
  const target = new EventTarget();
  const seen = [];
  target.addEventListener('x', function (event) {
    seen.push(this === target, event.target === target, event.currentTarget === target, event.eventPhase, event.composedPath().length);
  });
  target.addEventListener('x', () => seen.push('second'));
  target.addEventListener('y', () => seen.push('never'));
  const event = new Event('x');
  assertEquals(target.dispatchEvent(event), true);
  assertEquals(seen, [true, true, true, 2, 1, 'second']);
  assertEquals([event.target, event.currentTarget, event.eventPhase], [target, target, 0]);
  assertEquals(event.composedPath(), []);
});

test('the same listener counts once for each value of capture', () => {
  const target = new EventTarget();
  let calls = 0;
  const listener = () => calls++;
  target.addEventListener('x', listener);
  target.addEventListener('x', listener, { once: true });
  target.addEventListener('x', listener, { capture: false });
  target.addEventListener('x', listener, true);
  target.dispatchEvent(new Event('x'));
  assertEquals(calls, 2);
  target.removeEventListener('x', listener);
  target.dispatchEvent(new Event('x'));
  assertEquals(calls, 3);
  target.removeEventListener('x', listener, { capture: true });
  target.dispatchEvent(new Event('x'));
  assertEquals(calls, 3);
});

test('listeners with capture come first', () => {
  const target = new EventTarget();
  const seen = [];
  target.addEventListener('x', () => seen.push('b'));
  target.addEventListener('x', () => seen.push('a'), { capture: true });
  target.dispatchEvent(new Event('x'));
  assertEquals(seen, ['a', 'b']);
});

test('once, and removal during the dispatch', () => {
  const target = new EventTarget();
  const seen = [];
  const later = () => seen.push('later');
  target.addEventListener('x', () => {
    seen.push('once');
    target.dispatchEvent(new Event('x'));
  }, { once: true });
  target.addEventListener('x', () => target.removeEventListener('x', later));
  target.addEventListener('x', later);
  target.dispatchEvent(new Event('x'));
  assertEquals(seen, ['once']);
});

test('a listener that is added during the dispatch waits for the next one', () => {
  const target = new EventTarget();
  let late = 0;
  target.addEventListener('x', () => target.addEventListener('x', () => late++), { once: true });
  target.dispatchEvent(new Event('x'));
  assertEquals(late, 0);
  target.dispatchEvent(new Event('x'));
  assertEquals(late, 1);
});

test('handleEvent is looked up at each event', () => {
  const target = new EventTarget();
  const seen = [];
  const listener = { handleEvent: () => seen.push('first') };
  target.addEventListener('x', listener);
  listener.handleEvent = function (event) { seen.push(this === listener, event.type); };
  target.dispatchEvent(new Event('x'));
  assertEquals(seen, [true, 'x']);
});

test('stopImmediatePropagation ends, stopPropagation does not end listeners of the same phase', () => {
  const target = new EventTarget();
  const seen = [];
  target.addEventListener('x', (event) => { seen.push(1); event.stopPropagation(); });
  target.addEventListener('x', (event) => { seen.push(2); event.stopImmediatePropagation(); });
  target.addEventListener('x', () => seen.push(3));
  const event = new Event('x');
  target.dispatchEvent(event);
  assertEquals(seen, [1, 2]);
  assertEquals(event.cancelBubble, false);
  const stopped = new Event('x');
  stopped.stopPropagation();
  assertEquals(stopped.cancelBubble, true);
  target.dispatchEvent(stopped);
  assertEquals(seen, [1, 2]);
  const bubble = new Event('x');
  bubble.cancelBubble = false;
  assertEquals(bubble.cancelBubble, false);
  bubble.cancelBubble = true;
  assertEquals(bubble.cancelBubble, true);
});

test('preventDefault works on cancelable events, outside of passive listeners', () => {
  const target = new EventTarget();
  target.addEventListener('x', (event) => event.preventDefault());
  assertEquals(target.dispatchEvent(new Event('x')), true);
  const event = new Event('x', { cancelable: true });
  assertEquals(target.dispatchEvent(event), false);
  assertEquals([event.defaultPrevented, event.returnValue], [true, false]);
  const passive = new EventTarget();
  passive.addEventListener('x', (event) => { event.preventDefault(); event.returnValue = false; }, { passive: true });
  assertEquals(passive.dispatchEvent(new Event('x', { cancelable: true })), true);
  const byValue = new Event('x', { cancelable: true });
  byValue.returnValue = true;
  assertEquals(byValue.defaultPrevented, false);
  byValue.returnValue = false;
  assertEquals(byValue.defaultPrevented, true);
});

test('an event under way cannot be dispatched again', () => {
  const target = new EventTarget();
  let error;
  target.addEventListener('x', (event) => { error = assertThrows(() => target.dispatchEvent(event), 'InvalidStateError'); });
  const event = new Event('x');
  target.dispatchEvent(event);
  assertEquals(error.message, 'The event is already being dispatched.');
  target.dispatchEvent(event);
});

test('an exception of a listener to an event of the runtime is reported and stops nobody', async () => {
  const controller = new AbortController();
  const target = controller.signal;
  let ran = false;
  target.addEventListener('abort', () => { throw new RangeError('from a listener'); });
  target.addEventListener('abort', {});
  target.addEventListener('abort', () => { ran = true; });
  controller.abort();
  assert(ran);
  const reported = await uncaught();
  assert(reported.includes('from a listener'), reported);
  assert(reported.includes("Incorrect type for the 'handleEvent' field"), reported);
});

test('signals remove listeners', () => {
  const target = new EventTarget();
  let calls = 0;
  const controller = new AbortController();
  target.addEventListener('x', () => calls++, { signal: controller.signal });
  target.addEventListener('x', () => calls++, { signal: AbortSignal.abort() });
  target.dispatchEvent(new Event('x'));
  assertEquals(calls, 1);
  controller.abort();
  target.dispatchEvent(new Event('x'));
  assertEquals(calls, 1);
  assertThrows(() => target.addEventListener('x', () => {}, { signal: {} }), TypeError);
  assertThrows(() => target.addEventListener('x', () => {}, { signal: null }), TypeError);
});

test('arguments of EventTarget are checked', () => {
  const target = new EventTarget();
  const message = "Failed to execute 'addEventListener' on 'EventTarget': parameter 2 is not of type 'function or HandlerObject'.";
  assertThrows(() => target.addEventListener('x'), TypeError, message);
  assertThrows(() => target.addEventListener('x', 5), TypeError, message);
  assertEquals(target.addEventListener('x', null), undefined);
  assertEquals(target.removeEventListener('x', null), undefined);
  assertEquals(target.removeEventListener('x', () => {}), undefined);
  assertThrows(() => target.dispatchEvent({}), TypeError, "Failed to execute 'dispatchEvent' on 'EventTarget': parameter 1 is not of type 'Event'.");
  assertThrows(() => EventTarget.prototype.addEventListener.call({}, 'x', () => {}), TypeError, /^Illegal invocation/);
  assertEquals(EventTarget.prototype.addEventListener.length, 2);
  assertEquals(Object.keys(EventTarget.prototype), ['addEventListener', 'removeEventListener', 'dispatchEvent']);
});

test('CustomEvent and ErrorEvent', () => {
  const detail = {};
  assertEquals(new CustomEvent('x', { detail }).detail, detail);
  assertEquals(new CustomEvent('x').detail, undefined);
  assertEquals(new CustomEvent('x', { cancelable: true }).cancelable, true);
  assert(new CustomEvent('x') instanceof Event);
  const empty = new ErrorEvent('error');
  assertEquals([empty.message, empty.filename, empty.lineno, empty.colno, empty.error], ['', '', 0, 0, undefined]);
  const error = new Error('e');
  const full = new ErrorEvent('error', { message: 'm', filename: 'f', lineno: 3.7, colno: -1, error });
  assertEquals([full.message, full.filename, full.lineno, full.colno], ['m', 'f', 3, 4294967295]);
  assertEquals(full.error, error);
  assertThrows(() => new CustomEvent(), TypeError);
  assertEquals(Object.prototype.toString.call(full), '[object ErrorEvent]');
});

test('classes extend Event and EventTarget', () => {
  class Door extends EventTarget {
    open() {
      return this.dispatchEvent(new (class Opened extends Event { constructor() { super('opened'); } })());
    }
  }
  const door = new Door();
  let name;
  door.addEventListener('opened', (event) => { name = event.constructor.name; });
  assertEquals(door.open(), true);
  assertEquals(name, 'Opened');
});

test('the global scope is a target', () => {
  let seen;
  const listener = function (event) { seen = [this === globalThis, event.target === globalThis, event.type]; };
  addEventListener('my-event', listener);
  assertEquals(dispatchEvent(new Event('my-event')), true);
  assertEquals(seen, [true, true, 'my-event']);
  globalThis.removeEventListener('my-event', listener);
  seen = null;
  dispatchEvent(new Event('my-event'));
  assertEquals(seen, null);
  assert(globalThis instanceof EventTarget);
  assertEquals(String(globalThis), '[object ServiceWorkerGlobalScope]');
});

test('error events of the global scope', async () => {
  const seen = [];
  const listener = (event) => {
    seen.push(event.message, event.error.message, event.lineno > 0, event.cancelable);
    event.preventDefault();
  };
  addEventListener('error', listener);
  reportError(new Error('shown'));
  removeEventListener('error', listener);
  assertEquals(seen, ['Uncaught Error: shown', 'shown', true, true]);
  assertEquals((await uncaught()).includes('shown'), false);
  reportError(new Error('not shown'));
  reportError('a string');
  const reported = await uncaught();
  assert(reported.includes('not shown') && reported.includes('a string'), reported);
  assertThrows(() => reportError(), TypeError, "Failed to execute 'reportError' on 'ServiceWorkerGlobalScope': parameter 1 is not of type 'Value'.");
});

test('unhandledrejection and rejectionhandled', async () => {
  const seen = [];
  const unhandled = (event) => { seen.push(event.type, event.reason.message, event.promise === promise); event.preventDefault(); };
  const handled = (event) => seen.push(event.type, event.promise === promise);
  addEventListener('unhandledrejection', unhandled);
  addEventListener('rejectionhandled', handled);
  const promise = Promise.reject(new Error('nobody cares'));
  await scheduler.wait(1);
  promise.catch(() => {});
  await scheduler.wait(1);
  removeEventListener('unhandledrejection', unhandled);
  removeEventListener('rejectionhandled', handled);
  assertEquals(seen, ['unhandledrejection', 'nobody cares', true, 'rejectionhandled', true]);
  assertEquals((await uncaught()).includes('nobody cares'), false);
});

test('who dispatches an event gets the exception of a listener, as in workerd', () => {
  const target = new EventTarget();
  const log = [];
  const event = new Event('x');
  target.addEventListener('x', () => { log.push(1); throw new RangeError('first'); });
  target.addEventListener('x', () => log.push(2));
  assertThrows(() => target.dispatchEvent(event), RangeError, 'first');
  assertEquals(log, [1]);
  assertEquals([event.eventPhase, event.composedPath()], [0, []]);
  assertThrows(() => target.dispatchEvent(event), RangeError, 'first', 'it can be dispatched again');
  const again = new EventTarget();
  again.addEventListener('y', (y) => again.dispatchEvent(y));
  assertThrows(() => again.dispatchEvent(new Event('y')), 'InvalidStateError', 'The event is already being dispatched.');
});

test('an event that was not dispatched has no target, and no time', () => {
  const event = new Event('x');
  assertEquals([event.target, event.srcElement, event.currentTarget, event.timeStamp], [undefined, undefined, undefined, 0]);
  assertEquals([new CustomEvent('x').detail, new CustomEvent('x', { detail: null }).detail], [undefined, null]);
});
