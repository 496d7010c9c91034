/* fuzz/restore.c -- restores a checkpoint with an arbitrary object graph into objects.
 *
 * The input: a byte with the shape of the graph's tensor and the options below, 8 bytes of all
 * counts in the checkpoint, then the graph. The graph may give any value of the checkpoint to
 * any object. A restore that fails must change nothing.
 *
 * A restore takes less time than threads that wake up and files that are created. So there is a
 * single thread (ch__cpu_count is replaced), and the files of all inputs are the same two.
 *
 * covers: src/save/match.c src/save/restore.c
 * longest: 1100
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/sys.h"
#include "ckpt/ckpt.h"
#include "ckpt/entry.h"
#include "ckpt/object_graph.h"
#include "ckpt/sstable.h"
#include "cohort/cohort.h"
#include "file/crc32c.h"
#include "file/help.h"
#include "save/save.h"
#include "train/model.h"
#include "train/parts.h"

enum { MOST_ITEMS = 20, MOST_BYTES = 1 << 16 };

/* Options in the first byte. Bits 0 to 2 are the shape of the graph's tensor: (), (1), (0), (2),
 * no string, and then there is no graph. */
enum {
    X_IS_F64 = 8,         /* the value of x in the checkpoint has another dtype */
    X_IS_COMPLEX = 16,    /* the same, and Cohort does not have the dtype */
    HAS_NO_STAGING = 32,  /* staging memory for h alone, without its master */
    STATE_FAILS = 64,     /* the program's own state cannot be loaded */
    KEEPS_RESTORED = 128, /* the checkpoint keeps the result */
};

/* A tensor of the checkpoint. */
typedef struct item {
    ch_ckpt_item about;
    const void  *data;
} item;

/* The objects of the program, which all inputs share. */
static ch_var        *var, *half;
static ch_optimizer  *optimizer;
static ch_function   *function;
static ch_iterator   *iterator;
static ch_model      *model;
static ch_checkpoint *checkpoint;
static void          *position; /* the first of the iterator */
static size_t         position_bytes;
static int            n_loads;
static bool           state_fails;
static kept_file      index_file, data_file;

/* Linked instead of the function of base/cpu.h. */
int __wrap_ch__cpu_count(void);

int __wrap_ch__cpu_count(void)
{
    return 1;
}

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
    return state_fails ? CH_ABORTED : CH_OK;
}

static void ignore(const ch_log_record *r, void *arg)
{
    (void)r;
    (void)arg;
}

static void remove_files(void)
{
    drop_file(&index_file);
    drop_file(&data_file);
}

static void begin(void)
{
    static const ch_state_ops ops = {NULL, load_state};
    ch_dataset               *d = ch_dataset_range(0, 100, 1);
    ch_layer                 *layer[] = {ch_layer_dense(1, NULL)};
    ch_model_options          opt = {.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 2)}}};

    ch_log_set_sink(ignore, NULL, CH_LOG_WARNING);
    d = ch_dataset_with_options(d, &(ch_dataset_options){.threads = CH_OFF});
    MUST(ch_var_new(NULL, &(ch_var_spec){.name = "x", .shape = ch_shape_of(2)}, &var) == CH_OK);
    MUST(ch_var_new(NULL,
                    &(ch_var_spec){.name = "h", .dtype = CH_BF16, .shape = ch_shape_of(2)},
                    &half) == CH_OK);
    MUST(ch_optimizer_adam(0.5, NULL, NULL, &optimizer) == CH_OK);
    MUST(ch_function_new("f", step, NULL, &function) == CH_OK);
    MUST(ch_iterator_new(d, NULL, &iterator) == CH_OK);
    MUST(ch_model_new(NULL, ch_layer_sequential("m", 1, layer), &opt, &model) == CH_OK);
    ch_dataset_unref(d);
    MUST(ch_iterator_save(iterator, &position, &position_bytes) == CH_OK);
    MUST(ch_checkpoint_new(&checkpoint) == CH_OK);
    MUST(ch_checkpoint_add_var(checkpoint, "x", var) == CH_OK);
    MUST(ch_checkpoint_add_optimizer(checkpoint, "o", optimizer) == CH_OK);
    MUST(ch_checkpoint_add_function(checkpoint, "f", function) == CH_OK);
    MUST(ch_checkpoint_add_iterator(checkpoint, "d", iterator) == CH_OK);
    MUST(ch_checkpoint_add_state(checkpoint, "s", &ops, NULL) == CH_OK);
    MUST(ch_checkpoint_add_var(checkpoint, "h", half) == CH_OK);
    MUST(ch_checkpoint_add_model(checkpoint, "m", model) == CH_OK);
    snprintf(index_file.path, sizeof(index_file.path), "%s.index", file_to_write());
    snprintf(data_file.path, sizeof(data_file.path), "%s.data-00000-of-00001", file_to_write());
    atexit(remove_files);
}

static void clear(ch_var *v)
{
    memset(ch_tensor_data_mut(v->copy[0]), 0, ch_tensor_bytes(v->copy[0]));
}

static void reset(void)
{
    ch_var *const *all;
    int            n = ch_model_vars(model, &all);

    ch_restored_unref(checkpoint->restored);
    checkpoint->restored = NULL;
    MUST(ch_iterator_restore(iterator, position, position_bytes) == CH_OK);
    MUST(ch_function_set_runs(function, 0) == CH_OK);
    ch__optimizer_drop_vars(optimizer, 0);
    ch__model_set_steps(model, 0);
    clear(var);
    clear(half);
    for (int i = 0; i < n; i++)
        clear(all[i]);
    checkpoint->counter = 0;
    n_loads = 0;
}

/* ---- the checkpoint ---- */

/* Appends an item. The names must ascend. */
static void add(item *x, int *n, const char *name, ch_dtype dtype, ch_shape shape,
                const void *data)
{
    MUST(*n < MOST_ITEMS && (*n == 0 || strcmp(x[*n - 1].about.name, name) < 0));
    x[*n].about = (ch_ckpt_item){
        .name = name, .dtype = dtype, .whole = shape, .bytes = ch__ckpt_bytes(dtype, shape)};
    x[(*n)++].data = data;
}

/* Appends strings, whose bytes go to `text`. */
static void add_strings(item *x, int *n, const char *name, ch_shape shape,
                        const ch_str *strings, ch_bytes_builder *text)
{
    add(x, n, name, CH_STR, shape, NULL);
    text->n = 0;
    ch__ckpt_encode_strings(ch_shape_count(shape), strings, text, &x[*n - 1].about.crc);
    x[*n - 1].about.bytes = (int64_t)text->n;
    x[*n - 1].data = text->at;
}

/* Writes the files of n items. */
static void put_items(int n, item *x)
{
    static char      data[MOST_BYTES];
    ch_sst_writer    w = {.has_ended = false};
    ch_bytes_builder value = {0};
    int64_t          end = 0;

    ch__ckpt_emit_header(&value, 1);
    ch__sst_add(&w, (ch_str){"", 0}, value.at, value.n);
    for (int i = 0; i < n; i++) {
        ch_ckpt_item *about = &x[i].about;
        int64_t       begin = end;

        end = ch__ckpt_layout_after(end, 1, about);
        MUST(end <= MOST_BYTES);
        memset(data + begin, 0, (size_t)(about->offset - begin));
        if (about->bytes > 0)
            memcpy(data + about->offset, x[i].data, (size_t)about->bytes);
        if (about->dtype != CH_STR)
            about->crc = ch__crc32c_mask(ch__crc32c(0, x[i].data, (size_t)about->bytes));
        value.n = 0;
        ch__ckpt_emit_entry(&value, about, about->whole);
        if (about->dtype == CH_U64) /* stands for complex64 */
            value.at[1] = 8;
        ch__sst_add(&w, (ch_str){about->name, strlen(about->name)}, value.at, value.n);
    }
    ch__sst_end(&w);
    MUST(!w.out.has_failed && !value.has_failed);
    put_file(&index_file, w.out.at, w.out.n);
    put_file(&data_file, data, (size_t)end);
    ch__bytes_builder_drop(&value);
    ch__sst_drop(&w);
}

/* Writes the checkpoint. Returns the bytes of its files, or more. */
static int64_t write_checkpoint(int options, int64_t count, ch_str graph)
{
    static const float      numbers[] = {3, 4};
    static const double     doubles[] = {3, 4};
    static const uint16_t   halves[] = {0x3f80, 0x4000};
    static ch_bytes_builder text[2];
    ch_str                  where = {position, position_bytes}, both[2] = {graph, {"", 0}};
    const ch_shape          one = ch_shape_scalar(), two = ch_shape_of(2);
    const ch_shape          shapes[] = {one, ch_shape_of(1), ch_shape_of(0), two};
    int                     shape = options % 8, n = 0;
    item                    x[MOST_ITEMS];

    if (shape == 4)
        add(x, &n, CH_OBJECT_GRAPH_KEY, CH_F32, two, numbers);
    else if (shape < 4)
        add_strings(x, &n, CH_OBJECT_GRAPH_KEY, shapes[shape], both, &text[0]);
    add_strings(x, &n, "d/.ATTRIBUTES/POSITION", one, &where, &text[1]);
    add(x, &n, "f/.ATTRIBUTES/RUNS", CH_I64, one, &count);
    add(x, &n, "h/.ATTRIBUTES/VARIABLE_VALUE", CH_BF16, two, halves);
    add(x, &n, "h/.OPTIMIZER_SLOT/o/m/.ATTRIBUTES/VARIABLE_VALUE", CH_F32, two, numbers);
    add(x, &n, "h/.OPTIMIZER_SLOT/o/v/.ATTRIBUTES/VARIABLE_VALUE", CH_F32, two, numbers);
    add(x, &n, "m/.ATTRIBUTES/STEPS", CH_I64, one, &count);
    add(x, &n, "m/dense/bias/.ATTRIBUTES/VARIABLE_VALUE", CH_F32, ch_shape_of(1), numbers);
    add(x, &n, "m/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE", CH_F32, ch_shape_of(2, 1), numbers);
    add(x, &n, "o/iterations/.ATTRIBUTES/VARIABLE_VALUE", CH_I64, one, &count);
    add(x, &n, "o/rate/.ATTRIBUTES/VARIABLE_VALUE", CH_F64, one, doubles);
    add(x, &n, "s/.ATTRIBUTES/STATE", CH_I64, ch_shape_of(1), &count);
    add(x, &n, "save_counter/.ATTRIBUTES/VARIABLE_VALUE", CH_I64, one, &count);
    if ((options & X_IS_COMPLEX) != 0)
        add(x, &n, "x/.ATTRIBUTES/VARIABLE_VALUE", CH_U64, two, doubles);
    else if ((options & X_IS_F64) != 0)
        add(x, &n, "x/.ATTRIBUTES/VARIABLE_VALUE", CH_F64, two, doubles);
    else
        add(x, &n, "x/.ATTRIBUTES/VARIABLE_VALUE", CH_F32, two, numbers);
    add(x, &n, "x/.OPTIMIZER_SLOT/o/m/.ATTRIBUTES/VARIABLE_VALUE", CH_F32, two, numbers);
    add(x, &n, "x/.OPTIMIZER_SLOT/o/v/.ATTRIBUTES/VARIABLE_VALUE", CH_F32, two, numbers);
    put_items(n, x);
    return x[n - 1].about.offset + x[n - 1].about.bytes + (1 << 12);
}

/* ---- the restore ---- */

static int options;

/* Checks that a restore has changed nothing. */
static void check_unchanged(bool is_out_of_memory)
{
    ch_var *const *all;
    void          *now = NULL;
    size_t         n = 0;

    ch__mem_fail_at(0); /* the call that was to fail may be left */
    ch__file_fail_at(0, 0);
    MUST(((const float *)ch_tensor_data(var->copy[0]))[0] == 0);
    MUST(((const uint16_t *)ch_tensor_data(half->copy[0]))[0] == 0);
    MUST(ch_model_vars(model, &all) == 2 && ch__model_steps(model) == 0);
    for (int i = 0; i < 2; i++)
        MUST(((const float *)ch_tensor_data(all[i]->copy[0]))[0] == 0);
    MUST(ch_optimizer_vars(optimizer, &all) == 0 && ch_function_runs(function) == 0);
    MUST(n_loads == 0 && checkpoint->counter == 0);
    if (is_out_of_memory)
        return;
    MUST(ch_iterator_save(iterator, &now, &n) == CH_OK);
    MUST(n == position_bytes && memcmp(now, position, n) == 0);
    ch_bytes_free(now);
}

/* Restores, and may print the report. After an error nothing has changed, unless the program's
 * own state has failed, or a read between the two phases (`may_change`). */
static void restore(const char *prefix, bool may_change, bool prints)
{
    bool         keeps = (options & KEEPS_RESTORED) != 0;
    ch_restored *r = NULL;
    ch_status    rc = ch_checkpoint_restore(
           checkpoint, prefix,
           &(ch_restore_options){.staging_bytes = (options & HAS_NO_STAGING) != 0 ? 5 : 0},
        keeps ? NULL : &r);
    char text[4096];

    if (rc == CH_OK && prints) {
        r = keeps ? checkpoint->restored : r;
        ch_restored_print(r, text, sizeof(text));
        (void)!ch_restored_assert_consumed(r);
    } else if (rc != CH_OK && !may_change && !(state_fails && n_loads > 0)) {
        check_unchanged(rc == CH_RESOURCE_EXHAUSTED);
    }
    if (!keeps)
        ch_restored_unref(r);
}

static void restore_once(const char *prefix)
{
    restore(prefix, (options & HAS_NO_STAGING) != 0, true);
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
        reset();
        MUST(ch_checkpoint_restore(checkpoint, file_to_write(),
                                   &(ch_restore_options){.staging_bytes = -1},
                                   NULL) == CH_INVALID_ARGUMENT);
    }
    options = data[0];
    state_fails = (options & STATE_FAILS) != 0;
    memcpy(&count, data + 1, sizeof(count));
    graph = fuzz_alone(data + 9, size - 9);
    bytes = write_checkpoint(options, count, (ch_str){graph, size - 9});
    free(graph);
    if (h % 16 == 0)
        with_any_failure(h / 16, 400, 60, restore_once, file_to_write());
    reset();
    live = ch__mem_live();
    ch__mem_watch(true);
    restore(file_to_write(), false, h / 16 % 16 == 0);
    MUST(ch__mem_peak() <= (16 << 20) + 2 * bytes);
    ch__mem_watch(false);
    reset();
    MUST(ch__mem_live() <= live + 65536); /* staging memory is kept */
    return 0;
}
