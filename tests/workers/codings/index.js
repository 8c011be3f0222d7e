// Bodies with content codings, in each way through a Worker and a cell. `?url=` is another server.
//
//   GET /read?url=U[&manual]   what the script sees of the answer: [content-encoding, content-length, body]
//   GET /read-request?url=U    the same with `encodeResponseBody` in a Request that was made before
//   GET /read-cell?path=P[&manual]   the same of a cell's answer
//   GET /pass…?url=U           hands the answer on: as it is, or in another Response
//   GET /make?…                a body of this script; ?type= its content-encoding, ?manual, ?bytes=, ?pieces
//   GET /cell?path=P           hands a cell's answer on
//   POST /echo                 the body of the request as it came, in hexadecimal digits

import { DurableObject } from 'cloudflare:workers';

const hex = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');

async function seen(response) {
  let body;
  try {
    const bytes = new Uint8Array(await response.arrayBuffer());
    const text = new TextDecoder().decode(bytes.subarray(0, 99));
    if (bytes.length > 99) body = bytes.length;
    else body = /^[ -~]*$/.test(text) ? text : hex(bytes);
  } catch (error) {
    body = `${error}`;
  }
  return Response.json([response.headers.get('content-encoding'), response.headers.get('content-length'), body]);
}

function make(search) {
  const headers = { 'content-encoding': search.get('type') };
  const init = search.has('manual') ? { headers, encodeBody: 'manual' } : { headers };
  const bytes = Number(search.get('bytes') ?? 0);
  if (search.has('pieces')) {
    // A piece, and nothing after it for as long as the client does not go.
    return new Response(new ReadableStream({ start: (controller) => controller.enqueue(new TextEncoder().encode('first')) }), init);
  }
  return new Response(bytes > 0 ? new Uint8Array(bytes) : 'hello world', init);
}

export class Cell extends DurableObject {
  async fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname === '/echo') return new Response(hex(new Uint8Array(await request.arrayBuffer())));
    return pathname === '/make' ? make(searchParams) : fetch(searchParams.get('url'));
  }
}

export default {
  async fetch(request, env) {
    const { pathname, searchParams: search } = new URL(request.url);
    const url = search.get('url');
    const manual = search.has('manual') ? { encodeResponseBody: 'manual' } : undefined;
    const cell = () => env.CELLS.getByName('c').fetch(`http://cell${search.get('path')}`, manual);
    const get = () => fetch(url, manual);
    switch (pathname) {
      case '/read': return seen(await get());
      case '/read-request': return seen(await fetch(new Request(url, { encodeResponseBody: 'manual' })));
      case '/read-cell': return seen(await cell());
      case '/bad-option': return fetch(url, { encodeResponseBody: 'sometimes' }).catch((error) => new Response(`${error}`));
      case '/pass': return get();
      case '/pass-clone': return (await get()).clone();
      case '/pass-copy': {
        const from = await get();
        return new Response(from.body, from);
      }
      case '/pass-plain': return new Response((await get()).body);
      case '/pass-other': return new Response((await get()).body, { headers: { 'content-encoding': search.get('type') } });
      case '/upload': return fetch(search.get('to'), { method: 'POST', body: (await get()).body });
      case '/make': return make(search);
      case '/cell': return cell();
      case '/echo': return new Response(hex(new Uint8Array(await request.arrayBuffer())));
      default: return new Response('no such path', { status: 404 });
    }
  },
};
