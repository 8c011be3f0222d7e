//! Errors that nobody handles: `reportError`, and the events `error`, `unhandledrejection` and
//! `rejectionhandled` of the global scope. Publishes `rt.reportException`.
//!
//! Invariant: an error is told either to a listener that prevents its default, or to the host, and
//! to the host once. Source: HTML Standard, section 8.1.4.

const { isObject, method, required, uncurry } = rt.webidl;
const { ErrorEvent, PromiseRejectionEvent, dispatchGlobal, globalListens } = rt.events;
const match = uncurry(RegExp.prototype.exec);

/** File, line and column of the first frame of a stack. */
const FRAME = /(?:\(|at |@)([^\s()]+):(\d+):(\d+)\)?(?:\n|$)/;

/** A listener of `error` is running: what it throws goes to the host. */
let reporting = false;

function placeOf(error) {
  let stack = '';
  try {
    stack = isObject(error) ? `${error.stack}` : '';
  } catch {
    // A getter that throws tells no place.
  }
  const found = match(FRAME, stack);
  return found === null ? { filename: '', lineno: 0, colno: 0 }
    : { filename: found[1], lineno: +found[2], colno: +found[3] };
}

function messageOf(error) {
  try {
    return `Uncaught ${isObject(error) && !(error instanceof Error) ? rt.inspect(error) : error}`;
  } catch {
    return 'Uncaught exception';
  }
}

rt.reportException = (error) => {
  if (!reporting && globalListens('error')) {
    reporting = true;
    try {
      const { filename, lineno, colno } = placeOf(error);
      const init = { __proto__: null, message: messageOf(error), filename, lineno, colno, error, cancelable: true };
      if (!dispatchGlobal(new ErrorEvent('error', init))) return;
    } finally {
      reporting = false;
    }
  }
  ops.uncaught(error);
};

rt.expose('reportError', function reportError(error) {
  required(arguments.length, method('ServiceWorkerGlobalScope', 'reportError'), 'Value');
  rt.reportException(error);
});

/** Called by the host for a rejection that has no handler at the end of a turn; true: handled. */
rt.entry.unhandledRejection = (promise, reason) => {
  if (!globalListens('unhandledrejection')) return false;
  const init = { __proto__: null, promise, reason, cancelable: true };
  return !dispatchGlobal(new PromiseRejectionEvent('unhandledrejection', init));
};

/** Called by the host when such a promise got its handler after all. */
rt.entry.rejectionHandled = (promise, reason) => {
  if (!globalListens('rejectionhandled')) return;
  dispatchGlobal(new PromiseRejectionEvent('rejectionhandled', { __proto__: null, promise, reason }));
};
