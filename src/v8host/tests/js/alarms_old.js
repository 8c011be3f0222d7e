// durable object: ALARM=Alarm
// compatibility date: 2026-02-23
// Before this date an alarm outlives deleteAll().
import { DurableObject } from 'cloudflare:workers';
import { assertEquals, test } from 'test';

const runs = [];

export class Alarm extends DurableObject {
  async fetch() {
    const { storage } = this.ctx;
    await storage.put('a', 1);
    const time = Date.now() + 100;
    await storage.setAlarm(time);
    await storage.deleteAll();
    return Response.json([await storage.getAlarm() - time, await storage.get('a') ?? null]);
  }

  alarm() {
    runs.push('run');
  }
}

test('deleteAll keeps the alarm', async (env) => {
  assertEquals(await (await env.ALARM.getByName('x').fetch('http://x/')).json(), [0, null]);
  await new Promise((resolve) => setTimeout(resolve, 1000));
  assertEquals(runs, ['run']);
});
