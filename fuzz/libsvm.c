/* fuzz/libsvm.c -- the LibSVM parser, with arbitrary lines.
 *
 * The dense and the sparse element of a line must have the same values. An element that is
 * written as a line must be parsed to the same element.
 *
 * covers: src/data/format/libsvm.c
 * longest: 200
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/mem.h"
#include "data/format/libsvm.h"
#include "element.h"
#include "tokens.h"

enum { N_FEATURES = 40 };

/* Parses a line. Returns NULL if the line is empty (*rc is CH_OK) or invalid (*rc is the
 * error). */
static ch_element *parse(const ch_libsvm *o, const char *line, size_t size, ch_status *rc)
{
    char          *alone = fuzz_alone(line, size);
    ch_element    *e = NULL;
    ch_tensor_spec spec[3];

    *rc = ch__libsvm_parse(o, (ch_str){alone, size}, &e);
    free(alone);
    MUST(*rc == CH_OK || *rc == CH_DATA_LOSS || *rc == CH_RESOURCE_EXHAUSTED);
    MUST(*rc == CH_OK || e == NULL);
    if (e != NULL)
        fuzz_check_element(e, ch__libsvm_spec(o, spec), spec);
    return e;
}

static bool is_same(float a, float b)
{
    return isnan(a) ? isnan(b) : a == b;
}

static void check_same(const ch_element *dense, const ch_element *sparse)
{
    const float   *x = dense->part[0].data, *y = dense->part[1].data;
    const int64_t *id = sparse->part[0].data;
    const float   *value = sparse->part[1].data;
    int64_t        n = sparse->part[0].shape.dim[0];
    int            n_more = 0;

    MUST(is_same(*y, *(const float *)sparse->part[2].data));
    MUST(n == sparse->part[1].shape.dim[0]);
    for (int64_t i = 0; i < n; i++) {
        MUST(id[i] >= 0 && id[i] < N_FEATURES && is_same(x[id[i]], value[i]));
        for (int64_t k = 0; k < i; k++)
            MUST(id[k] != id[i]);
    }
    for (int i = 0; i < N_FEATURES; i++)
        n_more += x[i] != 0;
    MUST(n_more <= n);
}

/* Writes an element as a line, which must be parsed to the same element. */
static void check_again(const ch_libsvm *o, const ch_element *e)
{
    char           text[8000];
    const int64_t *id = e->part[0].data;
    const float   *value = e->part[1].data;
    int64_t        n = e->part[0].shape.dim[0];
    ch_status      rc;
    size_t at = (size_t)snprintf(text, sizeof(text), "%.9g", *(const float *)e->part[2].data);

    for (int64_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, " %lld:%.9g",
                               (long long)id[i] + !o->from_zero, value[i]);
    ch_element *again = parse(o, text, at, &rc);
    MUST(rc == CH_OK && again != NULL && again->part[0].shape.dim[0] == n);
    for (int64_t i = 0; i < n; i++)
        MUST(((const int64_t *)again->part[0].data)[i] == id[i] &&
             is_same(((const float *)again->part[1].data)[i], value[i]));
    ch__element_free(again);
}

static void check_line(bool from_zero, const char *line, size_t size)
{
    const ch_libsvm dense = {N_FEATURES, from_zero, false};
    const ch_libsvm sparse = {N_FEATURES, from_zero, true}, any = {0, from_zero, true};
    ch_status       rc[3];
    ch_element     *x = parse(&dense, line, size, &rc[0]);
    ch_element     *y = parse(&sparse, line, size, &rc[1]);
    ch_element     *z = parse(&any, line, size, &rc[2]);

    MUST(rc[0] == rc[1] && (x != NULL) == (y != NULL));
    MUST(rc[2] == CH_OK || rc[1] != CH_OK);
    if (x != NULL) {
        check_same(x, y);
        check_again(&sparse, y);
    }
    ch__element_free(x);
    ch__element_free(y);
    ch__element_free(z);
}

/* Repeats the call with an allocation that fails. */
static void check_memory(const char *line, size_t size, unsigned which)
{
    const ch_libsvm o = {0, true, true};
    ch_status       rc;

    ch__mem_fail_at(1 + which % 2);
    ch__element_free(parse(&o, line, size, &rc));
    ch__mem_fail_at(0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t     live = ch__mem_live();
    const char *at = (const char *)data + 1, *end = at + size - 1;

    if (size == 0)
        return 0;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t      n = (size_t)((newline != NULL ? newline : end) - at);

        check_line(data[0] & 1, at, n);
        if (data[0] & 2)
            check_memory(at, n, data[0] / 4);
        at += n + 1;
    }
    MUST(ch__mem_live() == live);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static const char *const token[] = {
        "1",     "-1 ",      "0",        " 1:",     " 2:0.5",
        " 40:1", " 41:",     ":",        "qid:",    " qid:3 ",
        "#",     " ",        "\t",       "\n",      "inf",
        "nan",   "1e-40",    " 7:7 3:3", "+",       "-",
        ".5",    "99999999", " 0:1",     "\n1 5:2", " -9223372036854775808:1",
        NULL};
    dice   d = {seed};
    size_t n = fuzz_mutate_text(&d, data, size, max_size, 1, token);

    return n > 0 ? n : LLVMFuzzerMutate(data, size, max_size);
}
