/* kernel/sort.c -- order along an axis.
 *
 * Elements become keys (sort_loops.c) in parts of PART elements. Sort uses insertion sort for a
 * few elements and radix sort otherwise; top k uses a heap; argmax compares keys. ch_axis_view
 * (kernel/scan.h) is the view of the array. The callers are ops/sort.c and ops/along.c.
 *
 * Invariants:
 *   1. The order of keys is the order of elements.
 *   2. Among equal keys the earlier position comes first.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/sort.h"

#include <string.h>

#include "kernel/widen.h"
#include "tensor/tensor.h"

enum { PART = CH_SCAN_STRIP, FEW = 64 };

static const ch_sort_table *const levels[] = CH_SIMD_LIST(ch__sort_table);

static const ch_sort_table *loops(void)
{
    return levels[ch__simd_level()];
}

/* ---- keys ---- */

static const ch_sort_order rising = {0, UINT64_MAX}, falling = {UINT64_MAX, 0};

/* Returns n elements that are `step` apart as a contiguous array: x itself, or a copy in
 * `buffer`. */
static const void *gathered(size_t size, int64_t n, const char *x, int64_t step, char *buffer)
{
    if (step == 1)
        return x;
    for (int64_t j = 0; j < n; j++)
        memcpy(buffer + (size_t)j * size, x + (size_t)(j * step) * size, size);
    return buffer;
}

/* Computes the keys of n elements, at most PART, that are `step` apart. */
static void keys_of(ch_dtype t, int64_t n, const char *x, int64_t step, ch_sort_order order,
                    uint64_t *key)
{
    _Alignas(8) char row[PART * sizeof(double)];
    union {
        float   f[PART];
        int64_t i[PART];
    } buffer;
    const void *in = gathered(ch_dtype_bytes(t), n, x, step, row);

    if (t == CH_F64)
        loops()->keys_f64(n, in, order, key);
    else if (ch_dtype_is_float(t))
        loops()->keys_f32(n, ch__as_f32(t, n, in, buffer.f), order, key);
    else
        loops()->keys_i64(n, ch__as_i64(t, n, in, buffer.i), order, key);
}

/* Copies element `index` of a line to element `to` of another line. clear() sets it to zero. */
static void move(const ch_axis_view *a, const char *x, int64_t index, char *out, int64_t to)
{
    size_t size = ch_dtype_bytes(a->dtype);

    memcpy(out + (size_t)(to * a->inner) * size, x + (size_t)(index * a->inner) * size, size);
}

static void clear(const ch_axis_view *a, char *out, int64_t to)
{
    size_t size = ch_dtype_bytes(a->dtype);

    memset(out + (size_t)(to * a->inner) * size, 0, size);
}

/* Returns the offset of a line in an array with `rows` rows along the axis. */
static int64_t line_at(const ch_axis_view *a, int64_t line, int64_t rows)
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

/* For each byte of the keys: the number of keys with each value. */
typedef struct histogram {
    int64_t of[8][256];
} histogram;

static void count_bytes(int64_t n, const ch_ranked *x, histogram *h)
{
    memset(h, 0, sizeof(*h));
    for (int64_t i = 0; i < n; i++)
        for (int b = 0; b < 8; b++)
            h->of[b][x[i].key >> 8 * b & 255]++;
}

/* Sorts by byte b of the key. The sort is stable. Overwrites `count`, the histogram of the
 * byte. */
static void sort_by_byte(int64_t n, const ch_ranked *x, ch_ranked *out, int b, int64_t *count)
{
    int64_t sum = 0;

    for (int v = 0; v < 256; v++) {
        int64_t start = sum;

        sum += count[v];
        count[v] = start;
    }
    for (int64_t i = 0; i < n; i++)
        out[count[x[i].key >> 8 * b & 255]++] = x[i];
}

/* Sorts n elements. The radix sort goes from the lowest byte to the highest and skips a byte
 * that is the same in all keys. Both algorithms are stable. Returns the array with the result,
 * x or other. */
static const ch_ranked *sort_ranked(int64_t n, ch_ranked *x, ch_ranked *other)
{
    histogram h;

    if (n <= FEW) {
        sort_few(n, x);
        return x;
    }
    count_bytes(n, x, &h);
    for (int b = 0; b < 8; b++)
        if (h.of[b][x[0].key >> 8 * b & 255] < n) {
            ch_ranked *previous = x;

            sort_by_byte(n, x, other, b, h.of[b]);
            x = other;
            other = previous;
        }
    return x;
}

static void rank_all(const ch_axis_view *a, const char *x, ch_sort_order order, ch_ranked *out)
{
    uint64_t key[PART];

    for (int64_t i = 0, n; i < a->n; i += n) {
        n = a->n - i < PART ? a->n - i : PART;
        keys_of(a->dtype, n, x + (size_t)(i * a->inner) * ch_dtype_bytes(a->dtype), a->inner,
                order, key);
        for (int64_t j = 0; j < n; j++)
            out[i + j] = (ch_ranked){key[j], i + j};
    }
}

void ch__sort(const ch_axis_view *a, bool descending, int64_t from, int64_t to, const void *in,
              void *values, int64_t *index, ch_ranked *buffer)
{
    size_t size = ch_dtype_bytes(a->dtype);

    for (int64_t line = from; line < to; line++) {
        int64_t          first = line_at(a, line, a->n);
        const char      *x = (const char *)in + (size_t)first * size;
        const ch_ranked *r;

        rank_all(a, x, descending ? falling : rising, buffer);
        r = sort_ranked(a->n, buffer, buffer + a->n);
        for (int64_t i = 0; i < a->n; i++) {
            move(a, x, r[i].index, (char *)values + (size_t)first * size, i);
            index[first + i * a->inner] = r[i].index;
        }
    }
}

/* ---- top k ---- */

/* A larger key is better; of equal keys, the earlier position. */
static bool is_better(ch_ranked a, ch_ranked b)
{
    return a.key > b.key || (a.key == b.key && a.index < b.index);
}

/* Restores the heap below heap[i]. The worst element is at the top. */
static void sift_down(int64_t k, ch_ranked *heap, int64_t i)
{
    ch_ranked v = heap[i];

    for (int64_t child; (child = 2 * i + 1) < k; i = child) {
        if (child + 1 < k && is_better(heap[child], heap[child + 1]))
            child++;
        if (!is_better(v, heap[child]))
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
        sift_down(end, heap, 0);
    }
}

/* Adds n elements, of which the first is number i of the line. If the heap is full, an element
 * must be better than the worst to enter, so of equal elements the earlier stay. */
static void heap_push_keys(int64_t k, ch_ranked *heap, int64_t i, int64_t n,
                           const uint64_t *key)
{
    for (int64_t j = 0; j < n; j++)
        if (i + j < k) {
            heap[i + j] = (ch_ranked){key[j], i + j};
            for (int64_t p = k / 2 - 1; i + j == k - 1 && p >= 0; p--)
                sift_down(k, heap, p);
        } else if (key[j] > heap[0].key) {
            heap[0] = (ch_ranked){key[j], i + j};
            sift_down(k, heap, 0);
        }
}

/* Finds the k best elements of a line, in order. */
static void best_of(const ch_axis_view *a, int64_t k, const char *x, ch_ranked *heap)
{
    uint64_t key[PART];

    for (int64_t i = 0, n; i < a->n; i += n) {
        n = a->n - i < PART ? a->n - i : PART;
        keys_of(a->dtype, n, x + (size_t)i * ch_dtype_bytes(a->dtype), 1, rising, key);
        if (i < k || loops()->largest(n, key) > heap[0].key)
            heap_push_keys(k, heap, i, n, key);
    }
    sort_heap(k, heap);
}

void ch__top_k(const ch_axis_view *a, int64_t k, int64_t from, int64_t to, const void *in,
               void *values, int64_t *index, ch_ranked *buffer)
{
    size_t size = ch_dtype_bytes(a->dtype);

    for (int64_t line = from; line < to; line++) {
        const char *x = (const char *)in + (size_t)(line * a->n) * size;

        best_of(a, k, x, buffer);
        for (int64_t i = 0; i < k; i++) {
            move(a, x, buffer[i].index, (char *)values + (size_t)(line * k) * size, i);
            index[line * k + i] = buffer[i].index;
        }
    }
}

/* ---- argmax ---- */

static int64_t arg_line(const ch_axis_view *a, ch_sort_order order, const char *x)
{
    uint64_t key[PART], best = 0, most;
    int64_t  where = a->n > 0 ? 0 : -1;

    for (int64_t i = 0, n, j; i < a->n; i += n) {
        n = a->n - i < PART ? a->n - i : PART;
        keys_of(a->dtype, n, x + (size_t)i * ch_dtype_bytes(a->dtype), 1, order, key);
        most = loops()->largest(n, key);
        if (most <= best)
            continue;
        for (j = 0; key[j] != most; j++) {
        }
        best = most;
        where = i + j;
    }
    return where;
}

static void arg_strip(const ch_axis_view *a, ch_sort_order order, int64_t width, const char *x,
                      int64_t *out)
{
    uint64_t key[CH_SCAN_STRIP], best[CH_SCAN_STRIP] = {0};

    for (int64_t j = 0; j < width; j++)
        out[j] = a->n > 0 ? 0 : -1;
    for (int64_t i = 0; i < a->n; i++) {
        keys_of(a->dtype, width, x + (size_t)(i * a->inner) * ch_dtype_bytes(a->dtype), 1,
                order, key);
        loops()->update_largest(width, key, i, best, out);
    }
}

void ch__argmax(const ch_axis_view *a, bool smallest, int64_t from, int64_t to, const void *in,
                int64_t *out)
{
    /* NaN has the largest key in both orders. */
    ch_sort_order order = {smallest ? UINT64_MAX : 0, UINT64_MAX};

    for (int64_t u = from; u < to; u++) {
        int64_t     width, result = ch__axis_view_unit(a, u, 1, &width);
        const char *x = (const char *)in + (size_t)ch__axis_view_unit(a, u, a->n, &width) *
                                               ch_dtype_bytes(a->dtype);

        if (a->inner == 1)
            out[result] = arg_line(a, order, x);
        else
            arg_strip(a, order, width, x, out + result);
    }
}

/* ---- take and put by position ---- */

void ch__take_along(const ch_axis_view *a, int64_t k, int64_t from, int64_t to, const void *x,
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

void ch__put_along(const ch_axis_view *a, int64_t k, int64_t from, int64_t to, const void *x,
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
