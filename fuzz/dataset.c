/* fuzz/dataset.c -- decodes datasets and restores positions, from arbitrary bytes.
 *
 * The first byte selects a dataset or a position. A dataset that was decoded must print, and
 * its encoded bytes must decode to the same bytes again. If it reads no files, it also runs for
 * some elements. An iterator must restore a position or return an error, and then return
 * elements or errors. The mutator starts with a valid dataset or position and changes a field
 * of its messages.
 *
 * covers: src/data/codec.c src/data/position.c src/data/print.c src/data/row_ref.c
 * longest: 3000
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "cohort/cohort.h"
#include "dataset/alter.h"

static void silence(const ch_log_record *r, void *arg)
{
    (void)r;
    (void)arg;
}

/* ---- pipelines whose positions are restored ---- */

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

static ch_dataset *rows(void)
{
    ch_tensor  *t = NULL;
    ch_dataset *d;

    MUST(ch_tensor_new(CH_I64, ch_shape_of(20, 2), &t) == CH_OK);
    d = ch_dataset_slices(1, &t, NULL);
    ch_tensor_unref(t);
    return d;
}

static ch_dataset *words_of_files(void)
{
    return ch_dataset_file_list(2, (const char *[]){"/none/a", "/none/b"});
}

/* PASSES: its positions have rows of several passes. */
enum { KINDS = 9, PASSES = 7 };

static ch_dataset *pipeline(int kind)
{
    ch_dataset *d = ch_dataset_range(0, 30, 1), *divided = NULL;

    switch (kind) {
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
    case 5:
        ch_dataset_unref(d);
        return ch_dataset_prefetch(words_of_files(), 2);
    case 6:
        ch_dataset_unref(d);
        d = ch_dataset_batch(ch_dataset_shuffle(rows(), 9, NULL), 3, NULL);
        d = ch_dataset_map(d, doubled, NULL, NULL);
        MUST(ch_dataset_distribute(d, &(ch_input_context){.n_replicas = 2}, &divided) == CH_OK);
        ch_dataset_unref(d);
        return divided;
    case PASSES:
        ch_dataset_unref(d);
        d = ch_dataset_batch(ch_dataset_shuffle(rows(), 9, NULL), 3, NULL);
        return ch_dataset_repeat(ch_dataset_map(d, doubled, NULL, NULL), 3);
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

static ch_dataset *made[KINDS];

/* Checks the memory limit (PROMISES S6): 16 MiB plus twice the size of the input. */
static void end_watch(size_t size)
{
    MUST(ch__mem_peak() <= 2 * (int64_t)size + (17 << 20));
    ch__mem_watch(false);
}

/* Replicas that read the pipeline PASSES. If one of their elements is in the position, the
 * iterator is left with an element that a later position must have made again. */
enum { REPLICAS = 3 };

static void go_to(int kind, const void *data, size_t size, unsigned h)
{
    ch_iterator *it = NULL;
    void        *bytes = NULL;
    size_t       n = 0;
    ch_status    rc;

    MUST(ch_iterator_new(
             made[kind],
             &(ch_iterator_options){.go_on = true, .n_replicas = kind == PASSES ? REPLICAS : 1},
             &it) == CH_OK);
    if (h % 16 == 0)
        ch__mem_fail_at(1 + h / 16 % 100);
    ch__mem_watch(true);
    rc = ch_iterator_restore(it, data, size);
    end_watch(size);
    if (rc == CH_OK) {
        take(it, (int)(h / 16 % 6));
        if (h % 16 == 1)
            ch__mem_fail_at(1 + h / 16 % 30);
        if (ch_iterator_save(it, &bytes, &n) == CH_OK)
            ch_bytes_free(bytes);
        ch__mem_fail_at(0);
        take(it, 20);
    }
    ch__mem_fail_at(0);
    ch_iterator_unref(it);
}

/* ---- descriptions ---- */

/* Returns true if the dataset may run here: no stage reads or skips more than a few
 * elements. */
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

static void decode(const void *data, size_t size, unsigned h)
{
    ch_dataset  *d = NULL, *back = NULL;
    ch_iterator *it = NULL;
    void        *bytes = NULL, *again = NULL;
    size_t       n = 0, m = 0;
    char         text[4096];

    if (h % 16 == 0)
        ch__mem_fail_at(1 + h / 16 % 60);
    ch__mem_watch(true);
    if (ch_dataset_decode(data, size, &d) == CH_OK && ch_dataset_encode(d, &bytes, &n) == CH_OK)
        ch_bytes_free(bytes);
    end_watch(size);
    ch__mem_fail_at(0);
    if (d == NULL)
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

/* ---- valid datasets ---- */

static void is_small_number(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_less(ch_step_in(s, 0), ch_number(s, 9)));
}

/* Returns a dataset that is decoded but not run. These have the stages that `pipeline`
 * lacks. */
static ch_dataset *description(int kind)
{
    static const ch_tensor_spec row = {.name = "a", .dtype = CH_F32, .shape = {1, {3}}};
    const ch_feature            feature[] = {
                   {.name = "x", .dtype = CH_F32, .shape = ch_shape_of(2)},
                   {.name = "y", .dtype = CH_I64, .optional = true, .missing = 1}};
    const ch_csv_column column[] = {{.name = "a", .dtype = CH_I64, .missing = "3"},
                                    {.name = "b", .dtype = CH_STR}};
    ch_dataset         *d = ch_dataset_range(0, 30, 1), *e = NULL;

    switch (kind) {
    case 0:
        ch_dataset_unref(d);
        return ch_dataset_parse_examples(
            ch_dataset_tfrecord(ch_dataset_files("/none/*", NULL), NULL), 2, feature);
    case 1:
        ch_dataset_unref(d);
        return ch_dataset_csv(words_of_files(), 2, column, NULL);
    case 2:
        ch_dataset_unref(d);
        return ch_dataset_zip(
            2, (ch_dataset *[]){ch_dataset_libsvm(words_of_files(), 9, NULL),
                                ch_dataset_fixed_records(words_of_files(), 9, 1, 2, NULL)});
    case 3:
        ch_dataset_unref(d);
        return ch_dataset_concatenate(
            2, (ch_dataset *[]){ch_dataset_npz(words_of_files(), 1, &row, NULL),
                                ch_dataset_npy(words_of_files(), &row, NULL)});
    case 4:
        return ch_dataset_sample_from(
            2,
            (ch_dataset *[]){
                ch_dataset_filter(d, is_small_number, NULL),
                ch_dataset_take_while(ch_dataset_range(0, 9, 1), is_small_number, NULL)},
            (double[]){1, 2}, NULL);
    case 5:
        ch_dataset_unref(d);
        return ch_dataset_enumerate(
            ch_dataset_select(ch_dataset_skip(ch_dataset_take(texts(), 4), 1), 1,
                              (const char *[]){"t=text"}),
            1);
    case 6:
        return ch_dataset_flat_map(
            ch_dataset_batch(ch_dataset_prefetch(ch_dataset_shard(d, 3, 1), 2), 2,
                             &(ch_batch_options){.ragged = true, .drop_remainder = true}),
            rows_of, NULL);
    default:
        e = ch_dataset_batch(d, 4, NULL);
        MUST(ch_dataset_distribute(
                 e, &(ch_input_context){.n_pipelines = 2, .pipeline = 1, .n_replicas = 4},
                 &d) == CH_OK);
        ch_dataset_unref(e);
        return d;
    }
}

enum { DESCRIPTIONS = 8, PLACES = 9, GOOD = KINDS * (1 + PLACES) + DESCRIPTIONS + 1 };

static struct {
    uint8_t *bytes;
    size_t   n;
} good[GOOD];

static void keep_good(int i, int first, const void *bytes, size_t n)
{
    good[i].bytes = malloc(n + 1);
    good[i].bytes[0] = (uint8_t)first;
    memcpy(good[i].bytes + 1, bytes, n);
    good[i].n = n + 1;
}

static void keep_encoded(int i, ch_dataset *d)
{
    void  *bytes = NULL;
    size_t n = 0;

    MUST(ch_dataset_encode(d, &bytes, &n) == CH_OK);
    keep_good(i, 0, bytes, n);
    ch_bytes_free(bytes);
    ch_dataset_unref(d);
}

static void keep_place(int i, int kind, int taken)
{
    ch_iterator *it = NULL;
    void        *bytes = NULL;
    size_t       n = 0;

    MUST(ch_iterator_new(made[kind], NULL, &it) == CH_OK);
    take(it, taken);
    MUST(ch_iterator_save(it, &bytes, &n) == CH_OK);
    keep_good(i, 128 + kind, bytes, n);
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
}

/* Sets the numbers of a stage of a position. */
static void set_numbers(Cohort__Position *p, const char *stage, size_t n, int64_t *number)
{
    for (size_t i = 0; i < p->n_states; i++)
        if (strcmp(p->states[i]->stage, stage) == 0) {
            p->states[i]->numbers = number;
            p->states[i]->n_numbers = n;
        }
}

/* Keeps a position of the pipeline PASSES as threads that prefetch leave it behind: the step has
 * an element, which failed, and the batches begin again two passes before their input. */
static void keep_passes(int i)
{
    enum { BATCH = 3, FIRST = PASSES * (1 + PLACES) + 1 };
    static uint8_t    row[] = {3, 7, 1, 0, 19, 4, 5, 12};
    Cohort__Element   fault, run;
    Cohort__Element  *of_step = &fault, *of_batch = &run;
    Cohort__Position *p =
        cohort__position__unpack(NULL, good[FIRST].n - 1, good[FIRST].bytes + 1);
    Cohort__Position q;
    Cohort__State    state[8], *at[8];
    ch_iterator     *it = NULL;
    void            *bytes;

    MUST(p != NULL && p->n_states <= 8 && strcmp(p->states[BATCH]->stage, "batch") == 0);
    q = *p;
    q.states = at;
    for (size_t k = 0; k < p->n_states; k++) {
        state[k] = *p->states[k];
        at[k] = &state[k];
    }
    cohort__element__init(&fault);
    cohort__element__init(&run);
    fault.code = CH_ABORTED;
    fault.error = (char[]){"lost"};
    run.count = 8;
    run.n_tensors = 1;
    run.tensors = (uint32_t[]){0};
    run.rows = (ProtobufCBinaryData){sizeof(row), row};
    state[0].n_elements = state[BATCH].n_elements = 1;
    state[0].elements = &of_step;
    state[BATCH].elements = &of_batch;
    set_numbers(&q, "iterator", 8, (int64_t[]){0, 0, 1, 0, 0, 0, 0, 0});
    set_numbers(&q, "repeat", 5, (int64_t[]){0, 0, 5, 0, 1});
    set_numbers(&q, "map", 6, (int64_t[]){0, 5, 0, 0, 0, 0});
    set_numbers(&q, "batch", 9, (int64_t[]){0, 15, 0, 0, 8, 2, 5, 8, 0});
    set_numbers(&q, "shuffle", 4, (int64_t[]){2, 0, 0, 0});
    set_numbers(&q, "slices", 2, (int64_t[]){2, 0});
    bytes = malloc(cohort__position__get_packed_size(&q));
    keep_good(i, 128 + PASSES, bytes, cohort__position__pack(&q, bytes));
    MUST(ch_iterator_new(made[PASSES], &(ch_iterator_options){.n_replicas = REPLICAS}, &it) ==
         CH_OK);
    MUST(ch_iterator_restore(it, good[i].bytes + 1, good[i].n - 1) == CH_OK);
    ch_iterator_unref(it);
    free(bytes);
    cohort__position__free_unpacked(p, NULL);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    int i = 0;

    ch_log_set_sink(silence, NULL, CH_LOG_ERROR);
    for (int k = 0; k < KINDS; k++) {
        made[k] = without_threads(pipeline(k));
        keep_encoded(i++, without_threads(pipeline(k)));
        for (int n = 0; n < PLACES; n++)
            keep_place(i++, k, n);
    }
    for (int k = 0; k < DESCRIPTIONS; k++)
        keep_encoded(i++, description(k));
    keep_passes(i);
    (void)argc, (void)argv;
    return 0;
}

/* Sometimes starts with a valid input. Most changes keep the message decodable. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    dice   d = {seed};
    size_t n = 0;
    int    i = (int)roll(&d, GOOD);

    if ((size < 2 || roll(&d, 12) == 0) && good[i].n <= most) {
        memcpy(data, good[i].bytes, good[i].n);
        size = good[i].n;
    }
    if (size > 1 && roll(&d, 5) > 0)
        n = data[0] < 128 ? alter_dataset(&d, data + 1, size - 1, most - 1)
                          : alter_place(&d, data + 1, size - 1, most - 1);
    return n > 0 ? n + 1 : LLVMFuzzerMutate(data, size, most);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t  live = ch__mem_live();
    unsigned h = fuzz_hash(data, size);

    if (size == 0)
        return 0;
    if (data[0] < 128)
        decode(data + 1, size - 1, h);
    else
        go_to((data[0] - 128) % KINDS, data + 1, size - 1, h);
    MUST(ch__mem_live() == live);
    return 0;
}
