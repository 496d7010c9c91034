/* fuzz/restore.c -- restores a checkpoint with an arbitrary object graph into objects.
 *
 * The input: a byte with the shape of the graph's tensor, 8 bytes of all counts in the
 * checkpoint, then the graph. The graph may give any value of the checkpoint to any object. A
 * restore that fails must change nothing.
 *
 * covers: src/save/match.c src/save/restore.c
 * longest: 700
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "ckpt/ckpt.h"
#include "ckpt/object_graph.h"
#include "cohort/cohort.h"
#include "file/help.h"
#include "save/save.h"
#include "train/parts.h"

enum { MOST_ITEMS = 16 };

typedef struct items {
    int              n;
    ch_ckpt_item     item[MOST_ITEMS];
    const void      *data[MOST_ITEMS];
    ch_bytes_builder text[MOST_ITEMS]; /* the bytes of strings */
} items;

/* The objects of the program, which all inputs share. */
static ch_var        *var;
static ch_optimizer  *optimizer;
static ch_function   *function;
static ch_iterator   *iterator;
static ch_checkpoint *checkpoint;
static void          *position; /* the first of the iterator */
static size_t         position_bytes;
static int            n_loads;

static void step(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "y", ch_number(s, 1));
}

static ch_status load_state(void *self, ch_tuple *state)
{
    (void)self;
    (void)ch_tuple_count(state);
    n_loads++;
    return CH_OK;
}

static void ignore(const ch_log_record *r, void *arg)
{
    (void)r;
    (void)arg;
}

static void begin(void)
{
    static const ch_state_ops ops = {NULL, load_state};
    ch_dataset               *d = ch_dataset_range(0, 100, 1);

    ch_log_set_sink(ignore, NULL, CH_LOG_WARNING);
    d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = CH_OFF});
    MUST(ch_var_new(NULL, &(ch_var_spec){.name = "x", .shape = ch_shape_of(2)}, &var) == CH_OK);
    MUST(ch_optimizer_adam(0.5, NULL, NULL, &optimizer) == CH_OK);
    MUST(ch_function_new("f", step, NULL, &function) == CH_OK);
    MUST(ch_iterator_new(d, NULL, &iterator) == CH_OK);
    ch_dataset_unref(d);
    MUST(ch_iterator_save(iterator, &position, &position_bytes) == CH_OK);
    MUST(ch_checkpoint_new(&checkpoint) == CH_OK);
    MUST(ch_checkpoint_add_var(checkpoint, "x", var) == CH_OK);
    MUST(ch_checkpoint_add_optimizer(checkpoint, "o", optimizer) == CH_OK);
    MUST(ch_checkpoint_add_function(checkpoint, "f", function) == CH_OK);
    MUST(ch_checkpoint_add_iterator(checkpoint, "d", iterator) == CH_OK);
    MUST(ch_checkpoint_add_state(checkpoint, "s", &ops, NULL) == CH_OK);
}

static void reset(void)
{
    MUST(ch_iterator_restore(iterator, position, position_bytes) == CH_OK);
    MUST(ch_function_set_runs(function, 0) == CH_OK);
    ch__optimizer_drop_vars(optimizer, 0);
    memset(ch_tensor_data_mut(var->copy[0]), 0, 2 * sizeof(float));
    checkpoint->counter = 0;
    n_loads = 0;
}

/* ---- the checkpoint ---- */

static void add(items *x, const char *name, ch_dtype dtype, ch_shape shape, const void *data)
{
    ch_ckpt_item *i = &x->item[x->n];

    *i = (ch_ckpt_item){.name = name, .dtype = dtype, .whole = shape};
    if (dtype == CH_STR) {
        ch__ckpt_encode_strings(ch_shape_count(shape), data, &x->text[x->n], &i->crc);
        data = x->text[x->n].at;
        i->bytes = (int64_t)x->text[x->n].n;
    } else {
        i->bytes = ch__ckpt_bytes(dtype, shape);
    }
    x->data[x->n++] = data;
}

static ch_status fetch(void *arg, int i, int64_t from, int64_t n, const void **bytes)
{
    const items *x = arg;

    *bytes = (const char *)x->data[i] + from;
    (void)n;
    return CH_OK;
}

/* Writes the checkpoint. Returns the bytes of its files. */
static int64_t write_checkpoint(int shape, int64_t count, ch_str graph)
{
    static const float    numbers[] = {3, 4};
    static const double   rate = 0.25;
    static items          x;
    ch_str                where = {position, position_bytes}, both[2] = {graph, {"", 0}};
    const ch_shape        shapes[] = {ch_shape_scalar(), ch_shape_of(1), ch_shape_of(0),
                                      ch_shape_of(2)};
    ch_ckpt_write_options opt = {.no_sync = true, .no_direct = true};
    int64_t               bytes;

    x.n = 0;
    add(&x, "x/.ATTRIBUTES/VARIABLE_VALUE", CH_F32, ch_shape_of(2), numbers);
    add(&x, "x/.OPTIMIZER_SLOT/o/m/.ATTRIBUTES/VARIABLE_VALUE", CH_F32, ch_shape_of(2),
        numbers);
    add(&x, "x/.OPTIMIZER_SLOT/o/v/.ATTRIBUTES/VARIABLE_VALUE", CH_F32, ch_shape_of(2),
        numbers);
    add(&x, "o/iterations/.ATTRIBUTES/VARIABLE_VALUE", CH_I64, ch_shape_scalar(), &count);
    add(&x, "o/rate/.ATTRIBUTES/VARIABLE_VALUE", CH_F64, ch_shape_scalar(), &rate);
    add(&x, "f/.ATTRIBUTES/RUNS", CH_I64, ch_shape_scalar(), &count);
    add(&x, "d/.ATTRIBUTES/POSITION", CH_STR, ch_shape_scalar(), &where);
    add(&x, "s/.ATTRIBUTES/STATE", CH_I64, ch_shape_of(1), &count);
    add(&x, "save_counter/.ATTRIBUTES/VARIABLE_VALUE", CH_I64, ch_shape_scalar(), &count);
    if (shape % 8 == 4)
        add(&x, CH_OBJECT_GRAPH_KEY, CH_F32, ch_shape_of(2), numbers);
    else if (shape % 8 < 4)
        add(&x, CH_OBJECT_GRAPH_KEY, CH_STR, shapes[shape % 8], both);
    bytes = ch__ckpt_layout(x.n, x.item) + (1 << 12);
    MUST(ch__ckpt_write_data(file_to_write(), 0, 1, x.n, x.item, fetch, &x, &opt) == CH_OK);
    MUST(ch__ckpt_write_index(file_to_write(), 1, x.n, x.item, &opt) == CH_OK);
    for (int i = 0; i < x.n; i++)
        ch__bytes_builder_drop(&x.text[i]);
    return bytes;
}

static void remove_files(void)
{
    static const char *const suffix[] = {".index", ".data-00000-of-00001"};
    char                     path[160];

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s%s", file_to_write(), suffix[i]);
        (void)remove(path);
    }
}

/* Restores, and prints the report. After an error nothing has changed. */
static void restore_once(const char *prefix)
{
    ch_restored *r = NULL;
    ch_status    rc = ch_checkpoint_restore(checkpoint, prefix, NULL, &r);
    char         text[4096];
    void        *now = NULL;
    size_t       n = 0;

    if (rc == CH_OK) {
        ch_restored_print(r, text, sizeof(text));
        (void)!ch_restored_assert_consumed(r);
    } else {
        ch_var *const *all;

        MUST(((const float *)ch_tensor_data(var->copy[0]))[0] == 0);
        MUST(ch_optimizer_vars(optimizer, &all) == 0 && ch_function_runs(function) == 0);
        MUST(n_loads == 0 && checkpoint->counter == 0);
        if (rc != CH_RESOURCE_EXHAUSTED) {
            MUST(ch_iterator_save(iterator, &now, &n) == CH_OK);
            MUST(n == position_bytes && memcmp(now, position, n) == 0);
            ch_bytes_free(now);
        }
    }
    ch_restored_unref(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned h = fuzz_hash(data, size);
    int64_t  count = 0, live, bytes;
    char    *graph;

    if (size < 9)
        return 0;
    if (checkpoint == NULL) {
        begin();
        atexit(remove_files);
    }
    memcpy(&count, data + 1, sizeof(count));
    graph = fuzz_alone(data + 9, size - 9);
    bytes = write_checkpoint(data[0], count, (ch_str){graph, size - 9});
    free(graph);
    if (h % 16 == 0)
        with_failures(h / 16, restore_once, file_to_write());
    reset();
    live = ch__mem_live();
    ch__mem_watch(true);
    restore_once(file_to_write());
    MUST(ch__mem_peak() <= (16 << 20) + 2 * bytes);
    ch__mem_watch(false);
    reset();
    MUST(ch__mem_live() <= live + 65536); /* staging memory is kept */
    return 0;
}
