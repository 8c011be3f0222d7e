#!/usr/bin/env python3
"""gcsxml: a small in-memory emulator of Google Cloud Storage's XML API, for loopback tests only.

Written from Google's documentation because no emulator in the package registries keeps
x-goog-if-generation-match on XML writes. It is our reading of the rules, not independent evidence.

  gcsxml.py --listen 9200 [--access-key AK --secret-key SK] [--bearer TOKEN]
                          [--tls-listen 443 --certificate PEM --key PEM]
Without keys and token nothing is verified. With TLS it also listens on all interfaces.

Has: PUT/GET/HEAD/DELETE object with x-goog-if-generation-match, Range, If-Match / If-None-Match on
reads (ignored on writes, as Google documents), list-type=2 and marker listings with prefix,
delimiter, max-keys, multipart upload (preconditions refused: Google supports none there), PUT bucket.
Signatures: GOOG4-HMAC-SHA256 and AWS4-HMAC-SHA256 (HMAC keys), header form.

Part of the tests: `store.rs` beside it starts it.
"""
import argparse, asyncio, hashlib, hmac, re, signal, ssl, sys, time, urllib.parse, uuid
from xml.sax.saxutils import escape

from badstore import Head, answer, q


def signature(alg, method, target, headers, names, sha, stamp, scope, secret):
    path, _, qs = target.partition("?")
    pairs = sorted((q(urllib.parse.unquote(k)), q(urllib.parse.unquote(v)))
                   for k, _, v in (p.partition("=") for p in qs.split("&")) if k) if qs else []
    creq = "\n".join([method, q(urllib.parse.unquote(path), "/-_.~"), "&".join("%s=%s" % kv for kv in pairs),
                      "".join("%s:%s\n" % (n, " ".join(headers.get(n, "").split())) for n in names), ";".join(names), sha])
    k = (alg[:5].replace("-", "") + secret).encode()          # "GOOG4" or "AWS4"
    for part in scope.split("/"):
        k = hmac.new(k, part.encode(), hashlib.sha256).digest()
    return hmac.new(k, "\n".join([alg, stamp, scope, hashlib.sha256(creq.encode()).hexdigest()]).encode(), hashlib.sha256).hexdigest()


class Store:
    def __init__(self, ak=None, sk=None, bearer=None):
        self.bearer = bearer
        self.ak, self.sk, self.buckets, self.uploads, self.last = ak, sk, {}, {}, 0

    def generation(self):                    # microseconds, strictly growing
        self.last = max(self.last + 1, int(time.time() * 1e6))
        return self.last

    def allowed(self, head, method, target):
        if self.bearer:
            return head.h.get("authorization", "") == "Bearer " + self.bearer
        if not self.ak:
            return True
        m = re.match(r"(GOOG4|AWS4)-HMAC-SHA256 Credential=([^/]+)/([^,]+),\s*SignedHeaders=([^,]+),\s*Signature=(\w+)", head.h.get("authorization", ""))
        if not m or m.group(2) != self.ak:
            return False
        p = "x-goog-" if m.group(1) == "GOOG4" else "x-amz-"
        return hmac.compare_digest(m.group(5), signature(
            m.group(1) + "-HMAC-SHA256", method, target, head.h, m.group(4).split(";"),
            head.h.get(p + "content-sha256", ""), head.h.get(p + "date", ""), m.group(3), self.sk))

    async def client(self, r, w):
        try:
            while True:
                head = Head(await r.readuntil(b"\r\n\r\n"))
                method, target, _ = head.first.decode("latin1").split(" ", 2)
                if head.h.get("expect", "").lower() == "100-continue":
                    w.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await r.readexactly(int(head.h.get("content-length", "0")))
                w.write(self.serve(head, method, target, body))
                await w.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            w.close()

    def serve(self, head, method, target, body):
        E = lambda status, code, h=None: answer(status, code, None, h, method)
        if not self.allowed(head, method, target):
            return E(401, "AuthenticationRequired") if self.bearer else E(403, "SignatureDoesNotMatch")
        h = head.h
        path, _, qs = target.partition("?")
        query = dict(urllib.parse.parse_qsl(qs, keep_blank_values=True))
        bucket, _, key = urllib.parse.unquote(path.lstrip("/")).partition("/")
        if not key and method == "PUT":
            if bucket in self.buckets:
                return E(409, "BucketAlreadyOwnedByYou")
            self.buckets[bucket] = {}
            return answer(200)
        d = self.buckets.get(bucket)
        if d is None:
            return E(404, "NoSuchBucket")
        if not key:
            return self.listing(d, bucket, query) if method == "GET" else E(405, "MethodNotAllowed")
        cur = d.get(key)
        want = h.get("x-goog-if-generation-match")
        if "uploads" in query or "uploadId" in query:
            meta = {k: v for k, v in h.items() if k.startswith("x-goog-meta-")}
            return self.multipart(d, bucket, key, method, query, want, meta, body, E)
        if want is not None and method in ("PUT", "DELETE") or want is not None and cur:
            if not re.fullmatch(r"\d+", want):
                return E(400, "InvalidArgument")
            if int(want) != (cur[0] if cur else 0):
                return E(412, "PreconditionFailed")
        if method == "PUT":
            return answer(200, None, b"", self.headers(self.put(d, key, body)))
        if not cur:
            return E(404, "NoSuchKey")
        if method == "DELETE":
            del d[key]
            return answer(204)
        gen, etag, data, _ = cur
        if "if-match" in h and h["if-match"] not in ("*", etag):
            return E(412, "PreconditionFailed")
        if h.get("if-none-match") in ("*", etag):
            return answer(304, None, b"", self.headers(cur), method)
        out = dict(self.headers(cur), **{"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"})
        m = re.fullmatch(r"bytes=(\d*)-(\d*)", h.get("range", ""))
        if m and m.group(0) != "bytes=-" and method == "GET":
            a, b = m.groups()
            lo = int(a) if a else max(0, len(data) - int(b))
            hi = min(int(b), len(data) - 1) if a and b else len(data) - 1
            if lo >= len(data) or lo > hi:
                return E(416, "InvalidRange", {"Content-Range": "bytes */%d" % len(data)})
            out["Content-Range"] = "bytes %d-%d/%d" % (lo, hi, len(data))
            return answer(206, None, data[lo:hi + 1], out, method)
        out["Content-Length"] = str(len(data))
        return answer(200, None, data, out, method)

    def put(self, d, key, data, meta={}):
        d[key] = (self.generation(), '"%s"' % hashlib.md5(data).hexdigest(), data, meta)
        return d[key]

    @staticmethod
    def headers(o):
        return dict(o[3], **{"ETag": o[1], "x-goog-generation": str(o[0]), "x-goog-metageneration": "1"})

    def listing(self, d, bucket, query):
        prefix, delim = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after") or query.get("marker") or ""
        left, out, seen, last, more = min(1000, int(query.get("max-keys", 1000))), [], set(), "", False
        for k in sorted(d, key=str.encode):
            if not k.startswith(prefix) or k.encode() <= after.encode():
                continue
            group = None
            if delim and delim in k[len(prefix):]:
                group = prefix + k[len(prefix):].split(delim)[0] + delim
                if group in seen or group <= after and after.startswith(group):
                    continue
            if left == 0:
                more = True
                break
            left -= 1
            if group:
                seen.add(group)
                last = group + "\U0010ffff"
                out.append("<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>" % escape(group))
            else:
                gen, etag, data, _ = d[k]
                last = k
                out.append("<Contents><Key>%s</Key><Generation>%d</Generation><MetaGeneration>1</MetaGeneration><ETag>%s</ETag><Size>%d</Size></Contents>"
                           % (escape(k), gen, escape(etag), len(data)))
        token = "<NextContinuationToken>%s</NextContinuationToken><NextMarker>%s</NextMarker>" % (escape(last), escape(last)) if more else ""
        xml = "<?xml version='1.0' encoding='UTF-8'?><ListBucketResult><Name>%s</Name><Prefix>%s</Prefix><IsTruncated>%s</IsTruncated>%s%s</ListBucketResult>" % (
            escape(bucket), escape(prefix), "true" if more else "false", token, "".join(out))
        return answer(200, None, xml.encode(), {"Content-Type": "application/xml"})

    def multipart(self, d, bucket, key, method, query, want, meta, body, E):
        if want is not None:
            return E(400, "InvalidArgument")
        if "uploads" in query and method == "POST":
            uid = uuid.uuid4().hex
            self.uploads[uid] = (bucket, key, {}, meta)
            return answer(200, None, ("<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>" % uid).encode())
        up = self.uploads.get(query.get("uploadId"))
        if not up or up[:2] != (bucket, key):
            return E(404, "NoSuchUpload")
        if method == "PUT":
            up[2][int(query["partNumber"])] = body
            return answer(200, None, b"", {"ETag": '"%s"' % hashlib.md5(body).hexdigest()})
        del self.uploads[query["uploadId"]]
        if method == "DELETE":
            return answer(204)
        nums = [int(n) for n in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
        if any(n not in up[2] for n in nums) or not nums:
            return E(400, "InvalidPart")
        o = self.put(d, key, b"".join(up[2][n] for n in nums), up[3])
        return answer(200, None, b"<CompleteMultipartUploadResult><ETag>%s</ETag></CompleteMultipartUploadResult>" % o[1].encode(), self.headers(o))


async def run(a):
    store, bounds = Store(a.access_key, a.secret_key, a.bearer), dict(limit=1 << 20, backlog=1024)
    if a.tls_listen:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(a.certificate, a.key)
        public = await asyncio.start_server(store.client, "0.0.0.0", a.tls_listen, ssl=tls, **bounds)
    s = await asyncio.start_server(store.client, "127.0.0.1", a.listen, **bounds)
    print("gcsxml: 127.0.0.1:%d" % s.sockets[0].getsockname()[1], flush=True)
    stop = asyncio.Event()
    for n in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(n, stop.set)
    await stop.wait()


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--listen", type=int, default=9200)
    ap.add_argument("--access-key")
    ap.add_argument("--secret-key")
    ap.add_argument("--bearer")
    ap.add_argument("--tls-listen", type=int)
    ap.add_argument("--certificate")
    ap.add_argument("--key")
    asyncio.run(run(ap.parse_args()))
