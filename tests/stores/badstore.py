#!/usr/bin/env python3
"""badstore: a loopback reverse proxy that makes a good object store misbehave, on request.

  badstore.py --listen 9100 --store http://127.0.0.1:8333 [faults]

With no fault option it changes nothing: request heads, the Host header included, and bodies go to
the store byte for byte, so request signatures stay valid. Faults (probabilities P are 0..1):

  --ignore-conditions [WHICH]   drop If-Match / If-None-Match / x-goog-if-generation-match from writes
                                (WHICH: all, create, cas)
  --racy-conditions MS          check conditions by a HEAD, wait up to MS, then write without them
  --wrong-error [WHAT]          minio: a conditional create of an ABSENT key answers 404 NoSuchKey and
                                writes nothing (MinIO RELEASE.2025-09-06T17-38-46Z);
                                swift: a conditional write on a version answers 501 NotImplemented and
                                writes nothing (OpenStack Swift's s3api);
                                STATUS[:CODE]: a failed condition answers that instead of 412/409
  --latency-ms N[,JITTER]       wait N plus or minus up to JITTER milliseconds before forwarding
  --latency-p P                 ... with this probability only
  --throttle RATE[,BURST]       over RATE requests/s answer 503 SlowDown (--throttle-status 429 for 429)
  --error P[,STATUS[:CODE]]     answer an error (500:InternalError) without forwarding
  --lose-response P             let the store apply a write, then cut the client's connection
  --late-write P,SECONDS        cut the client's connection, apply the write SECONDS later
  --cut P                       cut: before forwarding, half-way through the request to the store,
                                or half-way through the answer to the client
  --stale-read P                GET/HEAD answer with an older version (or 404 from before the key existed)
  --stale-list P                a listing answers what it answered earlier
  --bad-range [MODE]            Range reads: whole (200 and the whole object), whole206 (206 header,
                                whole body), shift (right length, wrong bytes), short, long
                                (--bad-range-p P: only with probability P, default 1)
  --outage START,LENGTH[,MODE]  from START seconds after the start for LENGTH seconds: cut (default),
                                refuse (nobody listens), hang (never answers), 503. May be repeated

Aim and watch:
  --methods PUT,POST --match REGEX --count N   limit faults to methods, to paths, to N faults in all
  --seed N                                     repeatable choices
  --log FILE                                   one JSON line per request
  --control PORT                               GET /stats; GET /get; POST /set with {"lose_response": 0.5};
                                               POST /outage with {"length": 3, "mode": "refuse"} (from now)

Some faults change a signed header (ignore-conditions, racy-conditions, bad-range whole*) or need a
request of the proxy's own (racy-conditions, wrong-error minio). A store that checks signatures then
needs keys to sign anew: --access-key and --secret-key (or BADSTORE_ACCESS_KEY, BADSTORE_SECRET_KEY).
Python 3.11 standard library only; uses uvloop when it is installed.

Part of the tests: `faults.rs` beside it starts it, one for each test, before a real store. One connection
to the store for each of the client's, never shared and never retried, so that what the store does to a
connection the client sees. HTTP/1.1 without TLS, loopback only.
"""
import argparse, asyncio, base64, collections, datetime, hashlib, hmac, json, os, random, re, signal
import socket, sys, time, urllib.parse

EMPTY_SHA = hashlib.sha256(b"").hexdigest()
COND = ("if-match", "if-none-match", "x-goog-if-generation-match")
LIMIT = 1 << 20                 # longest request or response head
BIG = 256 * 1024                # longer answers are passed on in pieces when no fault needs the whole
REASON = {200: "OK", 206: "Partial Content", 304: "Not Modified", 404: "Not Found", 409: "Conflict",
          412: "Precondition Failed", 429: "Too Many Requests", 500: "Internal Server Error",
          501: "Not Implemented", 503: "Slow Down"}
MESSAGE = {"NoSuchKey": "The specified key does not exist.", "SlowDown": "Please reduce your request rate.",
           "PreconditionFailed": "At least one of the pre-conditions you specified did not hold"}
DEFAULT_CODE = {404: "NoSuchKey", 409: "ConditionalRequestConflict", 412: "PreconditionFailed",
                429: "TooManyRequests", 500: "InternalError", 501: "NotImplemented", 503: "SlowDown"}


class Cut(Exception):
    """Close the client's connection now."""


# ------------------------------------------------------------------------------------------- HTTP

class Head:
    """A request or response head: the bytes as they came, and the headers when somebody asks."""
    __slots__ = ("raw", "first", "_h")

    def __init__(self, raw):
        self.raw, self._h = raw, None
        self.first = raw[:raw.index(b"\r\n")]

    @property
    def h(self):
        if self._h is None:
            d = {}
            for line in self.raw.split(b"\r\n")[1:]:
                k, sep, v = line.partition(b":")
                if sep:
                    k = k.strip().lower().decode("latin1")
                    v = v.strip().decode("latin1")
                    d[k] = d[k] + "," + v if k in d else v
            self._h = d
        return self._h

    def edited(self, drop=(), put=None, first=None):
        """The head's bytes with headers dropped or replaced, everything else as it was."""
        put = dict(put or {})
        gone = set(drop) | {k.lower() for k in put}
        lines = self.raw[:-4].split(b"\r\n")
        out = [first or lines[0]]
        for line in lines[1:]:
            if line.partition(b":")[0].strip().lower().decode("latin1") not in gone:
                out.append(line)
        out += [("%s: %s" % kv).encode("latin1") for kv in put.items()]
        return b"\r\n".join(out) + b"\r\n\r\n"


async def read_chunked(r):
    """A chunked body: (bytes as they came, decoded bytes)."""
    raw, data = [], []
    while True:
        line = await r.readline()
        if not line:
            raise Cut("eof in chunk")
        raw.append(line)
        n = int(line.split(b";")[0].strip() or b"0", 16)
        if n == 0:
            while True:
                line = await r.readline()
                raw.append(line)
                if line in (b"\r\n", b"\n", b""):
                    return b"".join(raw), b"".join(data)
        piece = await r.readexactly(n + 2)
        raw.append(piece)
        data.append(piece[:-2])


def aws_chunked(body):
    """Decode an aws-chunked body (chunk signatures and trailers are dropped)."""
    out, i = [], 0
    while True:
        j = body.index(b"\r\n", i)
        n = int(body[i:j].split(b";")[0], 16)
        if n == 0:
            return b"".join(out)
        out.append(body[j + 2:j + 2 + n])
        i = j + 4 + n


def answer(status, code=None, body=None, headers=None, method="GET", keep=True):
    if body is None:
        body = b""
        if code:
            body = ('<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>%s</Code><Message>%s</Message>'
                    '<RequestId>badstore</RequestId></Error>' % (code, MESSAGE.get(code, code))).encode()
    h = {"Content-Length": str(len(body)), "Date": datetime.datetime.utcnow().strftime("%a, %d %b %Y %H:%M:%S GMT")}
    if code:
        h["Content-Type"] = "application/xml"
    if not keep:
        h["Connection"] = "close"
    h.update(headers or {})
    head = "HTTP/1.1 %d %s\r\n" % (status, REASON.get(status, "Status"))
    head += "".join("%s: %s\r\n" % kv for kv in h.items()) + "\r\n"
    return head.encode("latin1") + (b"" if method == "HEAD" else body)


# ---------------------------------------------------------------------------------------- signing

def q(s, safe="-_.~"):
    return urllib.parse.quote(s, safe=safe)


def sigv4(method, target, headers, names, sha, stamp, scope, secret):
    """SigV4 signature (hex) over the named headers; target is the request target as sent."""
    path, _, qs = target.partition("?")
    pairs = []
    for p in qs.split("&") if qs else []:
        k, _, v = p.partition("=")
        pairs.append((q(urllib.parse.unquote(k)), q(urllib.parse.unquote(v))))
    creq = "\n".join([method, q(urllib.parse.unquote(path), "/-_.~"), "&".join("%s=%s" % kv for kv in sorted(pairs)),
                      "".join("%s:%s\n" % (n, " ".join(headers.get(n, "").split())) for n in names),
                      ";".join(names), sha])
    k = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        k = hmac.new(k, part.encode(), hashlib.sha256).digest()
    sts = "AWS4-HMAC-SHA256\n%s\n%s\n%s" % (stamp, scope, hashlib.sha256(creq.encode()).hexdigest())
    return hmac.new(k, sts.encode(), hashlib.sha256).hexdigest()


def shared_key(method, target, h, account, secret):
    """Azure SharedKey authorization value."""
    path, _, qs = target.partition("?")
    cl = h.get("content-length", "")
    sts = [method, h.get("content-encoding", ""), h.get("content-language", ""), "" if cl == "0" else cl]
    sts += [h.get(n, "") for n in ("content-md5", "content-type", "date", "if-modified-since", "if-match",
                                   "if-none-match", "if-unmodified-since", "range")]
    ms = "".join("%s:%s\n" % (k, h[k]) for k in sorted(h) if k.startswith("x-ms-"))
    res = "/" + account + path
    for k, v in sorted((k.lower(), v) for k, v in urllib.parse.parse_qsl(qs, keep_blank_values=True)):
        res += "\n%s:%s" % (k, v)
    mac = hmac.new(base64.b64decode(secret), ("\n".join(sts) + "\n" + ms + res).encode(), hashlib.sha256)
    return "SharedKey %s:%s" % (account, base64.b64encode(mac.digest()).decode())


# ------------------------------------------------------------------------------------------ state

class Versions:
    """Recent versions of objects as seen through the proxy, for stale reads."""

    def __init__(self, limit):
        self.keys, self.bytes, self.limit = collections.OrderedDict(), 0, limit

    def add(self, path, v):                 # v: (status, etag, body, last-modified, extra headers)
        seq = self.keys.setdefault(path, collections.deque())
        if seq and seq[-1][:2] == v[:2] and seq[-1][2] == v[2]:
            return
        seq.append(v)
        self.bytes += len(v[2]) + 200
        self.keys.move_to_end(path)
        while len(seq) > 6:
            self.bytes -= len(seq.popleft()[2]) + 200
        while self.bytes > self.limit and len(self.keys) > 1:
            _, old = self.keys.popitem(last=False)
            self.bytes -= sum(len(x[2]) + 200 for x in old)

    def older(self, path, rnd):
        seq = self.keys.get(path)
        return seq[rnd.randrange(len(seq) - 1)] if seq and len(seq) > 1 else None


class Bucket:
    def __init__(self, rate, burst):
        self.rate, self.burst, self.level, self.t = rate, burst, burst, time.monotonic()

    def take(self):
        now = time.monotonic()
        self.level = min(self.burst, self.level + (now - self.t) * self.rate)
        self.t = now
        if self.level < 1:
            return False
        self.level -= 1
        return True


def pair(text, second, cast=float):
    a, _, b = str(text).partition(",")
    return cast(a), (cast(b) if b else second)


class Proxy:
    # the settings that --control may change, and their "off" values
    SETTINGS = dict(ignore_conditions=None, racy_conditions=None, wrong_error=None, latency_ms=None, throttle=None,
                    throttle_status=503, error=None, lose_response=0.0, late_write=None, cut=0.0, stale_read=0.0,
                    stale_list=0.0, bad_range=None, bad_range_p=1.0, latency_p=1.0, methods=None, match=None, count=None)

    def __init__(self, a):
        u = urllib.parse.urlsplit(a.store)
        self.store = (u.hostname, u.port or 80)
        self.base = u.path.rstrip("/")
        self.a = a
        self.rnd = random.Random(a.seed)
        self.stats = collections.Counter()
        self.versions = Versions(a.stale_memory_mb << 20)
        self.lists = {}
        self.remember = a.stale_read > 0 or a.control is not None
        self.log = open(a.log, "a", buffering=1 << 16) if a.log else None
        self.t0 = time.monotonic()
        self.n = 0
        self.clients = set()
        self.tasks = set()
        self.server = None
        self.apply({k: getattr(a, k) for k in self.SETTINGS})
        self.outages = [self.outage_spec(o) for o in a.outage or []]

    def apply(self, new):
        for k, v in new.items():
            if k not in self.SETTINGS:
                raise ValueError("no setting " + k)
            setattr(self, k, v)
        self.bucket = None
        if self.throttle:
            rate, burst = pair(self.throttle, None)
            self.bucket = Bucket(rate, burst or max(1.0, rate / 10))
        self.lat = pair(self.latency_ms, 0.0) if self.latency_ms else None
        self.late = pair(self.late_write, 1.0) if self.late_write else None
        self.err = None
        if self.error:
            p, _, what = str(self.error).partition(",")
            self.err = (float(p),) + self.status_code(what or "500:InternalError")
        self.we = None
        if self.wrong_error and self.wrong_error not in ("minio", "swift"):
            self.we = self.status_code(self.wrong_error)
        self.re = re.compile(self.match) if self.match else None
        self.meths = set(self.methods.split(",")) if self.methods else None
        if self.stale_read or self.stale_list:
            self.remember = True

    @staticmethod
    def status_code(text):
        s, _, c = str(text).partition(":")
        return int(s), c or DEFAULT_CODE.get(int(s), "Error")

    @staticmethod
    def outage_spec(text):
        p = text.split(",")
        return float(p[0]), float(p[0]) + float(p[1]), p[2] if len(p) > 2 else "cut"

    def outage(self):
        if self.outages:
            t = time.monotonic() - self.t0
            for s, e, mode in self.outages:
                if s <= t < e:
                    return mode, e - t
        return None, 0

    def hit(self, p):
        """Decide a fault of probability p, honouring --count."""
        if not p or (self.count is not None and self.count <= 0):
            return False
        if p < 1 and self.rnd.random() >= p:
            return False
        if self.count is not None:
            self.count -= 1
        return True

    def spawn(self, coro):
        t = asyncio.get_running_loop().create_task(coro)
        self.tasks.add(t)
        t.add_done_callback(self.tasks.discard)

    # ------------------------------------------------------------------------------- connections

    async def serve_client(self, r, w):
        sock = w.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        w.transport.set_write_buffer_limits(high=1 << 20)
        up = Upstream(self)
        self.clients.add(w)
        self.stats["connections"] += 1
        try:
            while True:
                try:
                    raw = await r.readuntil(b"\r\n\r\n")
                except asyncio.IncompleteReadError as e:
                    if e.partial:
                        self.stats["incomplete_requests"] += 1
                    break
                if not await self.one(Head(raw), r, w, up):
                    break
        except (Cut, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            w.transport.abort()          # no polite end: the client sees its connection break
        finally:
            self.clients.discard(w)
            up.close()
            if not w.transport.is_closing():
                w.close()

    async def one(self, head, r, w, up):
        """Serve one request; returns whether the connection may be used again."""
        self.n += 1
        self.stats["requests"] += 1
        t0 = time.monotonic()
        method, target, _ = head.first.decode("latin1").split(" ", 2)
        rec = {"n": self.n, "t": round(time.time(), 6), "method": method}
        faults = []
        ctx = Ctx(self, method, target, head, rec, faults)
        try:
            keep = await self.handle(ctx, r, w, up)
            return keep
        except (Cut, ConnectionError, asyncio.IncompleteReadError, OSError) as e:
            rec.setdefault("status", 0)
            rec["ended"] = str(e) or type(e).__name__
            raise
        finally:
            for f in faults:
                self.stats["fault " + f] += 1
            if self.log is not None:
                path, _, qs = target.partition("?")
                rec["path"] = urllib.parse.unquote(path)
                if qs:
                    rec["query"] = re.sub(r"(X-Amz-Signature|X-Amz-Credential|sig)=[^&]*", r"\1=-", qs)
                for n in COND + ("range",):
                    if n in head.h:
                        rec[n] = head.h[n]
                if faults:
                    rec["faults"] = faults
                rec["ms"] = round((time.monotonic() - t0) * 1e3, 3)
                self.log.write(json.dumps(rec, ensure_ascii=False) + "\n")

    async def handle(self, c, r, w, up):
        head, method, h, faults, rec = c.head, c.method, c.head.h, c.faults, c.rec
        # read the request body in full
        body = wire = b""
        if h.get("expect", "").lower() == "100-continue":
            w.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in h.get("transfer-encoding", "").lower():
            wire, body = await read_chunked(r)
        elif h.get("content-length", "0") != "0":
            wire = body = await r.readexactly(int(h["content-length"]))
        rec["in"] = len(body)
        c.body, c.wire = body, wire
        keep = h.get("connection", "").lower() != "close"
        aimed = (self.meths is None or method in self.meths) and (self.re is None or self.re.search(c.target))

        mode, left = self.outage()
        if mode:
            faults.append("outage")
            if mode == "hang":
                await asyncio.sleep(left)
            if mode != "503":
                raise Cut("outage")
            rec["status"] = 503
            w.write(answer(503, "ServiceUnavailable", method=method))
            return keep
        if not aimed:
            return await self.forward(c, head.raw, wire, w, up, keep, pure=True)

        if self.lat and (self.latency_p >= 1 or self.rnd.random() < self.latency_p):
            ms = self.lat[0] + (self.rnd.uniform(-self.lat[1], self.lat[1]) if self.lat[1] else 0)
            if ms > 0:
                await asyncio.sleep(ms / 1e3)
        if self.bucket and not self.bucket.take():
            faults.append("throttle")
            rec["status"] = s = int(self.throttle_status)
            w.write(answer(s, DEFAULT_CODE.get(s), method=method, headers={"Retry-After": "1"} if s == 429 else None))
            return keep
        if self.err and self.hit(self.err[0]):
            faults.append("error")
            rec["status"] = self.err[1]
            w.write(answer(self.err[1], self.err[2], method=method))
            return keep
        if c.read and self.stale_read and self.hit(self.stale_read):
            v = self.versions.older(c.path, self.rnd)
            if v:
                faults.append("stale-read")
                w.write(self.stale_answer(c, v))
                return keep
        if c.listing and self.stale_list and self.hit(self.stale_list):
            old = self.lists.get(c.target)
            if old:
                faults.append("stale-list")
                rec["status"] = 200
                w.write(answer(200, None, old[0], {"Content-Type": "application/xml"}, method))
                return keep

        cutmode = None
        if self.cut and self.hit(self.cut):
            cutmode = self.rnd.choice(("before", "request", "response"))
            faults.append("cut-" + cutmode)
            if cutmode == "before":
                raise Cut("cut")
        raw, out = head.raw, wire
        if c.write and c.cond:
            kind = "create" if c.create else "cas"
            if self.wrong_error == "minio" and c.create and await self.head_tag(c, up) is None and self.hit(1):
                faults.append("wrong-error")
                rec["status"] = 404
                w.write(answer(404, "NoSuchKey", method=method))
                return keep
            if self.wrong_error == "swift" and not c.create and self.hit(1):
                faults.append("wrong-error")
                rec["status"] = 501
                w.write(answer(501, "NotImplemented", method=method))
                return keep
            if self.racy_conditions is not None and self.hit(1):
                tag = await self.head_tag(c, up)
                want = c.cond[1]
                okay = tag is None if c.create else tag is not None and (want == "*" or want.strip('"') == tag.strip('"'))
                if not okay:
                    rec["status"] = 412
                    w.write(answer(412, "PreconditionFailed", method=method))
                    return keep
                faults.append("racy-conditions")
                await asyncio.sleep(self.rnd.random() * float(self.racy_conditions) / 1e3)
                raw, out = self.rewritten(c, COND)
            elif self.ignore_conditions in ("all", kind) and self.hit(1):
                faults.append("ignore-conditions")
                raw, out = self.rewritten(c, COND)
        badr = None
        if c.read and self.bad_range and method == "GET" and "range" in h and self.hit(self.bad_range_p):
            badr = self.bad_range
            faults.append("bad-range-" + badr)
            if badr in ("whole", "whole206"):
                raw, out = self.rewritten(c, ("range",))
        if c.write and self.late and self.hit(self.late[0]):
            faults.append("late-write")
            self.spawn(self.late_apply(c.rec["n"], raw, out, method, self.late[1]))
            raise Cut("late-write")
        lose = bool(c.write and self.lose_response and self.hit(self.lose_response))
        if lose:
            faults.append("lose-response")
        return await self.forward(c, raw, out, w, up, keep, cutmode=cutmode, badr=badr, lose=lose)

    async def forward(self, c, raw, wire, w, up, keep, cutmode=None, badr=None, lose=False, pure=False):
        rec, method = c.rec, c.method
        if self.base:
            first, rest = raw.split(b"\r\n", 1)
            m, t, v = first.split(b" ", 2)
            raw = b" ".join((m, self.base.encode() + t, v)) + b"\r\n" + rest
        await up.ready()
        t1 = time.monotonic()
        if cutmode == "request":
            whole = raw + wire
            up.w.write(whole[:max(1, len(raw) if not wire else len(raw) + len(wire) // 2)] if wire else whole[:len(raw) // 2])
            await up.w.drain()
            up.close()
            raise Cut("cut")
        up.w.write(raw + wire if len(wire) < 65536 else raw)
        if len(wire) >= 65536:
            up.w.write(wire)
            await up.w.drain()
        rh = await up.head()
        status = int(rh.first.split(b" ", 2)[1])
        rec["status"] = status
        need = bool(badr or lose or cutmode or (self.we and c.write and c.cond) or
                    (self.remember and (c.read or c.listing)) or self.log is not None and status >= 400)
        length = rh.h.get("content-length")
        if method == "HEAD" or status in (204, 304) or status < 200:
            data = rwire = b""
        elif "chunked" in rh.h.get("transfer-encoding", "").lower():
            rwire, data = await read_chunked(up.r)
        elif length is None:
            rwire = data = await up.r.read(-1)
            up.stale = True
            keep = False
        elif not need and int(length) > BIG:
            rec["out"] = int(length)
            w.write(rh.raw)
            left = int(length)
            while left:
                piece = await up.r.read(min(left, 1 << 18))
                if not piece:
                    raise Cut("store ended early")
                left -= len(piece)
                w.write(piece)
                await w.drain()
            rec["store_ms"] = round((time.monotonic() - t1) * 1e3, 3)
            return self.keep(keep, rh, up)
        else:
            rwire = data = await up.r.readexactly(int(length)) if length != "0" else b""
        rec["store_ms"] = round((time.monotonic() - t1) * 1e3, 3)
        rec["out"] = len(data)
        if status >= 400:
            m = re.search(rb"<Code>([^<]*)</Code>", data)
            if m:
                rec["code"] = m.group(1).decode("latin1")
        if "etag" in rh.h:
            rec["etag"] = rh.h["etag"]
        if self.remember:
            self.note(c, status, rh, data)
        if lose:
            raise Cut("lose-response")
        if self.we and not pure and c.write and c.cond and status in (409, 412) and self.hit(1):
            c.faults.append("wrong-error")
            rec["status"] = self.we[0]
            w.write(answer(self.we[0], None if self.we[0] in (200, 304) else self.we[1], method=method))
            return self.keep(keep, rh, up)
        if badr and status in (200, 206):
            w.write(self.mangled(c, rh, data, status, badr))
            return self.keep(keep, rh, up)
        if cutmode == "response":
            whole = rh.raw + rwire
            w.write(whole[:max(1, (len(whole) if rwire else len(rh.raw)) // 2)])
            await w.drain()
            await asyncio.sleep(0.02)        # let the half get out before the connection breaks
            raise Cut("cut")
        w.write(rh.raw + rwire)
        if len(rwire) > BIG:
            await w.drain()
        return self.keep(keep, rh, up)

    @staticmethod
    def keep(keep, rh, up):
        if rh.h.get("connection", "").lower() == "close":
            up.stale = True
            return False
        return keep

    # ----------------------------------------------------------------------------------- signing

    def keys(self):
        a = self.a
        return (a.access_key, a.secret_key) if a.access_key and a.secret_key else None

    def rewritten(self, c, drop):
        """The request without some headers; signed anew when one of them was signed and there are keys."""
        h, keys = dict(c.head.h), self.keys()
        for d in drop:
            h.pop(d, None)
        auth = h.get("authorization", "")
        put, wire, gone = {}, c.wire, list(drop)
        m = re.match(r"AWS4-HMAC-SHA256 Credential=([^/]+)/([^,]+),\s*SignedHeaders=([^,]+),\s*Signature=", auth)
        if keys and m and set(m.group(3).split(";")) & set(drop):
            names = [n for n in m.group(3).split(";") if n not in drop]
            sha = h.get("x-amz-content-sha256", EMPTY_SHA)
            if sha.startswith("STREAMING-"):             # chunk signatures hang on the old one: send plainly
                wire, sha = aws_chunked(c.body), "UNSIGNED-PAYLOAD"
                lose = ("x-amz-decoded-content-length", "x-amz-trailer", "content-encoding", "transfer-encoding")
                gone += lose
                names = [n for n in names if n not in lose]
                put["x-amz-content-sha256"], put["Content-Length"] = sha, str(len(wire))
                h.update({"x-amz-content-sha256": sha, "content-length": str(len(wire))})
            sig = sigv4(c.method, c.target, h, names, sha, h["x-amz-date"], m.group(2), keys[1])
            put["Authorization"] = "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s" % (
                keys[0], m.group(2), ";".join(names), sig)
        elif keys and auth.startswith("SharedKey "):
            put["Authorization"] = shared_key(c.method, c.target, h, keys[0], keys[1])
        return c.head.edited(gone, put), wire

    async def head_tag(self, c, up):
        """ETag of the object now, by a HEAD of the proxy's own; None when absent."""
        keys = self.keys()
        host = c.head.h.get("host", "%s:%d" % self.store)
        h = {"host": host}
        auth = c.head.h.get("authorization", "")
        if keys and auth.startswith("SharedKey "):
            h["x-ms-date"] = datetime.datetime.utcnow().strftime("%a, %d %b %Y %H:%M:%S GMT")
            h["x-ms-version"] = c.head.h.get("x-ms-version", "2021-12-02")
            h["authorization"] = shared_key("HEAD", c.path, h, *keys)
        elif keys:
            now = datetime.datetime.utcnow()
            m = re.search(r"Credential=[^/]+/[^/]+/([^/]+)/([^/]+)/aws4_request", auth)
            region, service = m.groups() if m else (self.a.region, "s3")
            scope = "%s/%s/%s/aws4_request" % (now.strftime("%Y%m%d"), region, service)
            h["x-amz-date"], h["x-amz-content-sha256"] = now.strftime("%Y%m%dT%H%M%SZ"), EMPTY_SHA
            names = sorted(h)
            sig = sigv4("HEAD", c.path, h, names, EMPTY_SHA, h["x-amz-date"], scope, keys[1])
            h["authorization"] = "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s" % (
                keys[0], scope, ";".join(names), sig)
        await up.ready()
        up.w.write(("HEAD %s%s HTTP/1.1\r\n" % (self.base, c.path) + "".join("%s: %s\r\n" % kv for kv in h.items())
                    + "\r\n").encode("latin1"))
        rh = await up.head()
        status = int(rh.first.split(b" ", 2)[1])
        if rh.h.get("connection", "").lower() == "close":
            up.stale = True
        if status == 404:
            return None
        if status != 200:
            self.warn("the proxy's own HEAD got %d: does it need --access-key and --secret-key?" % status)
        return rh.h.get("x-goog-generation") or rh.h.get("etag") or ""

    def warn(self, text):
        if not self.stats["warnings"]:
            print("badstore: " + text, file=sys.stderr, flush=True)
        self.stats["warnings"] += 1

    # ---------------------------------------------------------------------------- stale and wrong

    def note(self, c, status, rh, data):
        h = rh.h
        if c.listing and status == 200:
            old = self.lists.get(c.target)
            if old is None or old[-1] != data:
                self.lists[c.target] = ([old[-1]] if old else []) + [data]
                if len(self.lists) > 2000:
                    self.lists.pop(next(iter(self.lists)))
        if not c.object:
            return
        now = datetime.datetime.utcnow().strftime("%a, %d %b %Y %H:%M:%S GMT")
        extra = {k: h[k] for k in ("x-goog-generation", "x-ms-blob-type") if k in h}
        if c.method == "PUT" and c.plain and status in (200, 201):
            if c.path not in self.versions.keys:
                self.versions.add(c.path, (404, "", b"", now, {}))
            b = c.body
            if c.head.h.get("x-amz-content-sha256", "").startswith("STREAMING-"):
                b = aws_chunked(b)
            if len(b) <= 1 << 20:
                self.versions.add(c.path, (200, h.get("etag") or '"%s"' % hashlib.md5(b).hexdigest(), b, now, extra))
        elif c.method == "GET" and c.plain and status == 200 and len(data) <= 1 << 20:
            self.versions.add(c.path, (200, h.get("etag", ""), data, h.get("last-modified", now), extra))
        elif (c.method == "DELETE" and status in (200, 202, 204)) or (c.method == "GET" and c.plain and status == 404):
            self.versions.add(c.path, (404, "", b"", now, {}))

    def stale_answer(self, c, v):
        status, etag, body, lm, extra = v
        c.rec["status"] = status
        if status == 404:
            return answer(404, "NoSuchKey", method=c.method)
        h = {"ETag": etag, "Last-Modified": lm, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", **extra}
        inm, im = c.head.h.get("if-none-match"), c.head.h.get("if-match")
        if inm and etag and inm.strip('"') == etag.strip('"'):
            c.rec["status"] = 304
            return answer(304, None, b"", {"ETag": etag}, c.method)
        if im and im != "*" and im.strip('"') != etag.strip('"'):
            c.rec["status"] = 412
            return answer(412, "PreconditionFailed", method=c.method)
        span = self.span(c, len(body))
        if span:
            status = c.rec["status"] = 206
            h["Content-Range"] = "bytes %d-%d/%d" % (span[0], span[1], len(body))
            body = body[span[0]:span[1] + 1]
        h["Content-Length"] = str(len(body))
        c.rec["etag"] = etag
        return answer(status, None, body, h, c.method)

    @staticmethod
    def span(c, size):
        m = re.match(r"bytes=(\d*)-(\d*)$", c.head.h.get("range", "").strip())
        if not m or not size:
            return None
        a, b = m.groups()
        if a == "":
            return max(0, size - int(b or 0)), size - 1
        return int(a), min(int(b), size - 1) if b else size - 1

    def mangled(self, c, rh, data, status, mode):
        if mode in ("whole", "whole206"):
            if mode == "whole206" and status == 200:
                span = self.span(c, len(data)) or (0, len(data) - 1)
                head = rh.edited(("content-range", "transfer-encoding"), {
                    "Content-Range": "bytes %d-%d/%d" % (span[0], span[1], len(data)), "Content-Length": str(len(data))},
                    b"HTTP/1.1 206 Partial Content")
                c.rec["status"] = 206
                return head + data
            return rh.edited(("transfer-encoding",), {"Content-Length": str(len(data))}) + data
        if mode == "short":
            data = data[:-1 - len(data) // 4]
        elif mode == "long":
            data = data + data[:1] * (1 + len(data) // 4)
        elif len(data) > 1 and data != data[1:] + data[:1]:
            data = data[1:] + data[:1]                   # shift
        else:
            data = bytes(b ^ 1 for b in data)
        return rh.edited(("transfer-encoding",), {"Content-Length": str(len(data))}) + data

    async def late_apply(self, n, raw, wire, method, secs):
        await asyncio.sleep(secs)
        up = Upstream(self)
        rec = {"n": n, "t": round(time.time(), 6), "late": True, "method": method}
        try:
            await up.ready()
            up.w.write(raw + wire)
            rh = await up.head()
            rec["status"] = int(rh.first.split(b" ", 2)[1])
            self.stats["late writes applied"] += rec["status"] < 300
        except Exception as e:
            rec["ended"] = str(e) or type(e).__name__
        finally:
            up.close()
            if self.log is not None:
                self.log.write(json.dumps(rec) + "\n")

    # ------------------------------------------------------------------------------------ running

    async def control(self, r, w):
        try:
            head = Head(await r.readuntil(b"\r\n\r\n"))
            method, path, _ = head.first.decode("latin1").split(" ", 2)
            body = await r.readexactly(int(head.h.get("content-length", "0")))
            status, out = 200, {}
            if path == "/stats":
                out = dict(self.stats)
            elif path == "/get":
                out = {k: getattr(self, k) for k in self.SETTINGS}
            elif path == "/set" and method == "POST":
                try:
                    self.apply(json.loads(body))
                    out = {k: getattr(self, k) for k in self.SETTINGS}
                except (ValueError, TypeError, re.error) as e:
                    status, out = 400, {"error": str(e)}
            elif path == "/outage" and method == "POST":      # {"start": 0, "length": 3, "mode": "cut"}: from now
                d = json.loads(body)
                t = time.monotonic() - self.t0 + float(d.get("start", 0))
                self.outages.append((t, t + float(d["length"]), d.get("mode", "cut")))
            else:
                status = 404
            w.write(answer(status, None, json.dumps(out).encode(), {"Content-Type": "application/json"}, keep=False))
            await w.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, KeyError):
            pass
        finally:
            w.close()

    async def listen(self):
        self.server = await asyncio.start_server(self.serve_client, "127.0.0.1", self.a.listen, limit=LIMIT, backlog=1024)
        self.port = self.server.sockets[0].getsockname()[1]

    async def tick(self):
        was = False
        while True:
            await asyncio.sleep(0.05)
            if self.log is not None:
                self.log.flush()
            mode, _ = self.outage()
            if mode in ("cut", "refuse") and not was:
                for w in list(self.clients):
                    w.transport.abort()
                if mode == "refuse":
                    self.a.listen = self.port
                    self.server.close()
                was = mode
            elif was and not mode:
                if was == "refuse":
                    await self.listen()
                was = False

    async def start(self):
        await self.listen()
        if self.a.control is not None:
            s = await asyncio.start_server(self.control, "127.0.0.1", self.a.control)
            self.control_port = s.sockets[0].getsockname()[1]
        self.spawn(self.tick())


class Upstream:
    """The store's side of one client connection: opened when needed, never shared."""

    def __init__(self, p):
        self.p, self.r, self.w, self.stale = p, None, None, False

    async def ready(self):
        if self.w is not None and (self.stale or self.r.at_eof() or self.w.transport.is_closing()):
            self.close()
        if self.w is None:
            self.r, self.w = await asyncio.open_connection(*self.p.store, limit=LIMIT)
            self.w.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.stale = False

    async def head(self):
        while True:
            h = Head(await self.r.readuntil(b"\r\n\r\n"))
            if h.first.split(b" ", 2)[1] != b"100":
                return h

    def close(self):
        if self.w is not None:
            self.w.transport.abort()
            self.w = self.r = None


class Ctx:
    """What a request is."""

    def __init__(self, p, method, target, head, rec, faults):
        self.method, self.target, self.head, self.rec, self.faults = method, target, head, rec, faults
        self.path, _, self.qs = target.partition("?")
        depth = self.path.strip("/").count("/")
        account = 1 if "x-ms-version" in head.h else 0
        self.object = depth >= 1 + account and self.path.strip("/") != ""
        self.write = method in ("PUT", "POST", "DELETE")
        self.read = self.object and method in ("GET", "HEAD") and not re.search(
            r"(^|&)(uploadId|uploads|acl|tagging|versionId|comp|attributes)(=|&|$)", self.qs)
        self.listing = method == "GET" and not self.object and (
            "list-type=2" in self.qs or "comp=list" in self.qs or "prefix=" in self.qs)
        self.plain = "range" not in head.h and not re.search(r"(^|&)(partNumber|uploadId|comp|acl|tagging)(=|&|$)", self.qs)
        if "x-amz-copy-source" in head.h:
            self.plain = False
        self.cond = next(((n, head.h[n]) for n in COND if n in head.h), None) if self.write else None
        self.create = bool(self.cond) and (self.cond[0] == "if-none-match" or
                                           self.cond[0] == "x-goog-if-generation-match" and self.cond[1] == "0")


def parser():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    ap.add_argument("--listen", type=int, default=9100)
    ap.add_argument("--store", default="http://127.0.0.1:8333")
    ap.add_argument("--access-key", default=os.environ.get("BADSTORE_ACCESS_KEY"))
    ap.add_argument("--secret-key", default=os.environ.get("BADSTORE_SECRET_KEY"))
    ap.add_argument("--region", default="us-east-1")
    ap.add_argument("--ignore-conditions", nargs="?", const="all", choices=["all", "create", "cas"])
    ap.add_argument("--racy-conditions", type=float)
    ap.add_argument("--wrong-error", nargs="?", const="minio")
    ap.add_argument("--latency-ms")
    ap.add_argument("--latency-p", type=float, default=1.0)
    ap.add_argument("--throttle")
    ap.add_argument("--throttle-status", type=int, default=503)
    ap.add_argument("--error")
    ap.add_argument("--lose-response", type=float, default=0.0)
    ap.add_argument("--late-write")
    ap.add_argument("--cut", type=float, default=0.0)
    ap.add_argument("--stale-read", type=float, default=0.0)
    ap.add_argument("--stale-list", type=float, default=0.0)
    ap.add_argument("--stale-memory-mb", type=int, default=64)
    ap.add_argument("--bad-range", nargs="?", const="whole", choices=["whole", "whole206", "shift", "short", "long"])
    ap.add_argument("--bad-range-p", type=float, default=1.0)
    ap.add_argument("--outage", action="append")
    ap.add_argument("--methods")
    ap.add_argument("--match")
    ap.add_argument("--count", type=int)
    ap.add_argument("--seed", type=int)
    ap.add_argument("--log")
    ap.add_argument("--control", type=int)
    return ap


async def run(a):
    p = Proxy(a)
    await p.start()
    print("badstore: 127.0.0.1:%d -> %s:%d%s" % (p.port, *p.store, " control %d" % p.control_port if a.control is not None else ""),
          flush=True)
    stop = asyncio.Event()
    for s in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(s, stop.set)
    await stop.wait()
    if p.log is not None:
        p.log.close()
        p.log = None
    print("badstore: " + json.dumps(dict(p.stats)), flush=True)


def main(argv=None):
    a = parser().parse_args(argv)
    if urllib.parse.urlsplit(a.store).hostname not in ("127.0.0.1", "localhost", "::1"):
        sys.exit("badstore: only a store on loopback")
    try:
        import uvloop
        runner = uvloop.run
    except ImportError:
        runner = asyncio.run
    runner(run(a))


if __name__ == "__main__":
    main()
