// durable object: ALARM=Alarm
// durable object: PLAIN=Plain
// durable object: EARLY=Early
// Alarms. Expectations are those of workerd, but for dates after 2189, which it refuses.
import { DurableObject } from 'cloudflare:workers';
import { assert, assertEquals, assertRejects, test } from 'test';

const runs = [];
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** A stub runs the function that a test puts here, as a method of the object. */
let job;

class Base extends DurableObject {
  async fetch() {
    return Response.json((await job.call(this, this.ctx.storage)) ?? null);
  }
}

const run = async (stub, f) => {
  job = f;
  return (await stub.fetch('http://x/')).json();
};

export class Alarm extends Base {
  async alarm(info) {
    runs.push({ name: this.ctx.id.name, time: Date.now(), ...info, seen: await this.ctx.storage.getAlarm() });
    const step = await this.ctx.storage.get('step');
    switch (step) {
      case 'again':
        await this.ctx.storage.put('step', 'stop');
        await this.ctx.storage.setAlarm(Date.now() + 500);
        runs.push(await this.ctx.storage.getAlarm() - Date.now());
        break;
      case 'throw':
        throw new Error('no luck');
      case 'throw after set':
        await this.ctx.storage.put('step', 'stop');
        await this.ctx.storage.setAlarm(Date.now() + 700);
        throw new Error('no luck');
      case 'throw after delete':
        await this.ctx.storage.deleteAlarm();
        throw new Error('no luck');
      case 'rolled back':
        await this.ctx.storage.put('step', 'stop');
        await this.ctx.storage.transaction(async (txn) => {
          await txn.setAlarm(Date.now() + 700);
          runs.push(await this.ctx.storage.getAlarm() - Date.now());
          txn.rollback();
        });
        runs.push(await this.ctx.storage.getAlarm());
        break;
      case 'wait':
        this.ctx.waitUntil(sleep(50).then(() => runs.push('waited')));
        break;
      default:
    }
  }
}

export class Plain extends Base {}

export class Early extends Base {
  constructor(ctx, env) {
    super(ctx, env);
    ctx.storage.setAlarm(Date.now() + 100);
  }

  alarm(info) {
    runs.push(`early ${info.retryCount}`);
  }
}

/** Times relative to `from`, so that they can be compared. */
const taken = (from) => runs.splice(0).map((entry) => (typeof entry === 'object' && entry !== null && 'time' in entry
  ? { ...entry, time: entry.time - from, scheduledTime: entry.scheduledTime - from } : entry));

test('what setAlarm takes', async (env) => {
  await run(env.ALARM.getByName('takes'), async (storage) => {
    const refused = (value, message) => assertRejects(() => storage.setAlarm(value), TypeError, message);
    for (const value of ['x', '123', undefined, null, {}, true]) {
      await refused(value, "Failed to execute 'setAlarm' on 'DurableObjectStorage': parameter 1 is not of type 'date'.");
    }
    for (const value of [NaN, Infinity, new Date(NaN), 8.64e15 + 1]) {
      await refused(value, 'The value cannot be converted because it is not a valid Date.');
    }
    for (const value of [0, -5, new Date(0)]) await refused(value, 'setAlarm() cannot be called with an alarm time <= 0');
    await assertRejects(() => storage.setAlarm(1, 5), TypeError,
      "Failed to execute 'setAlarm' on 'DurableObjectStorage': parameter 2 is not of type 'SetAlarmOptions'.");
    await assertRejects(() => storage.getAlarm(5), TypeError,
      "Failed to execute 'getAlarm' on 'DurableObjectStorage': parameter 1 is not of type 'GetAlarmOptions'.");
    assertEquals(await storage.getAlarm(), null);
    const now = Date.now();
    assertEquals(await storage.setAlarm(now + 1000.7, { allowUnconfirmed: true }), undefined);
    assertEquals(await storage.getAlarm({ allowConcurrency: true }), now + 1000);
    await storage.setAlarm(new Date(now + 5000));
    assertEquals(await storage.getAlarm(), now + 5000);
    await storage.setAlarm(8.64e15);
    assertEquals(await storage.getAlarm(), 8.64e15);
    assertEquals(await storage.deleteAlarm(), undefined);
    assertEquals(await storage.getAlarm(), null);
    await storage.deleteAlarm();
  });
});

test('a class without alarm() cannot set one, but may in its constructor', async (env) => {
  await run(env.PLAIN.getByName('x'), async (storage) => {
    await assertRejects(() => storage.setAlarm(Date.now() + 1), TypeError,
      'Your Durable Object class must have an alarm() handler in order to call setAlarm()');
    await storage.deleteAlarm();
    assertEquals(await storage.getAlarm(), null);
  });
  await run(env.EARLY.getByName('x'), async () => {});
  await sleep(200);
  assertEquals(runs.splice(0), ['early 0']);
});

test('an alarm runs at its time, once, and is not shown meanwhile', async (env) => {
  const from = Date.now();
  await run(env.ALARM.getByName('once'), (storage) => storage.setAlarm(Date.now() + 300));
  await sleep(10_000);
  assertEquals(taken(from), [{ name: 'once', time: 300, scheduledTime: 300, retryCount: 0, isRetry: false, seen: null }]);
  await run(env.ALARM.getByName('once'), async (storage) => assertEquals(await storage.getAlarm(), null));
});

test('an alarm in the past runs at once and has the time of its setting', async (env) => {
  const from = Date.now();
  await run(env.ALARM.getByName('past'), (storage) => storage.setAlarm(1000));
  await sleep(10);
  assertEquals(taken(from)[0].scheduledTime, 0);
});

test('setAlarm replaces, deleteAlarm prevents', async (env) => {
  const from = Date.now();
  await run(env.ALARM.getByName('replaced'), async (storage) => {
    await storage.setAlarm(Date.now() + 100);
    await storage.setAlarm(Date.now() + 200);
  });
  await run(env.ALARM.getByName('deleted'), (storage) => storage.setAlarm(Date.now() + 100));
  await run(env.ALARM.getByName('deleted'), (storage) => storage.deleteAlarm());
  await sleep(1000);
  assertEquals(taken(from).map(({ name, time }) => [name, time]), [['replaced', 200]]);
});

test('an alarm may set the next one, which it then sees', async (env) => {
  const from = Date.now();
  await run(env.ALARM.getByName('again'), async (storage) => {
    await storage.put('step', 'again');
    await storage.setAlarm(Date.now() + 100);
  });
  await sleep(10_000);
  assertEquals(taken(from).map((entry) => entry.time ?? entry), [100, 500, 600]);
});

test('an alarm that throws is tried again with growing waits, six times', async (env) => {
  const from = Date.now();
  await run(env.ALARM.getByName('throws'), async (storage) => {
    await storage.put('step', 'throw');
    await storage.setAlarm(Date.now() + 100);
  });
  await sleep(1_000_000);
  const seen = taken(from);
  assertEquals(seen.map(({ retryCount, isRetry }) => [retryCount, isRetry]),
    [[0, false], [1, true], [2, true], [3, true], [4, true], [5, true], [6, true]]);
  assert(seen.every(({ scheduledTime }) => scheduledTime === 100));
  assertEquals(seen.map(({ time }) => time), [100, 2100, 6100, 14100, 30100, 62100, 126100]);
  await run(env.ALARM.getByName('throws'), async (storage) => assertEquals(await storage.getAlarm(), null));
});

test('what is set during a run replaces its retry, what is deleted prevents it', async (env) => {
  const from = Date.now();
  for (const step of ['throw after set', 'throw after delete', 'rolled back']) {
    await run(env.ALARM.getByName(step), async (storage) => {
      await storage.put('step', step);
      await storage.setAlarm(Date.now() + 100);
    });
  }
  await sleep(100_000);
  const seen = taken(from);
  assertEquals(seen.filter((entry) => entry?.name === 'throw after set').map(({ time, retryCount }) => [time, retryCount]), [[100, 0], [800, 0]]);
  assertEquals(seen.filter((entry) => entry?.name === 'throw after delete').length, 1);
  assertEquals(seen.filter((entry) => entry?.name === undefined), [700, null]);
});

test('an alarm rolls back with its transaction', async (env) => {
  await run(env.ALARM.getByName('rollback'), async (storage) => {
    const time = Date.now() + 1000;
    await storage.setAlarm(time);
    await storage.transaction(async (txn) => {
      await txn.setAlarm(time + 5);
      assertEquals(await txn.getAlarm(), time + 5);
      txn.rollback();
      await assertRejects(() => txn.setAlarm(time), Error, 'Cannot setAlarm() on rolled back transaction');
    });
    assertEquals(await storage.getAlarm(), time);
    try {
      storage.transactionSync(() => {
        storage.deleteAlarm();
        throw new Error('back');
      });
    } catch {
      // As intended.
    }
    assertEquals(await storage.getAlarm(), time);
    await storage.transaction(async (txn) => {
      await txn.deleteAlarm();
      assertEquals(await txn.getAlarm(), null);
    });
    assertEquals(await storage.getAlarm(), null);
  });
});

test('deleteAll deletes the alarm, and an alarm outlives an eviction', async (env) => {
  const from = Date.now();
  await run(env.ALARM.getByName('all'), async (storage) => {
    await storage.put('a', 1);
    await storage.setAlarm(Date.now() + 100);
    await storage.deleteAll();
    assertEquals([await storage.getAlarm(), await storage.get('a')], [null, undefined]);
  });
  await run(env.ALARM.getByName('evicted'), (storage) => storage.setAlarm(Date.now() + 200));
  await fetch('http://harness.test/evict');
  await sleep(1000);
  assertEquals(taken(from).map(({ name, time }) => [name, time]), [['evicted', 200]]);
});

test('waitUntil of an alarm may go on after it', async (env) => {
  await run(env.ALARM.getByName('wait'), async (storage) => {
    await storage.put('step', 'wait');
    await storage.setAlarm(Date.now() + 10);
  });
  await sleep(1000);
  assertEquals(taken(0).slice(1), ['waited']);
});

test('user SQL does not reach the alarm', async (env) => {
  await run(env.ALARM.getByName('sql'), async (storage) => {
    await storage.setAlarm(Date.now() + 1000);
    for (const sql of ['SELECT * FROM _cf_ALARM', 'DELETE FROM _cf_alarm', 'DROP TABLE _cf_ALARM']) {
      await assertRejects(async () => storage.sql.exec(sql), Error, /not authorized|prohibited/);
    }
    await storage.deleteAlarm();
  });
});
