/* test/save/test_save.c -- saving and restoring: options, keys, names, errors, reports.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>

#include "../ckpt/bundle.h"
#include "base/mem.h"
#include "base/sys.h"
#include "ckpt/ckpt.h"
#include "help.h"
#include "slow_disk.h"

static bool has_key(const char *prefix, const char *key)
{
    ch_ckpt *c = NULL;
    bool     has;

    t_ok(ch__ckpt_open(prefix, &c));
    has = ch__ckpt_find(c, key) >= 0;
    ch__ckpt_close(c);
    return has;
}

static bool exists(const char *path)
{
    struct stat about;

    return stat(path, &about) == 0;
}

static ch_checkpoint *new_checkpoint(const char *name, ch_var *v)
{
    ch_checkpoint *c = NULL;

    t_ok(ch_checkpoint_new(&c));
    t_ok(ch_checkpoint_add_var(c, name, v));
    return c;
}

static float first_of(ch_var *v)
{
    ch_tensor *t = NULL;
    float      x;

    t_ok(ch_var_get(v, &t));
    x = *(const float *)ch_tensor_data(t);
    ch_tensor_unref(t);
    return x;
}

static void set_all(ch_var *v, float x)
{
    ch_tensor *t = t_f32(ch_var_shape(v), NULL);

    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ((float *)ch_tensor_data_mut(t))[i] = x;
    t_ok(ch_var_set(v, t));
    ch_tensor_unref(t);
}

/* CK-1, CK-2, CK-13, CK-14 */
static void keys_are_paths_of_names(void **state)
{
    static const char *const key[] = {
        "model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE",
        "model/dense/kernel/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE",
        "optimizer/iterations/.ATTRIBUTES/VARIABLE_VALUE",
        "a.Sb/.ATTRIBUTES/VARIABLE_VALUE",
        "step/.ATTRIBUTES/RUNS",
        "save_counter/.ATTRIBUTES/VARIABLE_VALUE",
        "_CHECKPOINTABLE_OBJECT_GRAPH",
        "_COHORT"};
    t_job   j;
    ch_var *v = t_var(NULL, "v", t_noise(ch_shape_of(3), 1));

    t_begin(&j, DEFAULT, NULL);
    t_ok(ch_checkpoint_add_var(j.checkpoint, "a/b", v));
    t_refused(ch_checkpoint_add_var(j.checkpoint, "a/b", v), CH_INVALID_ARGUMENT, "a/b",
              "in use");
    t_refused(ch_checkpoint_add_var(j.checkpoint, "save_counter", v), CH_INVALID_ARGUMENT,
              "save_counter", "reserved");
    t_steps(&j, 1);
    t_ok(ch_checkpoint_write(j.checkpoint, t_path("keys"), &(ch_write_options){.wait = true}));
    for (size_t i = 0; i < sizeof(key) / sizeof(key[0]); i++)
        if (!has_key(t_path("keys"), key[i]))
            fail_msg("no key %s", key[i]);
    assert_false(exists(t_path("checkpoint"))); /* write has no state file */
    t_end(&j);
    ch_var_unref(v);
    (void)state;
}

static int count_keys(const char *prefix, const char *part)
{
    ch_ckpt *c = NULL;
    int      n = 0;

    t_ok(ch__ckpt_open(prefix, &c));
    for (int i = 0; i < ch__ckpt_count(c); i++) {
        ch_ckpt_entry e;

        ch__ckpt_entry(c, i, &e);
        n += strstr(e.name, part) != NULL;
    }
    ch__ckpt_close(c);
    return n;
}

/* CK-14: slots of variables that are not part of the checkpoint are not saved */
static void slot_is_saved_only_if_its_variable_is(void **state)
{
    const ch_write_options quick = {.wait = true, .replace = true};
    ch_checkpoint         *c = NULL;
    ch_var *const         *var;
    t_job                  j;

    t_begin(&j, DEFAULT, NULL);
    t_steps(&j, 1);
    t_ok(ch_checkpoint_new(&c));
    t_ok(ch_checkpoint_add_optimizer(c, "optimizer", j.optimizer));
    t_ok(ch_checkpoint_write(c, t_path("slots"), &quick));
    assert_int_equal(count_keys(t_path("slots"), "optimizer/"), 2); /* iterations, rate */
    assert_int_equal(count_keys(t_path("slots"), ".OPTIMIZER_SLOT"), 0);
    assert_int_equal(ch_model_trainable(j.model, &var), 6);
    t_ok(ch_checkpoint_add_var(c, "v", var[0]));
    t_ok(ch_checkpoint_write(c, t_path("slots"), &quick));
    assert_int_equal(count_keys(t_path("slots"), "v/.OPTIMIZER_SLOT/optimizer/"), 2);
    assert_int_equal(count_keys(t_path("slots"), ".OPTIMIZER_SLOT"), 2);
    ch_checkpoint_unref(c);
    t_end(&j);
    (void)state;
}

/* The step of a checkpoint is that of the manager, or the runs of the functions. */
static void checkpoint_has_the_runs_of_its_functions_as_step(void **state)
{
    ch_ckpt *c = NULL;
    t_job    j;

    t_begin(&j, DEFAULT, NULL);
    for (int i = 0; i < 2; i++) {
        t_steps(&j, 3);
        t_ok(ch_checkpoint_write(j.checkpoint, t_path("runs"),
                                 &(ch_write_options){.wait = true, .replace = true}));
        t_ok(ch__ckpt_open(t_path("runs"), &c));
        assert_int_equal(ch__ckpt_metadata(c)->step, 3 * (i + 1));
        ch__ckpt_close(c);
    }
    t_end(&j);
    (void)state;
}

/* CK-2, CK-3 */
static void saves_are_numbered(void **state)
{
    ch_var        *v = t_var(NULL, "v", t_noise(ch_shape_of(3), 1));
    ch_checkpoint *c = new_checkpoint("v", v);
    char           path[600], small[4];

    for (int i = 1; i <= 3; i++) {
        t_ok(ch_checkpoint_save(c, t_path("n/x"), NULL, path, sizeof(path)));
        assert_int_equal(path[strlen(path) - 1], '0' + i);
    }
    t_refused(ch_checkpoint_save(c, t_path("n/x"), NULL, small, sizeof(small)),
              CH_INVALID_ARGUMENT, "fit", "x-4");
    ch_checkpoint_unref(c); /* waits for the write */

    c = new_checkpoint("v", v);
    t_ok(ch_checkpoint_restore(c, t_path("n"), NULL, NULL)); /* the newest of the directory */
    t_ok(ch_checkpoint_save(c, t_path("n/x"), NULL, path, sizeof(path)));
    assert_string_equal(path, t_path("n/x-4"));
    ch_checkpoint_unref(c);
    ch_var_unref(v);
    (void)state;
}

static void existing_checkpoint_is_replaced_only_on_request(void **state)
{
    ch_var        *v = t_var(NULL, "v", t_noise(ch_shape_of(3), 1));
    ch_checkpoint *c = new_checkpoint("v", v);

    set_all(v, 1);
    t_ok(ch_checkpoint_write(c, t_path("r"), NULL));
    set_all(v, 2);
    t_refused(ch_checkpoint_write(c, t_path("r"), NULL), CH_ALREADY_EXISTS, "r.index",
              "replace");
    t_ok(ch_checkpoint_restore(c, t_path("r"), NULL, NULL));
    assert_true(first_of(v) == 1);
    set_all(v, 2);
    t_ok(ch_checkpoint_write(c, t_path("r"), &(ch_write_options){.replace = true}));
    set_all(v, 3);
    t_ok(ch_checkpoint_restore(c, t_path("r"), NULL, NULL));
    assert_true(first_of(v) == 2);
    t_refused(ch_checkpoint_write(c, t_path("dir/"), NULL), CH_INVALID_ARGUMENT, "dir/",
              "name");
    t_refused(ch_checkpoint_save(c, t_path("dir/"), NULL, NULL, 0), CH_INVALID_ARGUMENT, "dir/",
              "name");
    assert_false(exists(t_path("dir")));
    ch_checkpoint_unref(c);
    ch_var_unref(v);
    (void)state;
}

/* The bytes on disk do not depend on how much memory a save may use. */
static void state_larger_than_staging_memory_is_saved(void **state)
{
    enum { N = 5 };
    ch_var        *v[N];
    ch_checkpoint *c = NULL;
    char           name[8];
    t_warnings     w;

    t_keep_warnings(&w);
    t_ok(ch_checkpoint_new(&c));
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "v%d", i);
        v[i] = t_var(NULL, name, t_noise(ch_shape_of(1000, 100 * (i + 1)), (unsigned)i + 1));
        t_ok(ch_checkpoint_add_var(c, name, v[i]));
    }
    for (int64_t limit = 1; limit < 8 << 20; limit = limit * 3 + 100000) {
        float want[N];

        for (int i = 0; i < N; i++)
            want[i] = first_of(v[i]);
        t_ok(ch_checkpoint_write(c, t_path("s"),
                                 &(ch_write_options){.staging_bytes = limit, .replace = true}));
        for (int i = 0; i < N; i++)
            set_all(v[i], -1); /* the state was taken before */
        t_ok(ch_checkpoint_restore(c, t_path("s"), NULL, NULL));
        for (int i = 0; i < N; i++)
            assert_true(first_of(v[i]) == want[i]);
    }
    t_show_warnings();
    assert_int_equal(w.n, 1); /* of many saves */
    assert_non_null(strstr(w.text, "staging_bytes is smaller than the state"));
    t_refused(ch_checkpoint_write(c, t_path("t"), &(ch_write_options){.staging_bytes = -1}),
              CH_INVALID_ARGUMENT, "staging_bytes", "negative");
    ch_checkpoint_unref(c);
    for (int i = 0; i < N; i++)
        ch_var_unref(v[i]);
    (void)state;
}

/* What a save has written, through descriptors with O_DIRECT and in all. */
typedef struct written {
    bool    is_direct[1024]; /* of each descriptor */
    int64_t direct, all;
} written;

static void note_write(void *arg, const ch_file_op *op)
{
    written *w = arg;

    if (op->fd < 0 || op->fd >= 1024)
        return;
    if (op->kind == CH_FILE_OPEN)
        w->is_direct[op->fd] = (op->flags & O_DIRECT) != 0;
    if (op->kind == CH_FILE_WRITE) {
        w->all += (int64_t)op->n;
        w->direct += w->is_direct[op->fd] ? (int64_t)op->n : 0;
    }
}

/* Where the file system has direct I/O, almost all bytes go through it: not those that follow the
 * last multiple of 4096, and not the index. */
static void save_writes_past_the_page_cache(void **state)
{
    static written w;
    ch_var        *a = t_var(NULL, "a", t_noise(ch_shape_of(1000, 1001), 1));
    ch_checkpoint *c = new_checkpoint("a", a);
    int            fd = open(t_path("probe"), O_WRONLY | O_CREAT | O_DIRECT, 0600);

    ch__file_observe(note_write, &w);
    t_ok(ch_checkpoint_write(c, t_path("direct"), &(ch_write_options){.wait = true}));
    ch__file_observe(NULL, NULL);
    assert_true(w.all > 4 * 1000 * 1001 && w.all < 4 * 1000 * 1001 + (64 << 10));
    if (fd >= 0) {
        assert_true(w.direct >= w.all - (64 << 10));
        close(fd);
    } else {
        assert_int_equal(errno, EINVAL);
    }
    ch_checkpoint_unref(c);
    ch_var_unref(a);
    (void)state;
}

/* Files that are not named by the index are ignored: data files of a checkpoint with more files
 * that was there before. A checkpoint that replaces this one removes them. */
static void stray_data_files_are_ignored(void **state)
{
    static const char *const stray[] = {"stray.data-00000-of-00002",
                                        "stray.data-00001-of-00002"};
    ch_var                  *a = t_var(NULL, "a", t_noise(ch_shape_of(7), 1));
    ch_checkpoint           *c = new_checkpoint("a", a);
    float                    want = first_of(a);

    for (int is_before = 0; is_before < 2; is_before++) {
        for (int k = 0; k < 2; k++) {
            if (k == is_before)
                t_ok(ch_checkpoint_write(c, t_path("stray"),
                                         &(ch_write_options){.wait = true, .replace = true}));
            for (int i = 0; i < 2 && k == 0; i++) {
                FILE *f = fopen(t_path(stray[i]), "w");

                assert_non_null(f);
                fputs("of another save", f);
                fclose(f);
            }
        }
        set_all(a, -1);
        t_ok(ch_checkpoint_restore(c, t_path("stray"), NULL, NULL));
        assert_true(first_of(a) == want);
        assert_int_equal(exists(t_path(stray[0])), !is_before);
        assert_int_equal(exists(t_path(stray[1])), !is_before);
    }
    ch_checkpoint_unref(c);
    ch_var_unref(a);
    (void)state;
}

/* CK-5, CK-9, SS-8 */
static void failed_restore_changes_nothing(void **state)
{
    ch_var        *a = t_var(NULL, "a", t_noise(ch_shape_of(3), 1));
    ch_var        *b = t_var(NULL, "b", t_noise(ch_shape_of(4), 2));
    ch_var        *other = t_var(NULL, "b", t_noise(ch_shape_of(5), 3));
    ch_checkpoint *c = new_checkpoint("a", a), *d;
    ch_tensor     *doubles = NULL;
    ch_var        *wide;

    t_ok(ch_checkpoint_add_var(c, "b", b));
    t_ok(ch_checkpoint_write(c, t_path("f"), &(ch_write_options){.wait = true}));
    ch_checkpoint_unref(c);

    d = new_checkpoint("a", a);
    t_ok(ch_checkpoint_add_var(d, "b", other));
    set_all(a, 5);
    t_refused(ch_checkpoint_restore(d, t_path("f"), NULL, NULL), CH_INVALID_ARGUMENT, "(4,)",
              "(5,)");
    assert_true(first_of(a) == 5);
    ch_checkpoint_unref(d);
    d = new_checkpoint("a", a);
    t_ok(ch_tensor_new(CH_F64, ch_shape_of(4), &doubles));
    wide = t_var(NULL, "b", doubles); /* the same shape */
    t_ok(ch_checkpoint_add_var(d, "b", wide));
    t_refused(ch_checkpoint_restore(d, t_path("f"), NULL, NULL), CH_INVALID_ARGUMENT, "f32(4,)",
              "f64(4,)");
    assert_true(first_of(a) == 5);
    ch_var_unref(wide);
    t_refused(ch_checkpoint_restore(d, t_path("none"), NULL, NULL), CH_NOT_FOUND, "none",
              "index");
    t_refused(ch_checkpoint_restore(d, t_path("f.data-00000-of-00001"), NULL, NULL),
              CH_NOT_FOUND, "f.data", "prefix");
    ch_checkpoint_unref(d);
    ch_var_unref(a);
    ch_var_unref(b);
    ch_var_unref(other);
    (void)state;
}

/* CK-10 */
static void report_names_what_did_not_match(void **state)
{
    ch_var        *a = t_var(NULL, "one", t_noise(ch_shape_of(3), 1));
    ch_var        *b = t_var(NULL, "two", t_noise(ch_shape_of(3), 2));
    ch_checkpoint *c = new_checkpoint("weights", a);
    ch_restored   *r = NULL;
    char           text[1000];

    t_ok(ch_checkpoint_write(c, t_path("p"), &(ch_write_options){.wait = true}));
    ch_checkpoint_unref(c);
    c = new_checkpoint("weight", b);
    t_ok(ch_checkpoint_restore(c, t_path("p"), NULL, &r));
    t_refused(ch_restored_assert_existing(r), CH_FAILED_PRECONDITION,
              "1 variable has no value in the checkpoint: weight/", "nearest: weights/");
    t_refused(ch_restored_assert_consumed(r), CH_FAILED_PRECONDITION, "weight/", "p");
    t_refused(ch_restored_assert_nontrivial(r), CH_FAILED_PRECONDITION, "weights/",
              "1 value of the checkpoint, and no object has it");
    ch_restored_print(r, text, sizeof(text));
    assert_non_null(strstr(text, "missing in the checkpoint: 1"));
    assert_non_null(strstr(text, "left over in the checkpoint: 1"));
    ch_restored_unref(ch_restored_expect_partial(r));
    ch_checkpoint_unref(c);
    ch_var_unref(a);
    ch_var_unref(b);
    (void)state;
}

/* A report is a sentence, of one value or of several. */
static void report_counts_one_value_or_several(void **state)
{
    static const char *const name[] = {"x", "y", "z"};
    char                     text[1000];
    ch_var                  *v[3];
    ch_checkpoint           *c = NULL;
    ch_restored             *r = NULL;

    t_ok(ch_checkpoint_new(&c));
    for (int i = 0; i < 3; i++) {
        v[i] = t_var(NULL, name[i], t_noise(ch_shape_of(3), (unsigned)i));
        t_ok(ch_checkpoint_add_var(c, name[i], v[i]));
    }
    t_ok(ch_checkpoint_write(c, t_path("three"), &(ch_write_options){.wait = true}));
    ch_checkpoint_unref(c);
    for (int n = 1; n <= 2; n++) {
        c = new_checkpoint("x", v[0]);
        if (n == 2)
            t_ok(ch_checkpoint_add_var(c, "y", v[1]));
        t_ok(ch_checkpoint_restore(c, t_path("three"), &(ch_restore_options){.partial = true},
                                   &r));
        t_refused(ch_restored_assert_consumed(r), CH_FAILED_PRECONDITION,
                  n == 1 ? "2 values of the checkpoint have no object"
                         : "1 value of the checkpoint has no object",
                  "z/");
        ch_restored_print(r, text, sizeof(text));
        assert_non_null(
            strstr(text, n == 1 ? ": 1 value has an object\n" : ": 2 values have an object\n"));
        ch_restored_unref(r);
        ch_checkpoint_unref(c);
    }
    for (int i = 0; i < 3; i++)
        ch_var_unref(v[i]);
    (void)state;
}

/* Restores a checkpoint of the variables "x" and "y" into "x". The log must say that a value is
 * not used, unless that is expected. */
static void restore_half(ch_var *x, bool by_call, bool by_option)
{
    ch_checkpoint *c = new_checkpoint("x", x);
    ch_restored   *r = NULL;
    t_warnings     w;

    t_keep_warnings(&w);
    t_ok(ch_checkpoint_restore(c, t_path("half"), &(ch_restore_options){.partial = by_option},
                               &r));
    t_ok(ch_restored_assert_existing(r)); /* it holds, and consumed does not */
    t_ok(ch_restored_assert_nontrivial(r));
    t_refused(ch_restored_assert_consumed(r), CH_FAILED_PRECONDITION, "y/.ATTRIBUTES",
              "no object");
    if (by_call)
        assert_ptr_equal(ch_restored_expect_partial(r), r);
    ch_restored_unref(r);
    t_show_warnings();
    if (by_call || by_option) {
        assert_int_equal(w.n, 0);
    } else {
        assert_int_equal(w.n, 1);
        assert_non_null(strstr(w.text, "1 value was not used: y/.ATTRIBUTES/"));
    }
    ch_checkpoint_unref(c);
}

/* CK-10, CK-11 */
static void unused_values_are_logged_unless_they_are_expected(void **state)
{
    ch_var        *x = t_var(NULL, "x", t_noise(ch_shape_of(3), 1));
    ch_var        *y = t_var(NULL, "y", t_noise(ch_shape_of(3), 2));
    ch_checkpoint *c = new_checkpoint("x", x);

    t_ok(ch_checkpoint_add_var(c, "y", y));
    t_ok(ch_checkpoint_write(c, t_path("half"), &(ch_write_options){.wait = true}));
    ch_checkpoint_unref(c);
    restore_half(x, false, false);
    restore_half(x, true, false);
    restore_half(x, false, true);
    ch_var_unref(x);
    ch_var_unref(y);
    (void)state;
}

/* CK-12: a checkpoint without an object graph, as TensorFlow 1 writes it, by the names of
 * variables */
static void checkpoint_without_object_graph_is_matched_by_names(void **state)
{
    static const float kernel[] = {1, 2, 3}, bias[] = {4, 5, 6};
    static t_bundle    b;
    ch_var            *v = t_var(NULL, "net/kernel", t_noise(ch_shape_of(3), 1));
    ch_var            *w = t_var(NULL, "other", t_noise(ch_shape_of(3), 2));
    ch_checkpoint     *c = new_checkpoint("k", v);
    ch_restored       *r = NULL;

    t_add(&b, "net/bias", CH_F32, ch_shape_of(3), bias);
    t_add(&b, "net/kernel", CH_F32, ch_shape_of(3), kernel);
    t_ok(t_write_bundle(&b, t_path("names"), 1, true, NULL));
    t_ok(ch_checkpoint_add_var(c, "b", w));
    t_ok(ch_checkpoint_restore(c, t_path("names"), NULL, &r));
    assert_true(t_copy_of(v, 0, 0) == 1 && t_copy_of(v, 0, 2) == 3);
    assert_true(t_copy_of(w, 0, 0) != 4);
    t_refused(ch_restored_assert_existing(r), CH_FAILED_PRECONDITION, "b/", "no value");
    t_refused(ch_restored_assert_consumed(r), CH_FAILED_PRECONDITION, "b/", "");
    ch_restored_unref(ch_restored_expect_partial(r));
    ch_checkpoint_unref(c);
    ch_var_unref(v);
    ch_var_unref(w);
    (void)state;
}

/* CK-12: names of variables; also full names in the object graph */
static void values_match_by_name_if_no_edge_leads_to_them(void **state)
{
    ch_var        *a = t_var(NULL, "unusual", t_noise(ch_shape_of(3), 1));
    ch_checkpoint *c = new_checkpoint("x", a);
    ch_restored   *r = NULL;

    set_all(a, 4);
    t_ok(ch_checkpoint_write(c, t_path("q"), &(ch_write_options){.wait = true}));
    ch_checkpoint_unref(c);
    c = new_checkpoint("another", a);
    set_all(a, 0);
    t_ok(ch_checkpoint_restore(c, t_path("q"), NULL, &r));
    assert_true(first_of(a) == 4);
    t_ok(ch_restored_assert_consumed(r));
    ch_restored_unref(r);
    ch_checkpoint_unref(c);
    ch_var_unref(a);
    (void)state;
}

typedef struct own_state {
    int64_t   number;
    int       loads;
    ch_status rc;
} own_state;

static ch_status save_own(void *self, ch_tuple **out)
{
    own_state  *s = self;
    ch_tensor  *t[2] = {NULL};
    ch_value   *v[2] = {NULL};
    const char *name[] = {"number", "a text/with . signs"};
    ch_status   rc;

    if (s->rc != CH_OK)
        return s->rc;
    t_ok(ch_tensor_scalar(CH_I64, (double)s->number, &t[0]));
    t_ok(ch_tensor_of_text("hello", &t[1]));
    for (int i = 0; i < 2; i++)
        t_ok(ch_value_new(CH_PLAIN, 1, &t[i], &v[i]));
    rc = ch_tuple_new(2, v, name, out);
    for (int i = 0; i < 2; i++) {
        ch_tensor_unref(t[i]);
        ch_value_unref(v[i]);
    }
    return rc;
}

static ch_status load_own(void *self, ch_tuple *state)
{
    own_state *s = self;
    ch_tensor *text = ch_value_at(ch_tuple_get(state, "a text/with . signs"), 0);

    s->number = *(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_get(state, "number"), 0));
    assert_memory_equal(((const ch_str *)ch_tensor_data(text))->data, "hello", 5);
    s->loads++;
    return CH_OK;
}

static void own_state_is_saved_as_a_tuple(void **state)
{
    static const ch_state_ops ops = {save_own, load_own}, none = {NULL, NULL};
    ch_var                   *a = t_var(NULL, "a", t_noise(ch_shape_of(3), 1));
    ch_checkpoint            *c = new_checkpoint("a", a);
    own_state                 s = {.number = 42};

    t_ok(ch_checkpoint_add_state(c, "own", &ops, &s));
    t_ok(ch_checkpoint_add_state(c, "none", &none, NULL));
    t_ok(ch_checkpoint_write(c, t_path("o"), &(ch_write_options){.wait = true}));
    s.number = 0;
    t_ok(ch_checkpoint_restore(c, t_path("o"), NULL, NULL));
    assert_int_equal(s.number, 42);
    assert_int_equal(s.loads, 1);
    s.rc = CH_ABORTED;
    t_refused(ch_checkpoint_write(c, t_path("o2"), NULL), CH_ABORTED, "own", "saving");
    assert_false(exists(t_path("o2.index")));
    ch_checkpoint_unref(c);
    ch_var_unref(a);
    (void)state;
}

enum { WRAPPED = 3 << 18 }; /* elements of the program's array: 3 MiB, so several writes */

static int32_t wrapped[WRAPPED];

/* Saves the program's array without a copy. */
static ch_status save_wrapped(void *self, ch_tuple **out)
{
    ch_tensor *t = NULL;
    ch_value  *v = NULL;
    ch_status  rc;

    t_ok(ch_tensor_wrap(CH_I32, ch_shape_of(WRAPPED), self, NULL, NULL, &t));
    t_ok(ch_value_new(CH_PLAIN, 1, &t, &v));
    rc = ch_tuple_new(1, &v, NULL, out);
    ch_value_unref(v);
    ch_tensor_unref(t);
    return rc;
}

static ch_status load_wrapped(void *self, ch_tuple *state)
{
    memcpy(self, ch_tensor_data(ch_value_at(ch_tuple_at(state, 0), 0)), sizeof(wrapped));
    return CH_OK;
}

static void fill_wrapped(int32_t x)
{
    for (int i = 0; i < WRAPPED; i++)
        wrapped[i] = x;
}

/* A save has copied such memory when it returns, or it has written it. */
static void wrapped_state_may_change_when_the_save_has_returned(void **state)
{
    static const ch_state_ops ops = {save_wrapped, load_wrapped};
    static const int64_t      staging[] = {0, 1};

    for (int i = 0; i < 2; i++) {
        ch_checkpoint *c = NULL;
        t_slow_disk    disk;

        t_ok(ch_checkpoint_new(&c));
        t_ok(ch_checkpoint_add_state(c, "wrapped", &ops, wrapped));
        fill_wrapped(1);
        if (i == 0)
            t_slow_disk_begin(&disk);
        t_ok(ch_checkpoint_write(
            c, t_path("wrapped"),
            &(ch_write_options){.staging_bytes = staging[i], .replace = true}));
        fill_wrapped(2);
        if (i == 0)
            t_open_disk(&disk);
        t_ok(ch_checkpoint_wait(c));
        ch__file_observe(NULL, NULL);
        t_ok(ch_checkpoint_restore(c, t_path("wrapped"), NULL, NULL));
        for (int k = 0; k < WRAPPED; k++)
            assert_int_equal(wrapped[k], 1);
        ch_checkpoint_unref(c);
    }
    (void)state;
}

/* CK-16: the error of a background write is returned once, by the next call. */
static void write_error_is_returned_once(void **state)
{
    ch_var        *a = t_var(NULL, "a", t_noise(ch_shape_of(3000), 1));
    ch_checkpoint *c = new_checkpoint("a", a);
    char           path[600];

    t_ok(ch_checkpoint_save(c, t_path("e/x"), NULL, path, sizeof(path)));
    t_ok(ch_checkpoint_wait(c));
    ch__file_fail_from(4, ENOSPC);
    t_ok(ch_checkpoint_save(c, t_path("e/x"), NULL, path, sizeof(path)));
    t_refused(ch_checkpoint_wait(c), CH_RESOURCE_EXHAUSTED, "x-2", "space");
    ch__file_fail_from(0, 0);
    t_ok(ch_checkpoint_wait(c));
    t_ok(ch_checkpoint_save(c, t_path("e/x"), NULL, path, sizeof(path)));
    assert_string_equal(path, t_path("e/x-3")); /* another number */
    t_ok(ch_checkpoint_wait(c));
    assert_false(exists(t_path("e/x-2.data-00000-of-00001")));
    ch_checkpoint_unref(c);
    ch_var_unref(a);
    (void)state;
}

/* Returns the size of a checkpoint with one data file. */
static int64_t bytes_of_checkpoint(const char *name)
{
    int64_t sum = 0;

    for (int i = 0; i < 2; i++) {
        char        path[80];
        struct stat about;

        snprintf(path, sizeof(path), "%s%s", name, i == 0 ? ".index" : ".data-00000-of-00001");
        assert_int_equal(stat(t_path(path), &about), 0);
        sum += about.st_size;
    }
    return sum;
}

/* Most of the files of many small variables is padding and names. */
static void plan_counts_the_padding_and_names_of_small_variables(void **state)
{
    enum { VARS = 300 };
    ch_var        *v[VARS];
    ch_checkpoint *c = NULL;
    char           text[2000], name[20];
    int64_t        least;

    t_ok(ch_checkpoint_new(&c));
    for (int i = 0; i < VARS; i++) {
        snprintf(name, sizeof(name), "v%d", i);
        v[i] = t_var(NULL, name, t_noise(ch_shape_scalar(), 1));
        t_ok(ch_checkpoint_add_var(c, name, v[i]));
    }
    ch_checkpoint_print_plan(c, text, sizeof(text));
    least = t_plan_row(text, "a full save writes at least", NULL);
    assert_true(least > (VARS - 1) * 64);
    t_ok(ch_checkpoint_write(c, t_path("small"), &(ch_write_options){.wait = true}));
    assert_true(least < bytes_of_checkpoint("small"));
    ch_checkpoint_print_plan(c, text, sizeof(text));
    assert_int_equal(t_plan_row(text, "the last full save wrote", NULL),
                     bytes_of_checkpoint("small"));
    ch_checkpoint_unref(c);
    for (int i = 0; i < VARS; i++)
        ch_var_unref(v[i]);
    (void)state;
}

/* The numbers of the plan are those of the variables, the files and the memory. All rows of the
 * table have the same length. */
static void plan_says_what_a_save_costs(void **state)
{
    ch_var        *a = t_var(NULL, "a", t_noise(ch_shape_of(256, 1024), 1));
    ch_var        *b = t_var(NULL, "b", t_noise(ch_shape_of(3), 2));
    ch_checkpoint *c = new_checkpoint("a", a);
    char           text[2000];
    int64_t        vars = 256 * 1024 * 4 + 3 * 4, states, memory, least, total;

    t_ok(ch_checkpoint_add_var(c, "b", b));
    ch_checkpoint_print_plan(c, text, sizeof(text));
    least = t_plan_row(text, "a full save writes at least", NULL);
    assert_true(least >= vars);
    assert_null(strstr(text, "positions")); /* the first save finds their bytes */
    assert_int_equal(t_plan_row(text, "a save holds in memory", NULL), vars);
    assert_non_null(strstr(text, "saves: 0"));
    t_ok(ch_checkpoint_write(c, t_path("plan"), &(ch_write_options){.wait = true}));
    ch_checkpoint_print_plan(c, text, sizeof(text));
    for (const char *row = text; strncmp(row, "saves:", 6) != 0; row = strchr(row, '\n') + 1)
        assert_int_equal(strchr(row, '\n') - row, strchr(text, '\n') - text);
    assert_int_equal(t_plan_row(text, "variables of this process", "2"), vars);
    assert_int_equal(t_plan_row(text, "variables on servers", "0"), 0);
    states = t_plan_row(text, "positions, other state", NULL);
    assert_true(states > 0); /* the counter of saves */
    total = t_plan_row(text, "the last full save wrote", NULL);
    assert_int_equal(total, bytes_of_checkpoint("plan"));
    assert_true(total >= vars + states && total >= least && total < least + 8192);
    memory = t_plan_row(text, "a save holds in memory", NULL);
    assert_true(memory >= vars && memory < vars + 3 * 4096);
    assert_null(strstr(text, "servers hold"));
    assert_non_null(strstr(text,
                           "saves: 1, of these deltas: 0; skipped because another was being "
                           "written: 0; failed: 0\n"));
    ch_checkpoint_unref(c);
    ch_var_unref(a);
    ch_var_unref(b);
    (void)state;
}

/* CK-1, CK-5: also a path that is NULL */
static void null_arguments_are_refused(void **state)
{
    ch_checkpoint         *c = NULL;
    ch_checkpoint_manager *m = NULL;

    t_ok(ch_checkpoint_new(&c));
    t_refused(ch_checkpoint_new(NULL), CH_INVALID_ARGUMENT, "out", "NULL");
    t_refused(ch_checkpoint_add_var(NULL, "v", NULL), CH_INVALID_ARGUMENT, "checkpoint",
              "NULL");
    t_refused(ch_checkpoint_add_var(c, NULL, NULL), CH_INVALID_ARGUMENT, "name", "NULL");
    t_refused(ch_checkpoint_add_var(c, "v", NULL), CH_INVALID_ARGUMENT, "v", "NULL");
    t_refused(ch_checkpoint_add_model(c, "v", NULL), CH_INVALID_ARGUMENT, "v", "NULL");
    t_refused(ch_checkpoint_add_state(c, "v", NULL, NULL), CH_INVALID_ARGUMENT, "ops", "NULL");
    t_refused(ch_checkpoint_write(NULL, "x", NULL), CH_INVALID_ARGUMENT, "checkpoint", "NULL");
    t_refused(ch_checkpoint_write(c, NULL, NULL), CH_INVALID_ARGUMENT, "prefix", "NULL");
    t_refused(ch_checkpoint_restore(c, NULL, NULL, NULL), CH_INVALID_ARGUMENT, "path", "NULL");
    t_refused(ch_checkpoint_wait(NULL), CH_INVALID_ARGUMENT, "checkpoint", "NULL");
    t_refused(ch_restored_assert_consumed(NULL), CH_INVALID_ARGUMENT, "restore", "NULL");
    t_refused(ch_checkpoint_manager_new(c, NULL, NULL, &m), CH_INVALID_ARGUMENT, "directory",
              "NULL");
    t_refused(ch_checkpoint_manager_save(NULL, false, NULL), CH_INVALID_ARGUMENT, "manager",
              "NULL");
    assert_null(ch_restored_expect_partial(NULL));
    ch_restored_unref(NULL);
    ch_checkpoint_manager_unref(NULL);
    ch_checkpoint_unref(NULL);
    ch_checkpoint_unref(c);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_paths_of_names),
        cmocka_unit_test(slot_is_saved_only_if_its_variable_is),
        cmocka_unit_test(checkpoint_has_the_runs_of_its_functions_as_step),
        cmocka_unit_test(saves_are_numbered),
        cmocka_unit_test(existing_checkpoint_is_replaced_only_on_request),
        cmocka_unit_test(state_larger_than_staging_memory_is_saved),
        cmocka_unit_test(save_writes_past_the_page_cache),
        cmocka_unit_test(stray_data_files_are_ignored),
        cmocka_unit_test(failed_restore_changes_nothing),
        cmocka_unit_test(report_names_what_did_not_match),
        cmocka_unit_test(report_counts_one_value_or_several),
        cmocka_unit_test(unused_values_are_logged_unless_they_are_expected),
        cmocka_unit_test(checkpoint_without_object_graph_is_matched_by_names),
        cmocka_unit_test(values_match_by_name_if_no_edge_leads_to_them),
        cmocka_unit_test(own_state_is_saved_as_a_tuple),
        cmocka_unit_test(wrapped_state_may_change_when_the_save_has_returned),
        cmocka_unit_test(write_error_is_returned_once),
        cmocka_unit_test(plan_says_what_a_save_costs),
        cmocka_unit_test(plan_counts_the_padding_and_names_of_small_variables),
        cmocka_unit_test(null_arguments_are_refused),
    };

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}
