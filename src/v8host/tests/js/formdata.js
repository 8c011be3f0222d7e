// FormData and its two forms on the wire: XMLHttpRequest Standard, section 4; RFC 7578.
import { assert, assertEquals, assertRejects, assertThrows, test } from 'test';

export default {};

const multipart = (text, boundary = 'XX', type = `multipart/form-data; boundary=${boundary}`) =>
  new Response(text.replaceAll('\n', '\r\n'), { headers: { 'content-type': type } }).formData();
const plain = (form) => [...form].map(([name, value]) => [name, value]);

test('append, get, getAll, has, set, delete', () => {
  const form = new FormData();
  form.append('a', 1);
  form.append('b', 'x');
  form.append('a', null);
  assertEquals([form.get('a'), form.getAll('a'), form.get('c'), form.getAll('c'), form.has('a'), form.has('c')], ['1', ['1', 'null'], null, [], true, false]);
  form.set('a', '2');
  assertEquals(plain(form), [['a', '2'], ['b', 'x']]);
  form.set('c', '3');
  form.delete('b');
  form.delete('b');
  assertEquals(plain(form), [['a', '2'], ['c', '3']]);
  form.append('\ud800', '\udfff');
  assertEquals(form.get('\ufffd'), '\ufffd');
});

test('files', async () => {
  const form = new FormData();
  const file = new File(['f'], 'name.txt', { type: 'text/x' });
  form.append('file', file);
  form.append('file', new Blob(['b'], { type: 'text/y' }), 'given.txt');
  form.append('file', file, 'other.txt');
  form.append('blob', new Blob(['c']));
  const [first, second, third] = form.getAll('file');
  assertEquals(first === file, true);
  assertEquals([second instanceof File, second.name, second.type, await second.text()], [true, 'given.txt', 'text/y', 'b']);
  assertEquals([third.name, third.type, await third.text()], ['other.txt', 'text/x', 'f']);
  assertEquals([form.get('blob') instanceof File, form.get('blob').name], [true, 'blob']);
});

test('iteration', () => {
  const form = new FormData();
  form.append('b', '1');
  form.append('a', '2');
  form.append('b', '3');
  assertEquals([[...form.keys()], [...form.values()], [...form.entries()]], [['b', 'a', 'b'], ['1', '2', '3'], [['b', '1'], ['a', '2'], ['b', '3']]]);
  const seen = [];
  form.forEach((value, name, object) => seen.push(value + name + (object === form)));
  assertEquals(seen, ['1btrue', '2atrue', '3btrue']);
  assertEquals(FormData.prototype[Symbol.iterator], FormData.prototype.entries);
  assertEquals(String(form), '[object FormData]');
});

test('there and back', async () => {
  const form = new FormData();
  form.append('a"\r\n', 'line\r\n\r\n--\u00e9');
  form.append('file', new File([new Uint8Array([0, 13, 10, 45, 45, 255])], 'n"\u00e4.bin', { type: 'x/y' }));
  form.append('empty', '');
  form.append('none', new File([], ''));
  const request = new Request('http://a', { method: 'POST', body: form });
  const back = await request.formData();
  // What is written so that it can stand in quotes stays so, and a file without a name is a text, as in workerd.
  assertEquals([...back.keys()], ['a%22%0D%0A', 'file', 'empty', 'none']);
  assertEquals([back.get('a%22%0D%0A'), back.get('empty')], ['line\r\n\r\n--\u00e9', '']);
  const file = back.get('file');
  assertEquals([file.name, file.type, await file.bytes()], ['n%22\u00e4.bin', 'x/y', new Uint8Array([0, 13, 10, 45, 45, 255])]);
  assertEquals(back.get('none'), '');
});

test('what a form looks like', async () => {
  const form = new FormData();
  form.append('a', 'b');
  form.append('f', new File(['x'], 'y'));
  const response = new Response(form);
  const boundary = response.headers.get('content-type').split('boundary=')[1];
  assertEquals(await response.text(), [`--${boundary}`, 'Content-Disposition: form-data; name="a"', '', 'b', `--${boundary}`,
    'Content-Disposition: form-data; name="f"; filename="y"', 'Content-Type: application/octet-stream', '', 'x', `--${boundary}--`].join('\r\n'));
  assert(new Response(new FormData()).headers.get('content-type') !== new Response(new FormData()).headers.get('content-type'));
});

test('multipart that others write', async () => {
  assertEquals(plain(await multipart('--XX\nContent-Disposition: form-data; name="a"\n\n1\n--XX--\n')), [['a', '1']]);
  assertEquals(plain(await multipart('preamble\n--XX\ncontent-disposition:form-data ;name="a"\n\n\n--XX--\nepilogue')), [['a', '']]);
  assertEquals(plain(await multipart('--XX\nContent-Type: text/plain; charset=utf-8\nContent-Disposition: form-data; name="a\\"b"\n\nx\ny\n--XX--')), [['a"b', 'x\r\ny']]);
  assertEquals(plain(await multipart('--a b\nContent-Disposition: form-data; name="q"\n\n--a\n--a b--', 'a b', 'Multipart/Form-Data; Boundary="a b"')), [['q', '--a']]);
  assertEquals(plain(await multipart('--XX--\n')), []);
  const form = await multipart('--XX\nContent-Disposition: form-data; name="f"; filename="t.txt"\n\nbody\n--XX--');
  assertEquals([form.get('f').name, form.get('f').type, await form.get('f').text()], ['t.txt', '', 'body']);
});

test('multipart that is broken', async () => {
  await assertRejects(multipart('x'), TypeError, 'No initial boundary string (or you have a truncated message).');
  await assertRejects(multipart('--XX\nContent-Disposition: form-data; name="a"'), TypeError, 'No multipart message header termination found.');
  await assertRejects(multipart('--XX'), TypeError);
  await assertRejects(multipart('--XX\nContent-Disposition: form-data\n\nx\n--XX--'), TypeError, 'Content-Disposition header in FormData part is missing a name.');
  await assertRejects(multipart('--XX\nContent-Disposition: attachment; name=a\n\nx\n--XX--'), TypeError);
  await assertRejects(multipart('--XX\nX: y\n\nx\n--XX--'), TypeError, 'No Content-Disposition header in FormData part.');
  await assertRejects(multipart('--XX\nContent-Disposition: form-data; name="a"\n\nx\n'), TypeError, 'No subsequent boundary string after multipart message.');
});

test('content types that are no forms', async () => {
  const read = (type) => new Response(new Uint8Array(1), type === undefined ? {} : { headers: { 'content-type': type } }).formData();
  await assertRejects(read(), TypeError, 'Parsing a Body as FormData requires a Content-Type header.');
  await assertRejects(read('text/plain'), TypeError, 'Unrecognized Content-Type header value. FormData can only parse the following MIME types: multipart/form-data, application/x-www-form-urlencoded');
  await assertRejects(read('multipart/form-data'), TypeError, /^No boundary string in Content-Type header\./);
});

test('urlencoded', async () => {
  const response = new Response('a=1&b=%C3%A9+x&a=&c', { headers: { 'content-type': 'Application/X-WWW-Form-Urlencoded; charset=utf-8' } });
  assertEquals(plain(await response.formData()), [['a', '1'], ['b', '\u00e9 x'], ['a', ''], ['c', '']]);
  assertEquals(plain(await new Response(new URLSearchParams([['k', '&=']])).formData()), [['k', '&=']]);
});

test('receivers and arguments', () => {
  const form = new FormData();
  assertThrows(() => form.append('a'), TypeError);
  assertThrows(() => form.get(), TypeError);
  assertThrows(() => new FormData({}), TypeError);
  for (const name of ['append', 'delete', 'get', 'getAll', 'has', 'set', 'entries', 'keys', 'values']) {
    assertThrows(() => FormData.prototype[name].call({}, 'a', 'b'), TypeError, /^Illegal invocation/);
  }
});

const parts = (text) => new Response(text.replaceAll('\n', '\r\n'), { headers: { 'content-type': 'multipart/form-data; boundary=b' } })
  .formData().then((form) => [...form].map(([name, value]) => [name, typeof value === 'string' ? value : [value.name, value.type, value.size]]));

test('parts are read as workerd reads them', async () => {
  const disposition = 'Content-Disposition: form-data';
  for (const [text, expected] of [
    [`--b\n${disposition}; name="a"; filename=""\nContent-Type: application/octet-stream\n\n\n--b--`, [['a', '']]],
    [`--b\n${disposition}; name="a%22b"; filename="c%22d"\n\nx\n--b--`, [['a%22b', ['c%22d', '', 1]]]],
    [`--b\n${disposition}; name="a\\"b"; filename="c\\\\d"\n\nx\n--b--`, [['a"b', ['c\\d', '', 1]]]],
    [`--b\n${disposition}; name="a"; filename=f.txt\n\nx\n--b--`, [['a', 'x']]],
    [`--b\n${disposition}; name="a"; FILENAME="f.txt"\n\nx\n--b--`, [['a', 'x']]],
    [`--b\n${disposition}; filename="f"; name="a"\nContent-Type: TEXT/X; q=1\n\nx\n--b--`, [['a', ['f', 'TEXT/X; q=1', 1]]]],
    [`--b\n${disposition}; name="a"\n\n--bx\n--b--`, [['a', '--bx']]],
    [`--b\n${disposition}; name="a"\n\nx--b\n--b--`, [['a', 'x--b']]],
    [`--b\n${disposition}; name="a"\n\n\n--b--`, [['a', '']]],
  ]) assertEquals(await parts(text), expected, text);
  for (const [text, message] of [
    [`--b\n${disposition}; name=a\n\nx\n--b--`, 'Content-Disposition header in FormData part is missing a name.'],
    [`--b\n${disposition}; name=""\n\nx\n--b--`, 'Content-Disposition header in FormData part is missing a name.'],
    [`--b\n${disposition}; NAME="a"\n\nx\n--b--`, 'Content-Disposition header in FormData part is missing a name.'],
    [`--bx\n${disposition}; name="a"\n\nx\n--b--`, 'Boundary string was not succeeded by CRLF, LF, or \'--\'.'],
    [`--b\n${disposition}; name="a"\n\nx\n--bcd\n--b--`, 'Boundary string was not succeeded by CRLF, LF, or \'--\'.'],
    ['--b\nContent-Disposition: attachment; name="a"\n\nx\n--b--', 'Content-Disposition header for FormData part must have the value '
      + '"form-data", possibly followed by parameters. Got: "attachment"'],
  ]) await assertRejects(parts(text), TypeError, message);
});
