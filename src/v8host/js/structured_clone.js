//! `structuredClone`. The work is done in `api/structured_clone.rs`; here the options are read.
//!
//! Source: HTML Standard, section 2.7.10.

const { append, isArrayBuffer, isObject, method, mismatch, required, sequence, getter } = rt.webidl;
const isDetached = getter(ArrayBuffer.prototype, 'detached');

rt.expose('structuredClone', function structuredClone(value, options = undefined) {
  const where = method('ServiceWorkerGlobalScope', 'structuredClone');
  required(arguments.length, where, 'Value');
  if (options === undefined || options === null) return ops.structured_clone(value);
  if (!isObject(options)) mismatch(where, 1, 'StructuredCloneOptions');
  const given = options.transfer;
  if (given === undefined) return ops.structured_clone(value);
  const list = sequence(given, (item) => {
    if (!isArrayBuffer(item)) throw new TypeError('Object is not transferable');
    return item;
  });
  if (list === null) {
    throw new TypeError("Incorrect type for the 'transfer' field on 'StructuredCloneOptions': the provided value is not "
      + "of type 'Array'.");
  }
  const buffers = [];
  for (let i = 0; i < list.length; i++) {
    if (isDetached(list[i])) {
      throw rt.domException(`ArrayBuffer at index ${i} of the transfer list is already detached.`, 'DataCloneError');
    }
    for (let j = 0; j < i; j++) {
      if (list[i] === list[j]) {
        throw rt.domException(`ArrayBuffer at index ${i} is a duplicate of an earlier one.`, 'DataCloneError');
      }
    }
    append(buffers, list[i]);
  }
  return ops.structured_clone(value, buffers);
});
