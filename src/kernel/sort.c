/* kernel/sort.c -- order along one axis.   SPDX-License-Identifier: Apache-2.0 */
#include "kernel/sort.h"

#include <string.h>

#include "kernel/widen.h"
#include "tensor/tensor.h"

enum { PART = CH_SCAN_STRIP, FEW = 64 };

/* ---- keys ---- */

/* Which way the keys run, and where NaN goes: both as a key. */
typedef struct course {
    uint64_t flip; /* all ones: the largest element has the smallest key */
    uint64_t nan;
} course;

static const course rising = {0, UINT64_MAX}, falling = {UINT64_MAX, 0};

static uint64_t key_of_f32(float x, course c)
{
    uint32_t u, top = 0x80000000u;

    x = x == 0 ? 0 : x; /* of -0, 0 */
    memcpy(&u, &x, sizeof(u));
    u = (u & top) != 0 ? ~u : u | top;
    return x != x ? c.nan : u ^ c.flip;
}

static uint64_t key_of_f64(double x, course c)
{
    uint64_t u, top = UINT64_C(1) << 63;

    x = x == 0 ? 0 : x;
    memcpy(&u, &x, sizeof(u));
    u = (u & top) != 0 ? ~u : u | top;
    return x != x ? c.nan : u ^ c.flip;
}

/* n elements, `step` apart, in a row. */
static const void *gathered(size_t size, int64_t n, const char *x, int64_t step, char *room)
{
    if (step == 1)
        return x;
    for (int64_t j = 0; j < n; j++)
        memcpy(room + (size_t)j * size, x + (size_t)(j * step) * size, size);
    return room;
}

/* The keys of n elements, at most PART, that are `step` apart. */
static void keys_of(ch_dtype t, int64_t n, const char *x, int64_t step, course c, uint64_t *key)
{
    _Alignas(8) char row[PART * sizeof(double)];
    union {
        float   f[PART];
        int64_t i[PART];
    } room;
    const void *in = gathered(ch_dtype_bytes(t), n, x, step, row);

    if (t == CH_F64) {
        const double *v = in;
        for (int64_t j = 0; j < n; j++)
            key[j] = key_of_f64(v[j], c);
    } else if (ch_dtype_is_float(t)) {
        const float *v = ch__as_f32(t, n, in, room.f);
        for (int64_t j = 0; j < n; j++)
            key[j] = key_of_f32(v[j], c);
    } else {
        const int64_t *v = ch__as_i64(t, n, in, room.i);
        for (int64_t j = 0; j < n; j++)
            key[j] = ((uint64_t)v[j] ^ UINT64_C(1) << 63) ^ c.flip;
    }
}

static bool comes_before(ch_ranked a, ch_ranked b)
{
    return a.key < b.key || (a.key == b.key && a.index < b.index);
}

/* Element `index` of a line becomes element `to` of another; and that becomes zero. */
static void move(const ch_along *a, const char *x, int64_t index, char *out, int64_t to)
{
    size_t size = ch_dtype_bytes(a->dtype);

    memcpy(out + (size_t)(to * a->inner) * size, x + (size_t)(index * a->inner) * size, size);
}

static void clear(const ch_along *a, char *out, int64_t to)
{
    size_t size = ch_dtype_bytes(a->dtype);

    memset(out + (size_t)(to * a->inner) * size, 0, size);
}

/* Where a line begins, in an array of `rows` along the axis. */
static int64_t line_at(const ch_along *a, int64_t line, int64_t rows)
{
    return line / a->inner * rows * a->inner + line % a->inner;
}

/* ---- sort ---- */

static void sort_few(int64_t n, ch_ranked *x)
{
    for (int64_t i = 1; i < n; i++) {
        ch_ranked v = x[i];
        int64_t   j = i;

        for (; j > 0 && x[j - 1].key > v.key; j--)
            x[j] = x[j - 1];
        x[j] = v;
    }
}

/* By one byte of the key; false, and nothing moved, if all have the same. */
static bool sort_by_byte(int64_t n, const ch_ranked *x, ch_ranked *out, int shift)
{
    int64_t start[256] = {0}, sum = 0;

    for (int64_t i = 0; i < n; i++)
        start[x[i].key >> shift & 255]++;
    if (start[x[0].key >> shift & 255] == n)
        return false;
    for (int b = 0; b < 256; b++) {
        int64_t count = start[b];

        start[b] = sum;
        sum += count;
    }
    for (int64_t i = 0; i < n; i++)
        out[start[x[i].key >> shift & 255]++] = x[i];
    return true;
}

/* From the lowest byte to the highest; both ways are stable. Returns where the result is. */
static const ch_ranked *sort_ranked(int64_t n, ch_ranked *x, ch_ranked *other)
{
    if (n <= FEW) {
        sort_few(n, x);
        return x;
    }
    for (int shift = 0; shift < 64; shift += 8)
        if (sort_by_byte(n, x, other, shift)) {
            ch_ranked *was = x;

            x = other;
            other = was;
        }
    return x;
}

static void rank_all(const ch_along *a, const char *x, course c, ch_ranked *out)
{
    uint64_t key[PART];

    for (int64_t i = 0, n; i < a->n; i += n) {
        n = a->n - i < PART ? a->n - i : PART;
        keys_of(a->dtype, n, x + (size_t)(i * a->inner) * ch_dtype_bytes(a->dtype), a->inner, c,
                key);
        for (int64_t j = 0; j < n; j++)
            out[i + j] = (ch_ranked){key[j], i + j};
    }
}

void ch__sort(const ch_along *a, bool descending, int64_t from, int64_t to, const void *in,
              void *values, int64_t *index, ch_ranked *room)
{
    size_t size = ch_dtype_bytes(a->dtype);

    for (int64_t line = from; line < to; line++) {
        int64_t          first = line_at(a, line, a->n);
        const char      *x = (const char *)in + (size_t)first * size;
        const ch_ranked *r;

        rank_all(a, x, descending ? falling : rising, room);
        r = sort_ranked(a->n, room, room + a->n);
        for (int64_t i = 0; i < a->n; i++) {
            move(a, x, r[i].index, (char *)values + (size_t)first * size, i);
            index[first + i * a->inner] = r[i].index;
        }
    }
}

/* ---- the k largest ---- */

/* Lets heap[i] sink: the worst of a heap is on top. */
static void sink(int64_t k, ch_ranked *heap, int64_t i)
{
    ch_ranked v = heap[i];

    for (int64_t child; (child = 2 * i + 1) < k; i = child) {
        if (child + 1 < k && comes_before(heap[child], heap[child + 1]))
            child++;
        if (!comes_before(v, heap[child]))
            break;
        heap[i] = heap[child];
    }
    heap[i] = v;
}

static void sort_heap(int64_t k, ch_ranked *heap)
{
    for (int64_t end = k - 1; end > 0; end--) {
        ch_ranked worst = heap[0];

        heap[0] = heap[end];
        heap[end] = worst;
        sink(end, heap, 0);
    }
}

/* The k best of a line, in order. Later ones must be better than the worst to get in: so of
 * equals the earlier stay. */
static void best_of(const ch_along *a, int64_t k, const char *x, ch_ranked *heap)
{
    uint64_t key[PART];

    for (int64_t i = 0, n; i < a->n; i += n) {
        n = a->n - i < PART ? a->n - i : PART;
        keys_of(a->dtype, n, x + (size_t)i * ch_dtype_bytes(a->dtype), 1, falling, key);
        for (int64_t j = 0; j < n; j++) {
            if (i + j < k) {
                heap[i + j] = (ch_ranked){key[j], i + j};
                for (int64_t p = k / 2 - 1; i + j == k - 1 && p >= 0; p--)
                    sink(k, heap, p);
            } else if (key[j] < heap[0].key) {
                heap[0] = (ch_ranked){key[j], i + j};
                sink(k, heap, 0);
            }
        }
    }
    sort_heap(k, heap);
}

void ch__top_k(const ch_along *a, int64_t k, int64_t from, int64_t to, const void *in,
               void *values, int64_t *index, ch_ranked *room)
{
    size_t size = ch_dtype_bytes(a->dtype);

    for (int64_t line = from; line < to; line++) {
        const char *x = (const char *)in + (size_t)(line * a->n) * size;

        best_of(a, k, x, room);
        for (int64_t i = 0; i < k; i++) {
            move(a, x, room[i].index, (char *)values + (size_t)(line * k) * size, i);
            index[line * k + i] = room[i].index;
        }
    }
}

/* ---- where the largest is ---- */

static int64_t arg_line(const ch_along *a, course c, const char *x)
{
    uint64_t key[PART], best = 0;
    int64_t  where = a->n > 0 ? 0 : -1;

    for (int64_t i = 0, n; i < a->n; i += n) {
        n = a->n - i < PART ? a->n - i : PART;
        keys_of(a->dtype, n, x + (size_t)i * ch_dtype_bytes(a->dtype), 1, c, key);
        for (int64_t j = 0; j < n; j++)
            if (key[j] > best) {
                best = key[j];
                where = i + j;
            }
    }
    return where;
}

static void arg_strip(const ch_along *a, course c, int64_t width, const char *x, int64_t *out)
{
    uint64_t key[CH_SCAN_STRIP], best[CH_SCAN_STRIP] = {0};

    for (int64_t j = 0; j < width; j++)
        out[j] = a->n > 0 ? 0 : -1;
    for (int64_t i = 0; i < a->n; i++) {
        keys_of(a->dtype, width, x + (size_t)(i * a->inner) * ch_dtype_bytes(a->dtype), 1, c,
                key);
        for (int64_t j = 0; j < width; j++) {
            out[j] = key[j] > best[j] ? i : out[j];
            best[j] = key[j] > best[j] ? key[j] : best[j];
        }
    }
}

void ch__argmax(const ch_along *a, bool smallest, int64_t from, int64_t to, const void *in,
                int64_t *out)
{
    course c = {smallest ? UINT64_MAX : 0, UINT64_MAX}; /* NaN comes first in both */

    for (int64_t u = from; u < to; u++) {
        int64_t     width, result = ch__along_unit(a, u, 1, &width);
        const char *x = (const char *)in +
                        (size_t)ch__along_unit(a, u, a->n, &width) * ch_dtype_bytes(a->dtype);

        if (a->inner == 1)
            out[result] = arg_line(a, c, x);
        else
            arg_strip(a, c, width, x, out + result);
    }
}

/* ---- by position ---- */

void ch__take_along(const ch_along *a, int64_t k, int64_t from, int64_t to, const void *x,
                    const int64_t *index, void *out)
{
    size_t size = ch_dtype_bytes(a->dtype);

    for (int64_t line = from; line < to; line++) {
        int64_t     few = line_at(a, line, k);
        const char *in = (const char *)x + (size_t)line_at(a, line, a->n) * size;
        char       *at = (char *)out + (size_t)few * size;

        for (int64_t i = 0; i < k; i++) {
            int64_t p = index[few + i * a->inner];

            if (p >= 0 && p < a->n)
                move(a, in, p, at, i);
            else
                clear(a, at, i);
        }
    }
}

void ch__put_along(const ch_along *a, int64_t k, int64_t from, int64_t to, const void *x,
                   const int64_t *index, void *out)
{
    size_t size = ch_dtype_bytes(a->dtype);

    for (int64_t line = from; line < to; line++) {
        int64_t     few = line_at(a, line, k);
        const char *in = (const char *)x + (size_t)few * size;
        char       *at = (char *)out + (size_t)line_at(a, line, a->n) * size;

        for (int64_t i = 0; i < a->n; i++)
            clear(a, at, i);
        for (int64_t i = 0; i < k; i++) {
            int64_t p = index[few + i * a->inner];

            if (p >= 0 && p < a->n)
                move(a, in, i, at, p);
        }
    }
}
