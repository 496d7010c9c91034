/* fuzz/dataset.c -- what decoding a dataset, and going to a place in one, make of anything.
 *
 * A dataset that was decoded must print and encode to bytes that decode to the same bytes again; one
 * that reads no files gives some elements. A place is gone to or refused, and what follows is
 * elements or errors. The first byte says which of the two it is. Now and then the mutator begins
 * with a dataset or a place that is good.
 *
 * covers: src/data/codec.c src/data/place.c
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/cohort.h"
#include "data/data.h"
#include "fuzz.h"

static void silence(const ch_log_record *r, void *arg)
{
    (void)r;
    (void)arg;
}

/* ---- pipelines whose places are tried ---- */

static void doubled(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_mul(ch_step_in(s, 0), ch_number(s, 2)));
}

static ch_dataset *rows_of(ch_dataset *element, void *arg)
{
    (void)arg;
    return ch_dataset_unbatch(element);
}

static ch_dataset *texts(void)
{
    ch_tensor  *t = NULL;
    ch_dataset *d;

    MUST(ch_tensor_new(CH_STR, ch_shape_of(5), &t) == CH_OK);
    for (int64_t i = 0; i < 5; i++)
        MUST(ch_tensor_set_str(t, &i, (ch_str){"some text", (size_t)i}) == CH_OK);
    d = ch_dataset_slices(1, &t, (const char *[]){"text"});
    ch_tensor_unref(t);
    return d;
}

static ch_dataset *pipeline(int kind)
{
    ch_dataset *d = ch_dataset_range(0, 30, 1);

    switch (kind % 6) {
    case 0:
        return ch_dataset_batch(ch_dataset_shuffle(d, 7, NULL), 4, NULL);
    case 1:
        return ch_dataset_repeat(ch_dataset_map(d, doubled, NULL, NULL), 2);
    case 2:
        return ch_dataset_interleave(ch_dataset_batch(d, 5, NULL), rows_of, NULL,
                                     &(ch_interleave_options){.cycle = 3});
    case 3:
        return ch_dataset_window(d, 4, NULL, NULL, &(ch_window_options){.shift = 2});
    case 4:
        ch_dataset_unref(d);
        return ch_dataset_padded_batch(ch_dataset_shuffle(texts(), 3, NULL), 2, NULL);
    default:
        return ch_dataset_rebatch(
            ch_dataset_concatenate(
                2, (ch_dataset *[]){ch_dataset_batch(ch_dataset_cache(d, NULL), 4, NULL),
                                    ch_dataset_batch(ch_dataset_range(0, 9, 2), 3, NULL)}),
            2, (int64_t[]){3, 1}, NULL);
    }
}

static ch_dataset *without_threads(ch_dataset *d)
{
    return ch_dataset_with_options(d, &(ch_dataset_options){.threads = CH_OFF});
}

static void take(ch_iterator *it, int n)
{
    for (int i = 0; i < n; i++) {
        ch_tuple *t = NULL;
        ch_status rc = ch_iterator_next(it, &t);

        if (rc == CH_OK && t == NULL)
            return;
        ch_tuple_unref(t);
    }
}

static void go_to(int kind, const void *data, size_t size)
{
    static ch_dataset *made[6];
    ch_iterator       *it = NULL;
    void              *bytes = NULL;
    size_t             n = 0;

    kind %= 6;
    if (made[kind] == NULL)
        made[kind] = without_threads(pipeline(kind));
    MUST(ch_iterator_new(made[kind], &(ch_iterator_options){.go_on = true}, &it) == CH_OK);
    if (ch_iterator_restore(it, data, size) == CH_OK) {
        take(it, 20);
        if (ch_iterator_save(it, &bytes, &n) == CH_OK)
            ch_bytes_free(bytes);
    }
    ch_iterator_unref(it);
}

/* ---- descriptions ---- */

/* Small enough to be run here: no stage may take in, or pass over, more than a few elements. */
static bool is_small(const ch_dataset *d)
{
    static const char *const quick[] = {
        "element",     "options",   "tensors", "slices",  "range",    "take",   "zip", "map",
        "concatenate", "enumerate", "select",  "unbatch", "prefetch", "sample", NULL};
    bool is = false;

    for (int i = 0; quick[i] != NULL; i++)
        is |= strcmp(d->stage->name, quick[i]) == 0;
    for (int i = 0; i < d->n_parts; i++)
        for (int k = 0; k < d->spec[i].shape.rank; k++)
            is &= d->spec[i].shape.dim[k] < 64;
    for (int i = 0; i < d->n_in && is; i++)
        is = is_small(d->in[i]);
    return is;
}

static void decode(const void *data, size_t size)
{
    ch_dataset  *d = NULL, *back = NULL;
    ch_iterator *it = NULL;
    void        *bytes = NULL, *again = NULL;
    size_t       n = 0, m = 0;
    char         text[4096];

    if (ch_dataset_decode(data, size, &d) != CH_OK)
        return;
    ch_dataset_print(d, text, sizeof(text));
    MUST(ch_dataset_encode(d, &bytes, &n) == CH_OK);
    MUST(ch_dataset_decode(bytes, n, &back) == CH_OK);
    MUST(ch_dataset_encode(back, &again, &m) == CH_OK);
    MUST(n == m && memcmp(bytes, again, n) == 0);
    ch_bytes_free(bytes);
    ch_bytes_free(again);
    if (is_small(d)) {
        ch_dataset_unref(back);
        back = without_threads(ch_dataset_ref(d));
        if (ch_iterator_new(back, &(ch_iterator_options){.go_on = true}, &it) == CH_OK)
            take(it, 5);
        ch_iterator_unref(it);
    }
    ch_dataset_unref(back);
    ch_dataset_unref(d);
}

/* ---- good ones ---- */

static size_t good_bytes(unsigned seed, uint8_t *to, size_t most)
{
    ch_dataset  *d = without_threads(pipeline((int)(seed % 6)));
    ch_iterator *it = NULL;
    void        *bytes = NULL;
    size_t       n = 0;

    if (seed / 6 % 2 == 0) {
        MUST(ch_dataset_encode(d, &bytes, &n) == CH_OK);
        to[0] = 0;
    } else {
        MUST(ch_iterator_new(d, NULL, &it) == CH_OK);
        take(it, (int)(seed / 12 % 9));
        MUST(ch_iterator_save(it, &bytes, &n) == CH_OK);
        to[0] = (uint8_t)(128 + seed % 6);
    }
    if (n + 1 <= most)
        memcpy(to + 1, bytes, n);
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    return n + 1 <= most ? n + 1 : 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    size_t good = seed % 16 == 0 ? good_bytes(seed / 16, data, most) : 0;

    return LLVMFuzzerMutate(data, good > 0 ? good : size, most);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_silent;

    if (!is_silent)
        ch_log_set_sink(silence, NULL, CH_LOG_ERROR);
    is_silent = true;
    if (size == 0)
        return 0;
    if (data[0] < 128)
        decode(data + 1, size - 1);
    else
        go_to(data[0] - 128, data + 1, size - 1);
    return 0;
}
