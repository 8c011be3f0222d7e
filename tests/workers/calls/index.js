// Calls of cells, and what callers and cells learn of each other.
//
//   GET /many?n=N            N calls of cells and, with ?cell, the same from within a cell: what failed, after how many
//   GET /error?cell=C&path=P the error of a call: [text, remote, retryable, overloaded, durableObjectReset]
//   GET /give-up?cell=C      calls a cell that waits, and gives up after a moment: the error's text
//   GET /heard?cell=C        what that cell heard: the reason of its request's signal

import { DurableObject } from 'cloudflare:workers';

async function many(env, n) {
  let sent = 0;
  try {
    while (sent < n) {
      await (await env.CELLS.getByName(`one of ${sent}`).fetch('http://cell/')).text();
      sent++;
    }
  } catch (error) {
    return new Response(`${sent} ${error}`);
  }
  return new Response(`${sent} sent`);
}

export class Cell extends DurableObject {
  heard = 'nothing';

  constructor(ctx, env) {
    super(ctx, env);
    if (ctx.id.name === 'unborn') throw new RangeError('in the constructor');
  }

  async fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    switch (pathname) {
      case '/many': return many(this.env, Number(searchParams.get('n')));
      case '/throw': throw new RangeError('thrown');
      case '/throw-later':
        await scheduler.wait(1);
        throw new SyntaxError('thrown later');
      case '/abort': return this.ctx.abort('told to');
      case '/heard': return new Response(this.heard);
      case '/wait': {
        this.heard = 'the call';
        request.signal.addEventListener('abort', () => { this.heard = `${request.signal.reason}`; });
        await scheduler.wait(60_000);
        return new Response('late');
      }
      default: return new Response('here');
    }
  }
}

export default {
  async fetch(request, env) {
    const { pathname, searchParams: search } = new URL(request.url);
    const cell = env.CELLS.getByName(search.get('cell') ?? 'c');
    switch (pathname) {
      case '/many':
        if (search.has('cell')) return cell.fetch(`http://cell/many?n=${search.get('n')}`);
        return many(env, Number(search.get('n')));
      case '/error':
        try {
          return await cell.fetch(`http://cell${search.get('path')}`);
        } catch (error) {
          const { remote, retryable, overloaded, durableObjectReset } = error;
          return Response.json([`${error}`, ...[remote, retryable, overloaded, durableObjectReset].map((mark) => mark ?? null)]);
        }
      case '/give-up': {
        const controller = new AbortController();
        const call = cell.fetch('http://cell/wait', { signal: controller.signal }).catch((error) => `${error}`);
        while ((await (await cell.fetch('http://cell/heard')).text()) === 'nothing') await scheduler.wait(5);
        controller.abort(new Error('no longer wanted'));
        return new Response(await call);
      }
      case '/heard': return cell.fetch('http://cell/heard');
      default: return new Response('no such path', { status: 404 });
    }
  },
};
