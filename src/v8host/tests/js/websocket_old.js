// compatibility date: 2026-03-16
// Before 2026-03-17 binary messages are ArrayBuffers, and before 2026-04-07 a Close waits for the script.
import { assert, assertEquals, test } from 'test';

test('defaults of older dates', async () => {
  const [a, b] = new WebSocketPair();
  assertEquals(a.binaryType, 'arraybuffer');
  a.accept();
  b.accept();
  const log = [];
  b.addEventListener('message', ({ data }) => log.push(data instanceof ArrayBuffer));
  b.addEventListener('close', ({ code }) => log.push(code, b.readyState));
  a.addEventListener('close', ({ code }) => log.push(code, a.readyState));
  a.send(new Uint8Array(1));
  a.close(1000);
  await new Promise((resolve) => setTimeout(resolve, 10));
  assertEquals(log, [true, 1000, 2]);
  b.send('still');
  b.close(4000);
  await new Promise((resolve) => setTimeout(resolve, 10));
  assertEquals(log.slice(3), [4000, 3]);
  assert(a.readyState === 3 && b.readyState === 3);
});
