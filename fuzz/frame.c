/* fuzz/frame.c -- the frame reader, with arbitrary bytes in pieces of any size.
 *
 * The frames must not depend on how the bytes are divided. A frame that is written and read
 * again must be the same. The reader must not allocate more than 16 MiB beyond the bytes that
 * have arrived (PROMISES S5, S6). A frame with checksums of which a bit was changed must not be
 * accepted (F10). Hellos are decoded, and must then be the same when they are written again.
 *
 * covers: src/net/frame_read.c src/net/frame.c src/net/hello.c
 * longest: 600
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/frame.h"
#include "base/mem.h"
#include "fuzz.h"
#include "net/hello.h"

/* The result of reading an input: a hash of the contents of all frames. */
typedef struct outcome {
    ch_status rc;
    int       n_frames;
    unsigned  hash;
} outcome;

static void hash_more(outcome *o, const void *data, size_t n)
{
    if (n > 0)
        o->hash = o->hash * 31 + fuzz_hash(data, n);
}

static void hash_tensor(outcome *o, ch_tensor *t)
{
    ch_shape shape = ch_tensor_shape(t);
    int64_t  n = ch_tensor_count(t);

    hash_more(o, &shape, sizeof(shape));
    if (ch_tensor_dtype(t) != CH_STR) {
        hash_more(o, ch_tensor_data(t), ch_tensor_bytes(t));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const ch_str *s = (const ch_str *)ch_tensor_data(t) + i;

        hash_more(o, &s->size, sizeof(s->size));
        hash_more(o, s->data, s->size);
    }
}

static void hash_frame(outcome *o, const ch_frame *f)
{
    const uint64_t numbers[] = {f->kind, f->ending, f->status,           f->call,
                                f->from, f->to,     (uint64_t)f->timeout};

    hash_more(o, numbers, sizeof(numbers));
    if (f->fault != NULL) {
        hash_more(o, f->fault->text, strlen(f->fault->text));
        hash_more(o, f->fault->op, strlen(f->fault->op));
        hash_more(o, f->fault->task, strlen(f->fault->task));
        hash_more(o, &f->fault->replica, sizeof(f->fault->replica));
    }
    if (f->message == NULL)
        return;
    hash_more(o, &f->message->method, sizeof(f->message->method));
    hash_more(o, f->message->bytes, f->message->n_bytes);
    for (int i = 0; i < f->message->n_tensors; i++)
        hash_tensor(o, f->message->tensor[i]);
}

/* A hello that can be read must be the same when it is written and read again. */
static void check_hello(const ch_frame *f)
{
    ch_hello    h, again;
    ch_message *m = NULL;

    if (f->kind != CH_FRAME_HELLO || ch__hello_decode(f->message, &h) != CH_OK)
        return;
    if (ch__hello_encode(&h, &m) != CH_OK)
        return; /* memory is short */
    MUST(m->n_bytes <= CH_HELLO_BYTES && ch__hello_decode(m, &again) == CH_OK);
    MUST(memcmp(&h, &again, sizeof(h)) == 0);
    ch__message_unref(m);
}

static outcome read_all(const uint8_t *data, size_t size, size_t piece, bool has_checksums)
{
    ch_frame_reader r = {.max_bytes = 1 << 20, .has_checksums = has_checksums};
    outcome         o = {0};
    size_t          at = 0, used;
    bool            is_whole;

    while (o.rc == CH_OK && at < size) {
        size_t n = size - at < piece ? size - at : piece;
        char  *alone = fuzz_alone(data + at, n);

        o.rc = ch__frame_read(&r, alone, n, &used, &is_whole);
        free(alone);
        MUST(used <= n);
        MUST(o.rc == CH_OK || o.rc == CH_DATA_LOSS || o.rc == CH_RESOURCE_EXHAUSTED);
        MUST(o.rc != CH_OK || is_whole || used == n);
        at += used;
        if (o.rc != CH_OK || !is_whole)
            continue;
        o.n_frames++;
        hash_frame(&o, &r.frame);
        check_hello(&r.frame);
        ch__frame_drop(&r.frame);
    }
    ch__frame_reader_drop(&r);
    return o;
}

/* Changes a bit of a frame with checksums. */
static void check_flip(uint8_t *bytes, size_t n, unsigned which)
{
    size_t bit = which % (8 * n);

    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    MUST(read_all(bytes, n, n, true).n_frames == 0);
}

/* Writes the first frame and reads it again. */
static void check_again(const uint8_t *data, size_t size, unsigned which)
{
    ch_frame_reader r = {.max_bytes = 1 << 20};
    outcome         before = {0}, after;
    size_t          used, n;
    bool            is_whole;
    void           *bytes;

    MUST(ch__frame_read(&r, data, size, &used, &is_whole) == CH_OK && is_whole);
    hash_frame(&before, &r.frame);
    MUST(ch__frame_encode(&r.frame, which % 2, &bytes, &n) == CH_OK);
    after = read_all(bytes, n, n, which % 2);
    MUST(after.rc == CH_OK && after.n_frames == 1 && after.hash == before.hash);
    if (which % 2)
        check_flip(bytes, n, which / 2);
    ch__free(bytes);
    ch__frame_reader_drop(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t  live = ch__mem_live();
    unsigned which = fuzz_hash(data, size);
    outcome  whole, parts;

    if (size == 0)
        return 0;
    if (which % 16 == 0)
        ch__mem_watch(true);
    whole = read_all(data, size, size, false);
    if (which % 16 == 0) {
        MUST(ch__mem_peak() <= (int64_t)size + (16 << 20));
        ch__mem_watch(false);
    }
    parts = read_all(data, size, 1 + which % 7, false);
    MUST(whole.rc == parts.rc && whole.n_frames == parts.n_frames && whole.hash == parts.hash);
    if (whole.n_frames > 0)
        check_again(data, size, which);
    ch__mem_fail_at(1 + which % 12);
    read_all(data, size, size, false);
    ch__mem_fail_at(0);
    MUST(ch__mem_live() == live);
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    ch_tensor *t = NULL;

    (void)argc;
    (void)argv;
    MUST(ch_tensor_scalar(CH_F32, 1, &t) == CH_OK); /* allocates what the process keeps */
    ch_tensor_unref(t);
    return 0;
}

/* ---- nearly valid frames ---- */

static ch_tensor *some_tensor(dice *d)
{
    ch_dtype   dtype = (ch_dtype)roll(d, CH_DTYPE_COUNT);
    ch_shape   shape = ch_shape_of((int64_t)roll(d, 4), (int64_t)roll(d, 3));
    ch_tensor *t = NULL;

    if (dtype == CH_STR)
        MUST(ch_tensor_of_text("some text", &t) == CH_OK);
    else
        MUST(ch_tensor_new(dtype, shape, &t) == CH_OK);
    return t;
}

static ch_frame some_hello(dice *d)
{
    ch_hello h = {.least_version = roll(d, 3),
                  .most_version = 2,
                  .release = "0.1.0",
                  .job = "job",
                  .sender = "worker/1",
                  .role = "worker",
                  .incarnation = roll(d, 1000),
                  .calls = (int)roll(d, 100),
                  .bytes = roll(d, 1000),
                  .host = "host",
                  .features = roll(d, 4)};
    ch_frame f = {.kind = CH_FRAME_HELLO};

    MUST(ch__hello_encode(&h, &f.message) == CH_OK);
    return f;
}

static ch_frame some_frame(dice *d)
{
    ch_frame   f = {.kind = (ch_frame_kind)(1 + roll(d, 6)),
                    .call = roll(d, 1000),
                    .from = roll(d, 3),
                    .to = roll(d, 3),
                    .timeout = (int64_t)roll(d, 1000000)};
    ch_tensor *t[4];
    ch_fault   why;
    int        n = (int)roll(d, 5);
    size_t     n_bytes = roll(d, 40);
    void      *bytes;

    if (f.kind == CH_FRAME_HELLO)
        return some_hello(d);
    if (f.kind == CH_FRAME_REPLY && roll(d, 2) == 0)
        f.ending = (ch_ending)roll(d, CH_ENDED_NO_ROOM + 1);
    if (f.ending == CH_ENDED_ERROR || f.kind == CH_FRAME_REFUSAL) {
        f.status = (ch_status)(1 + roll(d, CH_STATUS_COUNT - 1));
        ch__fault_clear(&why);
        ch__fail(f.status, "no row %d", (int)roll(d, 99));
        ch__fault_record(&why, f.status, (int)roll(d, 3) - 1, roll(d, 2) ? "gather" : NULL);
        f.fault = ch__fault_copy(&why);
    }
    if (f.kind > CH_FRAME_REPLY || f.ending != CH_ENDED_OK)
        return f;
    for (int i = 0; i < n; i++)
        t[i] = some_tensor(d);
    MUST(ch__message_new((uint32_t)roll(d, 9), n_bytes, &bytes, n, t, &f.message) == CH_OK);
    if (n_bytes > 0)
        memset(bytes, 'm', n_bytes);
    return f;
}

/* Writes a frame into `data`. Returns its size; 0 if it does not fit. */
static size_t write_frame(dice *d, uint8_t *data, size_t max_size)
{
    ch_frame f = some_frame(d);
    void    *bytes;
    size_t   n;

    MUST(ch__frame_encode(&f, false, &bytes, &n) == CH_OK);
    if (n <= max_size)
        memcpy(data, bytes, n);
    ch__free(bytes);
    ch__frame_drop(&f);
    return n <= max_size ? n : 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    dice   d = {seed};
    size_t n;

    switch (roll(&d, 8)) {
    case 0: /* replaces the input by a new frame */
        n = write_frame(&d, data, max_size);
        return n > 0 ? n : size;
    case 1: /* appends a frame */
        return size + write_frame(&d, data + size, max_size - size);
    case 2: /* changes a byte of the header or of the tensor descriptions after it */
    case 3:
    case 4:
        if (size > 5)
            data[4 + roll(&d, size < 60 ? size - 4 : 56)] = (uint8_t)roll(&d, 256);
        return size;
    default:
        return LLVMFuzzerMutate(data, size, max_size);
    }
}
